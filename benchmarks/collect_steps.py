"""The gain from not letting ready environments wait while the model generates.

    python benchmarks/collect_steps.py --out benchmarks/collect_steps.json

Attempts of 8 turns over four worker processes. The environment sleeps up to 40 ms per step. The model is a stand-in for one on a GPU: a
decode step takes 3 ms, whatever number of rows is in it. Two cases: `many` has 32 attempts with responses of 4 to 60 tokens, so that a
response ends at nearly every step; `few` has 24 attempts, four at a time, and one response in eight is a long thought of 200 tokens.
Three ways of collecting, one after another in each round:

    in order              answers are passed on in the order asked for, the moment counted in attempts (env.in_order, the default)
    whole responses       answers are passed on as they come, but only when a response is finished
    between steps         answers are passed on as they come, after each decode step

Reported per way: seconds, decode steps, mean rows per step, as medians of the rounds. The turns are the same all three ways.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from results import publish

from turnwise.agent.base import Parsed, Prompt
from turnwise.collect.collector import Collector
from turnwise.collect.model_policy import ModelPolicy
from turnwise.data.tasks import Task, TaskSet
from turnwise.engines.base import Request, Response, Sampling
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import Pool
from turnwise.methods.planning import Places

TURNS, WORKERS, STEP, LONGEST_WAIT = 8, 4, 0.003, 0.04
CASES: dict[str, tuple[int, int, Callable[[int], int]]] = {  # attempts, how many at a time, tokens of a response by its seed
    "many": (32, 32, lambda seed: 4 + seed % 57),
    "few": (24, 4, lambda seed: 200 if seed % 8 == 0 else 4 + seed % 17),
}


class Waiting:
    """Eight turns, each of which takes some time."""

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.turn, self.chance = 0, random.Random(f"{task.id} {seed}")
        return Observation("begin")

    def step(self, action: str) -> Transition:
        time.sleep(self.chance.random() * LONGEST_WAIT)
        self.turn += 1
        return Transition(Observation(f"turn {self.turn}"), 0.0, self.turn == TURNS)


class Dialogue:
    """As many tokens as turns."""

    def start(self, task: Task, observation: Observation) -> None:
        self.ids = [1]

    def prompt(self) -> Prompt:
        return Prompt(self.ids)

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        self.ids = [*self.ids, 1]


class Stepping:
    """Decode steps of a fixed duration over all running rows."""

    version, reports = 0, ()

    def __init__(self, tokens: Callable[[int], int]) -> None:
        self.tokens = tokens
        self.left: dict[int, list[Any]] = {}
        self.steps = self.rows = 0

    @property
    def pending(self) -> int:
        return len(self.left)

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.left[request.key] = [request, self.tokens(request.seed)]

    def poll(self, wait: bool = True) -> list[Response]:
        done: list[Request] = []
        while self.left and not done:
            time.sleep(STEP)
            self.steps, self.rows = self.steps + 1, self.rows + len(self.left)
            for row in self.left.values():
                row[1] -= 1
            done = [request for request, left in self.left.values() if left == 0]
            for request in done:
                del self.left[request.key]
            if not wait:
                break
        return [Response(request.key, (request.seed % 50,), (0.0,)) for request in done]

    def release(self, sequence: int) -> None: ...

    def publish(self, version: int, weights: Any = None) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class Whole(Stepping):
    """Knows nothing of single steps."""

    def poll(self) -> list[Response]:  # type: ignore[override]
        return super().poll()


WAYS: dict[str, tuple[type[Stepping], bool]] = {
    "in order": (Stepping, True),
    "whole responses": (Whole, False),
    "between steps": (Stepping, False),
}


def measure(pool: Pool, case: str, way: str) -> tuple[dict[str, float], list[Any]]:
    attempts, _, tokens = CASES[case]
    kind, ordered = WAYS[way]
    engine = kind(tokens)
    policy = ModelPolicy(engine, Dialogue, lambda ids, seen: (str(ids), Parsed(str(ids[0]))), Sampling())
    starts = Places(TaskSet((Task(str(n)) for n in range(attempts)), "numbers"), seed=0, group_size=1).starts(0, attempts)
    begun = time.perf_counter()
    found = Collector(pool, policy, TURNS, ordered=ordered).run(starts)
    numbers = {"seconds": time.perf_counter() - begun, "steps": engine.steps, "rows": engine.rows / engine.steps}
    return numbers, [[turn.action for turn in trajectory.turns] for trajectory in found]


def compare(case: str, rounds: int) -> dict[str, dict[str, float]]:
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with Pool(Waiting, CASES[case][1], workers=WORKERS, timeout=60.0) as pool:
        measure(pool, case, "in order")  # workers start
        for _ in range(rounds):
            turns = []
            for way in WAYS:
                numbers, played = measure(pool, case, way)
                runs[way].append(numbers)
                turns.append(played)
            assert turns[0] == turns[1] == turns[2], "the way of collecting has changed a turn"
    return {way: {name: round(statistics.median(run[name] for run in found), 3) for name in found[0]} for way, found in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = {"turns": TURNS, "workers": WORKERS, "step_seconds": STEP, "longest_wait": LONGEST_WAIT, "rounds": options.rounds}
    publish({"settings": settings} | {case: compare(case, options.rounds) for case in CASES}, options.out, indent=2)


if __name__ == "__main__":
    main()
