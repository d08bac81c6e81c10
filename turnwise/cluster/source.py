"""Where batches come from on a cluster, and the engines of a cluster as one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.cluster.crew import Crew
from turnwise.cluster.weights import Sender
from turnwise.collect.source import LocalSource
from turnwise.engines.reports import COLUMNS
from turnwise.util.errors import TurnwiseError


class RemoteEngine:
    """All engines as one: it passes weights on. What is played goes through a collector. `waits`: the learner's weights may not change
    before all engines have read them."""

    def __init__(self, crew: Crew, sender: Sender, waits: bool = False):
        self.crew, self.version, self.reports, self.pending = crew, 0, tuple(COLUMNS), 0
        self._sender, self._waits = sender, waits

    def publish(self, version: int, weights: Any = None) -> None:
        """The learner's weights have this version now: every engine gets them before it plays again."""
        self.version = version
        self._sender.publish(version)
        self.crew.publish(version, self._sender.send)
        if self._waits:
            self.crew.settle()

    def refresh(self) -> None:
        """The learner's weights have changed."""
        self.publish(self.version)

    def submit(self, requests: Sequence[Any]) -> None:
        raise TurnwiseError("the engines of a cluster take whole attempts, not requests")

    def poll(self, wait: bool = True) -> list[Any]:
        return []

    def release(self, sequence: int) -> None: ...

    def close(self) -> None:
        self.crew.close()


@dataclass
class ClusterSource(LocalSource):
    """Collects with the engines of a cluster."""
