"""The run folder: its files, checkpoints and logs, and what reads them again."""
