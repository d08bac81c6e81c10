"""What scripts and notebooks call: `train`, `evaluate`, `export`. The command line is a thin skin over these."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise.config import Config
from turnwise.errors import TurnwiseError
from turnwise.evaluation import Evaluation, run_panel
from turnwise.interrupt import Interrupt
from turnwise.learn import checkpoint
from turnwise.recipes import content_hash, to_toml
from turnwise.report.progress import Reporter
from turnwise.report.summary import summarise_run
from turnwise.runs import CONFIG, Run
from turnwise.system import System
from turnwise.train import loop


@dataclass(frozen=True)
class Result:
    """What a training run leaves: its folder, its summary, and whether it was interrupted before the end."""

    folder: Path
    summary: Mapping[str, Any]
    interrupted: bool = False
    metrics: list[dict[str, Any]] = field(default_factory=list, repr=False)


def train(
    recipe: str | Path | None = None, *, resume: str | Path | None = None, reporter: Reporter | None = None, **overrides: Any
) -> Result:
    """Train by a recipe (none: the defaults), or go on with a run that was stopped. Overrides are keyword arguments; dotted keys go in
    as `**{"credit.name": "grpo"}`. Progress is silent unless a reporter is given."""
    if resume is not None:
        if recipe is not None or overrides:
            raise TurnwiseError("a resumed run keeps its recipe: give either resume, or a recipe with overrides")
        run = Run.open(resume)
        config = Config.load(run.folder / CONFIG)
    else:
        config = Config.load(recipe, overrides)
        run = Run.create(config.out, config.name, to_toml(config))
    return train_config(config, run, reporter)


def train_config(config: Config, run: Run, reporter: Reporter | None = None) -> Result:
    """Train in the run's folder, from its last checkpoint."""
    reporter = reporter or Reporter()
    with Interrupt(reporter.note) as interrupted:
        system = System(config, say=reporter.note, cancelled=interrupted, on_turn=lambda trajectory: reporter.advance())
        try:
            state = loop(run, system, reporter, interrupted)
            finished = state.finished(config.iterations)
            if finished:
                system.learner.save_model(run.model, tokenizer=system.tokenizer)
        finally:
            reporter.end()
            system.close()
    metrics = run.metrics()
    summary = summarise_run(metrics, state, config, run) | {"config_hash": content_hash(config), "finished": finished}
    run.write_summary(summary)
    return Result(run.folder, summary, not finished, metrics)


def evaluate(
    source: str | Path,
    *,
    env: str | None = None,
    split: str | None = None,
    n: int | None = None,
    seed: int = 0,
    temperature: float | None = None,
    repeats: int = 1,
    reporter: Reporter | None = None,
    **overrides: Any,
) -> Evaluation:
    """Play a fixed panel with a run (its best-known settings) or a model folder. `n=None` takes the whole split. The tasks are those of the
    panel, each `repeats` times; temperature 0 is greedy, none: the recipe's own."""
    config, folder = source_config(source, env, overrides)
    reporter = reporter or Reporter()
    split = split or config.eval.split
    system = System(config, model_folder=folder, say=reporter.note, on_turn=lambda trajectory: reporter.advance())
    try:
        panel = system.panel_of(split, n, seed)
        collector = system.collector(config.eval.temperature if temperature is None else temperature)
        return run_panel(collector, panel, seed, repeats)
    finally:
        system.close()


def source_config(source: str | Path, env: str | None, overrides: Mapping[str, Any]) -> tuple[Config, Path]:
    """The config and the model folder that `evaluate` means: a run's own, or a model folder with the defaults."""
    path = Path(source)
    changes: dict[str, Any] = dict(overrides) | ({"env.name": env} if env is not None else {})
    if (path / CONFIG).is_file():
        config = Config.load(path / CONFIG, changes)
        return config, model_of(Run.open(path), config)
    if not (path / "config.json").is_file():
        raise TurnwiseError(f"{path} is neither a run (no {CONFIG}) nor a model folder (no config.json)")
    if env is None:
        raise TurnwiseError(f"{path} is a model: say which environment it should play (env=…)")
    return Config.load(None, {"model.path": str(path), **changes}), path


def model_of(run: Run, config: Config) -> Path:
    """The trained model of a run; made from its last checkpoint where the run is not finished."""
    if (run.model / "config.json").is_file():
        return run.model
    return export(run.folder, run.folder / "model-from-checkpoint")


def export(run_folder: str | Path, out: str | Path, *, merged: bool = True, best: bool = False) -> Path:
    """Write a run's weights as a Hugging Face folder: of its last checkpoint, or of the best one by evaluation."""
    run = Run.open(run_folder)
    config = Config.load(run.folder / CONFIG)
    system = System(config)
    path = checkpoint.best(run.checkpoints) if best else None
    found = checkpoint.load(path) if path is not None else checkpoint.latest_good(run.checkpoints)
    if found is None:
        raise TurnwiseError(f"{run.folder} has no checkpoint yet: there is nothing to export")
    system.learner.load_state(found.tensors, found.state["learner"])
    return system.learner.save_model(Path(out), merged=merged, tokenizer=system.tokenizer)


# The loop's module is called turnwise.train, and importing it above has put it there; what users call by that name is the function.
setattr(sys.modules["turnwise"], "train", train)  # noqa: B010
