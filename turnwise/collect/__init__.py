"""Collecting: tasks, environments, contexts and an engine become trajectories."""
