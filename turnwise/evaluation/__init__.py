"""Prompting baselines, replays, rescoring, sweeps. Panels are in collect/panel.py, statistics in util/statistics.py."""
