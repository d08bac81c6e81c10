"""What a training run leaves, as `tw.train` returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a training run leaves: its folder, its summary, and whether it was interrupted before the end."""

    folder: Path
    summary: Mapping[str, Any]
    interrupted: bool = False
    metrics: list[dict[str, Any]] = field(default_factory=list, repr=False)
