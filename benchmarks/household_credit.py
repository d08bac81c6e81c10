"""What GiGPO's step credit pays for a wasted command: `python benchmarks/household_credit.py RUN… [--out FILE]`.

A command is wasted if ALFWorld answers "Nothing happens." The kept rollouts of trained runs are played again, command by command, which
gives every turn its exact state in addition to its text. Step credit (no episode part) is then computed for the same turns three ways:
with the observation as anchor, the same with each trajectory counting once in an anchor group, and with the state as anchor. The games of
the last evaluation are also played again, and what was done in those won and those lost is counted.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from results import publish

from turnwise import credit
from turnwise.data.anchors import encode
from turnwise.data.rollouts import Rollouts
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.household.world import NOTHING
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Run

GAMMA = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {folder.name: look_at(Run.open(folder)) for folder in options.runs}
    publish(result, options.out)


@dataclass
class Played:
    """By turn: the state it started from, whether its command was wasted, or the same as in the turn before, whether its answer was as long
    as it may be, whether its attempt was won; and by attempt how long it was and whether it was won."""

    states: list[Any]
    wasted: np.ndarray
    repeated: np.ndarray
    cut: np.ndarray
    won: np.ndarray
    lengths: np.ndarray
    wins: np.ndarray


def look_at(run: Run) -> dict[str, Any]:
    config = Config.load(run.folder / "config.toml")
    measured = {"games": games(played_again(run, config, "evals", config.eval.split))}
    if not run.iterations_of("rollouts"):
        return measured
    iteration = run.iterations_of("rollouts")[-1]
    rollouts = Rollouts.load(run.folder / "rollouts" / f"{iteration:06d}.npz")
    turns = played_again(run, config, "rollouts", config.env.split)
    by_state = replace(rollouts, anchor=encode({"anchor": turns.states})[0]["anchor"])
    ways = {
        "observation": (rollouts, {}),
        "observation, once": (rollouts, {"once": True}),
        "state": (by_state, {}),
    }
    counted = {
        "iteration": iteration,
        "turns": len(turns.wasted),
        "wasted": share(turns.wasted),
        "wasted turns of attempts won, lost": [int((turns.wasted & of).sum()) for of in (turns.won, ~turns.won)],
        "turns without credit, grpo": share(credit.compute("grpo", rollouts, norm="std") == 0),
    }
    return measured | counted | {name: step_part(grouped, turns.wasted, turns.won, **more) for name, (grouped, more) in ways.items()}


def games(turns: Played) -> dict[str, dict[str, float]]:
    """What was done in the games of the last evaluation."""
    return {
        name: {
            "games": int(games.sum()),
            "turns a game": round(float(turns.lengths[games].mean()), 1),
            "wasted": share(turns.wasted[of]),
            "the command of the turn before": share(turns.repeated[of]),
            "answers cut": share(turns.cut[of]),
        }
        for name, games, of in (("won", turns.wins, turns.won), ("lost", ~turns.wins, ~turns.won))
        if games.any()
    }


def share(turns: np.ndarray) -> float:
    return round(float(turns.mean()), 3)


def played_again(run: Run, config: Config, part: str, split: str) -> Played:
    """The attempts of the last iteration that the run keeps of this part."""
    env = AlfworldEnv(config.env.options.get("data"), anchor="state")
    tasks = {task.id: task for task in env.tasks(split)}
    if not list((run.folder / part).glob("*.jsonl.gz")):
        raise SystemExit(f"{run.folder} keeps no texts of its {part}: take the folder as the run left it")
    trajectories = run.trajectories(run.iterations_of(part)[-1], part)
    rows: list[tuple[Any, bool, bool, bool, bool]] = []
    for trajectory in trajectories:
        seen, before = env.reset(tasks[trajectory["task"]]), None
        for turn in trajectory["turns"]:
            if seen.text != turn["observation"]:
                raise SystemExit(f"{run.folder}: {trajectory['task']} answers otherwise than in the run: other games?")
            state, seen = seen.key, env.step(turn["action"]).observation
            full = turn["tokens"] >= config.engine.max_tokens
            rows.append((state, seen.text == NOTHING, turn["action"] == before, full, trajectory["success"]))
            before = turn["action"]
    wasted, repeated, cut, won = np.array([flags for _, *flags in rows]).T
    lengths = np.array([len(trajectory["turns"]) for trajectory in trajectories])
    wins = np.array([trajectory["success"] for trajectory in trajectories])
    return Played([state for state, *_ in rows], wasted, repeated, cut, won, lengths, wins)


def step_part(rollouts: Rollouts, wasted: np.ndarray, won: np.ndarray, **more: Any) -> dict[str, float]:
    """Mean step credit by kind of turn, and how the turns are grouped."""
    step = credit.compute("gigpo", rollouts, norm="std", gamma=GAMMA, episode_weight=0, **more)
    whole = credit.compute("gigpo", rollouts, norm="std", gamma=GAMMA, **more)
    groups = credit.diagnose(rollouts)
    kinds = {"all": np.ones_like(won), "won": won, "lost": ~won}
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
