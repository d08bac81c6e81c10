"""What the host does in an iteration, without the model: CPU time of collecting, credit, packing and keeping the rollouts, part by part.

CPU time of the main thread, which a GPU waits for. `beside` is that of a second thread, which works while a GPU computes an update. Neither
holds what the host spends on launching work on a GPU: `benchmarks/cluster_overhead.py` measures whole iterations on one.

    python benchmarks/host.py --data DATA/alfworld --model FOLDER
    python benchmarks/host.py --data DATA/alfworld --model FOLDER --against CHECKOUT --rounds 5 --out benchmarks/host.json

The path is the real one, as recipes/alfworld-0.5b-gigpo.toml sets it up: ALFWorld's games, 16 tasks × 8 attempts of up to 50 turns, full
context, collector, pool, policy, the native engine's own planning with pages as on a GPU, and what its runner writes down for a GPU. Only
the model's forward is missing: the answers were written down before: the action of an expert that has to search, or half of the time a
random one.
`--model` is a folder with a tokenizer; without it one of words is made from the games.

Each measurement is a separate process that plays a first iteration to warm up and then measures the next ones, each with games that it
has not seen. With `--against` another checkout is measured alternately with this one; the minimum of all rounds counts. A digest of all
results (ids, texts, columns, packed batch, files read back) shows whether both did the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from results import publish

import turnwise
from turnwise import credit
from turnwise.agent import Agent, AgentSettings
from turnwise.agent.context import Full
from turnwise.collect.collector import Collector, Start, summarise
from turnwise.collect.model_policy import ModelPolicy
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory
from turnwise.data.tasks import TaskSet
from turnwise.engines.base import Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native import engine as native
from turnwise.engines.native.memory import GPU_PAGE
from turnwise.engines.native.requests import Step
from turnwise.engines.native.switches import Switches
from turnwise.envs import registry
from turnwise.envs.pool import Pool
from turnwise.learn.packing import pack
from turnwise.learn.tiny import build_tiny_for
from turnwise.methods.planning import Places
from turnwise.runs.folder import Run
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

try:
    from turnwise.engines.native import recorded
except ImportError:  # no triton here, and no kernel runs
    parts = ("", ".language", ".language.extra", ".language.extra.cuda", ".tools", ".tools.tensor_descriptor")
    with patch.dict(sys.modules, {f"triton{part}": MagicMock() for part in parts}):
        from turnwise.engines.native import recorded
try:
    from turnwise.util.garbage import loaded_set_apart
except ImportError:  # an older checkout
    loaded_set_apart = nullcontext
try:
    from turnwise.util.background import background as beside
    from turnwise.util.garbage import rare_searches, search_between
except ImportError:  # an older checkout, which writes after the update
    beside = None  # type: ignore[assignment]

GROUPS, MEMBERS, TURNS, CHANCE = 16, 8, 50, 0.5
LONGEST_PROMPT, LONGEST_RESPONSE = 4096, 24
DECODE, PROMPT = (1.0e-3, 4e-6), (1.2e-3, 2e-6)  # seconds of a GPU per step, and per row or token: about an H200 with a 0.5B model
OF_COLLECTING = ("environment", "context", "tokens", "reading", "engine", "runner")


def games(data: Path) -> TaskSet:
    """Games of both splits, alternating."""
    train, seen = (registry.tasks("alfworld", split, data=str(data)) for split in ("train", "valid_seen"))
    return TaskSet([task for pair in zip(train, seen, strict=False) for task in pair])


def plan(tasks: TaskSet) -> Places:
    return Places(tasks, 0, MEMBERS)


def write_scripts(data: Path, iterations: int) -> list[list[str]]:
    """The actions of every attempt, in the order of the plan."""
    env = registry.make("alfworld", data=str(data), expert_knows="seen")
    return [_script(env, start) for start in plan(games(data)).starts(0, GROUPS * iterations)]


def _script(env: Any, start: Start) -> list[str]:
    observation, said = env.reset(start.task, start.env_seed), list[str]()
    for turn in range(TURNS):
        draw = derive(start.policy_seed, "script", turn)
        by_chance = observation.actions[draw // 1000 % len(observation.actions)]
        try:
            said.append(by_chance if draw % 1000 < 1000 * CHANCE else env.expert_action())
        except TurnwiseError:  # random actions have made it impossible to win
            said.append(by_chance)
        transition = env.step(said[-1])
        if transition.done:
            break
        observation = transition.observation
    return said


class Clock:
    """CPU seconds of the main thread by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.add(name, time.thread_time() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def watch(self, owner: Any, name: str, *methods: str) -> Any:
        """Count the time of an object's methods."""
        for method in methods:
            setattr(owner, method, self._timed(name, getattr(owner, method)))
        return owner

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.add(name, time.thread_time() - start)

        return timed


class Reciter(recorded.RecordedRunner):
    """Replaces the model: every attempt draws the tokens of its script. Everything else is as on a GPU, up to the launches."""

    cache = torch.zeros(0)

    def __init__(self, clock: Clock, weights: Any, slots: int, longest: int):
        super().__init__(weights, slots, longest, -(-longest // GPU_PAGE) * slots * 2, GPU_PAGE, True, Switches())
        self.clock = clock
        self.scripts: list[list[Sequence[int]]] = []
        self.turn: dict[int, int] = {}
        self.free = 0.0  # when a GPU would have done everything that it was given

    def _run(self, key: Any, work: Callable[[], None]) -> None: ...

    def _prompts(self, step: Step) -> Any:
        self._flatten(step)

    def launch(self, step: Step) -> Any:
        start = time.thread_time()
        super().launch(step)
        middle = time.thread_time()
        self.clock.add("runner", middle - start)
        said = self._said(step)
        self.clock.add("reciting", time.thread_time() - middle)
        single = len(step.drawing) == step.tokens
        seconds = DECODE[0] + DECODE[1] * step.tokens if single else PROMPT[0] + PROMPT[1] * step.tokens
        self.free = said.done = max(self.free, self.now()) + seconds
        return said

    def now(self) -> float:
        """The time at which the host would be, if it had a GPU."""
        return time.thread_time() - self.clock.seconds.get("reciting", 0.0) + self.clock.seconds.get("waiting", 0.0)

    def wait_until(self, moment: float) -> None:
        self.clock.add("waiting", max(0.0, moment - self.now()))

    def _said(self, step: Step) -> Reciter.Said:
        for row in step.admitted:
            self.turn[row.request.sequence] = self.turn.get(row.request.sequence, -1) + 1
        tokens, logprobs = [], []
        for place in step.drawing:
            row = step.rows[place]
            script = self.scripts[row.request.sequence][self.turn[row.request.sequence]]
            tokens.append(script[min(row.drawn, len(script) - 1)])
            logprobs.append(-((row.request.seed ^ row.drawn) % 1000003) / 1e6)
        return Reciter.Said(self, tokens, logprobs)

    def update(self) -> None: ...

    def clean(self) -> None: ...

    def sleep(self) -> None: ...

    class Said:
        """A step's tokens and log-probs."""

        noted = None  # nobody asked for reports
        done = 0.0

        def __init__(self, reciter: Reciter, tokens: list[int], logprobs: list[float]):
            self.reciter, self.result = reciter, (tokens, logprobs)

        def wait(self) -> tuple[list[int], list[float]]:
            self.reciter.wait_until(self.done)
            return self.result


class Host:
    """The parts of a run, and the clock."""

    def __init__(self, data: Path, model: Path | None, scripts: list[list[str]]):
        options = {"data": str(data)}
        tiny, tokenizer = build_tiny_for("alfworld", options=options, sample=40, layers=1, hidden=16, heads=1)
        if model is not None:
            from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(model))
            small = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1}
            sizes = {**AutoConfig.from_pretrained(str(model)).to_dict(), **small, "layer_types": ["full_attention"]}
            tiny = AutoModelForCausalLM.from_config(type(AutoConfig.from_pretrained(str(model))).from_dict(sizes))
        self.clock = Clock()
        settings = AgentSettings(context="full", prompt="action", show_actions=False, max_prompt_tokens=LONGEST_PROMPT)
        self.agent = Agent(tokenizer, settings)
        self.scripts = [[self.agent.write(action) for action in script] for script in scripts]
        self.agent = Agent(tokenizer, settings)  # one that knows no text yet
        self.tasks, rows, longest = games(data), GROUPS * MEMBERS, LONGEST_PROMPT + LONGEST_RESPONSE
        with patch.object(native, "make_runner", lambda weights, *_: Reciter(self.clock, weights, rows, longest)):
            self.engine = NativeEngine(tiny, tokenizer, rows, longest, prefill_tokens=16384, stop_token_ids=self.agent.stop_ids)
        self.pool = Pool("alfworld", rows, options=options)
        self.clock.watch(self.agent.chat, "tokens", "encode", "decode")
        self.clock.watch(self.pool, "environment", "submit_reset", "submit_step")
        self.runner: Any = self.engine._runner
        self.clock.watch(Full, "context", "start", "prompt", "record")
        self.clock.watch(self.engine, "engine", "submit", "poll", "release", *(["start"] if hasattr(self.engine, "start") else []))

    def read(self, *given: Any) -> Any:
        with self.clock("reading"):
            return self.agent.read(*given)

    def collect(self, iteration: int) -> list[Trajectory]:
        size = GROUPS * MEMBERS
        self.runner.scripts, self.runner.turn = self.scripts[iteration * size : (iteration + 1) * size], {}
        policy = ModelPolicy(self.engine, self.agent.context, self.read, Sampling(max_tokens=LONGEST_RESPONSE), self.agent.read_text)
        with patch.object(recorded, "note"), patch.object(recorded, "copy_pages"):
            return Collector(self.pool, policy, TURNS).run(plan(self.tasks).starts(iteration * GROUPS, GROUPS))

    def iteration(self, number: int, folder: Path, results: Any) -> dict[str, Any]:
        """One iteration as the training loop goes through it."""
        with self.clock("collecting"):
            found = self.collect(number)
        with self.clock("summary"):
            summary = summarise(found)
        with self.clock("columns"):
            batch = Batch.of(found)
        with self.clock("credit"):
            batch = credit.give(batch, "gigpo", gamma=0.95, omega=1.0, norm="std")
            rollouts = batch.rollouts
            credit.diagnose(rollouts)
        run = Run(folder)
        with self._beside(run, number, batch):
            with self.clock("packing"):
                packed = pack(found, rollouts)
            with self.clock("refreshing"):
                self.engine.refresh()
        with self.clock("keeping"):
            if beside is None:
                run.save_batch(number, batch, 2)
            else:
                run.forget_batches(number, 2)
        if results is not None:
            for part in _all_of(found, rollouts, packed, Run(folder), number):
                results.update(part)
        with self.clock("freeing"):
            del found, batch, rollouts, packed
            if beside is not None:
                search_between()
        return summary

    @contextmanager
    def _beside(self, run: Run, number: int, batch: Batch) -> Iterator[None]:
        """As the training loop does it: the batch is written and the next games are loaded beside the update."""
        if beside is None:
            yield
            return

        def work(pause: Any) -> None:
            start = time.thread_time()
            run.save_batch(number, batch, None, pause=pause)
            for start_of in plan(self.tasks).starts((number + 1) * GROUPS, GROUPS)[::MEMBERS]:
                self.pool.load_ahead(start_of.task)
                pause()
            self.clock.add("beside", time.thread_time() - start)

        with background(work):
            yield


def _all_of(found: list[Trajectory], rollouts: Rollouts, packed: Any, run: Run, number: int) -> Iterator[bytes]:
    """All results of an iteration, as bytes."""
    for trajectory in found:
        for turn in trajectory.turns:
            yield np.asarray(turn.prompt_ids).tobytes() + np.asarray(turn.response_ids).tobytes() + repr(turn).encode()
    for one in (rollouts, packed):
        for name, value in sorted(vars(one).items()):
            if isinstance(value, np.ndarray):
                yield f"{name} {value.dtype} {value.shape}".encode() + value.tobytes()
    yield json.dumps(run.trajectories(number)).encode()
    yield from (ids.tobytes() for pair in run.tokens(number) for ids in pair)


def measure(data: Path, model: Path | None, scripts: list[list[str]], profile: Path | None) -> dict[str, Any]:
    """The warm-up, then the other iterations: CPU seconds of each part of one, on average."""
    host, results = Host(data, model, scripts), hashlib.blake2b(digest_size=16)
    iterations = len(scripts) // (GROUPS * MEMBERS)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(loaded_set_apart())
        if beside is not None:
            stack.enter_context(rare_searches())
        host.iteration(0, Path(folder), results)
        host.clock.seconds.clear()
        if profile is not None:
            import cProfile

            profiler = cProfile.Profile()
            profiler.enable()
        done = [host.iteration(number, Path(folder), None if profile else results) for number in range(1, iterations)]
        if profile is not None:
            profiler.disable()
            profiler.dump_stats(profile)
    sums = host.clock.seconds
    for name in ("collecting", "engine"):
        sums[name] -= sums["reciting"]
    sums["engine"] -= sums["runner"]
    del sums["reciting"]
    apart, waiting = sums.pop("beside", 0.0), sums.pop("waiting")
    means = {name: sum(one[name] for one in done) / len(done) for name in ("turns", "success", "prompt_tokens", "response_tokens")}
    seconds = {name: value / len(done) for name, value in sums.items()}
    return {
        "seconds": seconds,
        "beside": apart / len(done),
        "waiting": waiting / len(done),
        "iteration": means,
        "results": results.hexdigest(),
    }


def in_checkout(checkout: Path, args: argparse.Namespace, scripts: Path) -> dict[str, Any]:
    """A measurement in a process of its own, with the code of a checkout and that checkout's own copy of this script: names of modules
    change."""
    script = checkout / "benchmarks" / Path(__file__).name
    command = [sys.executable, str(script if script.is_file() else __file__), "--data", str(args.data), "--scripts", str(scripts)]
    command += ["--model", str(args.model)] if args.model else []
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def least(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """The least CPU seconds of each part, and of all parts of one round. Python's searches for garbage fall into any part."""
    parts = {name: min(one["seconds"][name] for one in rounds) for name in rounds[0]["seconds"]}
    return parts | {"all": min(sum(value for name, value in one["seconds"].items() if name not in OF_COLLECTING) for one in rounds)}


def table(here: dict[str, float], other: dict[str, float] | None, turns: float) -> dict[str, dict[str, float]]:
    """One line per part: seconds per iteration, milliseconds per turn, and both for the other checkout."""
    rows = {name: {"seconds": round(value, 4), "ms_a_turn": round(1000 * value / turns, 4)} for name, value in here.items()}
    for name, value in (other or {}).items():
        rows[name] |= {"against_seconds": round(value, 4), "ratio": round(value / here[name], 2)}
    return rows


def report(args: argparse.Namespace, scripts: Path) -> dict[str, Any]:
    ours = Path(turnwise.__file__).parents[1]
    checkouts = [ours, args.against] if args.against else [ours]
    rounds = [[in_checkout(checkout, args, scripts) for checkout in checkouts] for _ in range(args.rounds)]
    of_each = [least(list(column)) for column in zip(*rounds, strict=True)]
    first = rounds[0][0]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "tokenizer": args.model.name if args.model else "words of the games",
        "iteration": {name: round(value, 3) for name, value in first["iteration"].items()},
        "rounds": args.rounds,
        "parts_of_collecting": "context holds the tokens of messages, reading those of responses",
        "waiting_seconds": round(min(one[0]["waiting"] for one in rounds), 4),
        "beside_seconds": round(min(one[0]["beside"] for one in rounds), 4),
        "cpu": table(of_each[0], of_each[1] if args.against else None, first["iteration"]["turns"]),
        **({"against": args.commit, "same_results": len({one["results"] for pair in rounds for one in pair}) == 1} if args.against else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of ALFWorld's games")
    parser.add_argument("--model", type=Path, help="a folder with a tokenizer and a config")
    parser.add_argument("--against", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3, help="how many are played in a round, the first to warm up")
    parser.add_argument("--scripts", type=Path, help="measure in this process with the scripts of this file")
    parser.add_argument("--profile", type=Path, help="with --scripts: write a profile to this file")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.scripts and args.scripts.is_file():
        print(json.dumps(measure(args.data, args.model, json.loads(args.scripts.read_text()), args.profile)))
        return
    if args.against:
        named = subprocess.run(
            ["git", "-C", str(args.against), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        )
        args.commit = named.stdout.strip() or args.against.name
    with tempfile.TemporaryDirectory() as folder:
        scripts = args.scripts or Path(folder) / "scripts.json"
        scripts.write_text(json.dumps(write_scripts(args.data, args.iterations)))
        publish(report(args, scripts), args.out)


if __name__ == "__main__":
    main()
