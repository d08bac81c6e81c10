"""Slow references of the methods: plain Python loops written from the formulas or the authors' code, without a look at the fast
code. `golden` holds what functions of the authors returned on random batches."""
