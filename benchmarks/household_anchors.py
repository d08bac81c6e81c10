"""What the two anchors of a household group together: `python benchmarks/household_anchors.py [--write]`.

Groups of trajectories of the same task are played, each by a random player (any admissible command) and by an expert that errs (a third
of its commands are random). Turns of a group that start from the same anchor are an anchor group. Counted, for each anchor: distinct
anchors per group, the share of turns that have another to be compared with, and how many anchor groups mix different states.
"""

from __future__ import annotations

import argparse
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from results import publish

from turnwise.data.tasks import Task
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.household.world import NOTHING

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data")) / "alfworld"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    env = AlfworldEnv(DATA, anchor="state")
    tasks = env.tasks("valid_seen").panel(options.tasks, options.seed)
    result: dict[str, Any] = {"tasks": options.tasks, "trajectories a task": options.group, "turns at most": options.turns}
    for player, error in (("random player", 1.0), ("erring expert", 1 / 3)):
        groups = [play_group(env, task, options.group, options.turns, error, options.seed) for task in tasks]
        result[player] = {"turns": sum(map(len, groups))} | {
            "observation": count(groups, 0, 1),
            "state": count(groups, 1, 0),
            NOTHING: nothing_happens(groups),
        }
    publish(result, Path(__file__).with_suffix(".json") if options.write else None, indent=2)


def play_group(env: AlfworldEnv, task: Task, group: int, turns: int, error: float, seed: int) -> list[tuple[str, bytes]]:
    """The text and the state at the start of every turn of a group."""
    starts = []
    for number in range(group):
        rng = random.Random(f"{seed}/{task.id}/{number}")
        seen = env.reset(task)
        for _ in range(turns):
            starts.append((seen.text, seen.anchor))
            stuck = rng.random() < 0.05  # models also write commands that do not fit
            action = "dance" if stuck else rng.choice(seen.actions or ()) if rng.random() < error else env.expert_action()
            move = env.step(action)
            if move.done:
                break
            seen = move.observation
    return starts


def count(groups: list[list[tuple[str, bytes]]], anchor: int, other: int) -> dict[str, float]:
    """`anchor` groups the turns; `other` says how many different ones of the other anchor each of them holds."""
    turns = distinct = compared = mixed = shared = 0
    for group in groups:
        members: dict[Any, list[Any]] = defaultdict(list)
        for start in group:
            members[start[anchor]].append(start[other])
        turns += len(group)
        distinct += len(members)
        for inside in members.values():
            if len(inside) > 1:
                shared += 1
                compared += len(inside)
                mixed += len(set(inside)) > 1
    name = "state" if other else "observation"
    return {
        "distinct anchors a task": round(distinct / len(groups), 1),
        "turns with another to compare with, %": round(100 * compared / turns, 1),
        f"anchor groups of two or more that hold more than one {name}, %": round(100 * mixed / max(1, shared), 1),
    }


def nothing_happens(groups: list[list[tuple[str, bytes]]]) -> dict[str, float]:
    """The text that hides the most: what the agent reads after any command that does not fit."""
    turns = [[state for text, state in group if text == NOTHING] for group in groups]
    return {"turns": sum(map(len, turns)), "states behind it a task": round(sum(len(set(group)) for group in turns) / len(groups), 1)}


if __name__ == "__main__":
    main()
