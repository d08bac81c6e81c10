"""Trackers: where a run's metrics go besides metrics.jsonl. One file a tracker; `base.py` says what a tracker is."""

from turnwise.runs.trackers.base import Tracker, Trackers, check_names, known, make_trackers, register

__all__ = ["Tracker", "Trackers", "check_names", "known", "make_trackers", "register"]
