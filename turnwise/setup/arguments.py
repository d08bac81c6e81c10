"""The arguments of `tw.train` and `tw.evaluate` as settings of a recipe: sections, objects, prompts and functions become overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from turnwise.collect.rewards import TermFunction
from turnwise.config.objects import Handed, short_name
from turnwise.credit.registry import CreditFunction
from turnwise.envs.base import Env
from turnwise.recipe.reading import RecipeLayers, recipe_layers, shipped_recipe
from turnwise.recipe.schema import Config, config_of
from turnwise.util.errors import TurnwiseError

PROMPTS = "prompts"  # the environment that is made from a file of prompts and a function
ScoreFunction: TypeAlias = Callable[..., "float | bool | Mapping[str, Any]"]
ReplyFunction: TypeAlias = Callable[..., "str | None"]
RecipeLike: TypeAlias = "str | PathLike[str] | Mapping[str, Any] | Config"
EnvLike: TypeAlias = "str | Callable[..., Env] | Mapping[str, Any]"
RewardLike: TypeAlias = (
    "str | TermFunction | ScoreFunction | Mapping[str, str | TermFunction] | Sequence[str | TermFunction | Mapping[str, Any]]"
)
CreditLike: TypeAlias = "str | CreditFunction | Mapping[str, Any]"
PromptsLike: TypeAlias = "str | PathLike[str] | Sequence[str | Mapping[str, Any]]"


@dataclass(frozen=True)
class Given:
    """What a caller gave, as it was given."""

    env: EnvLike | None = None
    reward: RewardLike | None = None
    credit: CreditLike | None = None
    prompts: PromptsLike | None = None
    reply: str | ReplyFunction | None = None

    @property
    def default_recipe(self) -> Path | None:
        """The recipe that is used if none is named: as on the command line, one made for such an environment."""
        if self.prompts is not None or self.env == PROMPTS:
            return shipped_recipe("prompts")
        return shipped_recipe("own-env") if self.env is not None else None


class Asked(NamedTuple):
    """How a caller wants a panel to be played; None: as the source says it."""

    split: str | None = None
    n: int | Literal["all"] | None = None
    seed: int | None = None
    temperature: float | None = None
    repeats: int | None = None


def read_config(recipe: RecipeLike | None, given: Given, overrides: Mapping[str, Any], **below: Any) -> Config:
    """The recipe that a caller means, checked. Objects in it are replaced by names that stand for them. `below`: overrides that yield to
    all that the caller gave."""
    layers, changes = _layers_and_changes(recipe, given, overrides)
    return config_of(layers, {**below, **changes})


def changes_of(record: Path, given: Given, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What a caller changes in the record of a run."""
    return _layers_and_changes(record, given, overrides)[1]


def _layers_and_changes(recipe: RecipeLike | None, given: Given, overrides: Mapping[str, Any]) -> tuple[RecipeLayers, dict[str, Any]]:
    """The layers of a recipe, and the overrides that the caller's arguments are."""
    handed = Handed()
    plain = handed.plain(recipe) if isinstance(recipe, Mapping) else recipe
    layers = recipe_layers(plain)
    changes = sections(handed.plain(overrides))
    if given.prompts is not None and given.env not in (None, PROMPTS):
        raise TurnwiseError(f"prompts are a separate environment: give either prompts or env, not both ({given.env!r})")
    if given.env is not None or given.prompts is not None:
        changes |= _named("env", PROMPTS if given.prompts is not None else given.env, handed)
    if given.credit is not None:
        changes |= _named("credit", given.credit, handed)
    if given.prompts is not None and given.reward is None and "env.options.score" not in changes:
        raise TurnwiseError("prompts need a function that scores responses: --reward reward.py:score, or reward=score from Python")
    if given.prompts is not None:
        changes["env.options.file"] = _prompts(given.prompts, handed)
    if given.reply is not None:
        changes["env.options.reply"] = _reference(given.reply, handed)
    if given.reward is not None and changes.get("env.name", layers.environment) == PROMPTS:
        if isinstance(given.reward, Mapping) or (isinstance(given.reward, Sequence) and not isinstance(given.reward, str)):
            raise TurnwiseError("prompts are scored by one function: give reward=score, or reward='reward.py:score'")
        changes["env.options.score"] = _reference(given.reward, handed)
    elif given.reward is not None:
        changes["reward"] = _terms(given.reward, handed)
    return layers, changes


def sections(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with whole sections (`learner={"lr": 1e-4}`) taken apart into dotted keys, so that they add to the recipe's."""
    settings: dict[str, Any] = {}
    for key, value in changes.items():
        if key in Config.model_fields and isinstance(value, Mapping):
            settings |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            settings[key] = value
    return settings


def _named(section: str, value: Any, handed: Handed) -> dict[str, Any]:
    """A name, an object, or a whole section."""
    if isinstance(value, Mapping):
        return sections(handed.plain({section: value}))
    if not isinstance(value, str) and (
        not callable(value) or (section == "env" and not isinstance(value, type) and hasattr(value, "step"))
    ):
        kind = type(value).__name__
        what = "its class, or a function that makes one" if section == "env" else "a function"
        raise TurnwiseError(f"{section} takes a name, {what}, or the settings of the section; it was given an object of {kind}")
    return {f"{section}.name": value if isinstance(value, str) else handed.name(value)}


def _reference(value: Any, handed: Handed) -> str:
    if isinstance(value, str):
        return value
    if not callable(value):
        raise TurnwiseError(f"a function is needed, or its name as path/to/file.py:function; got {type(value).__name__}")
    return handed.name(value)


def _prompts(prompts: Any, handed: Handed) -> str:
    if isinstance(prompts, str | PathLike):
        return str(prompts)
    if not isinstance(prompts, Sequence):
        raise TurnwiseError(f"prompts are a JSONL file or a list of texts or rows, not {type(prompts).__name__}")
    return handed.name(list(prompts), importable=False, called="prompts")


def _terms(reward: Any, handed: Handed) -> list[dict[str, Any]]:
    """Reward terms: one function, several, or functions by the name that they are logged by."""
    if isinstance(reward, Mapping) and "function" not in reward:
        return [{"name": name, "function": _reference(function, handed)} for name, function in reward.items()]
    several = reward if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
    terms = []
    for term in several:
        if isinstance(term, Mapping):
            terms.append({**term, "function": _reference(term.get("function"), handed)})
        else:
            name = term.rpartition(":")[2] if isinstance(term, str) else short_name(term)
            terms.append({"name": name, "function": _reference(term, handed)})
    return terms
