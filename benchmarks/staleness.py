"""How much does learning suffer from old data? The same recipe with a staleness of 0, 1, 2 and 4, with corrections and without.

    python benchmarks/staleness.py START --data DATA --at-once 4 --seconds 540 --out benchmarks/staleness.json
    python benchmarks/staleness.py --recipe recipes/quickstart.toml --out FILE   a tiny model in generated rooms, on a CPU
    python benchmarks/staleness.py --smoke --out FILE                            the same in a minute, to see whether it runs

START is the folder of a model, as `turnwise sft recipes/alfworld-0.5b-start.toml` writes it; DATA holds `alfworld/`.

Learner and engine take turns in one process, so no second GPU is needed and nothing depends on speed: a batch is collected as early as the
bound allows, and is therefore exactly as old as the bound when it is learned from. Three ways to learn from it: `none` treats it as if the
current weights had sampled it; `truncated` has truncated importance weights in the loss, as a run with [cluster] gets them; `sampled` clips
the ratio around the weights that sampled it (learner.old_logprobs=engine).

Every run is a process, `--at-once` of them share the GPU, through MPS where it can be started. FILE keeps what is done: the same command
again makes the runs that are missing. No run is started that would probably not end within `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from turnwise.util.files import write_text_atomically

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "alfworld-0.5b-gigpo.toml"
SMOKE = {"device": "cpu", "collect.groups": 2, "collect.group_size": 2, "eval.n": 4, "env.tasks": 64, "sft.tasks": 20, "sft.steps": 5}
WAYS: dict[str, dict[str, Any]] = {
    "none": {"cluster.correct": False, "learner.old_logprobs": "learner"},
    "truncated": {"objective.importance": "truncate", "learner.old_logprobs": "learner"},
    "sampled": {"cluster.correct": False, "learner.old_logprobs": "engine"},
}
METRICS = ("cluster/age", "cluster/ratio_q01", "cluster/ratio_q99", "cluster/effective_share", "learner/clip_high", "time/iteration")


@dataclass(frozen=True)
class Setting:
    """One run."""

    staleness: int
    way: str
    seed: int

    @property
    def name(self) -> str:
        return f"staleness {self.staleness}, {self.way}, seed {self.seed}"


def settings(options: argparse.Namespace) -> list[Setting]:
    pairs = [(bound, way) for bound in options.staleness for way in options.ways if bound or way == "none"]
    return [Setting(*pair, seed) for seed in options.seeds for pair in pairs]


# -- one run ----------------------------------------------------------------------------------------------------------------------------


def take_turns() -> None:
    """From now on, a run with a [cluster] section has its engine in this process and collects as early as the bound allows."""
    from turnwise.cluster.metrics import age_metrics, group_ages, ratio_metrics
    from turnwise.collect.source import Collected, LocalSource
    from turnwise.setup import choose
    from turnwise.setup.system import System

    @dataclass
    class Early(LocalSource):
        bound: int = 0

        def batches(self, plan: Any, staleness: int = 0, n: int | None = None, begins: Any = lambda: None) -> Iterator[Collected]:
            assert n is not None
            waiting: deque[Collected] = deque()
            made = 0
            for _ in range(n):
                begins()
                start = time.monotonic()
                while len(waiting) <= self.bound and made < n:
                    if self.cancelled():
                        return
                    waiting.append(self.collect(plan))
                    made += 1
                yield replace(waiting.popleft(), seconds=time.monotonic() - start)

        def metrics(self, batch: Any) -> dict[str, float]:
            versions = [turn.version for trajectory in batch.trajectories for turn in trajectory.turns]
            found = age_metrics(group_ages(versions, batch.rollouts.group, self.version))
            found.pop("ages", None)
            if batch.has("token.old_logprob"):
                found |= ratio_metrics(batch.column("token.old_logprob") - batch.column("token.logprob"))
            return {f"cluster/{name}": value for name, value in found.items()}

    class TakesTurns(System):
        @cached_property
        def source(self) -> Any:
            assert self.config.cluster is not None
            own = super().source
            parts = own.places, own.groups, own.collector, own.engine, own.heard, own.say, own.cancelled
            return Early(*parts, bound=self.config.cluster.staleness)

        def annotate(self, batch: Any) -> Any:
            return self.learner.annotate(batch) if self.config.learner.old_logprobs in (None, "learner") else super().annotate(batch)

    choose.ClusterSystem = TakesTurns  # type: ignore[misc,assignment]


def one(options: argparse.Namespace, setting: Setting) -> dict[str, Any]:
    """Train: success by iteration, and means of what tells about age."""
    import turnwise as tw
    from turnwise.runs.folder import Run

    take_turns()
    changes: dict[str, Any] = {
        "cluster.engines": 1,
        "cluster.staleness": setting.staleness,
        "seed": setting.seed,
        "iterations": options.iterations,
        "eval.every": options.every,
        "run.checkpoint_every": 0,
        "run.keep_rollouts": 0,
    }
    changes |= WAYS[setting.way]
    changes |= SMOKE if options.smoke else {"model.path": str(options.start)} if options.start else {}
    changes |= dict(_override(text) for text in options.overrides)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        found = tw.train(options.recipe, quiet=True, out=out, name="run", **changes)
        lines = Run.open(found.folder).metrics()
    means = {name: statistics.fmean(values) for name in METRICS if (values := [line[name] for line in lines[1:] if name in line])}
    return {
        "staleness": setting.staleness,
        "way": setting.way,
        "seed": setting.seed,
        "success": {str(line["iteration"]): line["eval/success"] for line in lines if "eval/success" in line},
        "train_success": [round(line["collect/success"], 4) for line in lines[1:]],
        "means": means,
        "seconds": time.monotonic() - start,
    }


def _override(text: str) -> tuple[str, Any]:
    from turnwise.recipe.reading import parse_override

    return parse_override(text)


# -- all runs ---------------------------------------------------------------------------------------------------------------------------


@contextmanager
def shared_gpu(wanted: bool) -> Iterator[bool]:
    """MPS for the processes that are started inside, if there is any: several of them then compute at the same time."""
    program = shutil.which("nvidia-cuda-mps-control") if wanted else None
    if program is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"] = f"{folder}/pipe", f"{folder}/log"
        for name in ("pipe", "log"):
            (Path(folder) / name).mkdir()
        started = subprocess.run([program, "-d"], check=False).returncode == 0
        try:
            yield started
        finally:
            if started:
                subprocess.run([program], input="quit\n", text=True, check=False)


def run_all(options: argparse.Namespace, result: dict[str, Any], keep: Callable[[], None]) -> list[str]:
    """Make the runs that are missing. Returns the names of those that were not made."""
    begun, longest = time.monotonic(), options.expected
    waiting = deque(setting for setting in settings(options) if setting.name not in result["runs"])
    running: dict[str, tuple[subprocess.Popen[bytes], Path, float]] = {}
    left: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < options.at_once:
                setting = waiting.popleft()
                if time.monotonic() - begun + longest > options.seconds:
                    left.append(setting.name)
                    continue
                file = Path(folder) / f"{setting.staleness}-{setting.way}-{setting.seed}.json"
                words = [str(setting.staleness), setting.way, str(setting.seed), str(file)]
                command = [sys.executable, __file__, *sys.argv[1:], "--one", *words]
                running[setting.name] = subprocess.Popen(command), file, time.monotonic()
            time.sleep(0.5)
            for name, (process, file, since) in list(running.items()):
                if process.poll() is None:
                    continue
                running.pop(name)
                longest = max(longest, time.monotonic() - since)
                if process.returncode == 0 and file.is_file():
                    result["runs"][name] = json.loads(file.read_text(encoding="utf-8"))
                    print(f"{name}: {result['runs'][name]['success']}", flush=True)
                    keep()
                else:
                    left.append(name)
                    print(f"{name}: failed with exit code {process.returncode}", flush=True)
    return left


def table(result: dict[str, Any]) -> str:
    """A row per run."""
    runs = result["runs"]
    steps = sorted({int(step) for run in runs.values() for step in run["success"]})
    rows = [f"{'':36}" + "".join(f"{f'at {step}':>9}" for step in steps) + f"{'age':>7}{'q99':>7}{'share':>7}{'s/iter':>8}"]
    for name, run in runs.items():
        shown = "".join(f"{run['success'].get(str(step), float('nan')):9.3f}" for step in steps)
        means = [run["means"].get(key, float("nan")) for key in ("cluster/age", "cluster/ratio_q99", "cluster/effective_share")]
        rows.append(f"{name:36}{shown}" + "".join(f"{mean:7.2f}" for mean in means) + f"{run['means'].get('time/iteration', 0.0):8.2f}")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", nargs="?", type=Path)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="iterations between two evaluations")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=540.0, help="for all runs of this call")
    parser.add_argument("--expected", type=float, default=150.0, help="seconds that a run takes, before one has ended")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="settings of the recipe, as key=value")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.smoke:
        options.recipe = ROOT / "recipes" / "quickstart.toml"
    if options.data is not None:
        os.environ["TURNWISE_DATA"] = str(options.data)
    if options.one is not None:
        bound, way, seed, file = options.one
        Path(file).write_text(json.dumps(one(options, Setting(int(bound), way, int(seed)))), encoding="utf-8")
        return 0
    known = options.out is not None and options.out.is_file()
    result: dict[str, Any] = json.loads(options.out.read_text(encoding="utf-8")) if known else {"runs": {}}
    result |= {"iterations": options.iterations, "overrides": options.overrides, "recipe": options.recipe.stem}

    def keep() -> None:
        if options.out is not None:
            write_text_atomically(options.out, json.dumps(result, indent=1) + "\n")

    with shared_gpu(options.at_once > 1 and not options.no_mps) as shared:
        result["mps"] = shared
        left = run_all(options, result, keep)
    keep()
    print(table(result))
    if left:
        print(f"not made: {'; '.join(left)}. The same command again makes them")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
