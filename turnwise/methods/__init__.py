"""Methods: published algorithms that are more than a credit function. One file is one method; `registry.py` has its stages by name."""

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
