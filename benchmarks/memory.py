"""Training inside a small card: a process that may take only so much memory runs iterations of a recipe, beside what was predicted.

    python benchmarks/memory.py --seconds 290 --out memory.json            all cases on a GPU, one after another
    python benchmarks/memory.py --cases 0.5b,7b-lora --iterations 10       some of them
    python benchmarks/memory.py --cases 1.5b --games --turns 50            ALFWorld's games and the recipe's turn limit
    python benchmarks/memory.py --together 2                               two at the same time: less exact rates, half the time
    python benchmarks/memory.py --tiny                                     on a CPU: a tiny shape, and no limit

    0.5b          all weights in 12 GB          7b-lora       adapters in 40 GB
    1.5b          all weights in 24 GB          7b-lora-4bit  adapters on weights of 4 bits in 24 GB

The recipes are recipes/alfworld*.toml: their loop (collect, credit, update), agent, credit, objective, optimiser, the rows of the engine.
What differs is in the result under `not_as_in_the_recipe`, key by key: generated households instead of ALFWorld's games (unless --games is
given), random weights of the real shape, and fewer groups, turns and sampled tokens (--groups, --turns, --response), so that ten iterations
take a minute. No checkpoint is written. A model of random weights answers noise, so every attempt lasts to the turn limit. `turnwise train
RECIPE --memory 24` runs a recipe with its own weights, games and lengths inside such a limit.

Settings are chosen as `turnwise train` chooses them on such a card, and the allocator is set up in the same way. The limit is set before
anything is allocated. It holds for what torch allocates, so what is predicted outside torch is subtracted from it first; what was there
outside torch is measured. `predicted_in_use_gb` is to be compared with `measured_peak_gb`, and `predicted_peak_gb` and `measured_total_gb`
(held by torch, and outside) with the limit. `retries` counts how often the learner ran out of memory and continued with fewer tokens at
once, `allocator_ooms` how often the allocator found nothing, and `allocator_retries` how often it gave back what it had cached first.

Every case has a process of its own. All of them are prepared at the same time (imports, tokenizer), next to a rehearsal of each with one
layer, which compiles the kernels. They then use the GPU one after another. --seconds is for all of them together; a case that would take
too long ends early, and the result says how many iterations were made. The result is written after every iteration.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from kept import watch
from random_weights import TINY, RandomSystem, random_model
from results import publish
from running import Running, keep

from turnwise.learn.shapes import SHAPES, ModelShape
from turnwise.planner.fit import GB, Found, find, with_settings
from turnwise.planner.small_gpu import keep_choice, prepared
from turnwise.planner.tables import lines
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.setup.state import restore
from turnwise.util.files import write_text_atomically

__all__ = ["CASES", "TINY", "find", "main", "random_model", "recipe"]
loop: Any = import_module("turnwise.train")
RECIPES = Path(__file__).parent.parent / "recipes"
REHEARSAL = 60.0  # seconds that rehearsals may take
GRACE = 30.0  # seconds after which a case that should have ended is ended
LEAST = 45.0  # seconds that are left to each of the cases that come later


@dataclass(frozen=True)
class Case:
    """A recipe, a model's shape, the gigabytes of the card, and how many groups of 8 attempts an iteration has."""

    recipe: str
    shape: ModelShape
    limit: float
    groups: int
    settings: tuple[str, ...] = ()


CASES = {
    "0.5b": Case("alfworld.toml", SHAPES["0.5b"], 12, 8),
    "1.5b": Case("alfworld.toml", SHAPES["1.5b"], 24, 3),
    "7b-lora": Case("alfworld-7b-lora.toml", SHAPES["7b"], 40, 2),
    "7b-lora-4bit": Case("alfworld-7b-lora.toml", SHAPES["7b"], 24, 1, ("model.lora.base=4bit",)),  # needs bitsandbytes
}


# -- the recipe -------------------------------------------------------------------------------------------------------------------------


def changes(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """What is not as in the recipe, by key."""
    found: dict[str, Any] = {
        "env.max_turns": options.turns,
        "collect.groups": options.groups or case.groups,
        "iterations": options.iterations,
        "model.path": None,  # the weights are made here
        "model.tiny.max_length": 32768,
        "engine.max_tokens": options.response,
        "learner.tokens_per_batch": 0,  # open, so that it can be chosen
        "eval.n": 2,
        "eval.every": 0,
        "run.checkpoint_every": 0,
        "device": "cpu" if options.tiny else "cuda",
    }
    if not options.games:
        found |= {"env.name": "household", "env.tasks": 64, "eval.split": "valid"}
    if options.tiny:
        found |= {"model.dtype": "float32", "collect.groups": 1, "collect.group_size": 2, "engine.max_batch": 4}
        found |= {"agent.max_prompt_tokens": 512, "env.tasks": 4, "agent.history": 1, "eval.n": 1}
        found |= {} if options.games else {"env.options.size": "tiny"}
    return found


def recipe(case: Case, options: argparse.Namespace) -> Config:
    """The recipe of a case, shortened."""
    return Config.load(RECIPES / case.recipe, changes(case, options) | own_settings(case))


def own_settings(case: Case) -> dict[str, Any]:
    return dict(pair.split("=", 1) for pair in case.settings)


def differences(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """What is not as in the recipe, beside what the recipe says."""
    given = Config.load(RECIPES / case.recipe, own_settings(case)).model_dump()
    found: dict[str, Any] = {}
    for key, here in changes(case, options).items():
        there: Any = given
        for part in key.split("."):
            there = there.get(part) if isinstance(there, dict) else None
        if there != here:
            found[key] = {"recipe": there, "here": here}
    return found | {"weights": "random", "checkpoint": "none at the end"}


# -- one case ---------------------------------------------------------------------------------------------------------------------------


def limit_memory(found: Found) -> None:
    """Torch may allocate no more than this card would leave it."""
    outside = sum(max(term.bytes.values()) for term in found.fit.demand.terms if term.name in ("CUDA context", "captured CUDA graphs"))
    torch.cuda.set_per_process_memory_fraction((found.fit.memory - outside) / torch.cuda.get_device_properties(0).total_memory)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Choose settings, prepare, train when it is this case's turn, and compare."""
    case, start = CASES[name], time.monotonic()
    shape = TINY if options.tiny else case.shape
    config = recipe(case, options)
    found = find(config, int(case.limit * GB), shape)
    config = with_settings(config, found.settings)
    for line in lines(found) or ["nothing: the recipe fits as it is"]:
        say(name, f"chosen: {line}")
    say(name, f"predicted: {found.fit.peak / GB:.1f} of {case.limit:g} GB")
    deadline = [float("inf")]
    system = RandomSystem(config, say=lambda text: say(name, text), cancelled=lambda: time.monotonic() > deadline[0])
    system.shape = replace(shape, layers=options.layers) if options.layers else shape  # type: ignore[misc]
    _ = system.vocabulary
    say(name, f"prepared in {time.monotonic() - start:.1f} s")
    seconds = turn_of(options)
    start = time.monotonic()
    deadline[0] = start + (seconds or float("inf"))
    grows = False
    if not options.tiny:
        limit_memory(found)
        grows = prepared(found)
    sizes = {"attempts": config.collect.groups * config.collect.group_size, "turns": options.turns, "response": options.response}
    known = {"case": name, "recipe": case.recipe, "limit_gb": case.limit, **sizes, "not_as_in_the_recipe": differences(case, options)}
    known |= predicted(found) | {"growing_segments": grows, "cases_together": options.together}

    def report(rows: list[dict[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
        done = {"finished": len(rows) >= options.iterations, "seconds_on_the_gpu": round(time.monotonic() - start, 1)}
        result = known | more | measured(rows) | done
        if "measured_held_gb" in result:
            total = result["measured_held_gb"] + result["outside_torch_gb"]
            result |= {"measured_total_gb": round(total, 2), "within_the_limit": total <= case.limit}
        if options.out is not None:
            write_text_atomically(options.out, json.dumps(result, indent=1) + "\n")
        return result

    return trained(name, system, found, report)


def trained(name: str, system: RandomSystem, found: Found, report: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """The recipe's loop, reported after every iteration with what the learner decided and took. No checkpoint is written at its end."""
    loop.save = lambda *_: None
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(folder, name, to_toml(system.config))
        keep_choice(run, found)
        try:
            system.check()
            learner, kept, outside = system.learner, watch(system.learner), Outside(system.engine)

            def decided() -> dict[str, Any]:
                own = {"tokens_at_once": learner.settings.tokens_per_batch, "retries": learner.memory.retries}
                return own | {"largest_micro_batch": dict(kept)} | outside.found()

            def heard(metrics: Mapping[str, Any]) -> None:
                if metrics["iteration"] > 0:
                    rows.append(dict(metrics))
                    report(rows, decided())

            run.on_log = heard
            loop.run_iterations(run, system, restore(run, system, system.say), Reporter())
            return report(rows, decided())
        finally:
            system.close()


class Outside:
    """The most memory that was taken on the GPU outside torch, as far as one looked: before graphs are released, and when asked."""

    def __init__(self, engine: Any):
        self._most = 0
        sleep = getattr(engine, "sleep", None)
        if sleep is not None and torch.cuda.is_available():
            engine.sleep = lambda: (self._look(), sleep())[1]

    def _look(self) -> None:
        free, total = torch.cuda.mem_get_info()
        self._most = max(self._most, total - free - torch.cuda.memory_reserved())

    def found(self) -> dict[str, Any]:
        """Empty on a CPU."""
        if not torch.cuda.is_initialized():
            return {}
        self._look()
        counts = torch.cuda.memory_stats()
        return {
            "outside_torch_gb": round(self._most / GB, 2),
            "allocator_retries": counts.get("num_alloc_retries", 0),
            "allocator_ooms": counts.get("num_ooms", 0),
        }


def turn_of(options: argparse.Namespace) -> float:
    """Wait until it is this case's turn; the seconds that it may take, 0 if as many as it needs."""
    if options.wait is None:
        return float(options.seconds)
    parent = os.getppid()
    while not options.wait.exists():
        if os.getppid() != parent:
            raise SystemExit("nobody says whose turn it is")
        time.sleep(0.05)
    return float(options.wait.read_text())


def predicted(found: Found) -> dict[str, Any]:
    return {
        "chosen": found.settings,
        "chosen_words": lines(found),
        "as_it_is_gb": round(found.plain.peak / GB, 2),
        "predicted_peak_gb": round(found.fit.peak / GB, 2),
        "predicted_in_use_gb": round(found.fit.demand.in_use / GB, 2),
        "predicted_slopes": found.fit.demand.kept.logit_gradients,
        "predicted_terms_gb": {term.name: round(max(term.bytes.values()) / GB, 2) for term in found.fit.demand.terms},
    }


def measured(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the iterations took. On a CPU memory is not measured."""
    last = rows[1:] or rows  # the first compiles kernels and records steps

    def total(*names: str) -> float:
        return float(sum(row[name] for row in last for name in names))

    def rate(tokens: float, seconds: float) -> float:
        return round(tokens / max(1e-9, seconds), 1)

    result: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "iterations": len(rows),
        "seconds_by_iteration": [round(row["time/iteration"], 2) for row in rows],
        "seconds_per_iteration": round(total("time/iteration") / max(1, len(last)), 2),
        "optimiser_steps": int(sum(row["learner/steps"] for row in rows)),
        "sampled_tokens_per_s": rate(total("collect/response_tokens"), total("time/collect")),
        "learned_tokens_per_s": rate(total("learner/tokens_forward"), total("time/update")),
        "tokens_per_s": rate(total("collect/response_tokens", "learner/tokens_forward"), total("time/iteration")),
        "measured_peak_gb": None,
    }
    if any("learner/memory_peak_gib" in row for row in rows):
        most, held = (max(row[f"learner/memory_{kind}_gib"] for row in rows) * 2**30 for kind in ("peak", "held"))
        result |= {"measured_peak_gb": round(max(most, torch.cuda.max_memory_allocated()) / GB, 2)}
        result |= {"measured_held_gb": round(max(held, torch.cuda.max_memory_reserved()) / GB, 2)}
    return result


def say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


# -- all of them ------------------------------------------------------------------------------------------------------------------------


def every_case(names: list[str], options: argparse.Namespace, words: list[str]) -> list[dict[str, Any]]:
    """Each case in a process of its own, because a limit holds for a process. What is known is written whenever more is."""
    begin, over = time.monotonic(), dict[str, dict[str, Any]]()
    with tempfile.TemporaryDirectory() as made:
        folder, running = Path(made), dict[str, Running]()
        waiting = {name: started(name, folder, [*words, f"--wait={folder / name}.turn"]) for name in names}
        rehearsed = rehearse(names, folder, words)

        def known() -> list[dict[str, Any]]:
            found = {name: result_of(name, folder) for name in running} | over
            return [found[name] | {"rehearsal": rehearsed[name]} for name in names if name in found]

        while waiting or running:
            while waiting and len(running) < options.together:
                name, process = next(iter(waiting.items()))
                del waiting[name]
                left = options.seconds - (time.monotonic() - begin) - LEAST * len(waiting) / options.together
                seconds = max(1.0, left) if options.seconds else 0.0
                write_text_atomically(folder / f"{name}.turn", str(seconds))
                running[name] = Running(process, time.monotonic(), seconds + GRACE if seconds else float("inf"))
            time.sleep(0.2)
            for name, own in list(running.items()):
                if own.stopped():
                    del running[name]
                    over[name] = result_of(name, folder, own.process.returncode) | {"seconds_in_all": own.seconds}
                    say(name, f"{over[name].get('iterations', 0)} iterations, exit status {own.process.returncode}, {own.seconds} s")
            if options.out is not None:
                keep(options.out, known())
        print(f"all cases: {time.monotonic() - begin:.1f} s", file=sys.stderr)
        return known()


def result_of(name: str, folder: Path, code: int = 0) -> dict[str, Any]:
    """What a case has written so far, and the exit status of one that failed."""
    kept = folder / f"{name}.json"
    found = json.loads(kept.read_text()) if kept.exists() else {"case": name, "limit_gb": CASES[name].limit, "iterations": 0}
    return found | ({"failed": code} if code else {})


def started(name: str, folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    """A process for one case, whose result is written to the folder."""
    command = [sys.executable, __file__, "--case", name, f"--out={folder / name}.json", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def rehearse(names: list[str], folder: Path, words: list[str]) -> dict[str, Any]:
    """All cases at the same time with one layer and one group, two iterations: this compiles the kernels. The exit status of each."""
    begin = time.monotonic()
    few = [*words, "--iterations=2", "--groups=1", "--layers=1"]
    running = {
        name: Running(started(name, folder, [*few, f"--out={folder / name}.rehearsal"]), time.monotonic(), REHEARSAL) for name in names
    }
    while [own for own in running.values() if not own.stopped()]:
        time.sleep(0.1)
    found = {name: own.process.returncode for name, own in running.items()}
    print(f"rehearsals: {found}, {time.monotonic() - begin:.1f} s", file=sys.stderr)
    return found


def cases_of(text: str) -> list[str]:
    """The names of cases, separated by commas; `all`: every case."""
    names = list(CASES) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise SystemExit(f"--cases: there is no case {unknown[0]!r}. Choose from {', '.join(CASES)}")
    return names


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="all", help="names separated by commas, each in a process of its own")
    parser.add_argument("--case", choices=tuple(CASES), help="one case in this process, without a rehearsal")
    parser.add_argument("--together", type=int, default=1, help="cases that use the GPU at the same time")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--groups", type=int, default=0, help="groups of 8 attempts per iteration; 0: as the case has them")
    parser.add_argument("--turns", type=int, default=2, help="turn limit")
    parser.add_argument("--response", type=int, default=32, help="sampled tokens per turn")
    parser.add_argument("--games", action="store_true", help="play the recipe's games, not generated households")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the settings are chosen for: a rehearsal; 0: all")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many seconds; 0: after all iterations")
    parser.add_argument("--wait", type=Path, help="use the GPU when this file exists; it says for how many seconds at most")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape on a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.case is not None:
        publish(measure(options.case, options), options.out)
        return
    words = [f"--{name}={getattr(options, name)}" for name in ("iterations", "groups", "turns", "response", "together")]
    publish(
        every_case(cases_of(options.cases), options, [*words, *(f"--{name}" for name in ("tiny", "games") if getattr(options, name))]),
        options.out,
    )


if __name__ == "__main__":
    main()
