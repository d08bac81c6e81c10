"""What GiGPO's step credit pays for a wasted command: `python benchmarks/household_credit.py RUN… [--out FILE]`.

A command is wasted where ALFWorld answers "Nothing happens." The kept rollouts of trained runs are played again, command by command, which
gives every turn its exact state beside the text it was told. Step credit (no episode part) is then computed for the same turns three
ways: with the observation as anchor, the same with each trajectory counting once in an anchor group, and with the state as anchor.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from turnwise import credit
from turnwise.anchors import encode
from turnwise.config import Config
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.household.world import NOTHING
from turnwise.files import write_text_atomically
from turnwise.rollouts import Rollouts
from turnwise.runs import Run

GAMMA = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {folder.name: look_at(Run.open(folder)) for folder in options.runs}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        write_text_atomically(options.out, text + "\n")


def look_at(run: Run) -> dict[str, Any]:
    iteration = run.iterations_of("rollouts")[-1]
    rollouts = Rollouts.load(run.folder / "rollouts" / f"{iteration:06d}.npz")
    states, wasted, won = played_again(run, iteration)
    by_state = replace(rollouts, anchor=encode({"anchor": states})[0]["anchor"])
    ways = {
        "observation": (rollouts, {}),
        "observation, once": (rollouts, {"once": True}),
        "state": (by_state, {}),
    }
    return {
        "iteration": iteration,
        "turns": len(wasted),
        "wasted": round(float(wasted.mean()), 3),
        "turns without credit, grpo": round(float((credit.compute("grpo", rollouts, norm="std") == 0).mean()), 3),
    } | {name: step_part(turns, wasted, won, **more) for name, (turns, more) in ways.items()}


def played_again(run: Run, iteration: int) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """For every turn: the state it started from, whether its command was wasted, whether its attempt was won."""
    config = Config.load(run.folder / "config.toml")
    env = AlfworldEnv(config.env.options.get("data"), anchor="state")
    tasks = {task.id: task for task in env.tasks(config.env.split)}
    states, wasted, won = [], [], []
    for trajectory in run.trajectories(iteration):
        seen = env.reset(tasks[trajectory["task"]])
        for turn in trajectory["turns"]:
            if seen.text != turn["observation"]:
                raise SystemExit(f"{run.folder}: {trajectory['task']} answers otherwise than in the run: other games?")
            states.append(seen.key)
            seen = env.step(turn["action"]).observation
            wasted.append(seen.text == NOTHING)
            won.append(trajectory["success"])
    return states, np.array(wasted), np.array(won)


def step_part(rollouts: Rollouts, wasted: np.ndarray, won: np.ndarray, **more: Any) -> dict[str, float]:
    """Mean step credit by kind of turn, and how the turns are grouped."""
    step = credit.compute("gigpo", rollouts, norm="std", gamma=GAMMA, episode_weight=0, **more)
    whole = credit.compute("gigpo", rollouts, norm="std", gamma=GAMMA, **more)
    groups = credit.diagnose(rollouts)
    kinds = {"won": won, "lost": ~won}
    means = {
        f"{name}, {end}": round(float(step[turns & of].mean()), 3)
        for end, of in kinds.items()
        for name, turns in (("wasted", wasted), ("other", ~wasted))
        if (turns & of).any()
    }
    return means | {
        "singleton groups": round(float(groups["singleton_group_share"]), 3),
        "turns in singleton groups": round(float(groups["singleton_share"]), 3),
        "largest group": int(groups["anchor_size_max"]),
        "turns without credit": round(float((whole == 0).mean()), 3),
    }


if __name__ == "__main__":
    main()
