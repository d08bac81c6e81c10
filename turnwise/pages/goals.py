"""The goal of an attempt, as text.

A run stores the goal that the agent was given next to the task's id. Older runs, and environments without a goal, still have the first
observation: its line "Your task is …" if there is one, and otherwise its beginning, which at least distinguishes tasks.
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
    """Add to a line's values a `goal`, or the beginning of its first observation (`opening`). `turns`: what follows in the line."""
    stated = head.get("goal")
    first = "" if isinstance(stated, str) and stated.strip() else first_observation(turns)
    goal = stated if isinstance(stated, str) and stated.strip() else task_line(first)
    head["goal"] = sentence(goal) if goal else None
    head["opening"] = None if goal else cut(" ".join(without_marks(first, "[picture]").split()), LONGEST_OPENING) or None


def first_observation(turns: bytes) -> str:
    """The beginning of the first text of a line's turns, without reading the rest."""
    if not turns.startswith(FIRST):
        return ""
    text = turns[len(FIRST) - 1 : LOOKED_AT].decode("utf-8", "replace")
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError:  # longer than the part that is read: an escape that was cut in two is removed too
        end = re.sub(r"\\(u[0-9a-fA-F]{0,3})?$", "", text) + '"'
        try:
            found = json.loads(end)
        except json.JSONDecodeError:
            return ""
    return found if isinstance(found, str) else ""


def sentence(goal: str) -> str:
    """A goal for display: without "Your task is to", on one line, shortened."""
    words = " ".join(PREFIX.sub("", goal.strip(), count=1).split()) or goal.strip()
    return cut(words[:1].upper() + words[1:], LONGEST_GOAL)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
