"""`[cluster]`: how many processes learn and play, and how far playing may run ahead."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from turnwise.config.section import Section


class Cluster(Section):
    """Train over several processes, GPUs or nodes with Ray; without it, everything runs in one process. docs/guides/cluster.md."""

    engines: int = Field(1, ge=1)
    """Number of engines. Each is a process with its own copy of the weights, and plays whole groups with its own environments."""
    learners: int = Field(1, ge=1)
    """Number of processes that learn together. 1: the process that runs the loop."""
    staleness: int = Field(0, ge=0, le=8)
    """How many updates old the weights that sample a batch may be. 0: in step; with one engine, exactly as without a cluster."""
    correct: bool = True
    """With a staleness above 0, correct for the age of the data with importance weights: those that objective.importance names, or
    truncated ones. Old log-probs are then the learner's."""
    placement: Literal["colocated", "apart"] = "colocated"
    """On GPUs: learners and engines share them, or have separate ones."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs per engine; more than 1 needs engine.name=vllm."""
    address: str | None = None
    """The address of a running Ray cluster (host:port, or auto); none: Ray is started on this machine."""
    transfer: Literal["auto", "store", "ipc"] = "auto"
    """How weights reach the engines: store (shared memory of Ray, works everywhere), ipc (the same GPU), auto (chosen by where learners and
    engines are)."""
    deadline: float = Field(600.0, gt=0)
    """Seconds without any progress after which a process counts as lost."""
    retries: int = Field(2, ge=0)
    """How often a group is played again after the process that played it was lost. Then its attempts count as faults."""

    @field_validator("transfer", mode="before")
    @classmethod
    def _of_earlier_versions(cls, value: Any) -> Any:
        """Recipes and records of runs may name a way that is gone: `store` gives the same weights."""
        return "store" if value == "broadcast" else value
