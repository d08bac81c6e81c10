"""vLLM and the learner on one GPU, next to the native engine: the same recipe from the same start, and what replacing weights costs.

    python benchmarks/vllm_training.py START --data DATA --iterations 12 --out benchmarks/vllm_training.json
    python benchmarks/vllm_training.py --smoke          a tiny model in generated rooms, in a minute; needs a GPU all the same

START is the model's folder that `turnwise sft recipes/alfworld-0.5b-start.toml` writes; DATA holds `alfworld/`. The part `look` measures
the first two, the part `training` the third:

weights     greedy responses to prompts of real attempts before and after a transfer of the own weights: how many of the tokens differ
            (none should), and seconds of a transfer
log-probs   sampled responses of both engines to the same prompts, against one plain forward of the learner's model
training    the recipe with each engine, one seed: success on the panel before, during and after, seconds per phase of an iteration

Each part with each engine is a process of its own, so that the engines do not share a GPU's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from results import publish

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "alfworld-0.5b-gigpo.toml"
SMOKE = {
    "device": "auto",
    "sft": "none",
    "collect.groups": 2,
    "collect.group_size": 2,
    "eval.n": 8,
    "env.tasks": 64,
    "model.tiny.vocabulary_tasks": 20,
}


def recipe(options: argparse.Namespace, engine: str, out: str, **more: Any) -> Any:
    from turnwise.recipe.schema import Config

    changes: dict[str, Any] = {
        "engine.name": engine,
        "out": out,
        "seed": options.seed,
        "iterations": options.iterations,
        "eval.every": options.every,
    }
    if engine == "vllm":
        changes |= {"engine.options.memory": options.memory, "engine.options.eager": options.eager}
    if options.smoke:
        return Config.load(ROOT / "recipes" / "quickstart.toml", {**SMOKE, **changes, **more})
    return Config.load(RECIPE, {**changes, "model.path": str(options.start), "run.keep_rollouts": 1, **more})


def recorded(system: Any, attempts: int) -> list[list[int]]:
    """Prompts of real attempts with the system's engine, in the order in which they were submitted."""
    from turnwise.collect.panel import panel_starts

    prompts: list[list[int]] = []
    submit = system.engine.submit

    def noted(requests: Any) -> None:
        prompts.extend([int(token) for token in request.prompt_ids] for request in requests)
        submit(requests)

    system.engine.submit = noted
    try:
        system.collector().run(list(panel_starts(system.panel, 0))[:attempts])
    finally:
        del system.engine.submit
    return prompts


def answers(engine: Any, prompts: list[list[int]], temperature: float, tokens: int) -> tuple[list[Any], float]:
    from turnwise.engines.base import Request, Sampling

    engine.forget()
    sampling, start = Sampling(temperature=temperature, max_tokens=tokens), time.perf_counter()
    engine.submit([Request(key, prompt, sampling, seed=key, sequence=key) for key, prompt in enumerate(prompts)])
    found: list[Any] = []
    while engine.pending:
        found += engine.poll()
    for key in range(len(prompts)):
        engine.release(key)
    return sorted(found, key=lambda response: response.key), time.perf_counter() - start


def gaps(system: Any, prompts: list[list[int]], found: list[Any]) -> dict[str, float]:
    """Distances of an engine's log-probs from those of a plain forward of the learner's model, one sequence at a time."""
    import torch

    model, far, more = system.learner.model.eval(), [], 0.0
    for prompt, response in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt + list(response.token_ids)], device=system.learner.device)
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        own = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0].cpu().double()
        apart = torch.tensor(response.logprobs, dtype=torch.float64) - own
        far += apart.abs().tolist()
        more += float(apart.sum())
    return {"tokens": len(far), "mean": statistics.fmean(far), "max": max(far), "bias": more / len(far)}


def look(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """The parts `weights` (vLLM) and `log-probs` (both)."""
    from turnwise.setup.system import System

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as out:
        system = System(recipe(options, engine, out))
        start = time.perf_counter()
        _ = system.learner
        result["load_s"] = time.perf_counter() - start
        start = time.perf_counter()
        made = system.engine
        result["engine_s"] = time.perf_counter() - start
        prompts = recorded(system, options.attempts)
        chosen = prompts[:: max(1, len(prompts) // options.prompts)][: options.prompts]
        result |= {"prompts": len(chosen), "prompt_tokens": sum(map(len, chosen))}
        sampled, seconds = answers(made, chosen, 1.0, system.config.engine.max_tokens)
        result["sampled_s"] = seconds
        result["logprob_gap"] = gaps(system, chosen, sampled)
        if engine == "vllm":
            result["transfer"] = transfers(made, chosen, system.config.engine.max_tokens)
        system.close()
    return result


def transfers(engine: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Own weights again and again: greedy tokens before and after, and the seconds."""
    before, _ = answers(engine, prompts, 0.0, tokens)
    same, _ = answers(engine, prompts, 0.0, tokens)
    del engine.transfer_seconds[:]
    for _ in range(10):
        engine.refresh()
    after, _ = answers(engine, prompts, 0.0, tokens)
    pairs = list(zip(before, after, strict=True))
    size = sum(weight.numel() * weight.element_size() for weight in engine.model.parameters())
    return {
        "bytes": size,
        "seconds": sorted(engine.transfer_seconds),
        "median_s": statistics.median(engine.transfer_seconds),
        "greedy_tokens": sum(len(one.token_ids) for one in before),
        "responses_that_differ": sum(one.token_ids != other.token_ids for one, other in pairs),
        "largest_logprob_change": max(abs(a - b) for one, other in pairs for a, b in zip(one.logprobs, other.logprobs, strict=False)),
        "responses_that_differ_without_transfer": sum(one.token_ids != other.token_ids for one, other in zip(before, same, strict=True)),
    }


def train(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """The recipe with an engine: its curve and the seconds of its phases."""
    from turnwise.api import train_config
    from turnwise.recipe.writing import to_toml
    from turnwise.runs.folder import Run

    sent: list[float] = []
    if engine == "vllm":
        from turnwise.engines.vllm import VllmEngine

        close = VllmEngine.close
        VllmEngine.close = lambda self: (sent.extend(self.transfer_seconds), close(self))[1]  # type: ignore[method-assign,assignment]
    with tempfile.TemporaryDirectory() as out:
        config = recipe(options, engine, out)
        run = Run.create(config.out, config.name, to_toml(config), doing="train")
        start = time.perf_counter()
        train_config(config, run)
        seconds = time.perf_counter() - start
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {"seconds": seconds, "transfers": sent, "metrics": lines}


def summary(trained: dict[str, Any]) -> dict[str, Any]:
    """What the table shows of a run: success by iteration, and means over the iterations after the first."""
    lines = trained["metrics"]
    later = [line for line in lines if line["iteration"] > 1] or lines
    keys = sorted({key for line in later for key in line if key.startswith("time/")})
    means = {key: statistics.fmean([line[key] for line in later if key in line]) for key in keys}
    gap = [line["learner/engine_gap"] for line in lines if "learner/engine_gap" in line]
    return {
        "success": {line["iteration"]: line["eval/success"] for line in lines if "eval/success" in line},
        "train_success": [round(line.get("collect/success", 0.0), 4) for line in lines if line["iteration"]],
        "seconds": means,
        "turns": [line.get("collect/turns") for line in lines if line["iteration"]],
        "engine_gap": {"mean": statistics.fmean(gap), "max": max(line.get("learner/engine_gap_max", 0.0) for line in lines)}
        if gap
        else None,
        "transfer_s": {"median": statistics.median(trained["transfers"]), "largest": max(trained["transfers"])}
        if trained["transfers"]
        else None,
        "whole_run_s": trained["seconds"],
    }


def table(result: dict[str, Any]) -> str:
    """The summaries next to each other."""
    runs = {name: part["training"] for name, part in result["engines"].items() if "training" in part}
    keys = sorted({key for run in runs.values() for key in run["seconds"]})
    rows = [f"{'':36}" + "".join(f"{name:>14}" for name in runs)]
    rows += [f"{key:36}" + "".join(f"{run['seconds'].get(key, float('nan')):14.3f}" for run in runs.values()) for key in keys]
    steps = sorted({step for run in runs.values() for step in run["success"]}, key=int)
    rows += [
        f"success at {step:<25}" + "".join(f"{run['success'].get(step, float('nan')):14.3f}" for run in runs.values()) for step in steps
    ]
    return "\n".join(rows)


def alone(options: argparse.Namespace, words: list[str], part: str, engine: str) -> dict[str, Any]:
    """A part in a process of its own; its output goes where ours goes."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run([sys.executable, __file__, *words, "--part", part, "--engines", engine, "--part-out", file.name], check=False)
        text = Path(file.name).read_text(encoding="utf-8")
    return json.loads(text) if done.returncode == 0 and text else {"failed": done.returncode}


def machine() -> dict[str, Any]:
    from importlib import metadata

    import torch

    found = {}
    for name in ("torch", "transformers", "vllm"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {"gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none", **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", nargs="?", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attempts", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--engines", nargs="+", default=["native", "vllm"])
    parser.add_argument("--parts", nargs="+", default=["look", "training"])
    parser.add_argument("--part", choices=["look", "training"])
    parser.add_argument("--part-out", type=Path)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.data is not None:
        os.environ["TURNWISE_DATA"] = str(options.data)
    if options.part is not None:
        made = look(options, options.engines[0]) if options.part == "look" else summary(train(options, options.engines[0]))
        options.part_out.write_text(json.dumps(made), encoding="utf-8")
        return
    words = sys.argv[1:]
    result: dict[str, Any] = {"machine": machine(), "seed": options.seed, "iterations": options.iterations, "engines": {}}
    for part in options.parts:
        for engine in options.engines:
            made = alone(options, words, part, engine)
            result["engines"].setdefault(engine, {})[part] = made
            print(f"{part} {engine}: {json.dumps(made)[:600]}", flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    publish(result, options.out)
    print(table(result))


if __name__ == "__main__":
    main()
