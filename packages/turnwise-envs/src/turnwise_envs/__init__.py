"""Third-party environments for Turnwise, one folder each. `plugin.py` registers them; a package is imported only when one is made."""
