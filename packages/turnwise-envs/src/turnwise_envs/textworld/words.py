"""A generated game of TextWorld, played by TextWorld's logic in Python and told in a few plain sentences.

    You open the fridge.
    You are in the kitchen. You see an oven (closed), a counter (on it: a cookbook, a knife) and a fridge (open, in it: a raw carrot).
    Exits: north (a wooden door, closed), east. You carry nothing.

Every answer ends with what is seen here and carried, so that one observation is enough to act on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwise_envs.shared.packages import load

DIRECTIONS = ("north", "east", "south", "west")
DOORS = ("open", "closed", "locked")
FOOD = {"needs_cooking": "raw", "raw": "raw"} | {
    state: state for state in ("burned", "fried", "roasted", "grilled", "sliced", "chopped", "diced")
}  # facts of food and how they are told, in this order
CANNOT = "You cannot do that now."
RECIPE = re.compile(r"Recipe #1.*", re.DOTALL)


class MadeGame:
    """A game from its description, with the part of TextWorld's interface that the adapter uses."""

    def __init__(self, made: Mapping[str, Any]):
        package = load("textworld.generator.game", "the adapter for TextWorld", "textworld")
        inform = load("textworld.generator.inform7", "the adapter for TextWorld", "textworld")
        self._game = package.Game.deserialize(made)
        self._commands_of = inform.Inform7Game(self._game).gen_commands_from_actions
        self._progression = package.GameProgression
        self._names = {name: info.name for name, info in self._game.infos.items() if info.name}
        self._descriptions = {info.name: info.desc or "" for info in self._game.infos.values() if info.name}
        self.walkthrough: list[str] = [str(command) for command in self._game.metadata.get("walkthrough") or ()]

    def reset(self) -> dict[str, Any]:
        self._progress = self._progression(self._game, track_quests=True)
        self._valid = self._listed()
        return self._state(self._view())

    def step(self, command: str) -> tuple[dict[str, Any], float, bool]:
        before = self._progress.score
        if (action := self._valid.get(command)) is None:
            return self._state(f"{CANNOT}\n{self._view()}"), before, False
        self._progress.update(action)
        self._valid = self._listed()
        text = f"{self._said(command)}\n{self._view()}"
        if (gained := self._progress.score - before) > 0:
            text = f"{text}\nYour score has gone up by {gained}."
        return self._state(text), self._progress.score, bool(self._progress.done)

    def _listed(self) -> dict[str, Any]:
        """The commands that are possible now, by name; the same command always means the same action."""
        actions = self._progress.valid_actions
        pairs = zip(self._commands_of(actions), actions, strict=True)
        return dict(sorted(pairs, key=lambda pair: (pair[0], str(pair[1])), reverse=True))

    def _state(self, text: str) -> dict[str, Any]:
        progress = self._progress
        return {
            "feedback": text,
            "admissible_commands": sorted(self._valid),
            "score": progress.score,
            "max_score": self._game.max_score,
            "won": bool(progress.completed),
            "lost": bool(progress.failed),
            "objective": self._game.objective,
            "facts": [*map(str, progress.state.facts), f"score {progress.score}"],
        }

    def policy(self) -> list[str] | None:
        """The commands that win from here, if TextWorld knows them."""
        actions = self._progress.winning_policy
        return None if actions is None else [str(command) for command in self._commands_of(actions)]

    def _view(self) -> str:
        return view(self._progress.state.facts, self._names)

    def _said(self, command: str) -> str:
        verb, _, rest = command.partition(" ")
        if verb in ("examine", "read") and (recipe := RECIPE.search(self._descriptions.get(rest, ""))):
            return "You read the cookbook. " + " ".join(recipe.group().split())
        return {"look": "You look around.", "inventory": "You check what you carry."}.get(command, f"You {command}.")

    def close(self) -> None:
        """There is nothing to end."""


def view(facts: Iterable[Any], names: Mapping[str, str]) -> str:
    """The player's room and what is carried, in a few sentences."""
    found = [(str(fact.name), tuple(str(argument.name) for argument in fact.arguments)) for fact in facts]
    about: dict[str, set[str]] = {}
    inside: dict[str, list[str]] = {}
    room = next(where for name, (who, *where) in found if name == "at" and who == "P")[0]
    for name, parts in found:
        if len(parts) == 1:
            about.setdefault(parts[0], set()).add(name)
        elif name in ("at", "in", "on") and parts[0] in names:
            inside.setdefault(parts[1], []).append(parts[0])
    things = [_thing(thing, names, about, inside) for thing in sorted(inside.get(room, ()), key=lambda thing: (names[thing], thing))]
    carried = [_thing(thing, names, about, inside) for thing in sorted(inside.get("I", ()), key=lambda thing: (names[thing], thing))]
    sentences = [f"You are in the {names.get(room, 'room')}.", f"You see {joined(things)}." if things else "There is nothing here."]
    exits = _exits(room, found, names, about)
    sentences.append(f"Exits: {', '.join(exits)}." if exits else "There are no exits.")
    return " ".join([*sentences, f"You carry {joined(carried)}." if carried else "You carry nothing."])


def _thing(thing: str, names: Mapping[str, str], about: Mapping[str, set[str]], inside: Mapping[str, list[str]]) -> str:
    """A thing with its state and, if they can be seen, the things in or on it."""
    known = about.get(thing, set())
    states = [] if names[thing] == "meal" else list(dict.fromkeys(told for state, told in FOOD.items() if state in known))
    name = article(" ".join([*states, names[thing]]))
    notes = [state for state in DOORS if state in known]
    held = sorted(inside.get(thing, ()), key=lambda other: (names[other], other))
    holds = "in" if notes else "on"
    if held and not known & {"closed", "locked"}:
        notes.append(f"{holds} it: {', '.join(_thing(other, names, about, inside) for other in held)}")
    return f"{name} ({', '.join(notes)})" if notes else name


def _exits(room: str, found: Sequence[tuple[str, tuple[str, ...]]], names: Mapping[str, str], about: Mapping[str, set[str]]) -> list[str]:
    """The directions that lead somewhere, with the door if there is one."""
    doors = {(start, end): door for name, (start, *rest) in found if name == "link" for door, end in [rest] if start == room}
    exits = []
    for direction in DIRECTIONS:
        for name, things in found:
            if name == f"{direction}_of" and things[1] == room:
                door = doors.get((room, things[0]))
                states = "".join(f", {state}" for state in DOORS if door is not None and state in about.get(door, ()))
                exits.append(f"{direction} ({article(names[door])}{states})" if door is not None and door in names else direction)
    return exits


def article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def joined(parts: Sequence[str]) -> str:
    """Parts as a list in a sentence."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
