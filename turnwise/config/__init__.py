"""The typed config, recipes and overrides, and the names and files that a recipe may refer to."""
