"""Small houses in the household's rules, told in few words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition
from turnwise.envs.household.env import Anchor
from turnwise.envs.household.generated import HouseholdEnv

FURNITURE = ("cabinet", "countertop", "fridge", "microwave")
VERBS = ("go", "take", "move", "heat")
DONE = {"take": "taken", "heat": "heated", "move": "moved"}


class SmallHouse(HouseholdEnv):
    """A kitchen with one of each piece of furniture. A text names the task, the place, what lies there, and what is
    held; a command that cannot be followed is answered with `Nothing happens.`, wherever one is. Commands have two
    words."""

    def __init__(self, anchor: Anchor = "observation"):
        types = ("pick_and_place_simple", "pick_heat_then_place_in_recep")
        kitchen = {"furniture": FURNITURE, "rooms": ["kitchen"], "task_types": types, "distractors": (1, 2), "closed": 0}
        super().__init__("tiny", anchor=anchor, expert_knows="seen", **kitchen)
        self._goal, self._place, self._hands = "", "", ""

    def _begin(self, task: Task, seed: int) -> None:
        super()._begin(task, seed)
        self._goal, self._place, self._hands = _goal(task), "door", "nothing"

    def _play(self, action: str) -> Transition:
        verb, _, thing = action.strip().partition(" ")
        full = {_short(command): command for command in reversed(self.play.actions)}.get(action.strip()) if thing else None
        if full is not None and verb == "go":
            self._place = thing
        elif full is not None:
            self._hands = {"take": thing, "heat": f"hot {thing}", "move": "nothing"}[verb]
        return super()._play(full or action)

    def _see(self) -> Observation:
        seen, commands = super()._see(), self.play.actions
        text = "Nothing happens."
        if seen.text != text:
            here = sorted(command.split()[1] for command in commands if command.startswith("take "))
            text = f"{self._place} has {' '.join(here) or 'nothing'} . hands {self._hands}"
        actions = tuple(dict.fromkeys(short for command in commands if (short := _short(command))))
        return replace(seen, text=f"{self._goal} . {text}", actions=actions)

    def _kept(self) -> dict[str, Any]:
        return super()._kept() | {"place": self._place, "hands": self._hands}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        super()._resume(task, kept)
        self._goal, self._place, self._hands = _goal(task), str(kept["place"]), str(kept["hands"])

    def expert_action(self) -> str:
        return _short(super().expert_action())

    def expert(self, task: Task) -> list[str]:
        return list(map(_short, super().expert(task)))


class AliasedHouse(SmallHouse):
    """The same, where a text tells only what the last command did, as in ALFWorld. The task, and what is held, stand in
    earlier texts: one text stands for many states."""

    def __init__(self, anchor: Anchor = "observation"):
        super().__init__(anchor)
        self._last = ""

    def _begin(self, task: Task, seed: int) -> None:
        self._last = ""
        super()._begin(task, seed)

    def _play(self, action: str) -> Transition:
        self._last = action.strip()
        return super()._play(action)

    def _see(self) -> Observation:
        seen = super()._see()
        goal, text, *_ = seen.text.split(" . ")
        verb, _, thing = self._last.partition(" ")
        if not verb:
            text = f"{goal} . {text}"
        elif verb in DONE and text != "Nothing happens.":
            text = f"{DONE[verb]} {thing}"
        return replace(seen, text=text)

    def _kept(self) -> dict[str, Any]:
        return super()._kept() | {"last": self._last}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        super()._resume(task, kept)
        self._last = str(kept["last"])


def _goal(task: Task) -> str:
    how = "hot" if task.data["task_type"] == "pick_heat_then_place_in_recep" else "plain"
    return f"put {how} {task.data['object']} {task.data['target']}"


def _short(command: str) -> str:
    """The verb and the thing: "take apple 1 from fridge 1" is "take apple"."""
    words = re.sub(r"[0-9]| to | from .*| with .*", " ", command).split()
    return " ".join(words[:2]) if words[0] in VERBS else ""
