"""Trackio: a tracker that keeps everything on this machine, unless told otherwise. Look at it with `trackio show`; its files are in the
folder `TRACKIO_DIR`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.runs.trackers.base import identity, register
from turnwise.util.errors import MissingExtra

OWN = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}  # the run's metrics and no others


@register("trackio")
class Trackio:
    """Trackio, which keeps everything on this machine.

    Options: `project`, and whatever else `trackio.init` takes (group, space_id …)."""

    def __init__(self, project: str = "turnwise", **options: Any):
        try:
            import trackio
        except ImportError:
            raise MissingExtra("the tracker trackio", "trackio") from None
        self._trackio, self._options = trackio, {"project": project, **OWN, **options}
        self._run: Any = None

    def open(self, folder: Path, config: Mapping[str, Any]) -> None:
        name = f"{folder.name}-{identity(folder, 'trackio')}"  # Trackio knows a run by its name alone: it must not be another's
        self._run = self._trackio.init(name=name, resume="allow", config=dict(config), **self._options)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
