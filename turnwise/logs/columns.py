"""The attempts of a log as columns of integers: one pass over the turns, everything after it is numpy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from turnwise.credit.segments import pair, segment_count, segment_first
from turnwise.data.anchors import Ints, encode
from turnwise.data.rollouts import FAULTS, Bools, Trajectory
from turnwise.logs.grouping import Words, normal

Outcome = Literal["success", "return above the task's median", "none"]
NO_ERROR = -1
SPEECH = "(text)"  # the tool of a turn that calls none
LONGEST_NORMALISED = 1_000
VARIES = re.compile(r"\d(?:[\da-f-]{7,}|(?:[.,:]?\d)*)")  # numbers, times, ids in hexadecimal
VERB = re.compile(r"[^\s\[({<:]{1,40}")


def common_form(text: str) -> str:
    """A text without what differs between tasks: numbers and ids become #, white space becomes one blank."""
    return " ".join(VARIES.sub("#", text[:LONGEST_NORMALISED]).split())


class Names:
    """Texts as integers, in order of first occurrence."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.words = Words()
        self._codes: dict[str, int] = {}
        self._forms: dict[int, int] = {}

    def __call__(self, text: str) -> int:
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code

    def form(self, code: int) -> int:
        """The code of a text's common form."""
        if code not in self._forms:
            self._forms[code] = self(common_form(self.texts[code]))
        return self._forms[code]


@dataclass(frozen=True, eq=False)
class Turns:
    """One entry per turn, in order of attempt and time. `attempt`, `task` and `won` count attempts with turns only, in the order of
    `trajectories`. Of actions, observations, results and errors there is the code of the text and of its common form."""

    trajectories: list[Trajectory]
    names: Names
    outcome: Outcome
    task: Ints  # of each attempt
    won: Bools  # of each attempt
    attempt: Ints
    t: Ints
    state: Ints
    next_state: Ints  # −1 after the last turn, unless the log has it
    observation: Ints
    observation_form: Ints
    action: Ints
    action_form: Ints
    tool: Ints
    result: Ints
    error: Ints
    last: Bools

    @cached_property
    def tasks(self) -> int:
        return int(self.task.max(initial=-1)) + 1

    def first(self, context: Ints, rows: Ints) -> Ints:
        """Of these rows, the first of each attempt in each context."""
        visit, visits = pair(context, self.attempt[rows])
        return rows[np.sort(segment_first(np.arange(len(rows)), visit, visits))]


def turns_of(trajectories: Sequence[Trajectory]) -> Turns:
    """The columns of all attempts that have turns and were not ended by a fault of the machinery."""
    usable = [trajectory for trajectory in trajectories if trajectory.turns and trajectory.stop not in FAULTS]
    usable.sort(key=lambda trajectory: (_order(trajectory.group), _order(trajectory.id)))
    names, rows = Names(), [(trajectory, turn) for trajectory in usable for turn in trajectory.turns]
    lengths = np.array([len(trajectory.turns) for trajectory in usable], np.int64)
    last = np.zeros(len(rows), np.bool_)
    last[np.cumsum(lengths) - 1] = True

    anchors = [turn.observation if turn.anchor is None else turn.anchor for _, turn in rows]
    finals = [trajectory.final_anchor for trajectory in usable]
    codes, _ = encode({"anchor": anchors, "next_anchor": finals})
    next_state = np.append(codes["anchor"][1:], 0)
    next_state[last] = codes["next_anchor"]

    seen = np.fromiter((names(turn.observation) for _, turn in rows), np.int64, len(rows))
    action = np.fromiter((names(turn.action or turn.response) for _, turn in rows), np.int64, len(rows))
    tool = np.fromiter((names(_tool(turn.info, turn.action)) for _, turn in rows), np.int64, len(rows))
    after = np.append(seen[1:], 0)
    result = np.fromiter(
        (
            names.form(names(str(given))) if (given := turn.info.get("result")) is not None else names.form(int(following))
            for (_, turn), following in zip(rows, after, strict=True)
        ),
        np.int64,
        len(rows),
    )
    error = np.fromiter((_error(turn, names) for _, turn in rows), np.int64, len(rows))
    groups: dict[Any, int] = {}
    task = np.array([groups.setdefault(trajectory.group, len(groups)) for trajectory in usable], np.int64)
    won, outcome = _outcomes(usable, task)
    return Turns(
        usable,
        names,
        outcome,
        task,
        won,
        attempt=np.repeat(np.arange(len(usable)), lengths),
        t=np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths),
        state=codes["anchor"],
        next_state=next_state,
        observation=seen,
        observation_form=_forms(seen, names),
        action=action,
        action_form=_forms(action, names),
        tool=tool,
        result=result,
        error=error,
        last=last,
    )


def _order(label: int | str) -> tuple[bool, int, str]:
    return (True, 0, label) if isinstance(label, str) else (False, label, "")


def _forms(codes: Ints, names: Names) -> Ints:
    return np.fromiter(map(names.form, codes.tolist()), np.int64, len(codes))


def _tool(info: Any, action: str) -> str:
    """The tool that a log names; without one, the first word of the action."""
    if "tool" in info:
        return str(info["tool"] or SPEECH)
    match = VERB.match(action.lstrip())
    return match.group() if match else SPEECH


def _error(turn: Any, names: Names) -> int:
    text = turn.info.get("error")
    if text:
        return names.form(names(normal(str(text), names.words)))
    return NO_ERROR if turn.valid else names("(the response has no valid action)")


def _outcomes(trajectories: Sequence[Trajectory], task: Ints) -> tuple[Bools, Outcome]:
    """Which attempts won: by success if it varies within a task, else by a return above the task's median if returns vary."""
    won = np.array([trajectory.success for trajectory in trajectories], np.bool_)
    if varies(task, won).any():
        return won, "success"
    returns = np.array([trajectory.reward for trajectory in trajectories], np.float64)
    above = np.zeros(len(returns), np.bool_)
    order = np.lexsort((returns, task))
    starts = np.searchsorted(task[order], np.arange(int(task.max(initial=-1)) + 2))
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        rows = order[start:end]
        above[rows] = returns[rows] > np.median(returns[rows])
    return (above, "return above the task's median") if varies(task, above).any() else (won, "none")


def varies(task: Ints, won: Bools) -> Bools:
    """Whether some attempts at a task won and some lost."""
    wins, attempts = np.bincount(task, won), segment_count(task, int(task.max(initial=-1)) + 1)
    return np.asarray((wins > 0) & (wins < attempts))
