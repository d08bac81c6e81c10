"""The calls of a program's attempt as a tree, over all trajectories that the attempt became.

An attempt of a program is one trajectory per line of conversation (`turnwise/collect/call_trees.py`). Every turn says which call it is and
which one it continues, so the tree of an attempt can be put together from the trajectories of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.pages.batch import Batch
from turnwise.pages.run_list import readable

LONGEST_WORDS = 100  # characters of a call that the tree shows


def call_tree(batch: Batch, attempt: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every call of the attempt in the order of arrival: its number, the call that it continues, where it is shown (id and turn), what was
    asked and what was said. Empty if the attempt is not one of a program."""
    number_of_attempt = _attempt_of(attempt)
    if number_of_attempt is None:
        return []
    calls: list[dict[str, Any]] = []
    for number in batch.members(readable(attempt.get("group"))):
        other = batch.texts.read(number)
        if _attempt_of(other) == number_of_attempt:
            calls += _calls(other)
    return sorted(calls, key=lambda call: int(call["number"]))


def _attempt_of(attempt: Mapping[str, Any]) -> Any:
    """The number of the attempt that a trajectory is a part of; None if it says nothing about that."""
    infos = [turn.get("info") for turn in _turns(attempt)]
    return next((info.get("attempt") for info in infos if isinstance(info, Mapping) and isinstance(info.get("call"), Mapping)), None)


def _turns(attempt: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    turns = attempt.get("turns")
    return [turn for turn in turns if isinstance(turn, Mapping)] if isinstance(turns, list) else []


def _calls(attempt: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for t, turn in enumerate(_turns(attempt)):
        info = turn.get("info")
        call = info.get("call") if isinstance(info, Mapping) else None
        if isinstance(call, Mapping) and isinstance(call.get("number"), int):
            parent = call.get("parent")
            yield {
                "number": call["number"],
                "parent": parent if isinstance(parent, int) else None,
                "id": readable(attempt.get("id")),
                "t": t,
                "asked": _short(turn.get("observation")),
                "said": _short(turn.get("action")),
            }


def _short(text: Any) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= LONGEST_WORDS else line[: LONGEST_WORDS - 1] + "…"
