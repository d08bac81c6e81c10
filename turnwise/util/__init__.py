"""What knows nothing of this field: files, seeds, the terminal, locks, errors."""
