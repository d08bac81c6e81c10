"""Stub until the real one lands."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnwise.config.options import Registry

Piece = Callable[..., Any]


def _load() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")


schedules: Registry[Piece] = Registry("schedule", _load)
schedule = schedules.register
