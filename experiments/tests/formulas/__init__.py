"""The formulas of the methods as slow loops, written without a look at the fast code. Statistics come from `tests/references/forms.py`."""
