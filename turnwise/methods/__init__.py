"""Methods: published algorithms that are more than a credit function. One file is one method, or several that share their
parts. The files of this folder are found by themselves (`config/plugins.py:look_in`): there is no list to extend. `registry.py` has their
stages by name."""

from turnwise.methods.registry import Brings, method, methods, model, model_kinds, plan, plans, schedule, schedules, signal, signals
from turnwise.methods.steps import ScheduleView, Step

__all__ = [
    "Brings",
    "ScheduleView",
    "Step",
    "method",
    "methods",
    "model",
    "model_kinds",
    "plan",
    "plans",
    "schedule",
    "schedules",
    "signal",
    "signals",
]
