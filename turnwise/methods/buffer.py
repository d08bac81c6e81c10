"""Attempts of earlier batches, kept to be learned from again: what plans with a buffer share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.data.rollouts import Trajectory
from turnwise.data.schema import from_rows, to_rows
from turnwise.methods.planning import Places, Plan

REPLAYED = "turn.replayed"
REPLAY_GROUP = -1
Size = Annotated[int, Help("earlier attempts that are kept; the oldest goes first", low=0)]
Warmup = Annotated[int, Help("iterations in which only the critics learn", low=0)]


class Buffer(Plan):
    """The base of plans that keep attempts. The buffer and the number of batches are their state."""

    def __init__(self, size: int, replays: int, warmup: int):
        self.size, self.replays, self.warmup = size, replays, warmup
        self.kept: list[Trajectory] = []  # the oldest first
        self.batches = 0

    def drawn(self, places: Places, seed: int) -> list[Trajectory]:
        """Some of the attempts that are kept, as attempts of this batch."""
        chosen = random.Random(seed).sample(self.kept, min(self.replays, len(self.kept)))
        return [places.adopt(one, REPLAY_GROUP) for one in chosen]

    def keep(self, found: Sequence[Trajectory]) -> None:
        """A batch is composed: keep its new attempts."""
        self.kept = [*self.kept, *found][-self.size :] if self.size else []
        self.batches += 1

    @property
    def warming(self) -> float:
        """1 where only the critics learn."""
        return float(self.batches < self.warmup)

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches, "kept": [to_rows([one], tokens=True, reports=True) for one in self.kept]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]
        self.kept = [from_rows(rows, "the buffer of attempts")[0] for rows in state["kept"]]


def noted(trajectory: Trajectory, replayed: float, critic_only: float) -> Trajectory:
    """The trajectory with notes on its turns: from an earlier batch or not, for the critics alone or not."""
    notes = {"replayed": replayed, "critic_only": critic_only}
    return replace(trajectory, turns=[replace(turn, notes={**turn.notes, **notes}) for turn in trajectory.turns])


def counted(found: Sequence[Trajectory], old: Sequence[Trajectory], kept: int) -> dict[str, float]:
    """Counts for the log. Success and reward are those of the new attempts, if there are any."""
    n = len(found)
    counts = {"replayed": len(old), "buffer": kept}
    own = {"success": sum(one.success for one in found) / n, "reward": sum(one.reward for one in found) / n} if found else {}
    return {name: float(count) for name, count in (counts | own).items()}
