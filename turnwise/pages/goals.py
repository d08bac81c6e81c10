"""What an attempt was asked to do, in words.

A run stores the goal that the agent was told beside the task's id. Runs from before that, and environments that state no goal, still have
the first observation: its line "Your task is …" where there is one, and otherwise how it begins, which at least tells tasks apart.
"""

from __future__ import annotations

import json
import re
from typing import Any

from turnwise.data.images import without_marks
from turnwise.data.tasks import task_line

LONGEST_GOAL = 600
LONGEST_OPENING = 160
FIRST = b'{"observation": "'
LOOKED_AT = 1 << 16  # bytes of a first observation in which a goal is looked for
PREFIX = re.compile(r"your task is( to)?\b[\s:]*", re.IGNORECASE)


def add_goal(head: dict[str, Any], turns: bytes) -> None:
    """Give a line's values a `goal` in words, or how its first observation begins (`opening`). `turns`: what follows in the line."""
    stated = head.get("goal")
    first = "" if isinstance(stated, str) and stated.strip() else first_observation(turns)
    goal = stated if isinstance(stated, str) and stated.strip() else task_line(first)
    head["goal"] = sentence(goal) if goal else None
    head["opening"] = None if goal else cut(" ".join(without_marks(first, "[picture]").split()), LONGEST_OPENING) or None


def first_observation(turns: bytes) -> str:
    """The first text of a line's turns, as far as it is looked at, without reading the rest."""
    if not turns.startswith(FIRST):
        return ""
    text = turns[len(FIRST) - 1 : LOOKED_AT].decode("utf-8", "replace")
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError:  # longer than what is looked at: an escape that was cut in two goes too
        end = re.sub(r"\\(u[0-9a-fA-F]{0,3})?$", "", text) + '"'
        try:
            found = json.loads(end)
        except json.JSONDecodeError:
            return ""
    return found if isinstance(found, str) else ""


def sentence(goal: str) -> str:
    """A goal as a reader wants it: without "Your task is to", on one line, not too long."""
    words = " ".join(PREFIX.sub("", goal.strip(), count=1).split()) or goal.strip()
    return cut(words[:1].upper() + words[1:], LONGEST_GOAL)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
