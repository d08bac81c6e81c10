"""Puts the parts of a run together from its recipe."""
