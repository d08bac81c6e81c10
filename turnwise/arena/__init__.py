"""The arena: methods on the same tasks, seeds and budgets. A file says what is compared (`plan.py`), cells of it are run (`run.py`), each
run leaves a card (`card.py`), and the report is made from cards alone (`report.py`, with `scores.py` for its statistics)."""
