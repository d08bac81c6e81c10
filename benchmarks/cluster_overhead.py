"""What the cluster path costs: the same recipe plain and with one engine as an actor, in turn, in one run. Prints JSON and a table.

    python benchmarks/cluster_overhead.py                                         # the tiny model on a CPU
    python benchmarks/cluster_overhead.py --still --model FOLDER --device cuda --recipe recipes/alfworld-0.5b-gigpo.toml --iterations 8
    python benchmarks/cluster_overhead.py --rounds 3 collect.groups=8 cluster.transfer=store
    python benchmarks/cluster_overhead.py … engine.name=vllm --kinds cluster       # only whether vLLM runs inside an actor, and how fast

Seconds per iteration and per phase are medians over all iterations but the first of each run, which warms up. `wall` is the time from one
line of the log to the next: the iteration and everything between two of them. `ratio` is cluster / plain of it. `per_turn` has the ratios
of seconds per turn, and `paired` the medians of the ratios of iterations with the same number, where both have played equally many turns.

A GPU's learner is not bitwise repeatable, so the games of two runs drift apart. With `--still` the learner's steps are too small to change
a weight: all is computed, and all runs play the same games. `same_games` says whether they did, `work` has the turns and tokens per
iteration. `same_weights` says which runs end with the same weights: without `--still`, all of them where the learner is repeatable.

`parts` has the seconds of the cluster's own parts (`cluster/seconds_…` in docs/metrics.md), and for the plain path those of playing.
`extra` says where the difference comes from: `messages` are pack, travel and unpack, `weights` are publish and wait, `first_turn`,
`later_turns` and `update` are what these take longer, and `other` is the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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
from results import publish

import turnwise as tw
from turnwise.collect.collector import Collector
from turnwise.data.rollouts import Trajectory
from turnwise.recipe.reading import parse_override
from turnwise.runs.folder import Run

ROOT = Path(__file__).resolve().parent.parent
PHASES = ("collect", "credit", "update", "keep", "iteration", "wall")
STILL = 1e-30  # a learning rate: no step changes a weight
SAME = 0.02  # of the turns of an iteration: how far two that are compared as a pair may differ
WORK = ("turns", "prompt_tokens", "response_tokens")
PARTS = "cluster/seconds_"
Found = dict[str, list[dict[str, Any]]]  # the runs of each kind


class Notes:
    """When each line of a log was written, and what a collector of this process spent for it: on playing, and until the first turn."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.played: list[dict[str, float]] = []
        self._now: dict[str, float] = {}

    @contextmanager
    def taken(self) -> Iterator[None]:
        log, play = Run.log, Collector.run

        def logged(run: Run, metrics: Any) -> None:
            log(run, metrics)
            self.walls.append(time.monotonic())
            self.played.append(self._now)
            self._now = {}

        def timed(collector: Collector, starts: Any) -> Any:
            given, heard, began, first = list(starts), collector.on_turn, time.perf_counter(), 0.0

            def turned(trajectory: Trajectory) -> None:
                nonlocal first
                first = first or time.perf_counter() - began
                heard(trajectory)

            collector.on_turn = turned
            found = play(collector, given)
            if len(given) > 1:  # not the evaluation
                self._now = {f"{PARTS}play": time.perf_counter() - began, f"{PARTS}first_turn": first}
            return found

        with patch.object(Run, "log", logged), patch.object(Collector, "run", timed):
            yield


def run(recipe: Path, out: Path, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One run: the lines of its log but the first two, and a sum of its weights. The evaluation after the last one does not count."""
    start, notes = time.perf_counter(), Notes()
    with notes.taken():
        result = tw.train(recipe, quiet=True, out=str(out), name=name, **changes)
    whole = hashlib.sha256()
    for path in sorted((result.folder / "model").glob("*.safetensors")):
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    lines = Run.open(result.folder).metrics()
    for before, now, line, played in zip(notes.walls, notes.walls[1:], lines[1:], notes.played[1:], strict=False):
        line |= played | {"time/wall": now - before - line.get("time/eval", 0.0)}
    measured = [line for line in lines if line["iteration"] > 1]
    return {"lines": measured, "whole": time.perf_counter() - start, "weights": whole.hexdigest()}


def median(runs: list[dict[str, Any]], name: str, per: str | None = None) -> float:
    """Over all iterations of all runs; `per`: divided by another number of the same iteration."""
    return statistics.median(line.get(name, 0.0) / (max(line[per], 1.0) if per else 1.0) for one in runs for line in one["lines"])


def pairs(runs: Found, phase: str) -> list[float]:
    """Cluster / plain for iterations of the same number that have nearly the same number of turns."""
    found = []
    for left, right in product(runs.get("plain", []), runs.get("cluster", [])):
        for one, other in zip(left["lines"], right["lines"], strict=True):
            if abs(one["collect/turns"] - other["collect/turns"]) <= SAME * one["collect/turns"] and one.get(f"time/{phase}"):
                found.append(other[f"time/{phase}"] / one[f"time/{phase}"])
    return found


def same_games(runs: Found) -> bool:
    """Whether all runs have played equally many turns and tokens in every iteration."""
    return (
        len({repr([[line[f"collect/{name}"] for name in WORK] for line in one["lines"]]) for found in runs.values() for one in found}) == 1
    )


def extra(seconds: dict[str, dict[str, float]], parts: dict[str, dict[str, float]]) -> dict[str, float]:
    """What the cluster's iteration takes longer than the plain one, in groups of parts."""
    if not {"plain", "cluster"} <= seconds.keys():
        return {}
    plain, own = parts["plain"], parts["cluster"]
    found = {
        "messages": sum(own.get(name, 0.0) for name in ("pack", "travel", "unpack")),
        "weights": sum(own.get(name, 0.0) for name in ("publish", "wait")),
        "first_turn": own.get("first_turn", 0.0) - plain.get("first_turn", 0.0),
        "later_turns": (own.get("play", 0.0) - own.get("first_turn", 0.0)) - (plain.get("play", 0.0) - plain.get("first_turn", 0.0)),
        "update": seconds["cluster"]["update"] - own.get("publish", 0.0) - seconds["plain"]["update"],
    }
    return found | {"other": seconds["cluster"]["wall"] - seconds["plain"]["wall"] - sum(found.values())}


def same_weights(runs: Found) -> dict[str, bool]:
    """Whether two runs of a kind, and runs of different kinds, end with the same weights."""
    sums = {kind: [one["weights"] for one in found] for kind, found in runs.items()}
    found = {kind: len(set(own)) == 1 for kind, own in sums.items() if len(own) > 1}
    for left, right in combinations(sums, 2):
        found[f"{left} and {right}"] = all(one == other for one, other in product(sums[left], sums[right]))
    return found


def compared(runs: Found) -> dict[str, Any]:
    """What the runs say about the kinds."""
    seconds = {kind: {phase: median(found, f"time/{phase}") for phase in PHASES} for kind, found in runs.items()}
    per_turn = {kind: {phase: median(found, f"time/{phase}", "collect/turns") for phase in PHASES} for kind, found in runs.items()}

    def ratios(values: dict[str, dict[str, float]]) -> dict[str, float]:
        if not {"plain", "cluster"} <= values.keys():
            return {}
        return {phase: values["cluster"][phase] / max(values["plain"][phase], 1e-9) for phase in PHASES}

    parts = {
        kind: {name.removeprefix(PARTS): median(found, name) for name in found[0]["lines"][-1] if name.startswith(PARTS)}
        for kind, found in runs.items()
    }
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
        "parts": parts,
        "extra": extra(seconds, parts),
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


def measured(kinds: dict[str, dict[str, Any]], given: argparse.Namespace) -> Found:
    """Runs of all kinds in turn, in another order every other round."""
    runs: Found = {kind: [] for kind in kinds}
    begun, longest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as folder, ray_for(kinds):
        for number in range(given.rounds):
            for kind in list(kinds) if number % 2 == 0 else reversed(kinds):
                if number and time.monotonic() - begun + longest > given.seconds:
                    continue
                runs[kind].append(run(given.recipe, Path(folder), f"{kind}{number}", kinds[kind]))
                longest = max(longest, runs[kind][-1]["whole"])
                print(f"{kind} {number}: {runs[kind][-1]['whole']:.1f} s in all, weights {runs[kind][-1]['weights'][:8]}", file=sys.stderr)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "quickstart.toml")
    parser.add_argument("--model", help="a model's folder; default: what the recipe names")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda", "auto"])
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2, help="how often both are run, in turn")
    parser.add_argument("--still", action="store_true", help="let no step change a weight, so that all runs play the same games")
    parser.add_argument("--kinds", nargs="+", default=["plain", "cluster"], choices=["plain", "cluster"])
    parser.add_argument("--seconds", type=float, default=540.0, help="no run is started that would probably end later")
    parser.add_argument("--out", type=Path, help="a file for the result")
    parser.add_argument("overrides", nargs="*", help="settings of the recipe, as key=value")
    given = parser.parse_intermixed_args()
    shared: dict[str, Any] = {"device": given.device, "iterations": given.iterations, "sft": None, "eval.n": 1, "run.checkpoint_every": 0}
    shared |= {"model.path": given.model} if given.model else {}
    shared |= {"learner.lr": STILL} if given.still else {}
    changes = shared | dict(parse_override(text) for text in given.overrides)
    plain = {key: value for key, value in changes.items() if not key.startswith("cluster.")}
    both = {"plain": plain, "cluster": {"cluster.engines": 1} | changes}
    runs = measured({kind: both[kind] for kind in given.kinds}, given)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    report = {"machine": machine, "recipe": given.recipe.name, "settings": changes} | compared(runs)
    publish(json.loads(json.dumps(report, default=str)), given.out)
    shown(report, list(runs))


def shown(report: dict[str, Any], kinds: list[str]) -> None:
    """The same as a table."""
    print(f"{'seconds':12}" + "".join(f"{kind:>12}" for kind in kinds) + f"{'ratio':>12}{'per turn':>12}{'paired':>12}")
    for phase in PHASES:
        seconds = "".join(f"{report['seconds'][kind][phase]:12.3f}" for kind in kinds)
        ratios = "".join(f"{report[name].get(phase, float('nan')):12.3f}" for name in ("ratios", "per_turn", "paired"))
        print(f"{phase:12}{seconds}{ratios}")
    for title, values in (*report["parts"].items(), ("extra", report["extra"])):
        print(f"{title}: " + ", ".join(f"{name} {value * 1000:.1f} ms" for name, value in values.items()))


if __name__ == "__main__":
    main()
