"""Trackers: where a run's metrics go besides metrics.jsonl. One file a tracker; `base.py` says what a tracker is."""

from turnwise.runs.trackers.base import TRACKERS, Tracker, Trackers, check_names, make_trackers

__all__ = ["TRACKERS", "Tracker", "Trackers", "check_names", "make_trackers"]
