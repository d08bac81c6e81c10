"""A recipe: load → merge → validate → resolve names. The settings of each part stand beside the part; `schema.py` puts them together."""
