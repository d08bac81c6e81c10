"""Weights & Biases, and Trackio, whose client has the same calls: `init` gives a run, which takes lines and is finished.

Weights & Biases works without a network if `WANDB_MODE=offline` is set (or the option `mode = "offline"`): what is written under the run's
folder can be sent later with `wandb sync`. Trackio keeps everything on this machine, unless told otherwise; its files are in the folder
`TRACKIO_DIR`, and `trackio show` shows them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.runs.trackers.base import identity, register
from turnwise.util.errors import MissingExtra

OWN = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}  # the run's metrics and no others


class Service:
    """A client of that name, which is also the name of its extra."""

    client_name: str

    def __init__(self, project: str = "turnwise", **options: Any):
        try:
            self._client: Any = importlib.import_module(self.client_name)
        except ImportError:
            raise MissingExtra(f"the tracker {self.client_name}", self.client_name) from None
        self._options = {"project": project, **options}
        self._run: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


@register("wandb")
class Wandb(Service):
    """Weights & Biases, with or without a network.

    Options: `project`, and whatever else `wandb.init` takes (entity, group, tags, mode …)."""

    client_name = "wandb"

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._run = self._client.init(
            id=identity(folder, "wandb"),  # a resumed run continues the same one
            resume="allow",
            name=folder.name,
            dir=str(folder),
            config=dict(config),
            settings=self._client.Settings(console="off", silent=True),  # the terminal is the progress display's
            **self._options,
        )


@register("trackio")
class Trackio(Service):
    """Trackio, which keeps everything on this machine.

    Options: `project`, and whatever else `trackio.init` takes (group, space_id …)."""

    client_name = "trackio"

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        name = f"{folder.name}-{identity(folder, 'trackio')}"  # Trackio knows a run by its name alone: it must not be another's
        self._run = self._client.init(name=name, resume="allow", config=dict(config), **(OWN | self._options))
