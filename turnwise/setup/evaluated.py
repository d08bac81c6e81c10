"""What is evaluated: the config and the weights of a run, a model folder, a recipe or a server; and the panel that is played."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.collect.faults import FaultWatch, report_faults
from turnwise.collect.panel import Evaluation, run_panel
from turnwise.config.references import is_reference
from turnwise.config.trust import keep_code
from turnwise.data.tasks import TaskSet
from turnwise.learn import checkpoint
from turnwise.learn.auxiliary.models import export as write_further
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Result, Run
from turnwise.runs.reporter import Reporter, heartbeat
from turnwise.setup.arguments import Asked, Given, RecipeLike
from turnwise.setup.build import LoadedModel, build_models, build_policy, load_model
from turnwise.setup.early import read_source
from turnwise.setup.environment import PANEL, panel_of, recipe_panel, settings_of
from turnwise.setup.parts import build_player, check_engine, hooks_of
from turnwise.setup.resume import why_no_checkpoint
from turnwise.util.errors import TurnwiseError
from turnwise.util.lock import Lock

PATIENCE = 600.0  # seconds for another evaluation of the same unfinished run to write out its weights


def source_config(
    source: RecipeLike | Result | None,
    given: Given | None,
    overrides: Mapping[str, Any],
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Config, Path | None]:
    """The config and the model folder that `evaluate` means. Code that a run from elsewhere names is imported only if it is trusted."""
    config, run, model = read_source(source, given or Given(), overrides)
    config = config.trusted(trust, run.folder if run is not None else None)
    if run is None:
        return config, model
    keep_code(run.folder, config.model_dump(mode="json"), say, write=False)
    return config, model_of(run, config) if config.engine.declared.in_process else None


def model_of(run: Run, config: Config) -> Path:
    """The trained model of a run; made from its last checkpoint if the run is not finished."""
    if (run.model / "config.json").is_file():
        return run.model
    folder = run.folder / "from-checkpoint"  # separate from what the run may be writing right now
    folder.mkdir(exist_ok=True)
    lock = Lock(folder, "eval", patience=PATIENCE)
    try:
        return write_weights(run, config, folder / "model")[0]
    finally:
        lock.release()


def write_weights(
    run: Run, config: Config, out: Path, merged: bool = True, best: bool = False, model: str | None = None
) -> tuple[Path, int]:
    """A checkpoint's weights as a model folder, which replaces what was there: the policy's, or those of a further model. Also its
    iteration."""
    path = checkpoint.best(run.checkpoints) if best else None
    stored = checkpoint.load(path) if path is not None else checkpoint.latest_good(run.checkpoints)
    if stored is None:
        trained = f"its trained model lies in {run.model}" if run.model.is_dir() else "there is nothing to export"
        raise TurnwiseError(f"{why_no_checkpoint(run, config) or f'{run.folder} has no checkpoint'}: {trained}")
    if best and path is None:
        raise TurnwiseError(f"none of the checkpoints of {run.folder} was evaluated, so the best is not known: leave --best out")
    if model in config.models and is_reference(config.models[model].kind):
        config.trusted(folder=run.folder)
    loaded = _without_environment(run, config)
    policy = build_policy(config, loaded)
    policy.load_state(stored.tensors, stored.state["learner"])
    if model is None:
        return policy.save_model(out, merged=merged, tokenizer=loaded.preprocessor), stored.step
    models = build_models(config, policy, loaded.tokenizer, only=model)
    models.load_state(stored.tensors, stored.state.get("models", {}))
    return write_further(models[model], out, merged), stored.step


def _without_environment(run: Run, config: Config) -> LoadedModel:
    """The model of a run as it starts. A tiny model's vocabulary comes from the run's folder. Only a run that does not keep it (interrupted
    before its first iteration) has to play its environment, and then needs the same trust as any other."""
    if config.model.path is not None:
        return load_model(config)
    if (run.tokenizer / "tokenizer.json").is_file():
        return load_model(config, words=run.file("tokenizer"))
    return load_model(config.trusted(folder=run.folder))


# -- the panel ----------------------------------------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """The tasks of an evaluation, and the line that describes them."""

    panel: TaskSet
    split: str
    seed: int
    repeats: int
    words: str


def measure(
    source: RecipeLike | Result | None,
    given: Given,
    overrides: Mapping[str, Any],
    asked: Asked,
    reporter: Reporter,
    trust: bool = False,
) -> Evaluation:
    """Play a panel with the model of a source: what `tw.evaluate` does. It is described in three parts: the arguments that make a recipe,
    settings by their keys, and how the panel is played."""
    config, folder = source_config(source, given, overrides, trust, reporter.note)
    faults = FaultWatch(reporter.note, config.env.name)
    with heartbeat(reporter), ExitStack() as stack:
        stack.callback(reporter.end)
        check_engine(config, folder)
        # a run, or a recipe on its own environment, defines itself how it is measured; for a model, the environment was given
        says_how = source is not None and given.env is None and given.prompts is None and "env.name" not in overrides
        chosen = choose_panel(config, says_how, asked, overrides)
        hooks = replace(hooks_of(reporter), on_fault=faults.on_fault)
        player = build_player(config, folder, chosen.panel, hooks, stack)
        temperature = config.eval.temperature if asked.temperature is None else asked.temperature
        reporter.begin(chosen.words, 0, 0)
        collector = player.evaluation(temperature)
        reporter.phase("evaluation")
        result = run_panel(collector, chosen.panel, chosen.seed, chosen.repeats)
        reporter.end()
        report_faults(result.trajectories, reporter.note, faults)
        result.settings = settings_of(config, chosen.split, chosen.seed, player.max_turns) | {"temperature": temperature}
        return result


def choose_panel(config: Config, measured: bool, asked: Asked, changed: Mapping[str, Any]) -> Chosen:
    """The selected panel; it is always reported whether training measured on it. Only the split that is asked for needs to exist, and where
    an override names it, its size need not be that of the recipe's panel."""
    settings, env, n = config.eval, config.env, asked.n
    split, seed = asked.split or settings.split, settings.seed if asked.seed is None else asked.seed
    if measured and n is None and asked.split is None:
        at_most = "eval.split" in changed and "eval.n" not in changed
        panel = panel_of(env, split, None if at_most else settings.n, seed, most=settings.n or PANEL)
    else:
        panel = panel_of(env, split, None if n == "all" else n, seed)
    words = f"evaluating on {env.name}: {len(panel)} tasks of {split} (panel {panel.hash})"
    if measured and "eval.split" not in changed:
        try:
            of_run = recipe_panel(config)
        except TurnwiseError:  # its split is not here, or has fewer tasks
            words += f", not the panel of {settings.split} that training measures on"
        else:
            other = f"not the {len(of_run)} tasks of {settings.split} that training measures on (panel {of_run.hash})"
            words += ", the panel that training measures on" if panel.hash == of_run.hash else f", {other}"
    return Chosen(panel, split, seed, (settings.repeats if measured else 1) if asked.repeats is None else asked.repeats, words)
