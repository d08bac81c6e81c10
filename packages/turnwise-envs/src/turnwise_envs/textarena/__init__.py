"""The games of textarena."""
