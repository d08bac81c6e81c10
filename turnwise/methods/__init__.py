"""Methods: published algorithms that are more than a credit function. One file is one method; `registry.py` has its stages by name."""
