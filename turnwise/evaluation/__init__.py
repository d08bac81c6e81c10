"""Panels, prompting baselines, statistics, sweeps."""
