"""How long a GPU is idle between two turns, without a GPU: the whole path of a rollout, with a runner that computes nothing.

    python benchmarks/turn_gaps.py
    python benchmarks/turn_gaps.py --turns 20 --against CHECKOUT --rounds 3 --out benchmarks/turn_gaps.json

The rollout is that of benchmarks/iteration.py: 128 attempts, prompts of 700 tokens (`window`) or a dialogue that grows (`full`), responses
of 100 tokens that all end in the same step. Collector, pool, policy and the native engine are the real ones, with pages and steps as on a
GPU, and so is what its runner writes down for a GPU. Instead of launching, it notes when a GPU would be done: the time of a step is
assumed (`Pace`), the time of the host is the CPU time of this thread. Both together are a timeline, in which `idle` is the time that the
GPU waits for the host. The launches themselves take time too, on a real GPU; they are not in it.

`boundary_ms` is what lies between two turns: from the end of the last decode step to the next launch. `parts_ms` are what the host does in
that time, each without those inside it, measured in a run of its own: the clock costs a little. With `--against`, another checkout is
measured alternately with this one. The round with the least idle time counts, and `same_tokens` says whether all drew the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from host import Clock, Reciter, recorded
from iteration import Dialogue, Script, Shape, make_model
from results import publish

import turnwise
from turnwise.agent.base import Parsed
from turnwise.collect.collector import Collector
from turnwise.collect.model_policy import ModelPolicy
from turnwise.data.tasks import Task, TaskSet
from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native import engine as native
from turnwise.engines.native.requests import Step
from turnwise.envs.pool import Pool
from turnwise.methods.planning import Places


@dataclass(frozen=True)
class Pace:
    """Seconds of a GPU: of a decode step, and of a step with prompts and each of its tokens. `recorded`: the largest recorded step."""

    decode: float
    prompts: float
    token: float
    recorded: int


PACES = {"1.5b": Pace(2.3e-3, 1.5e-3, 4.3e-6, 1280), "0.5b": Pace(1.2e-3, 1.2e-3, 1.5e-6, 4096)}  # about an H200
PREFILL = 32768  # tokens of a step: the engine's default on such a GPU
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {  # where, and what
    "tokens read": ("engine", ("_settle",)),
    "rows leave": ("engine", ("_leave",)),
    "pages kept": ("chains", ("leave",)),
    "responses read": ("policy", ("_answer",)),
    "environments": ("pool", ("submit_step", "submit_reset", "results")),
    "turns recorded": ("collector", ("_record",)),
    "contexts": ("policy", ("observe",)),
    "prompts": ("policy", ("ask",)),
    "submit": ("engine", ("submit",)),
    "planning": ("engine", ("_plan",)),
    "checks": ("engine", ("_check",)),
    "prefixes": ("chains", ("find_prefix",)),
    "pages": ("chains", ("fits", "grow")),
    "index": ("pages", ("publish",)),
    "written for the GPU": ("runner", ("launch",)),
}


class Parts:
    """CPU seconds by name, each without the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside, self._since = ["collector"], time.thread_time()

    def _turn(self) -> None:
        now = time.thread_time()
        self.seconds[self._inside[-1]] = self.seconds.get(self._inside[-1], 0.0) + now - self._since
        self._since = now

    def now(self) -> dict[str, float]:
        self._turn()
        return dict(self.seconds)

    def watch(self, owner: Any, name: str, method: str) -> None:
        function = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._inside.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._inside.pop()

        setattr(owner, method, timed)


class Idle(Reciter):
    """Draws numbers instead of tokens, and keeps the timeline of a GPU."""

    pace: Pace
    parts: Parts | None = None

    def __init__(self, clock: Clock, weights: Any, slots: int, longest: int):
        super().__init__(clock, weights, slots, longest)
        self.cache = torch.zeros(1, 1, self.page_count + 1, 1)
        self.begin()

    def begin(self) -> None:
        """Forget the timeline."""
        self.clock.seconds.clear()
        self.free, self.idle, self.boundaries, self.flying = self.now(), 0.0, list[float](), 0
        self.steps = {"prompts": 0, "decode": 0}
        self.spent: dict[str, float] = {}
        self._before: dict[str, float] | None = None

    def launch(self, step: Step) -> Any:
        recorded.RecordedRunner.launch(self, step)
        now, single = self.now(), len(step.drawing) == step.tokens
        gap = max(0.0, now - self.free)
        self.idle += gap
        if not self.flying:
            self.boundaries.append(gap)
            if self.parts is not None and self._before is not None:
                for name, value in self.parts.now().items():
                    self.spent[name] = self.spent.get(name, 0.0) + value - self._before.get(name, 0.0)
        self.steps["decode" if single else "prompts"] += 1
        self.flying += 1
        start = time.thread_time()
        said = self._said(step)
        self.clock.add("reciting", time.thread_time() - start)
        self.free = said.done = max(self.free, now) + (self.pace.decode if single else self.pace.prompts + self.pace.token * step.tokens)
        return said

    def _said(self, step: Step) -> Reciter.Said:
        rows = [step.rows[place] for place in step.drawing]
        return Reciter.Said(self, [(row.request.seed + row.drawn) % 151936 for row in rows], [-0.5] * len(rows))

    def wait_until(self, moment: float) -> None:
        super().wait_until(moment)
        self.flying -= 1
        if not self.flying and self.parts is not None:
            self._before = self.parts.now()


class Rollout:
    """The parts of a rollout."""

    def __init__(self, shape: Shape, parts: Parts | None = None):
        self.shape, rows = shape, shape.groups * shape.members
        tiny = make_model(replace(shape, size="tiny"), "cpu")
        with patch.object(native, "make_runner", lambda weights, *_: Idle(Clock(), weights, rows, shape.longest + 1)):
            self.engine = NativeEngine(tiny, None, rows, shape.longest + 1, prefill_tokens=PREFILL, stop_token_ids=())
        self.engine.weights.shape = replace(self.engine.weights.shape, vocabulary=151936)
        self.runner: Any = self.engine._runner
        self.runner.pace, self.runner.parts = PACES[shape.size], parts
        self.runner._sizes = tuple(size for size in self.runner._sizes if size <= PACES[shape.size].recorded)
        self.pool, self.numbers = Pool(Script, rows), iter(range(10**9))

    def play(self, turns: int, place: int) -> str:
        """Play groups from a place on; the digest of all tokens."""
        shape = self.shape
        tasks = TaskSet([Task(str(n), "train") for n in range(2 * shape.groups)])
        policy = ModelPolicy(self.engine, self._context, lambda ids, seen: ("", Parsed("go")), Sampling(max_tokens=shape.response))
        collector = Collector(self.pool, policy, turns)
        if (parts := self.runner.parts) is not None:
            owners = {"engine": self.engine, "chains": self.engine._chains, "pages": self.engine._pages, "runner": self.runner}
            owners |= {"policy": policy, "collector": collector, "pool": self.pool}
            for name, (owner, methods) in PARTS.items():
                for method in methods:
                    parts.watch(owners[owner], name, method)
        starts = Places(tasks, 0, shape.members, shuffle=False).starts(place, shape.groups)
        self.runner.begin()
        with patch.object(recorded, "note"), patch.object(recorded, "copy_pages"):
            start = time.thread_time()
            found = collector.run(starts)
            self.host = time.thread_time() - start
        digest = hashlib.blake2b(digest_size=8)
        for trajectory in found:
            for turn in trajectory.turns:
                digest.update(repr((list(turn.prompt_ids), turn.response_ids, turn.reward)).encode())
        return digest.hexdigest()

    def _context(self) -> Dialogue:
        return Dialogue(self.shape, self.numbers.__next__)


def measure(shape: Shape) -> dict[str, Any]:
    """A warm-up of two turns, then the rollout; then a rollout with the clock on every part."""
    rollout = Rollout(shape)
    rollout.play(2, shape.groups)
    rollout.engine.forget()
    digest, runner = rollout.play(shape.turns, 0), rollout.runner
    between = runner.boundaries[1:]  # the first launch of all has no turn before it
    found = {
        "boundary_ms": 1000 * sum(between) / max(1, len(between)),
        "idle_s": runner.idle,
        "rollout_s": rollout.host + runner.clock.seconds.get("waiting", 0.0) - runner.clock.seconds["reciting"],
        "steps": runner.steps,
        "digest": digest,
    }
    watched = Rollout(shape, Parts())
    watched.play(shape.turns, 0)
    turns = max(1, len(watched.runner.boundaries) - 1)
    spent = {name: 1000 * value / turns for name, value in watched.runner.spent.items()}
    return found | {"parts_ms": dict(sorted(spent.items(), key=lambda item: -item[1]))}


def in_checkout(checkout: Path, shape: Shape) -> dict[str, Any]:
    """A measurement in a process of its own, with the code of a checkout and this script."""
    command = [sys.executable, __file__, "--here", "--context", shape.context, "--size", shape.size, "--turns", str(shape.turns)]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def least(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The round in which the GPU was idle for the shortest time."""
    best = min(rounds, key=lambda one: one["idle_s"])
    return {
        "boundary_ms": round(best["boundary_ms"], 2),
        "idle_s": round(best["idle_s"], 3),
        "rollout_s": round(best["rollout_s"], 2),
        "steps": best["steps"],
        "parts_ms": {name: round(value, 2) for name, value in best["parts_ms"].items() if value >= 0.005},
    }


def commit_of(checkout: Path) -> str:
    found = subprocess.run(["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or checkout.name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", choices=("window", "full"), help="one of them; both if left out")
    parser.add_argument("--size", choices=sorted(PACES), default="1.5b", help="whose pace a GPU is assumed to have")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", type=Path, help="another checkout to compare with")
    parser.add_argument("--here", action="store_true", help="measure in this process, and print the figures as they are")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.here:
        print(json.dumps(measure(Shape(context=args.context, size=args.size, turns=args.turns))))
        return
    checkouts = {"now": Path(turnwise.__file__).parents[1]} | ({"against": args.against} if args.against else {})
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "pace": {"size": args.size, **PACES[args.size].__dict__},
        "turns": args.turns,
        "rounds": args.rounds,
    } | ({"against": commit_of(args.against)} if args.against else {})
    for context in [args.context] if args.context else ["window", "full"]:
        shape = Shape(context=context, size=args.size, turns=args.turns)
        rounds = [{name: in_checkout(checkout, shape) for name, checkout in checkouts.items()} for _ in range(args.rounds)]
        result[context] = {name: least([one[name] for one in rounds]) for name in checkouts}
        result[context]["same_tokens"] = len({one["digest"] for pair in rounds for one in pair.values()}) == 1
    publish(result, args.out)


if __name__ == "__main__":
    main()
