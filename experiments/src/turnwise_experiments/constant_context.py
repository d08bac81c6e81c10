"""Constant context: a state block takes the place of the history in prompts; GRPO in groups of four.

A tracker is a function of what happened so far, and writes what is worth knowing now. The prompt has the goal, this block and the
observation, so its length does not grow with the attempt. The tracker is deterministic: the same past gives the same block.

    def mine(goal: str, turns: Sequence[Past], observation: str) -> str: …        # Past: .turn, .observation, .action

`household` follows the texts of the household environments: where the agent is, what it holds, what it has seen where, what is left to look
at. `actions` knows no environment: the last actions, and those that changed nothing.

The paper adds rewards for subgoals by rules that were written per family of tasks and are not public. Your own rule is a reward term:
`[[reward]]` with `function = "path/to/file.py:NAME"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from turnwise.agent.base import Prompt
from turnwise.agent.context import PromptMaker, Window
from turnwise.agent.prompts import Past
from turnwise.agent.registry import register_context
from turnwise.agent.text import well_formed
from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.config.options import Help
from turnwise.config.references import is_reference
from turnwise.methods.registry import Brings, method, section
from turnwise.util.errors import unknown_name

BLOCK = Kind("state block", takes=("goal", "turns", "observation"), gives=("str",), example="def mine(goal, turns, observation) -> str")
Tracker = Callable[[str, Sequence[Past], str], str]
LISTED = re.compile(r"\ba ([a-z]+ \d+)")
SEEN = re.compile(r"(?:On|In) (?:the )?([a-z]+ \d+|it), you see (.*?)\.")
ROOM = re.compile(r"Looking quickly around you, you see (.*?)\.")
MOVES = re.compile(r"You (arrive at|pick up the|move the|put the) ([a-z]+ \d+)(?: (?:from|to|in/on|in|on) the ([a-z]+ \d+))?")
CHANGES = re.compile(r"You (heat|cool|clean|slice) the ([a-z]+ \d+)")


@register_context("state_block")
class StateBlock(Window):
    """Each turn is a separate prompt with a block of text about the state, written by a tracker, and no history."""

    def __init__(self, maker: PromptMaker, tracker: Annotated[str, Help("household, actions, or path/to/file.py:NAME")] = "household"):
        super().__init__(maker)
        self.tracker = find_tracker(tracker)

    def past(self) -> Sequence[Past]:
        return []

    def prompt(self) -> Prompt:
        block = well_formed(str(self.tracker(self.goal, self.turns, self.observation.text)).strip())
        seen = self.observation
        if block:
            seen = replace(seen, text=f"{block}\n\n{seen.text}")
        return self.maker.prompt(self.maker.write(seen, goal=self.goal, turn=len(self.turns) + 1))


def find_tracker(name: str) -> Tracker:
    """A tracker by its name, or one of the user's own."""
    if is_reference(name):
        result: Tracker = load_reference(name, BLOCK)
        return result
    if name not in TRACKERS:
        raise unknown_name("tracker of a state block:", name, TRACKERS)
    return TRACKERS[name]


def actions(goal: str, turns: Sequence[Past], observation: str) -> str:
    """The last three actions, and those after which the observation was the same as before."""
    after = [past.observation for past in turns[1:]] + [observation]
    vain = dict.fromkeys(past.action for past, then in zip(turns, after, strict=True) if past.observation == then)
    lines = [f"Last actions: {', '.join(past.action for past in turns[-3:])}"] if turns else []
    return "\n".join([*lines, *([f"Changed nothing: {', '.join(vain)}"] if vain else [])])


def household(goal: str, turns: Sequence[Past], observation: str) -> str:
    """Where the agent is, what it holds and did to it, what was seen where, and which places were not looked at."""
    here, held, places = "", "", dict.fromkeys(LISTED.findall("".join(ROOM.findall(turns[0].observation if turns else observation))))
    contents: dict[str, list[str]] = {}
    done: list[str] = []
    for text in [past.observation for past in turns[1:]] + ([observation] if turns else []):
        for verb, thing, place in MOVES.findall(text):
            if verb == "arrive at":
                here = thing
            elif verb == "pick up the":
                held = thing
                contents[place] = [other for other in contents.get(place, []) if other != thing]
            elif verb in ("move the", "put the"):
                held = "" if held == thing else held
                contents.setdefault(place, []).append(thing)
        for place, listed in SEEN.findall(text):
            contents[here if place == "it" else place] = LISTED.findall(f"a {listed.removeprefix('a ')}")
        done += [f"{verb} {thing}" for verb, thing in CHANGES.findall(text)]
    seen = [f"{place}: {', '.join(things) or 'nothing'}" for place, things in contents.items() if place]
    left = [place for place in places if place not in contents]
    lines = [("At", here), ("Holding", held or ("nothing" if turns else "")), ("Done", ", ".join(dict.fromkeys(done)))]
    lines += [("Seen", "; ".join(seen)), ("Not looked at", ", ".join(left) if turns else "")]
    return "\n".join(f"{name}: {text}" for name, text in lines if text)


TRACKERS: dict[str, Tracker] = {"household": household, "actions": actions}


@method(
    "constant_context",
    paper="Constant-context skill learning, arXiv 2605.05413",
    changes="prompts",
    costs="nothing; prompts are shorter",
    evidence="notes; trackers are ours, rewards for subgoals are yours",
)
def constant_context(
    *,
    tracker: Annotated[str, Help("household, actions, or your own path/to/file.py:NAME")] = "household",
    group_size: Annotated[int | None, Help("attempts per group; none: the recipe's", low=2)] = None,
) -> dict[str, Any]:
    """A block of text about the state takes the place of the history in prompts."""
    own = section("agent", context="state_block", options={"tracker": tracker}) | {"collect.group_size": group_size, "credit.name": "grpo"}
    return Brings(own, {"collect.group_size": 4})
