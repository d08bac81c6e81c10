"""What scripts and notebooks call: `train`, `evaluate`, `export`. The command line is a thin skin over these."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from turnwise.config import Config
from turnwise.early import Source, check_trainable, read_source
from turnwise.errors import TurnwiseError
from turnwise.evaluation import Evaluation, run_panel
from turnwise.garbage import loaded_set_apart
from turnwise.interrupt import Interrupt
from turnwise.learn import checkpoint
from turnwise.learn.saving import write_folder
from turnwise.recipes import content_hash, to_toml
from turnwise.report.progress import Reporter
from turnwise.report.summary import summarise_run
from turnwise.resume import apply_changes, resumed_config
from turnwise.rollouts import Stop
from turnwise.runs import CONFIG, Run
from turnwise.state import restore
from turnwise.system import System
from turnwise.tasks import TaskSet
from turnwise.trackers import Trackers, make_trackers
from turnwise.train import loop


@dataclass(frozen=True)
class Result:
    """What a training run leaves: its folder, its summary, and whether it was interrupted before the end."""

    folder: Path
    summary: Mapping[str, Any]
    interrupted: bool = False
    metrics: list[dict[str, Any]] = field(default_factory=list, repr=False)


def train(
    recipe: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Result:
    """Train by a recipe (none: the defaults), or go on with a run that was stopped. Overrides are keyword arguments; dotted keys go in
    as `**{"credit.name": "grpo"}`. Progress is silent unless a reporter is given. `trust`: run the code that a run folder
    from elsewhere names."""
    if resume is not None:
        if recipe is not None:
            raise TurnwiseError("a resumed run keeps its recipe: give either resume, or a recipe")
        return go_on(Run.open(resume), overrides, reporter, trust)
    config = Config.load(recipe, overrides).trusted(trust)
    check_trainable(config)
    run = Run.create(config.out, config.name, to_toml(config))
    try:
        return train_config(config, run, reporter)
    except TurnwiseError:
        run.remove_unused()
        raise


def go_on(run: Run, changes: Mapping[str, Any], reporter: Reporter | None = None, trust: bool = False) -> Result:
    """Train in the folder of a run that was stopped, or that is finished and should be longer (`iterations`)."""
    config = resumed_config(run, changes).trusted(trust, run.folder)
    check_trainable(config)
    apply_changes(run, config, (reporter or Reporter()).note)
    return train_config(config, run, reporter)


def train_config(config: Config, run: Run, reporter: Reporter | None = None) -> Result:
    """Train in the run's folder, from its last checkpoint."""
    check_trainable(config)
    reporter = reporter or Reporter()
    trackers = Trackers(run.folder, make_trackers(config.run.trackers, config.run.tracker_options), reporter.note)
    with Interrupt(reporter.note) as interrupted:
        shown: dict[str, Any] = {"say": reporter.note, "on_start": reporter.expect, "on_end": lambda trajectory: reporter.advance()}
        system = System(config, cancelled=interrupted, **shown)
        try:
            system.check()
            keep_tokenizer(run, system)
            state = restore(run, system, reporter.note)
            trackers.open(config.model_dump(mode="json"), run.metrics())
            run.on_log = trackers.log
            with loaded_set_apart():
                state = loop(run, system, state, reporter, interrupted)
            finished = state.finished(config.iterations)
            if finished:
                system.learner.save_model(run.model, tokenizer=system.preprocessor)
        finally:
            reporter.end()
            trackers.close()
            system.close()
    metrics = run.metrics()
    summary = summarise_run(metrics, state, config, run) | {"config_hash": content_hash(config), "finished": finished}
    run.write_summary(summary)
    return Result(run.folder, summary, not finished, metrics)


def keep_tokenizer(run: Run, system: System) -> None:
    """Keep the words of a tiny model in the run's folder, from which `export` makes its weights a model without the environment."""
    if system.config.model.path is None and not run.tokenizer.exists():
        write_folder(run.tokenizer, system.tokenizer.save_pretrained)


def evaluate(
    source: str | Path | None = None,
    *,
    env: str | None = None,
    split: str | None = None,
    n: int | Literal["all"] | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    repeats: int | None = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Evaluation:
    """Play a fixed panel with a run, a model folder or a recipe; with `**{"engine.name": "openai"}` and a url and model of a server, with
    nothing of these. A run and a recipe bring their own panel (`eval.split`, `eval.n`, `eval.seed`, `eval.repeats`), the one that training
    measures on; with `n="all"`, with another split, and of anything else, the whole split is played. Temperature 0 is greedy, none: the
    recipe's own."""
    found = vouched(read_source(source, env, overrides), trust)
    config, reporter = found.config, reporter or Reporter()
    shown: dict[str, Any] = {"say": reporter.note, "on_start": reporter.expect, "on_end": lambda trajectory: reporter.advance()}
    system = System(config, model_folder=model_folder(found), **shown)
    try:
        chosen = choose_panel(system, found, split, n, seed, repeats)
        warmth = config.eval.temperature if temperature is None else temperature
        reporter.begin(chosen.words, 0, 0)
        reporter.phase("evaluation")
        collector = system.collector(warmth)
        result = run_panel(collector, chosen.panel, chosen.seed, chosen.repeats)
        reporter.end()
        report_faults(result, reporter)
        result.settings = settings_of(config, chosen.split, chosen.seed, collector.max_turns) | {"temperature": warmth}
        return result
    finally:
        reporter.end()
        system.close()


class Chosen(NamedTuple):
    """The tasks of an evaluation, and what is said of them."""

    panel: TaskSet
    split: str
    seed: int
    repeats: int
    words: str


def choose_panel(
    system: System, source: Source, split: str | None, n: int | Literal["all"] | None, seed: int | None, repeats: int | None
) -> Chosen:
    """The panel that is meant; whether it is the one that training measured on is said in any case."""
    own, env = system.config.eval, system.config.env.name
    size = own.n if n is None and split is None and source.measured else None if n is None or n == "all" else n
    chosen, chance = split or own.split, own.seed if seed is None else seed
    panel = system.panel_of(chosen, size, chance)
    words = f"evaluating on {env}: {len(panel)} tasks of {chosen} (panel {panel.hash})"
    if source.measured:
        same = size == own.n and (chosen, chance) == (own.split, own.seed)
        of_run = panel if same else system.panel_of(own.split, own.n, own.seed)
        other = f"not the {len(of_run)} tasks of {own.split} that training measures on (panel {of_run.hash})"
        words += ", the panel that training measures on" if panel.hash == of_run.hash else f", {other}"
    return Chosen(panel, chosen, chance, (own.repeats if source.measured else 1) if repeats is None else repeats, words)


def settings_of(config: Config, split: str, seed: int, max_turns: int) -> dict[str, Any]:
    """What an evaluation's result depends on besides the panel, with the recipe that it belongs to."""
    recipe = config.model_dump(mode="json", exclude={"out", "run"})
    own = {"config": recipe, "config_hash": content_hash(config)}
    return {"environment": config.env.name, "split": split, "seed": seed, "max_turns": max_turns} | own


def report_faults(result: Evaluation, reporter: Reporter) -> None:
    """Attempts that a fault ended count as failures, so somebody must hear of it; an engine that answered nothing is an error."""
    failed = [trajectory for trajectory in result.trajectories if trajectory.stop is Stop.ENGINE_FAULT]
    if failed and len(failed) == len(result.trajectories) and not any(trajectory.turns for trajectory in failed):
        raise TurnwiseError(f"the engine answered none of {len(failed)} attempts. The first: {failed[0].stop_detail}")
    if failed:
        reporter.note(
            f"warning: {len(failed)} of {len(result.trajectories)} attempts were ended by a fault of the engine and count as failures. "
            f"The first: {failed[0].stop_detail}"
        )
    broken = [trajectory for trajectory in result.trajectories if trajectory.stop in (Stop.ENVIRONMENT_FAULT, Stop.ENVIRONMENT_TIMEOUT)]
    if broken:
        reporter.note(
            f"warning: {len(broken)} of {len(result.trajectories)} attempts were ended by a fault of the environment, and count as failed. "
            f"The first, at task {broken[0].task}: {broken[0].stop_detail}"
        )
    unread = sum(trajectory.stop is Stop.CONTEXT_LIMIT and not trajectory.turns for trajectory in result.trajectories)
    if unread:
        reporter.note(
            f"warning: {unread} of {len(result.trajectories)} attempts ended before their first turn, because the prompt did not fit into "
            "agent.max_prompt_tokens, and count as failed: raise it, or shorten the prompt"
        )


def source_config(
    source: str | Path | None, env: str | None, overrides: Mapping[str, Any], trust: bool = False
) -> tuple[Config, Path | None]:
    """The config and the model folder that `evaluate` means. Code that a run from elsewhere names is only for who trusts it."""
    found = vouched(read_source(source, env, overrides), trust)
    return found.config, model_folder(found)


def vouched(source: Source, trust: bool = False) -> Source:
    """The same source, once somebody vouches for the code that it names."""
    source.config.trusted(trust, source.run.folder if source.run is not None else None)
    return source


def model_folder(source: Source) -> Path | None:
    """Where the weights lie; none where the recipe names a model or the model is a server's."""
    if source.run is None or source.config.engine.name == "openai":
        return source.folder
    return model_of(source.run, source.config)


def model_of(run: Run, config: Config) -> Path:
    """The trained model of a run; made from its last checkpoint where the run is not finished."""
    if (run.model / "config.json").is_file():
        return run.model
    return _write_weights(run, config, run.folder / "from-checkpoint" / "model")  # apart from what the run itself may be writing just now


def export(run_folder: str | Path, out: str | Path, *, merged: bool = True, best: bool = False) -> Path:
    """Write a run's weights as a new Hugging Face folder: of its last checkpoint, or of the best one by evaluation."""
    run, folder = Run.open(run_folder), Path(out)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        what = "is a folder that is not empty" if folder.is_dir() else "is a file"
        raise TurnwiseError(f"{folder} {what}, and nothing is overwritten: name a new folder, or remove that one first")
    config = Config.load(run.folder / CONFIG)
    if not merged and config.model.lora is None:
        raise TurnwiseError(f"{run.folder} was trained without adapters (model.lora), so there are none to export: leave --adapters out")
    return _write_weights(run, config, folder, merged, best)


def _write_weights(run: Run, config: Config, out: Path, merged: bool = True, best: bool = False) -> Path:
    """A checkpoint's weights as a model folder, in place of what was there."""
    path = checkpoint.best(run.checkpoints) if best else None
    found = checkpoint.load(path) if path is not None else checkpoint.latest_good(run.checkpoints)
    if found is None:
        trained = f"its trained model lies in {run.model}" if run.model.is_dir() else "there is nothing to export"
        raise TurnwiseError(f"{run.folder} has no checkpoint: {trained}")
    if best and path is None:
        raise TurnwiseError(f"none of the checkpoints of {run.folder} was evaluated, so the best is not known: leave --best out")
    system = _without_environment(run, config)
    system.learner.load_state(found.tensors, found.state["learner"])
    return system.learner.save_model(out, merged=merged, tokenizer=system.preprocessor)


def _without_environment(run: Run, config: Config) -> System:
    """The parts of a run as far as its weights go. A tiny model's words come from the run's folder; only a run that does not keep them
    (interrupted before its first iteration) has to play its environment, and is then asked about like any other."""
    if config.model.path is not None:
        return System(config, plays=False)
    if (run.tokenizer / "tokenizer.json").is_file():
        return System(config, words=run.file("tokenizer"), plays=False)
    return System(config.trusted(folder=run.folder))


# The loop's module is called turnwise.train, and importing it above has put it there; what users call by that name is the function.
setattr(sys.modules["turnwise"], "train", train)  # noqa: B010
