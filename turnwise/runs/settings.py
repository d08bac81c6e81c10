"""`[run]`: what a run stores."""

from __future__ import annotations

from pydantic import Field

from turnwise.config.section import Options, Section


class RunSection(Section):
    """What a run stores."""

    checkpoint_every: int = Field(10, ge=0)
    """Iterations between checkpoints, with one at the end; 0: no checkpoints, for short runs. Such a run starts over when resumed."""
    keep_checkpoints: int = Field(2, ge=1)
    """Number of recent checkpoints to keep; the best by evaluation is always kept."""
    keep_rollouts: int | None = Field(10, ge=0)
    """Number of recent iterations whose rollouts are kept on disk; none: all."""
    trackers: list[str] = []
    """Where metrics go in addition to metrics.jsonl: tensorboard, wandb, trackio, or path/to/file.py:Class."""
    tracker_options: dict[str, Options] = {}
    """Options of the trackers by name, for example wandb = {project = "mine", mode = "offline"}."""
