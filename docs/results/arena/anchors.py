"""What credit says of commands that do nothing in ALFWorld's houses, with two kinds of anchors; and how credit goes with progress.

TURNWISE_DATA=… python docs/results/arena/anchors.py     # writes anchors.json

24 training games, 8 attempts each, by a player of mistakes: with a probability (0.35, 0.85) it does what a searching expert does,
otherwise a random command, three times in ten one that is no command. Progress: how much nearer to the goal an omniscient expert is after
a turn.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from ablation import any_way, every_visit, first_form  # registers them

import turnwise as tw
from turnwise.envs import registry
from turnwise.envs.base import Env
from turnwise.util.errors import TurnwiseError

SEED, GAMES, ATTEMPTS, TURNS, SKILLS = 3, 24, 8, 50, (0.35, 0.85)
CREDITS = ("grpo", "gigpo", "hgpo", "graph_gpo", "pooled_td", *(form.__name__ for form in (any_way, first_form, every_visit)))
NOTHING = "Nothing happens."


def play(rng: random.Random, skill: float) -> tuple[list[dict[str, Any]], list[float]]:
    """A row for each turn, and its progress."""
    env = registry.make("alfworld", anchor="state", expert_knows="seen")
    rows, progress = [], []
    for game, task in enumerate(registry.tasks("alfworld", "train", n=GAMES)):
        for attempt in range(ATTEMPTS):
            seen = env.reset(task, 0)
            left = distance(env, 0)
            for turn in range(TURNS):
                step = env.step(command(env, rng, seen.actions, skill))
                rows.append({"group": game, "trajectory": game * ATTEMPTS + attempt, "t": turn, "reward": step.reward, "text": seen.text})
                rows[-1]["state"] = str(seen.anchor)
                before, left = left, 0 if step.done else distance(env, left)
                progress.append(float(before - left))
                seen = step.observation
                if step.done:
                    break
    return rows, progress


def command(env: Any, rng: random.Random, actions: Any, skill: float) -> str:
    chance = rng.random()
    if chance < skill:
        try:
            return str(env.expert_action())
        except TurnwiseError:  # it sees no way to win any more
            return "look"
    return str(rng.choice(list(actions))) if chance < skill + 0.7 * (1 - skill) else "sing"


def distance(env: Env | Any, before: int) -> int:
    try:
        return int(env.expert_distance())
    except TurnwiseError:
        return before + 3


def look(skill: float) -> dict[str, Any]:
    """Of a player of this skill: what each credit says of wasted turns, in its standard deviations, and how it goes with progress."""
    rows, progress = play(random.Random(SEED), skill)
    wasted = np.array(
        [after["text"].strip() == NOTHING and after["trajectory"] == row["trajectory"] for row, after in pairwise(rows)] + [False]
    )
    result: dict[str, Any] = {"attempts": GAMES * ATTEMPTS, "turns": len(rows), "wasted": int(wasted.sum())}
    for anchor in ("text", "state"):
        result[anchor] = {}
        for name in CREDITS:
            credit = np.asarray(tw.credit.of_table(name, rows, columns={"anchor": anchor}).values, np.float64)
            spread = credit.std() or 1.0
            told = {"wasted": credit[wasted].mean() / spread, "progress": np.corrcoef(credit, progress)[0, 1] if credit.any() else 0.0}
            result[anchor][name] = {key: round(float(value), 3) for key, value in told.items()}
    return result


def main() -> None:
    result = {str(skill): look(skill) for skill in SKILLS}
    text = json.dumps(result, indent=1)
    (Path(__file__).with_suffix(".json")).write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
