"""TensorBoard: event files under the run's folder. Look at them with `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.runs.trackers.base import register
from turnwise.util.errors import MissingExtra

FOLDER = "tensorboard"


@register("tensorboard")
class TensorBoard:
    """TensorBoard's event files in the run's folder.

    A resumed run adds an event file next to the earlier ones; TensorBoard shows them as one."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("the tracker tensorboard", "tensorboard") from None
        self._make = SummaryWriter
        self._writer: Any = None

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._writer = self._make(str(folder / FOLDER))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a run may be killed at any moment

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
