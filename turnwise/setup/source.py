"""What is evaluated: the config and the weights of a run, a model folder, a recipe or a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turnwise.config import objects
from turnwise.config.recipes import is_recipe
from turnwise.config.references import is_reference
from turnwise.config.schema import Config, overridden
from turnwise.config.sources import keep_files
from turnwise.engines.registry import declared
from turnwise.learn import checkpoint
from turnwise.learn.further.loading import export as write_further
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.result import Result
from turnwise.setup.arguments import Given, RecipeLike, as_recipe
from turnwise.setup.early import names_server
from turnwise.setup.further import build_models
from turnwise.setup.resume import why_no_checkpoint
from turnwise.setup.system import System
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
    """The config and the model folder that `evaluate` means: a run's own, a model folder with the defaults, a recipe with the model that
    it names, or a server. Code that a run from elsewhere names is imported only if it is trusted."""
    given = given or Given()

    def resolved(recipe: RecipeLike | None, **more: Any) -> Config:
        values, changes, name = as_recipe(recipe, given, overrides)
        return overridden(values, {**more, **changes}, name)

    if source is None:
        if not names_server(overrides):
            raise TurnwiseError("nothing to evaluate: give a run, a model folder, a recipe, or a server (engine.name=openai)")
        if given.env is None and given.prompts is None and "env.name" not in overrides:
            raise TurnwiseError("say which environment the server's model should play (env=…)")
        return resolved(None), None
    if isinstance(source, Mapping | Config):
        return resolved(source), None
    path = source.folder if isinstance(source, Result) else Path(source)
    if is_recipe(path):
        return resolved(path).trusted(trust), None
    if (path / CONFIG).is_file():
        run = Run.open(path)
        config = resolved(path / CONFIG).trusted(trust, run.folder)
        objects.keep(path, objects.names_in(config.model_dump(mode="json")), say, write=False)
        keep_files(path, config.model_dump(mode="json"), say, write=False)
        return config, model_of(run, config) if declared(config.engine.name).in_process else None
    if not (path / "config.json").is_file():
        raise TurnwiseError(f"{path} is neither a run (no {CONFIG}) nor a model folder (no config.json)")
    if given.env is None and given.prompts is None:
        raise TurnwiseError(f"{path} is a model: say which environment it should play (env=…)")
    return resolved(None, **{"model.path": str(path)}), path


def model_of(run: Run, config: Config) -> Path:
    """The trained model of a run; made from its last checkpoint if the run is not finished."""
    if (run.model / "config.json").is_file():
        return run.model
    folder = run.folder / "from-checkpoint"  # separate from what the run may be writing right now
    folder.mkdir(exist_ok=True)
    lock = Lock(folder, "eval", patience=PATIENCE)
    try:
        return write_weights(run, config, folder / "model")
    finally:
        lock.release()


def write_weights(run: Run, config: Config, out: Path, merged: bool = True, best: bool = False, model: str | None = None) -> Path:
    """A checkpoint's weights as a model folder, which replaces what was there: the policy's, or those of a further model."""
    path = checkpoint.best(run.checkpoints) if best else None
    found = checkpoint.load(path) if path is not None else checkpoint.latest_good(run.checkpoints)
    if found is None:
        trained = f"its trained model lies in {run.model}" if run.model.is_dir() else "there is nothing to export"
        raise TurnwiseError(f"{why_no_checkpoint(run, config) or f'{run.folder} has no checkpoint'}: {trained}")
    if best and path is None:
        raise TurnwiseError(f"none of the checkpoints of {run.folder} was evaluated, so the best is not known: leave --best out")
    if model in config.models and is_reference(config.models[model].kind):
        config.trusted(folder=run.folder)
    system = _without_environment(run, config)
    system.learner.load_state(found.tensors, found.state["learner"])
    if model is None:
        return system.learner.save_model(out, merged=merged, tokenizer=system.preprocessor)
    models = build_models(config, system.learner, system.tokenizer, only=model)
    models.load_state(found.further, found.state.get("models", {}))
    return write_further(models[model], out, merged)


def _without_environment(run: Run, config: Config) -> System:
    """The parts of a run that its weights need. A tiny model's vocabulary comes from the run's folder. Only a run that does not keep it
    (interrupted before its first iteration) has to play its environment, and then needs the same trust as any other."""
    if config.model.path is not None:
        return System(config, plays=False)
    if (run.tokenizer / "tokenizer.json").is_file():
        return System(config, words=run.file("tokenizer"), plays=False)
    return System(config.trusted(folder=run.folder))
