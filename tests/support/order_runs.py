"""What the tests of methods of order, curriculum and experience share: tiny runs, and attempts that end as a test likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from small_runs import UNTAUGHT
from train_cases import Impatient, without_times

import turnwise as tw
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn import checkpoint
from turnwise.methods.planning import Gathered, Places, Plan

RECIPE = ROOT / "recipes" / "numberline-tiny.toml"
SMALL = UNTAUGHT | {"learner.minibatches": 1}
BANDIT = f"{ROOT / 'tests' / 'support' / 'bandit_env.py'}:Bandit"  # what a model that babbles says wins or loses
FATED = f"{ROOT / 'tests' / 'support' / 'fated_env.py'}:Fated"
OTHER_GAME: dict[str, Any] = {"env.options": {}, "env.max_turns": None}


def train(out: Path, **changes: Any) -> Any:
    return tw.train(RECIPE, **{**SMALL, "out": str(out), "quiet": True, **changes})


def plan_state(folder: Path) -> Any:
    found = checkpoint.latest_good(folder / "checkpoints")
    assert found is not None
    return found.state["run"]["plan"]


def resumes_alike(out: Path, whole: Any, stop: int, **changes: Any) -> None:
    """A run that is stopped while it collects its n-th batch, and resumed, ends like the one that was not."""
    stopped = train(out, reporter=Impatient("collecting", stop), **changes)
    assert stopped.interrupted
    assert without_times(tw.train(resume=stopped.folder, quiet=True).metrics) == without_times(whole.metrics)


def attempt(start: Start, reward: float = 0.0, actions: Sequence[str] = ("a",), observation: str = "here") -> Trajectory:
    """A finished attempt that got its reward at the end."""
    turns = [Turn(f"{observation} {t}", 0.0, observation=f"{observation} {t}", action=action) for t, action in enumerate(actions)]
    for turn in turns:
        turn.response_ids, turn.logprobs, turn.prompt_ids = [start.number], [-1.0], [1]
    turns[-1].reward = reward
    return Trajectory(start.group, start.number, start.task.id, turns, success=reward > 0, goal="go")


def gathers(plan: Plan, places: Places, groups: int, play: Callable[[Start], Trajectory]) -> tuple[Gathered, list[list[Start]]]:
    """What a plan brings home if every attempt ends as `play` says, and the attempts of each round."""
    asked: list[list[Start]] = []
    places.begin()
    rounds = plan.gather(places, groups)
    starts = next(rounds)
    with pytest.raises(StopIteration) as end:
        while True:
            asked.append(list(starts))
            starts = rounds.send([play(start) for start in starts])
    found: Gathered = end.value.value
    return found, asked
