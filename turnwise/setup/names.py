"""The names in a recipe: which registry knows each of them, and how they are checked when the recipe is read.

Whatever a recipe names is a registered name, `package.module:name` or `path/to/file.py:name`. Registered names and their options are
checked when the recipe is read. Code is imported only when a run is set up (`know`), after the user has trusted it. Slow modules are
imported only if something was named that needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from turnwise.config.checks import Brought, carry_with, check_with, settings_with
from turnwise.config.objects import is_given
from turnwise.config.options import Entry, Registry
from turnwise.config.references import is_reference, parse
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.config.further import FurtherModel
    from turnwise.config.learning import Objective
    from turnwise.config.schema import Config
    from turnwise.config.section import Named
    from turnwise.config.sections import Agent, Engine, RewardTerm, RunSection

# Where each family is registered. Environments have a separate registry (turnwise/envs/registry.py).
REGISTRIES: Mapping[str, str] = {
    "credit": "turnwise.credit.registry:algorithms",
    "objective": "turnwise.objectives.registry:algorithms",
    "importance": "turnwise.objectives.registry:corrections",
    "plan": "turnwise.methods.registry:plans",
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
STAGES = ("plan", "signal", "credit", "objective", "importance", "schedule", "method", "model kind")
LIGHT = ("plan", "signal", "credit", "schedule", "method", "model kind")  # known without torch

UNSET = ("method", "extends", "name", "out", "seed")  # what a method leaves to the recipe


class Piece(NamedTuple):
    """Something that a recipe names: its family, its key in the recipe, the name and the options that are given for it."""

    family: str
    key: str
    name: str
    options: Mapping[str, Any]


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
                yield Piece(family, f"{family}.{number}.name" if isinstance(section, list | tuple) else f"{family}.name", name, one.options)
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
            known = registry(piece.family)
            known.load(piece.name).bind(piece.options, known.kind)
    if found := lacks(config, families):
        raise TurnwiseError("; ".join(found))


def lacks(config: Config, families: tuple[str, ...] = LIGHT) -> list[str]:
    """What the stages of a recipe need and the recipe does not have, if it is known without importing code: which stage needs it, and how
    to get it. Columns that signals and engines give, and further models, are checked when the run is set up."""
    found: list[str] = []
    for piece in pieces(config):
        entry = registry(piece.family).known(piece.name) if piece.family in families else None
        needs = entry.needed(piece.options) if entry is not None else ()
        found += [f"{piece.key}={piece.name} {words}" for need in needs if (words := _lacking(need, config))]
    return found


def needed(config: Config, families: tuple[str, ...] = STAGES) -> set[str]:
    """All that the stages of a recipe need, as far as they are known."""
    known = [(registry(piece.family).known(piece.name), piece.options) for piece in pieces(config) if piece.family in families]
    return {need for entry, options in known if entry is not None for need in entry.needed(options)}


def _lacking(need: str, config: Config) -> str:
    from turnwise.config.further import RESERVED  # loads pydantic, as the recipe did

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


def check_when_read() -> None:
    """Have every recipe's names checked when it is read."""
    for family in LIGHT:
        check_with(family, partial(check_stage, family))
    check_with("objective", check_objective)
    check_with("agent", check_agent)
    check_with("engine", check_engine)
    check_with("reward", check_reward)
    check_with("models", check_model)
    check_with("run", check_trackers)
    check_with("recipe", check_recipe)
    settings_with(settings_of_method)
    carry_with(carried)


def check_stage(family: str, section: Named) -> None:
    """A stage and its options. User code is checked when the run is set up."""
    name = str(getattr(section, "name", "") or "")
    if name and not is_reference(name):
        known = registry(family)
        section.check_names(known[name].options)
        known[name].bind(section.options, known.kind)


def settings_of_method(name: str, options: Mapping[str, Any]) -> Brought:
    """The settings that a method is with these options, and its authors' values of shared ones: dotted keys and values. Files that it
    names may lie beside its own. A plain table from a method of the user's own is all of it."""
    known = registry("method")
    found = known.load(name).make(options, known.kind)()
    if not isinstance(found, Mapping):
        raise TurnwiseError(f'method {name!r} returns {type(found).__name__}; a table of settings is needed, as {{"credit.name": "grpo"}}')
    authors = dict(getattr(found, "authors", {}))
    for key in (*found, *authors):
        if not isinstance(key, str) or key.partition(".")[0] in UNSET:
            raise TurnwiseError(f"method {name!r} sets {key!r}: a method sets keys of a recipe, but none of {', '.join(UNSET)}")
    from turnwise.config.recipes import beside

    path = parse(name).path if is_reference(name) and not is_given(name) else None
    return cast("dict[str, Any]", beside(dict(found), path.parent)) if path is not None else dict(found), authors


def carried(family: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recipe's credit or objective that hold for what a method names instead: those of the same name and meaning. For
    what the recipe does not say, the default of its credit counts, or that of the default credit. So all methods on top of one recipe have
    the same discount per turn, norm and penalty. Options that are equal to the new default are left out."""
    from turnwise.config.learning import Credit, Objective

    sections: dict[str, type[Named]] = {"credit": Credit, "objective": Objective}
    section = sections.get(family)
    if section is None or (family == "objective" and not set(before) - set(section.model_fields)):  # the defaults of objectives are equal
        return {}
    usual, known = section.model_fields["name"].default, registry(family)
    if (entry := known.known(now["name"])) is None:
        return {}
    sources = [(known.known(before.get("name", usual)), before), (known[usual], {})]
    values: dict[str, Any] = {}
    for name, option in entry.options.items():
        same = [(one, given) for one, given in sources if one is not None and meaning(name, one, given) == meaning(name, entry, now)]
        value = same[0][1].get(name, same[0][0].options[name].usual) if same else option.usual
        taken = not option.choices or value in option.choices
        values |= {name: value} if taken and value != option.usual else {}
    return values


def meaning(name: str, entry: Entry[Any], given: Mapping[str, Any]) -> str | None:
    """What options of one name must share to be one setting: their text up to a semicolon, in which an option's name in braces stands for
    its value (`discount per {level}`). None if there is no such option."""
    if name not in entry.options:
        return None
    text = entry.options[name].help.text.partition(";")[0]
    for other in entry.options.values():
        text = text.replace(f"{{{other.name}}}", str(given.get(other.name, other.usual)))
    return text


def check_model(section: FurtherModel) -> None:
    """The kind of a further model and its options. User code is checked when the run is set up."""
    if not is_reference(section.kind):
        known = registry("model kind")
        known[section.kind].bind(section.options, known.kind)


def check_objective(section: Objective) -> None:
    """The objective, the correction, and their options."""
    usual = type(section).model_fields
    if all(getattr(section, key) == usual[key].default for key in ("name", "importance", "importance_options")) and not section.options:
        return  # no other name, which would have to be looked up and would load torch
    from turnwise.objectives import Loss

    check_stage("objective", section)
    own: dict[str, Any] = {} if is_reference(section.name) else {"objective": section.name, "options": section.options}
    if not is_reference(section.importance):
        own |= {"importance": section.importance, "importance_options": section.importance_options}
    Loss(**own)


def check_agent(section: Agent) -> None:
    """The context and the parser."""
    if section.context != type(section).model_fields["context"].default and not is_reference(section.context):
        registry("context")[section.context]
    if section.parse != "auto" and not is_reference(section.parse):
        registry("parser")[section.parse]


def check_engine(section: Engine) -> None:
    """The engine; its options are checked when the run is set up."""
    from turnwise.engines.registry import declared

    declared(section.name)


def check_reward(section: RewardTerm) -> None:
    """A reward term by a registered name, and its options."""
    if not is_reference(section.function):
        registry("reward")[section.function].bind(section.options, registry("reward").kind)


def check_trackers(section: RunSection) -> None:
    """The trackers, and those that options are given for."""
    from turnwise.runs.trackers import check_names

    check_names([*section.trackers, *section.tracker_options])


def check_recipe(config: Config) -> None:
    """What stages need and the recipe does not have, and settings that its engine cannot work with."""
    if problems := [*lacks(config), *engine_problems(config)]:
        raise TurnwiseError("; ".join(problems))


def engine_problems(config: Config) -> list[str]:
    """Settings of a recipe that contradict what its engine declares."""
    from turnwise.engines.registry import declared

    section, cluster, engine, problems = config.engine, config.cluster, declared(config.engine.name), list[str]()
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
