"""General-purpose code: files, seeds, the terminal, locks, errors."""
