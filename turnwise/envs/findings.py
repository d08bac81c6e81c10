"""The checker's records: the episodes that it played, and the broken rules that it found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition


@dataclass(frozen=True)
class Problem:
    """One broken rule: its name, what was observed and where, and the lines of the user's file that caused it."""

    rule: str
    seen: str
    lines: str = ""


@dataclass
class Report:
    """The checker's findings. `ok` is true if there are no problems; notes are informative but not problems."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    episodes: int = 0
    turns: int = 0
    won: int = 0
    snapshot_bytes: int | None = None  # the largest one; none where there are no snapshots

    @property
    def ok(self) -> bool:
        return not self.problems

    def add(self, rule: str, seen: str, lines: str = "") -> None:
        """Keep only the first occurrence per rule."""
        if all(problem.rule != rule for problem in self.problems):
            self.problems.append(Problem(rule, " ".join(seen.split())[:400], lines))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass
class Script:
    """One episode: the actions and their results, to be compared with a replay."""

    task: Task
    seed: int
    first: Observation
    actions: list[str] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)


def essence(answer: Any) -> tuple[Any, ...]:
    """What must be equal in two equal results: text, actions, anchor and, for a transition, reward and end."""
    if isinstance(answer, Transition):
        return (*essence(answer.observation), answer.reward, answer.done, answer.success, dict(answer.others))
    anchor = answer.anchor
    return (answer.text, answer.actions, anchor.tobytes() if hasattr(anchor, "tobytes") else repr(anchor), answer.seat)
