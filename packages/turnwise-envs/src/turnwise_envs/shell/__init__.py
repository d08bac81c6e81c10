"""A terminal in a sandbox."""
