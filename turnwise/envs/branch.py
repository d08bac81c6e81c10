"""Bring an environment to a turn of an earlier attempt: from a snapshot if there is one, otherwise by replaying the recorded actions.

A branch must start from the state that its parent had at that turn; otherwise it would be compared with unrelated turns. The anchors show
whether it does: they are compared where the branch begins and, during a replay, before every turn. A failed branch reports the turn and
both anchors. The caller drops and counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from turnwise.data.anchors import digest
from turnwise.data.tasks import Task
from turnwise.envs.pool import EnvResult, Reset, Restore
from turnwise.envs.scripts import Play
from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import printable

SHOWN = 40  # characters of a text anchor in a message


class Arrived(NamedTuple):
    """The outcome. `ok`: the environment is in the state where the branch begins, and `result` has the observation there. Otherwise
    `message` says in one line at which turn the states differ, and `result` is the last one."""

    result: EnvResult
    ok: bool
    message: str = ""


def arrive(task: Task, seed: int, actions: Sequence[str], anchors: Sequence[Any], snapshot: bytes | None = None) -> Play[Arrived]:
    """Bring an environment to the turn after `actions` of an earlier attempt at the task with this seed.

    `anchors` are the keys of that attempt's observations: one before each action, and the one where the branch begins. A `snapshot` taken
    there is restored instead of playing `actions`."""
    if len(anchors) != len(actions) + 1:
        raise TurnwiseError(
            f"task {task.id!r}: a branch after {len(actions)} actions needs {len(actions) + 1} anchors (one before each action, and "
            f"the one where it begins), got {len(anchors)}"
        )
    if snapshot is not None:
        result = yield Restore(task, seed, snapshot)
        return _compare(result, len(actions), anchors[-1]) or Arrived(result, True)
    result = yield Reset(task, seed)
    for turn, anchor in enumerate(anchors):
        if astray := _compare(result, turn, anchor):
            return astray
        if turn < len(actions):
            result = yield actions[turn]
    return Arrived(result, True)


def short(anchor: Any) -> str:
    """A short form of an anchor: the first digits of its hash, and for a text its beginning."""
    mark = digest(anchor).hex()[:8]
    if not isinstance(anchor, str):
        return mark
    words = printable(" ".join(anchor[: 4 * SHOWN].split()))
    return f"{mark} ({words[:SHOWN]!r}{'…' if len(words) > SHOWN or len(anchor) > 4 * SHOWN else ''})"


def _compare(result: EnvResult, turn: int, anchor: Any) -> Arrived | None:
    """What is wrong with the state before a turn; None if it is the recorded one."""
    if result.fault is not None:
        return Arrived(result, False, f"turn {turn}: {result.stop_reason}")
    reached = result.observation.key
    if not _same(reached, anchor):
        return Arrived(result, False, f"turn {turn}: the anchor is {short(reached)}, and was {short(anchor)}")
    if result.over:
        return Arrived(result, False, f"turn {turn}: the attempt has ended here, at anchor {short(reached)}, and had gone on")
    return None


def _same(one: Any, two: Any) -> bool:
    if type(one) is type(two) and isinstance(one, str | bytes | int):
        return bool(one == two)
    return digest(one) == digest(two)
