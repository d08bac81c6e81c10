"""Trackers send a run's metrics to other services, in addition to metrics.jsonl. `base.py` defines what a tracker is."""

from turnwise.runs.trackers.base import Tracker, Trackers, check_names, known, make_trackers, register

__all__ = ["Tracker", "Trackers", "check_names", "known", "make_trackers", "register"]
