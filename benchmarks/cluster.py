"""What a cluster costs and what old data costs, and whether a run that was killed ends as one that was not.

python benchmarks/cluster.py overhead                              the tiny model on a CPU
python benchmarks/cluster.py overhead --still --model FOLDER --device cuda --recipe recipes/alfworld-0.5b-gigpo.toml --write
python benchmarks/cluster.py staleness --recipe recipes/quickstart.toml --iterations 50 --write
python benchmarks/cluster.py kills --kills 6
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from bench import ROOT, Part, main

import turnwise as tw
from turnwise.recipe.reading import parse_override
from turnwise.runs.folder import Run

QUICKSTART = ROOT / "recipes" / "quickstart.toml"

# -- overhead -----------------------------------------------------------------------------------------------------------------------------

PHASES = ("collect", "credit", "update", "keep", "iteration", "wall")
STILL = 1e-30  # a learning rate: no step changes a weight
SAME = 0.02  # of the turns of an iteration: how far two that are compared as a pair may differ
WORK = ("turns", "prompt_tokens", "response_tokens")
Runs = dict[str, list[dict[str, Any]]]  # the runs of each kind


@contextmanager
def noted() -> Iterator[list[float]]:
    """When each line of a log was written."""
    walls: list[float] = []
    log = Run.log

    def logged(run: Run, metrics: Any) -> None:
        log(run, metrics)
        walls.append(time.monotonic())

    with patch.object(Run, "log", logged):
        yield walls


def train(recipe: Path, out: Path, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One run: the lines of its log but the first two, and a sum of its weights. The evaluation after the last one does not count."""
    start = time.perf_counter()
    with noted() as walls:
        result = tw.train(recipe, quiet=True, out=str(out), name=name, **changes)
    whole = hashlib.sha256()
    for path in sorted((result.folder / "model").glob("*.safetensors")):
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    lines = Run.open(result.folder).metrics()
    for before, now, line in zip(walls, walls[1:], lines[1:], strict=False):
        line |= {"time/wall": now - before - line.get("time/eval", 0.0)}
    measured = [line for line in lines if line["iteration"] > 1]
    return {"lines": measured, "whole": time.perf_counter() - start, "weights": whole.hexdigest()}


def median(runs: list[dict[str, Any]], name: str, per: str | None = None) -> float:
    """Over all iterations of all runs; `per`: divided by another number of the same iteration."""
    return statistics.median(line.get(name, 0.0) / (max(line[per], 1.0) if per else 1.0) for one in runs for line in one["lines"])


def pairs(runs: Runs, phase: str) -> list[float]:
    """Cluster / plain for iterations of the same number that have nearly the same number of turns."""
    found = []
    for left, right in product(runs.get("plain", []), runs.get("cluster", [])):
        for one, other in zip(left["lines"], right["lines"], strict=True):
            if abs(one["collect/turns"] - other["collect/turns"]) <= SAME * one["collect/turns"] and one.get(f"time/{phase}"):
                found.append(other[f"time/{phase}"] / one[f"time/{phase}"])
    return found


def same_games(runs: Runs) -> bool:
    """Whether all runs have played equally many turns and tokens in every iteration."""
    return (
        len({repr([[line[f"collect/{name}"] for name in WORK] for line in one["lines"]]) for found in runs.values() for one in found}) == 1
    )


def same_weights(runs: Runs) -> dict[str, bool]:
    """Whether two runs of a kind, and runs of different kinds, end with the same weights."""
    sums = {kind: [one["weights"] for one in found] for kind, found in runs.items()}
    found = {kind: len(set(own)) == 1 for kind, own in sums.items() if len(own) > 1}
    for left, right in combinations(sums, 2):
        found[f"{left} and {right}"] = all(one == other for one, other in product(sums[left], sums[right]))
    return found


def compared(runs: Runs) -> dict[str, Any]:
    """What the runs say about the kinds."""
    seconds = {kind: {phase: median(found, f"time/{phase}") for phase in PHASES} for kind, found in runs.items()}
    per_turn = {kind: {phase: median(found, f"time/{phase}", "collect/turns") for phase in PHASES} for kind, found in runs.items()}

    def ratios(values: dict[str, dict[str, float]]) -> dict[str, float]:
        if not {"plain", "cluster"} <= values.keys():
            return {}
        return {phase: values["cluster"][phase] / max(values["plain"][phase], 1e-9) for phase in PHASES}

    paired = {phase: found for phase in PHASES if (found := pairs(runs, phase))}
    return {
        "seconds": seconds,
        "ratio": ratios(seconds).get("wall"),
        "ratios": ratios(seconds),
        "per_turn": ratios(per_turn),
        "paired": {phase: statistics.median(found) for phase, found in paired.items()},
        "pairs": {phase: len(found) for phase, found in paired.items()},
        "same_games": same_games(runs),
        "work": {kind: {name: median(found, f"collect/{name}") for name in WORK} for kind, found in runs.items()},
        "whole_run_seconds": {kind: [one["whole"] for one in found] for kind, found in runs.items()},
        "same_weights": same_weights(runs),
    }


@contextmanager
def ray_for(kinds: Any) -> Iterator[None]:
    """Ray is started once for all runs."""
    if "cluster" not in kinds:
        yield
        return
    from turnwise.cluster.start import connect, leave

    started = connect()
    try:
        yield
    finally:
        leave(started)


def measured(kinds: dict[str, dict[str, Any]], options: argparse.Namespace) -> Runs:
    """Runs of all kinds in turn, in another order every other round."""
    runs: Runs = {kind: [] for kind in kinds}
    begun, longest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as folder, ray_for(kinds):
        for number in range(options.rounds):
            for kind in list(kinds) if number % 2 == 0 else reversed(kinds):
                if number and time.monotonic() - begun + longest > options.seconds:
                    continue
                runs[kind].append(train(options.recipe, Path(folder), f"{kind}{number}", kinds[kind]))
                longest = max(longest, runs[kind][-1]["whole"])
                print(f"{kind} {number}: {runs[kind][-1]['whole']:.1f} s in all, weights {runs[kind][-1]['weights'][:8]}", file=sys.stderr)
    return runs


def overhead_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", type=Path, default=QUICKSTART)
    parser.add_argument("--model", help="a model's folder; default: what the recipe names")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda", "auto"])
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2, help="how often both are run, in turn")
    parser.add_argument("--still", action="store_true", help="let no step change a weight, so that all runs play the same games")
    parser.add_argument("--kinds", nargs="+", default=["plain", "cluster"], choices=["plain", "cluster"])
    parser.add_argument("--seconds", type=float, default=540.0, help="no run is started that would probably end later")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="settings of the recipe, as key=value")


def measure_overhead(options: argparse.Namespace) -> dict[str, Any]:
    """What the cluster path costs: the same recipe plain and with one engine as an actor, in turn, in one run.

    Seconds per iteration and per phase are medians over all iterations but the first of each run, which warms up. `wall` is the time from
    one line of the log to the next: the iteration and everything between two of them. `ratio` is cluster / plain of it. `per_turn` has the
    ratios of seconds per turn, and `paired` the medians of the ratios of iterations with the same number, where both have played equally
    many turns.

    A GPU's learner is not bitwise repeatable, so the games of two runs drift apart. With `--still` the learner's steps are too small to
    change a weight: all is computed, and all runs play the same games. `same_games` says whether they did, `work` has the turns and tokens
    per iteration. `same_weights` says which runs end with the same weights: without `--still`, all of them where the learner is
    repeatable."""
    shared: dict[str, Any] = {"device": options.device, "iterations": options.iterations, "sft": None, "eval.n": 1}
    shared |= {"run.checkpoint_every": 0} | ({"model.path": options.model} if options.model else {})
    shared |= {"learner.lr": STILL} if options.still else {}
    changes = shared | dict(parse_override(text) for text in options.overrides)
    plain = {key: value for key, value in changes.items() if not key.startswith("cluster.")}
    both = {"plain": plain, "cluster": {"cluster.engines": 1} | changes}
    runs = measured({kind: both[kind] for kind in options.kinds}, options)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    report = {"machine": machine, "recipe": options.recipe.name, "settings": changes} | compared(runs)
    return dict(json.loads(json.dumps(report, default=str)))


# -- staleness ----------------------------------------------------------------------------------------------------------------------------

CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {"cluster.correct": False, "learner.old_logprobs": "learner"},
    "truncated": {"objective.importance": "truncate", "learner.old_logprobs": "learner"},
    "sampled": {"cluster.correct": False, "learner.old_logprobs": "engine"},
}
AGES = ("cluster/age", "cluster/ratio_q01", "cluster/ratio_q99", "cluster/effective_share", "learner/clip_high", "time/iteration")


def staleness_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", type=Path, default=QUICKSTART)
    parser.add_argument("--model", help="a model's folder; default: what the recipe names")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=list(CORRECTIONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="iterations between two evaluations")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="settings of the recipe, as key=value")


def measure_staleness(options: argparse.Namespace) -> dict[str, Any]:
    """How much does learning suffer from old data? The same recipe with a staleness of 0, 1, 2 and 4, with corrections and without.

    Every run has one engine as an actor, which may run ahead of the learner by `cluster.staleness` updates; `cluster/age` says by how much
    it did. Three ways to learn from old data: `none` treats it as if the current weights had sampled it; `truncated` has truncated
    importance weights in the loss, as a run with [cluster] gets them; `sampled` clips the ratio around the weights that sampled it
    (learner.old_logprobs=engine)."""
    runs: dict[str, Any] = {}
    for seed, bound, correction in product(options.seeds, options.staleness, options.corrections):
        if bound == 0 and correction != options.corrections[0]:
            continue  # nothing is old
        changes: dict[str, Any] = {"cluster.engines": 1, "cluster.staleness": bound, "seed": seed, "iterations": options.iterations}
        changes |= {"eval.every": options.every, "run.checkpoint_every": 0, "run.keep_rollouts": 0} | CORRECTIONS[correction]
        changes |= {"model.path": options.model} if options.model else {}
        changes |= dict(parse_override(text) for text in options.overrides)
        with tempfile.TemporaryDirectory() as out:
            lines = Run.open(tw.train(options.recipe, quiet=True, out=out, name="run", **changes).folder).metrics()
        name = f"staleness {bound}, {correction}, seed {seed}"
        runs[name] = {
            "success": {str(line["iteration"]): line["eval/success"] for line in lines if "eval/success" in line},
            "train_success": [round(line["collect/success"], 4) for line in lines[1:]],
            "means": {key: statistics.fmean(values) for key in AGES if (values := [line[key] for line in lines[1:] if key in line])},
        }
        print(name, runs[name]["success"], file=sys.stderr, flush=True)
    return {"recipe": options.recipe.stem, "iterations": options.iterations, "overrides": options.overrides, "runs": runs}


# -- kills --------------------------------------------------------------------------------------------------------------------------------

SMALL = {
    "iterations": 4,
    "eval.n": 16,
    "collect.groups": 2,
    "collect.group_size": 4,
    "sft.tasks": 60,
    "sft.steps": 12,
    "model.tiny.hidden": 64,
    "run.checkpoint_every": 2,
    "eval.every": 2,
    "device": "cpu",
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "full context": {},
    "window": {"agent.context": "window"},
    "no evaluations": {"eval.every": 0, "run.checkpoint_every": 1},
    "every iteration": {"eval.every": 1, "run.checkpoint_every": 1},
    "two workers": {"env.workers": 2},
    "two workers, window": {"env.workers": 2, "agent.context": "window", "eval.every": 1},
}


def start_fork(**arguments: Any) -> int:
    """A training in a fork of this process; its number."""
    child = os.fork()
    if child:
        return child
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        recipe = arguments.pop("recipe", None)
        tw.train(recipe, **arguments) if recipe else tw.train(**arguments)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def finish(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def hashes_of(folder: Path) -> dict[str, str]:
    """What a run leaves, as hashes by kind."""
    run = Run.open(folder)
    lines = [{k: v for k, v in line.items() if "time/" not in k and "seconds" not in k} for line in run.metrics()]
    evaluations = [path.read_bytes() for path in sorted((folder / "evals").glob("*"))]
    texts = [path.read_bytes() for path in sorted((folder / "rollouts").glob("*.jsonl.gz"))]
    parts = {"metrics": lines, "warnings": run.warnings(), "evals": evaluations, "rollouts": texts}
    hashes = {name: hashlib.sha256(repr(value).encode()).hexdigest()[:16] for name, value in parts.items()}
    litter = sorted(path.name for path in folder.rglob("*") if path.name.startswith(".") or path.name.endswith(".part"))
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()[:16]
    return hashes | {"weights": weights, "litter": " ".join(litter)}


def broken_off(settings: dict[str, Any], folder: Path, seconds: float, chance: random.Random) -> list[str]:
    """Start, end at a random moment, resume; once or twice. What was done to it."""
    events = []
    child = start_fork(recipe=str(QUICKSTART), **settings)
    for _ in range(chance.choice([1, 2])):
        moment = chance.random() * seconds
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        time.sleep(moment)
        os.kill(child, number)
        finish(child)
        events.append(f"{signal.Signals(number).name} after {moment:.2f} s")
        if not (folder / "config.toml").is_file():
            child = start_fork(recipe=str(QUICKSTART), **settings)
            continue
        child = start_fork(resume=folder)
    if not finish(child):
        events.append("the last resume failed")
    return events


def kills_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=6, help="runs of each schedule that are killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="schedules whose name contains this")


def measure_kills(options: argparse.Namespace) -> dict[str, Any]:
    """Runs that are really killed, and resumed.

    Every schedule is trained once to its end, then several times with SIGKILL (or SIGTERM, SIGINT) at one or two random moments, and
    resumed each time. What is left must equal what the whole run left: the log without its times, the evaluations, the texts, bitwise
    identical weights. It takes minutes: tests/setup/test_exact_resume.py does a little of it. Every run is a fork of this process, which
    has loaded torch and never used it. `tests/cluster/kills.py` kills the processes of a cluster."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in SCHEDULES.items():
            if options.only not in name:
                continue
            settings = {**SMALL, **changes, "name": "run"}
            began = time.monotonic()
            assert finish(start_fork(recipe=str(QUICKSTART), **settings, out=str(Path(folder) / name / "whole")))
            seconds = time.monotonic() - began
            expected = hashes_of(Path(folder) / name / "whole" / "run")
            for number in range(options.kills):
                chance = random.Random(f"{options.seed} {name} {number}")
                run = Path(folder) / name / str(number) / "run"
                events = broken_off({**settings, "out": str(run.parent)}, run, seconds, chance)
                hashes = hashes_of(run)
                results.append(
                    {"schedule": name, "events": events, "differs": [part for part in expected if hashes[part] != expected[part]]}
                )
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    return {"runs": len(results), "unequal": sum(bool(result["differs"]) for result in results), "results": results}


PARTS = {
    "overhead": Part(measure_overhead, overhead_options),
    "staleness": Part(measure_staleness, staleness_options),
    "kills": Part(measure_kills, kills_options),
}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
