"""What the tests of methods share: small runs, random rollouts, attempts that end as a test likes, a tokenizer of letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from branch_env import Kept
from collect_cases import WordContext, WordEngine, gathered, numbered, policy
from conftest import ROOT
from safetensors.torch import load_file
from small_runs import UNTAUGHT, WARMED
from train_cases import Impatient, without_times

import turnwise as tw
from turnwise.collect.collector import Collector
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.envs.pool import Pool
from turnwise.learn import checkpoint
from turnwise.methods.planning import Gathered, Plan, TaskSlots
from turnwise.methods.registry import plans
from turnwise.runs.folder import Run

RECIPE = ROOT / "recipes" / "numberline-tiny.toml"
DRAWERS = str(ROOT / "examples" / "methods" / "gold_gain.py") + ":Drawers"
BANDIT = f"{ROOT / 'tests' / 'support' / 'bandit_env.py'}:Bandit"  # what a model that babbles says wins or loses
FATED = f"{ROOT / 'tests' / 'support' / 'fated_env.py'}:Fated"  # won or lost by the seed alone
OTHER_GAME: dict[str, Any] = {"env.options": {}, "env.max_turns": None}
SMALL = WARMED | {"iterations": 1, "learner.minibatches": 1, "eval.every": 0}
QUICK = {"sft.tasks": 16, "sft.steps": 6}  # a shorter warm start


# -- runs -------------------------------------------------------------------------------------------------------------------------


def train(out: Path, **changes: Any) -> Any:
    """Two iterations of the number line with a model that babbles."""
    return tw.train(RECIPE, **{**UNTAUGHT, "learner.minibatches": 1, "out": str(out), "quiet": True, **changes})


def start(out: Path, **changes: Any) -> Run:
    """One iteration of the number line after a short warm start."""
    return Run.open(tw.train(RECIPE, out=str(out), quiet=True, **{**SMALL, **changes}).folder)


def trained(out: Path, credit: str, **changes: Any) -> Run:
    """One iteration on the number line at the smallest size."""
    return start(out, **{"collect.groups": 2, "collect.group_size": 2, "env.max_turns": 5, "credit": {"name": credit}, **changes})


def in_drawers(out: Path, **changes: Any) -> Run:
    """The same where an answer lies in one of three drawers, and tasks know it."""
    return start(out, **{"env.name": DRAWERS, "env.max_turns": 4, "env.options": {}, "sft.tasks": 25, **changes})


def line_of(run: Run, iteration: int = 1) -> dict[str, Any]:
    """What a run logged about an iteration."""
    [line] = [line for line in run.metrics() if line["iteration"] == iteration]
    return line


def last_checkpoint(folder: Path) -> Any:
    found = checkpoint.latest_good(folder / "checkpoints")
    assert found is not None
    return found


def plan_state(folder: Path) -> Any:
    return last_checkpoint(folder).state["run"]["plan"]


def resumes_alike(out: Path, whole: Any, stop: int, **changes: Any) -> None:
    """A run that is stopped while it collects its n-th batch, and resumed, ends like the one that was not: its log, and all weights."""
    stopped = train(out, reporter=Impatient("collecting", stop), **changes)
    assert stopped.interrupted
    resumed = tw.train(resume=stopped.folder, quiet=True)
    assert without_times(resumed.metrics) == without_times(whole.metrics)
    ends = [last_checkpoint(result.folder).path for result in (whole, resumed)]
    names = sorted(path.name for path in ends[0].glob("*.safetensors"))
    assert names == sorted(path.name for path in ends[1].glob("*.safetensors"))
    for name in names:
        one, other = (load_file(end / name) for end in ends)
        assert one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one), name


# -- plans ------------------------------------------------------------------------------------------------------------------------


def make(name: str, **options: Any) -> Any:
    """A plan by its name."""
    return plans[name].make(options, "plan")


def attempt(start: Start, reward: float = 0.0, actions: Sequence[str] = ("a",), observation: str = "here") -> Trajectory:
    """A finished attempt that got its reward at the end."""
    turns = [Turn(f"{observation} {t}", 0.0, observation=f"{observation} {t}", action=action) for t, action in enumerate(actions)]
    for turn in turns:
        turn.response_ids, turn.logprobs, turn.prompt_ids = [start.number], [-1.0], [1]
    turns[-1].reward = reward
    return Trajectory(start.group, start.number, start.task.id, turns, success=reward > 0, goal="go")


def gathers(plan: Plan, slots: TaskSlots, groups: int, play: Callable[[Start], Trajectory]) -> tuple[Gathered, list[list[Start]]]:
    """What a plan brings home if every attempt ends as `play` says, and the attempts of each round."""
    asked: list[list[Start]] = []
    slots.begin()
    rounds = plan.gather(slots, groups)
    with pytest.raises(StopIteration) as end:
        starts = next(rounds)
        while True:
            asked.append(list(starts))
            starts = rounds.send([play(start) for start in starts])
    found: Gathered = end.value.value
    return found, asked


def collected(plan: Plan, groups: int = 2, size: int = 2) -> Gathered:
    """What a plan brings home from corridors, played by an engine that draws words."""
    with Pool(Kept, 4) as pool:
        words = policy(WordEngine(bias=30))
        words.new_context = lambda hint="": WordContext()  # what a hint changes is not seen here
        collector = Collector(pool, words, max_turns=6, snapshots=True)
        return gathered(plan, TaskSlots(numbered(6), 1, size), groups, collector.run)


def expert_of(actions: Sequence[str]) -> Callable[[Any], list[Trajectory]]:
    """An expert that takes these actions in every task."""
    return lambda tasks: [
        Trajectory(0, "expert", task.id, [Turn(f"{t}", action=act, learned=False) for t, act in enumerate(actions)], success=True)
        for task in tasks
    ]


def failed_expert(tasks: Any) -> list[Trajectory]:
    return [Trajectory(0, 0, task.id) for task in tasks]


# -- rollouts and texts -----------------------------------------------------------------------------------------------------------


def rollouts(seed: int, groups: int = 3, size: int = 4, turns: int = 5) -> tw.Rollouts:
    """Groups of trajectories of 1 to `turns` turns with 1 to 4 tokens, in order; a reward at the end, and now and then before."""
    rng = np.random.default_rng(seed)
    rows = [(g, f"{g}-{i}", t, n) for g in range(groups) for i in range(size) for n in [int(rng.integers(1, turns + 1))] for t in range(n)]
    reward = [float(rng.integers(0, 2)) if t == n - 1 else float(rng.random() < 0.1) for _, _, t, n in rows]
    group, trajectory, t, _ = zip(*rows, strict=True)
    anchor, tokens = rng.integers(0, 3, len(rows)), rng.integers(1, 5, len(rows))
    return tw.Rollouts.from_columns(group=group, trajectory=trajectory, t=t, reward=reward, anchor=anchor, tokens=tokens).in_order()


def batch_of(*lengths: tuple[int, ...]) -> Batch:
    """One group; a trajectory for each entry, whose turns have so many tokens. Every second one succeeds."""
    made = [
        Trajectory(0, k, "task", [Turn("s", response_ids=[1] * n, logprobs=[-1.0] * n) for n in turns], success=k % 2 == 0)
        for k, turns in enumerate(lengths)
    ]
    return Batch.of(made, [tw.Task("task")])


def paths(r: tw.Rollouts) -> list[np.ndarray]:
    """The rows of each trajectory of rollouts that are in order."""
    return np.split(np.arange(len(r)), np.flatnonzero(np.diff(r.trajectory)) + 1)


def per_path(r: tw.Rollouts, column: Any) -> list[list[float]]:
    """A column of turns, one list per trajectory."""
    return [np.asarray(column)[rows].tolist() for rows in paths(r)]


def returns_of(r: tw.Rollouts) -> tuple[list[float], list[int]]:
    """Return and group of each trajectory, in the order of the rows."""
    return [float(r.reward[rows].sum()) for rows in paths(r)], [int(r.group[rows[0]]) for rows in paths(r)]


def agrees_with(reference: Any, name: str, options: dict[str, Any], kind: str) -> None:
    """A credit function gives what its reference does, a function of (returns, groups, lengths, one list of random numbers per trajectory):
    for random returns, for constant ones, and where a trajectory is alone in its group."""
    for seed in range(4):
        r, rng = rollouts(seed, size=1 if kind == "alone" else 4), np.random.default_rng(seed)
        noise = rng.normal(size=len(r)) if kind != "constant" else np.full(len(r), 0.25)
        if kind == "constant":
            r = replace(r, reward=np.where(np.append(r.trajectory[1:] != r.trajectory[:-1], True), 0.7, 0.0))
        columns = {"turn.implicit_reward": noise, "turn.potential_gain": noise}
        found = tw.credit.compute(name, r.with_columns(columns), **options)
        slow = reference(*returns_of(r), [len(rows) for rows in paths(r)], per_path(r, noise))
        np.testing.assert_allclose(found, np.concatenate(slow), atol=1e-6, rtol=1e-6)


def reported(rng: np.random.Generator, tokens: int, tops: int = 10) -> dict[str, tuple[float, ...]]:
    """Reports of a response: an entropy and the log-probs of the most likely tokens."""
    logits = rng.normal(size=(tokens, tops + 5)) * rng.uniform(0.5, 4)
    logprobs = np.sort(logits - np.log(np.exp(logits).sum(1, keepdims=True)), axis=1)[:, ::-1]
    columns = {f"top_logprob_{place + 1}": tuple(logprobs[:, place]) for place in range(tops)}
    return {"entropy": tuple(-(np.exp(logprobs) * logprobs).sum(1)), **columns}


def turn_of(rng: np.random.Generator, tokens: int, **more: Any) -> tw.Turn:
    """A turn with this many tokens and with reports."""
    return tw.Turn("state", response_ids=list(range(tokens)), logprobs=[-1.0] * tokens, reports=reported(rng, tokens), **more)


class Letters:
    """A tokenizer with one token per letter, and a control token 0. It is its own tokenizer, as that of a model."""

    all_special_ids = (0,)

    @property
    def tokenizer(self) -> Letters:
        return self

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: Any) -> str:
        return "".join(chr(number) if number else "<end>" for number in ids)


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]
