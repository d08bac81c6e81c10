"""Checks of a recipe and of what is evaluated before torch is imported, so that a mistake is reported at once and not after seconds. `look`
and `look_at` run none of the code that a recipe names: `--dry-run` is safe with third-party recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.collect.players import PLAYERS
from turnwise.config.kinds import ENVIRONMENT, KINDS
from turnwise.config.loading import check_reference
from turnwise.config.references import code_in, is_reference
from turnwise.engines.registry import declared
from turnwise.envs import registry
from turnwise.envs.capabilities import Capabilities
from turnwise.learn.sections import Lora
from turnwise.methods.registry import model_kinds
from turnwise.recipe.names import pieces
from turnwise.recipe.reading import is_recipe, shipped_recipes
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG, Result, Run
from turnwise.runs.trackers import make_trackers
from turnwise.setup.arguments import Given, RecipeLike, read_config
from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.hub import ADAPTERS, REPOSITORY, at_hand, find_model


class Source(NamedTuple):
    """What is evaluated or watched: its config, and the run or the model folder that it is."""

    config: Config
    run: Run | None = None
    model: Path | None = None


def read_source(source: RecipeLike | Result | None, given: Given, overrides: Mapping[str, Any]) -> Source:
    """A run, a model folder with the defaults, a recipe with the model that it names, or a server. Nothing that it names is run."""
    says_environment = given.env is not None or given.prompts is not None or "env.name" in overrides
    if source is None:
        if not names_server(overrides):
            raise TurnwiseError("nothing to evaluate: give a run, a model folder, a recipe, or a server (engine.name=openai)")
        if not says_environment:
            raise TurnwiseError("say which environment the server's model should play (env=…)")
        return Source(read_config(None, given, overrides))
    if isinstance(source, Mapping | Config):
        return Source(read_config(source, given, overrides))
    path = source.folder if isinstance(source, Result) else Path(source)
    if is_recipe(path):
        return Source(read_config(path, given, overrides))
    if (path / CONFIG).is_file():
        run = Run.open(path)
        return Source(read_config(path / CONFIG, given, overrides), run=run)
    if not path.exists() and not path.parent.exists() and REPOSITORY.fullmatch(str(path)):  # a name on a hub
        return Source(read_config(None, given, overrides, **{"model.path": str(path)}))
    if not any((path / name).is_file() for name in ("config.json", ADAPTERS)):
        what = "there is no such folder" if not path.exists() else f"it is neither a run (no {CONFIG}) nor a model folder (no config.json)"
        raise TurnwiseError(
            f"{path}: {what}. What can play: a run's folder, a model's folder, a recipe, or `random` and `expert`. "
            f"Recipes that come with Turnwise: {', '.join(shipped_recipes())}"
        )
    if given.env is None and given.prompts is None:
        raise TurnwiseError(f"{path} is a model: say which environment it should play (env=…)")
    return Source(read_config(None, given, overrides, **{"model.path": str(path)}), model=path)


def names_server(overrides: Mapping[str, Any]) -> bool:
    """Whether overrides of a recipe name an engine whose model a server has."""
    name = overrides.get("engine.name")
    return name is not None and not declared(str(name)).in_process


def look(config: Config, hub: bool = True) -> Config:
    """Reject what cannot work: a missing environment, option, code file or model. No code is run for it; with `hub`, the hub is asked if
    a model's name is not a folder."""
    look_at(config)
    if not is_reference(config.env.name):
        registry.resolve(config.env.name, config.env.options)
    if hub and config.model.path is not None and config.engine.declared.in_process:
        find_model(config.model.path)
    return config


def look_at_player(agent: str, env: str | None, options: Mapping[str, Any]) -> None:
    """The same for the player: a run or a model, or `random`, `scripted` and `expert`, which need an environment."""
    changes = {f"env.options.{key}": value for key, value in options.items()}
    if agent not in PLAYERS:
        source = read_source(agent, Given(env), changes)
        if source.run is None:  # a run contains what it names
            look(source.config)
    elif env is not None:
        look(Config.load(None, {**changes, "env.name": env}))


def check_trainable(config: Config, runs: bool = True) -> None:
    """Reports what would stop a run at once, before its folder is made; unless `runs`, without asking a hub or making trackers."""
    if not config.engine.declared.trains:
        name = config.engine.name
        raise TurnwiseError(
            f"engine.name={name} plays with a server's model, whose weights cannot be trained from here. Train with engine.name=native or "
            f"transformers; measure the server with `turnwise eval --engine {name} --url … --model …`"
        )
    if config.cluster is None:  # otherwise another machine may be the one that learns
        check_adapters(config.model.lora)
        check_endpoint(config.env.name)
    check_families(config, hub=runs)
    if runs:
        make_trackers(config.run.trackers, config.run.tracker_options)


def check_adapters(lora: Lora | None) -> None:
    """Reports a package that adapters need and that is not installed."""
    if lora is not None and find_spec("peft") is None:
        raise MissingExtra("training with LoRA (model.lora)", "lora")
    if lora is not None and lora.base == "4bit" and find_spec("bitsandbytes") is None:
        raise MissingExtra("a base in 4 bits (model.lora.base)", "4bit")


def check_endpoint(env: str) -> None:
    """Reports the web server that an environment needs which plays by itself, if it is not installed."""
    if find_spec("starlette") is None and not is_reference(env) and Capabilities(registry.spec(env).load()).plays_itself:
        raise MissingExtra("a program that calls the model (env.name=program)", "serve")


def check_families(config: Config, folder: Path | None = None, hub: bool = True) -> None:
    """Reports a model that cannot be trained or played; `folder` replaces that of the policy. No weights are loaded. Unless `hub`, nothing
    is said about one that is not here."""
    from turnwise.learn.models import check_family

    for path, sampled in models_of(config, folder):
        if hub or at_hand(path) is not None:
            check_family(path, sampled)


def models_of(config: Config, folder: str | Path | None = None) -> Iterator[tuple[str | Path, bool]]:
    """The folders or names of a recipe's causal language models, and whether the engine needs their `past_key_values`. `folder` replaces
    that of the policy."""
    engine = config.engine.declared
    if engine.in_process and (policy := folder or config.model.path) is not None:
        yield policy, engine.past_key_values
    for section in config.models.values():
        kind = model_kinds.known(section.kind)  # a user's own is not imported for this
        if section.path is not None and kind is not None and not getattr(kind.function, "classifier", False):
            yield section.path, False


# -- without running any code that the recipe names ---------------------------------------------------------------------------------


def look_at(config: Config) -> None:
    """An error for code that is missing, is not Python, or is clearly of another kind. Built-in trackers are made, others are not."""
    parts = [(config.env.name, ENVIRONMENT), *((piece.name, KINDS[piece.family]) for piece in pieces(config))]
    for name, kind in parts:
        if is_reference(name):
            check_reference(name, kind)
    built_in = [name for name in config.run.trackers if not is_reference(name)]
    make_trackers(built_in, {name: config.run.tracker_options.get(name, {}) for name in built_in})


def unread(config: Config) -> list[str]:
    """What would have to be run to know more: every text of the recipe that names code, or may name it."""
    return code_in(config.model_dump(mode="json"))
