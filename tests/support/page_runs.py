"""Runs made by hand for the tests of the pages: small, with known credit, and with texts that try to do harm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.data.images import picture
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.runs.folder import Run

ATTACK = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"
ODD = "a\ud800b \u202eright to left\u2028 bell\x07 \u0000nul </script><!-- é 🂡"

CONFIG = """name = "{name}"
out = "runs"
seed = {seed}
iterations = 4

[env]
name = "household"

[env.options]
size = '''{option}'''

[credit]
name = "{algorithm}"
{more}

[eval]
n = 2
"""


def turn(anchor: Any, action: str, reward: float = 0.0, **more: Any) -> Turn:
    given: dict[str, Any] = {"observation": f"You are in the {anchor}.", "thought": f"From the {anchor} on.", "response": action}
    return Turn(anchor=anchor, reward=reward, action=action, response_ids=[1, 2], logprobs=[-0.1, -0.2], **(given | more))


def group(number: int, task: str, shift: int = 0) -> list[Trajectory]:
    """Three attempts at a task: a short way, a long way, and one that never arrives. All start in the hall."""
    ways = [
        [turn("hall", "go to kitchen"), turn("kitchen", "take mug", 1.0)],
        [turn("hall", "go to cellar"), turn("cellar", "go to kitchen"), turn("kitchen", "take mug", 1.0)],
        [turn("hall", "go to cellar"), turn("cellar", "wait", valid=False), turn("cellar", "wait")],
    ]
    return [
        Trajectory(number, 10 * number + m + shift, task, way, Stop.DONE if m < 2 else Stop.STEP_LIMIT, "", m < 2, seed=7)
        for m, way in enumerate(ways)
    ]


class Measured:
    """An evaluation, as far as a run keeps it."""

    def __init__(self, trajectories: list[Trajectory]):
        self.trajectories = trajectories

    def to_dict(self) -> dict[str, Any]:
        return {"success": 0.5, "by_type": {"find": {"success": 0.5, "n": 2}, "put": {"success": 0.5, "n": 1}}}

    def outcomes(self) -> list[dict[str, Any]]:
        return [
            {"task": t.task, "success": t.success, "turns": len(t.turns), "invalid": 0, "stop": t.stop.value} for t in self.trajectories
        ]


def log(run: Run, iteration: int, **more: float) -> None:
    """A line of metrics."""
    run.log(
        {
            "iteration": iteration,
            "collect/success": 0.25 * iteration,
            "learner/entropy": 1.0 / (1 + iteration),
            "credit/anchor_size_histogram/1": 0.25,
            "credit/anchor_size_histogram/2-3": 0.75,
            "credit/step_credit_share": 0.5,
            "time/collect": 1.0,
            "time/iteration": 2.0,
        }
        | more
    )


def evaluated(success: float) -> dict[str, float]:
    return {"eval/success": success, "eval/low": success / 2, "eval/high": (1 + success) / 2}


def make_run(
    folder: Path, name: str = "good", *, algorithm: str = "gigpo", seed: int = 0, option: str = "tiny", more: str = "", lines: int = 3
) -> Run:
    """A finished run of three iterations, the last of which is kept with all that a page can show."""
    plain = re.sub(r"[^ -!#-\[\]-~]", "_", name)  # as TOML takes it without escapes
    known = tw.credit.algorithms.known(algorithm)
    more = more if known is not None and "norm" not in known.options else f'norm = "none"\n{more}'
    run = Run.create(folder, name, CONFIG.format(name=plain, algorithm=algorithm, seed=seed, option=option, more=more))
    log(run, 0, **evaluated(0.25))
    for iteration in range(1, lines):
        log(run, iteration)
    log(run, lines, **evaluated(0.75))
    seen = picture(np.full((4, 6, 3), 200, np.uint8))
    batch = [*group(0, "find-mug"), *group(1, f"put-{ATTACK}")]
    for attempt in batch[3:]:
        attempt.turns[0].observation = ATTACK
        attempt.turns[0].thought = ODD
        attempt.stop_detail = ATTACK
    batch[0].turns[0].images = (seen,)
    run.save_batch(lines, Batch.of(batch), keep=None)
    measured: Any = Measured([group(0, "find-mug")[0], group(1, "put-cup", shift=20)[2]])
    run.save_evaluation(lines, measured, {"split": "valid"})
    run.write_facts("summary.json", {"finished": True, "train_seconds": 6.0, "turns": 16})
    return run


def place(iteration: int = 3, part: str = "rollouts", run: str = "good", **more: Any) -> dict[str, str]:
    """The words that say which attempts are meant."""
    return {"run": run, "part": part, "iteration": str(iteration)} | {key: str(value) for key, value in more.items()}


__all__ = ["ATTACK", "ODD", "evaluated", "group", "log", "make_run", "place", "turn"]
