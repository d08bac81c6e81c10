"""Slow references of the methods: plain Python loops written from the formulas, without a look at the fast code."""
