"""What travels between an engine and the driver, at the size of a real iteration, without a model and without a GPU. Prints JSON.

    python benchmarks/cluster_messages.py
    python benchmarks/cluster_messages.py --rounds 5 --every 0.05

One engine as an actor of Ray plays 128 attempts of up to 50 turns: prompts of a growing dialogue that begin with 420 tokens, responses of 5
to 10, observations of 6 to 40 words, as in recipes/alfworld-0.5b-gigpo.toml on real games. A step of its model is a sleep, so that Python's
lock is free as it is while a GPU computes. Three kinds of batches are played in turn: in this process (`plain`), through the cluster with
everything sent at the end (`at_end`), and with pieces that travel meanwhile (`pieces`). The last two have the seconds of the cluster's
parts (docs/metrics.md). `cpu` is the CPU time of the process that plays. Each value is the minimum of all rounds, because other programs
only add to it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from results import publish

from turnwise.agent.base import Parsed, Prompt
from turnwise.cluster.collecting import RemoteCollector
from turnwise.cluster.workers import RolloutWorkers
from turnwise.cluster.metrics import SECONDS
from turnwise.cluster.pieces import Pace
from turnwise.cluster.worker import RolloutWorker
from turnwise.cluster.source import Access
from turnwise.cluster.start import connect, import_ray, leave
from turnwise.collect.hooks import Hooks
from turnwise.cluster.work import Spec
from turnwise.collect.collector import Collector
from turnwise.collect.model_policy import ModelPolicy
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Turn
from turnwise.data.tasks import Task
from turnwise.engines.base import Request, Response, Sampling
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import Pool
from turnwise.util.garbage import play_only, rare_searches
from turnwise.util.prefix import Prefix
from turnwise.util.seeds import derive

GROUPS, SIZE, TURNS = 16, 8, 50
WORDS = ("you", "open", "the", "cabinet", "1", "and", "see", "a", "mug", "2", "on", "shelf", "near", "clean", "countertop", "closed")
AT_END = Pace(every=3600.0)


class Rooms:
    """Text of some words, for a number of turns that depends on task and seed."""

    max_turns = TURNS

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._rng, self._left = random.Random(seed), TURNS + 1
        return self._seen()

    def step(self, action: str) -> Transition:
        if self._left > TURNS:  # two of three attempts end before the limit
            self._left = TURNS if derive(len(action), self._rng.random()) % 3 == 0 else self._rng.randint(6, 35)
        self._left -= 1
        return Transition(self._seen(), 0.0, self._left <= 0, self._left <= 0)

    def _seen(self) -> Observation:
        return Observation(" ".join(self._rng.choices(WORDS, k=self._rng.randint(6, 40))))


class Dialogue:
    """Prompts are the beginnings of one list of tokens, as in full context."""

    def start(self, task: Task, observation: Observation) -> None:
        self.ids = [derive(task.id, place) % 150_000 for place in range(420)]

    def prompt(self) -> Prompt:
        return Prompt(Prefix(self.ids))

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        self.ids += response_ids
        self.ids += [1000 + len(word) for word in observation.text.split()]


class Steps:
    """Every row gets a token per step; a step takes its time."""

    version = 0

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._rows: list[tuple[Request, random.Random, list[int]]] = []

    @property
    def pending(self) -> int:
        return len(self._rows)

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            rng = random.Random(request.seed)
            self._rows.append((request, rng, [rng.randint(5, 10)]))

    def poll(self, wait: bool = True) -> list[Response]:
        while self._rows:
            time.sleep(self._seconds)
            done = []
            for row in self._rows:
                row[2].append(row[1].randrange(150_000))
                if len(row[2]) > row[2][0]:
                    done.append(row)
            if done:
                self._rows = [row for row in self._rows if len(row[2]) <= row[2][0]]
                return [Response(row[0].key, tuple(row[2][1:]), (-0.25,) * row[2][0], version=0) for row in done]
        return []

    def release(self, sequence: int) -> None: ...


def read(ids: Sequence[int], observation: Observation) -> tuple[str, Parsed]:
    text = " ".join(WORDS[number % len(WORDS)] for number in ids[:4])
    return text, Parsed(text)


class Parts:
    """What the engine plays with."""

    version, pids = 0, ()

    def __init__(self, seconds: float, hooks: Hooks):
        self._hooks = hooks
        self._pool, self._engine = Pool(Rooms, GROUPS * SIZE), Steps(seconds)

    def collector(self, spec: Spec) -> Collector:
        hooks = self._hooks
        policy = ModelPolicy(self._engine, Dialogue, read, Sampling())  # type: ignore[arg-type]
        return Collector(self._pool, policy, TURNS, on_turn=hooks.on_turn, on_end=hooks.on_end, on_fault=hooks.on_fault)

    def say(self, texts: Sequence[str], seed: int, temperature: float | None) -> list[Turn]:
        return []

    def openings(self, starts: Sequence[Start]) -> list[str]:
        return []

    def load_ahead(self, task: Task) -> None: ...

    def publish(self, version: int, weights: Any) -> None: ...

    def close(self) -> None:
        self._pool.close()


class Paced(RolloutWorker):
    """An actor whose pace can be set."""

    def set_pace(self, pace: Pace) -> None:
        self.pace = pace

    def cpu(self) -> float:
        return time.process_time()


def made(seconds: float, hooks: Hooks) -> Parts:
    found = Parts(seconds, hooks)
    play_only()
    return found


def cpu(workers: RolloutWorkers, kind: str) -> float:
    return time.process_time() if kind == "plain" else float(import_ray().get(workers.members[0].handle.cpu.remote()))


def starts(batch: int) -> list[Start]:
    tasks = [Task(f"{batch}.{group}", data={"game": f"games/{batch}/{group}/game.tw-pddl"}) for group in range(GROUPS)]
    return [
        Start(task, group, group * SIZE + k, derive(batch, group, k), derive("policy", batch, group, k))
        for group, task in enumerate(tasks)
        for k in range(SIZE)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--step", type=float, default=0.002, help="seconds of a step of the model")
    parser.add_argument("--every", type=float, default=Pace.every, help="seconds between two pieces")
    parser.add_argument("--out", type=Path, help="a file for the result")
    given = parser.parse_args()
    started = connect()
    found: dict[str, list[dict[str, float]]] = {"plain": [], "at_end": [], "pieces": []}
    work = {}
    try:
        own = Parts(given.step, Hooks())
        actor = import_ray().remote(Paced).options(max_concurrency=8, num_cpus=1)
        workers = RolloutWorkers(lambda number: actor.remote(partial(made, given.step), number), 1, deadline=60.0)
        workers.publish(0, lambda handle: handle.publish.remote(0, None))
        workers.settle()
        for number in range(given.rounds + 1):
            for kind in found:
                planned = starts(number)
                if kind != "plain":
                    pace = AT_END if kind == "at_end" else replace(Pace(), every=given.every)
                    import_ray().get(workers.members[0].handle.set_pace.remote(pace))
                before, spent, began = dict(workers.seconds), cpu(workers, kind), time.perf_counter()
                with rare_searches():
                    collector: Any = own.collector(Spec()) if kind == "plain" else RemoteCollector(Access(workers))
                    trajectories = collector.run(planned)
                line = {"collect": time.perf_counter() - began, "cpu": cpu(workers, kind) - spent}
                line |= {name: workers.seconds[name] - before.get(name, 0.0) for name in SECONDS if kind != "plain"}
                turns = [turn for one in trajectories for turn in one.turns]
                work = {"attempts": len(trajectories), "turns": len(turns), "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns)}
                if number:  # the first one warms up
                    found[kind].append(line)
                del trajectories, turns
        workers.close()
    finally:
        leave(started)
    least = {kind: {name: min(line[name] for line in lines) for name in lines[0]} for kind, lines in found.items()}
    publish({"step_seconds": given.step, "every": given.every, "work": work, "seconds": least}, given.out)


if __name__ == "__main__":
    main()
