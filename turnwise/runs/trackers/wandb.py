"""Weights & Biases. Works without a network if `WANDB_MODE=offline` is set (or the option `mode = "offline"`): what is written under the
run's folder can be sent later with `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.runs.trackers.base import identity, register
from turnwise.util.errors import MissingExtra


@register("wandb")
class Wandb:
    """Weights & Biases, with or without a network.

    Options: `project`, and whatever else `wandb.init` takes (entity, group, tags, mode …)."""

    def __init__(self, project: str = "turnwise", **options: Any):
        try:
            import wandb
        except ImportError:
            raise MissingExtra("the tracker wandb", "wandb") from None
        self._wandb, self._options = wandb, {"project": project, **options}
        self._run: Any = None

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._run = self._wandb.init(
            id=identity(folder, "wandb"),  # a resumed run continues the same one
            resume="allow",
            name=folder.name,
            dir=str(folder),
            config=dict(config),
            settings=self._wandb.Settings(console="off", silent=True),  # the terminal is the progress display's
            **self._options,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
