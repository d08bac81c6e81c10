"""Logs of other people's agents: read them, and find which turns lose the tasks. Nothing is trained, and no model is needed."""
