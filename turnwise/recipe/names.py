"""The names in a recipe: which registry knows each of them, and how they are checked when the recipe is read.

Whatever a recipe names is a registered name, `package.module:name` or `path/to/file.py:name`. Registered names and their options are
checked when the recipe is read. Code is imported only when a run is set up (`know`), after the user has trusted it. Slow modules are
imported only if something was named that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from turnwise.config.options import Registry
from turnwise.config.references import is_reference
from turnwise.learn.sections import RESERVED
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.config.section import Named
    from turnwise.methods.settings import Objective
    from turnwise.recipe.schema import Config

# Where each family is registered. Environments have a separate registry (turnwise/envs/registry.py).
REGISTRIES: Mapping[str, str] = {
    "credit": "turnwise.credit.registry:algorithms",
    "objective": "turnwise.objectives.registry:algorithms",
    "importance": "turnwise.objectives.registry:corrections",
    "plan": "turnwise.methods.registry:plans",
    "source": "turnwise.collect.source:sources",
    "signal": "turnwise.methods.registry:signals",
    "schedule": "turnwise.methods.registry:schedules",
    "method": "turnwise.methods.registry:methods",
    "model kind": "turnwise.methods.registry:model_kinds",
    "reward": "turnwise.collect.rewards:terms",
    "context": "turnwise.agent.registry:contexts",
    "parser": "turnwise.agent.registry:parsers",
    "engine": "turnwise.engines.registry:engines",
    "tracker": "turnwise.runs.trackers.base:known",
}
STAGES = ("plan", "source", "signal", "credit", "objective", "importance", "schedule", "method", "model kind")
CHECKED = ("context", "parser", "plan", "source", "signal", "credit", "schedule", "method", "model kind", "reward")  # as they are read
LIGHT = ("plan", "source", "signal", "credit", "schedule", "method", "model kind")  # known without torch


class Piece(NamedTuple):
    """Something that a recipe names: its family, its key in the recipe, the name and the options that are given for it. `section`: the
    section that has them among its keys."""

    family: str
    key: str
    name: str
    options: Mapping[str, Any]
    section: Named | None = None


def registry(family: str) -> Registry[Any]:
    """The registry of a family."""
    module, _, name = REGISTRIES[family].partition(":")
    return cast("Registry[Any]", getattr(import_module(module), name))


def pieces(config: Config) -> Iterator[Piece]:
    """All that a recipe names except its environment. A section with the name of a family, or a list of such sections, is one."""
    for family in REGISTRIES:
        section = getattr(config, family, None)
        if family in ("reward", "engine"):
            continue
        for number, one in enumerate(section if isinstance(section, list | tuple) else [section] if section is not None else []):
            if name := getattr(one, "name", None):
                key = f"{family}.{number}.name" if isinstance(section, list | tuple) else f"{family}.name"
                yield Piece(family, key, name, one.options, one)
    if config.objective.importance != "none":
        yield Piece("importance", "objective.importance", config.objective.importance, config.objective.importance_options)
    yield Piece("context", "agent.context", config.agent.context, config.agent.options)
    if config.agent.parse != "auto":
        yield Piece("parser", "agent.parse", config.agent.parse, {})
    yield Piece("engine", "engine.name", config.engine.name, config.engine.options)
    for term in config.reward:
        yield Piece("reward", f"reward {term.name}", term.function, term.options)
    for name, model in config.models.items():
        yield Piece("model kind", f"models.{name}.kind", model.kind, model.options)
    for name in config.run.trackers:
        yield Piece("tracker", "run.trackers", name, config.run.tracker_options.get(name, {}))


def know(config: Config, families: tuple[str, ...] = STAGES) -> None:
    """Import the stages that the recipe names as code, and check the options and needs of all stages. Ask for trust before."""
    for piece in pieces(config):
        if piece.family in families:
            family_registry = registry(piece.family)
            family_registry.load(piece.name).bind(piece.options, family_registry.kind)
    if lacking := lacks(config, families):
        raise TurnwiseError("; ".join(lacking))


def lacks(config: Config, families: tuple[str, ...] = LIGHT) -> list[str]:
    """What the stages of a recipe need and the recipe does not have, if it is known without importing code: which stage needs it, and how
    to get it. Columns that signals and engines give, and further models, are checked when the run is set up."""
    lines: list[str] = []
    for piece in pieces(config):
        entry = registry(piece.family).known(piece.name) if piece.family in families else None
        needs = entry.needed(piece.options) if entry is not None else ()
        lines += [f"{piece.key}={piece.name} {words}" for need in needs if (words := _lacking(need, config))]
    return lines


def needed(config: Config, families: tuple[str, ...] = STAGES) -> set[str]:
    """All that the stages of a recipe need, as far as they are known."""
    entries = [(registry(piece.family).known(piece.name), piece.options) for piece in pieces(config) if piece.family in families]
    return {need for entry, options in entries if entry is not None for need in entry.needed(options)}


def _lacking(need: str, config: Config) -> str:
    size, critic = config.collect.group_size, config.learner.value
    if need == "group.peers" and size < 2:
        return f"compares the attempts of a group: collect.group_size must be at least 2, not {size}"
    level, _, column = need.partition(".")
    if column == "value" and level in ("turn", "token") and (critic is None or critic.level != level):
        return f'needs a critic: set learner.value.level="{level}"'
    if level == "model" and column not in (*RESERVED, *config.models):
        return f"needs the model {column!r}: add it to the recipe with [models.{column}]"
    return ""


# -- when a recipe is read -------------------------------------------------------------------------------------------------------


def problems(config: Config) -> Iterator[str]:
    """What is wrong with the names and options of a recipe, each with its section; then what its stages need and the recipe lacks."""
    from turnwise.runs.trackers import check_names

    checks: list[tuple[str, Callable[[], object]]] = [
        ("engine", lambda: config.engine.declared),  # its options are checked when the run is set up
        ("objective", lambda: check_objective(config.objective)),
        ("run", lambda: check_names([*config.run.trackers, *config.run.tracker_options])),
    ]
    checks += [(piece.key.removesuffix(".name"), partial(check_piece, piece)) for piece in pieces(config) if piece.family in CHECKED]
    wrong = False
    for section, check in checks:
        try:
            check()
        except TurnwiseError as error:
            wrong = True
            yield f"{section}: {error}"
    if not wrong:
        yield from lacks(config)
        yield from engine_problems(config)


def check_piece(piece: Piece) -> None:
    """A registered name and its options. User code is checked when the run is set up."""
    if not is_reference(piece.name):
        known = registry(piece.family)
        entry = known[piece.name]
        if piece.section is not None:
            piece.section.check_names(entry.options)
        entry.bind(piece.options, known.kind)


def check_objective(section: Objective) -> None:
    """The objective, the correction, and their options."""
    usual = type(section).model_fields
    if all(getattr(section, key) == usual[key].default for key in ("name", "importance", "importance_options")) and not section.options:
        return  # no other name, which would have to be looked up and would load torch
    from turnwise.objectives import Loss

    check_piece(Piece("objective", "objective.name", section.name, section.options, section))
    chosen: dict[str, Any] = {} if is_reference(section.name) else {"objective": section.name, "options": section.options}
    if not is_reference(section.importance):
        chosen |= {"importance": section.importance, "importance_options": section.importance_options}
    Loss(**chosen)


def engine_problems(config: Config) -> list[str]:
    """Settings of a recipe that contradict what its engine declares."""
    section, cluster, engine, problems = config.engine, config.cluster, config.engine.declared, list[str]()
    if not engine.in_process and not (section.url and section.model):
        problems.append(
            f"engine.name={section.name} needs engine.url (as http://127.0.0.1:8000/v1) and engine.model (the model's name there)"
        )
    if engine.in_process and (section.url or section.model):
        problems.append(f"engine.url and engine.model go with engine.name=openai, not with {section.name}; a model's folder is model.path")
    if cluster is not None and cluster.tensor_parallel > 1 and not engine.several_gpus:
        problems.append(f"cluster.tensor_parallel={cluster.tensor_parallel} needs engine.name=vllm; {section.name} computes on one GPU")
    if cluster is not None and not engine.in_process:
        problems.append(f"engine.name={section.name} plays with a server's weights: an engine of a cluster is native, transformers or vllm")
    longest = config.agent.max_prompt_tokens + section.max_tokens
    if config.model.path is None and engine.in_process and longest > config.model.tiny.max_length:
        problems.append(
            f"agent.max_prompt_tokens + engine.max_tokens = {longest} is more than model.tiny.max_length={config.model.tiny.max_length}"
        )
    return problems
