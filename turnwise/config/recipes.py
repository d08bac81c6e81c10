"""Reading and writing recipes: TOML in, dotted overrides, errors that name the file, the key and the nearest one, TOML out."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from turnwise.config.references import code_in
from turnwise.config.schema import Config, Credit
from turnwise.config.trust import TOKEN
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside
from turnwise.util.secret import redact

GROUP_ALGORITHMS = {"grpo", "dr_grpo", "rloo", "loop", "gigpo", "hgpo", "graph_gpo", "reinforce_pp_baseline"}
CREDIT = str(Credit.model_fields["name"].default)
CRITIC_ALGORITHMS = {"gae": None, "bi_level_gae": "token"}


def load(
    recipe: str | PathLike[str] | Mapping[str, Any] | Config | None, overrides: Sequence[str] | Mapping[str, Any] | None = None
) -> Config:
    """What `Config.load` does."""
    pairs = list(overrides.items()) if isinstance(overrides, Mapping) else [parse_override(text) for text in overrides or ()]
    values, source = read_values(recipe)
    return overridden(values, dict(pairs), source)


def overridden(values: Mapping[str, Any], changes: Mapping[str, Any], source: str) -> Config:
    """A config from plain values and dotted overrides, checked."""
    now, trained = dict(values), _trained(values)
    _overridden(now, list(changes.items()))
    if "name" not in changes:
        _rename(now, trained)
    config = check(now, source)
    if source.endswith(".toml") and (folder := run_of(Path(source))) is not None:
        config._folder, config._typed = folder, tuple(code_in(dict(changes)))
    return config


def read_values(recipe: str | PathLike[str] | Mapping[str, Any] | Config | None) -> tuple[dict[str, Any], str]:
    """The plain values of a recipe, however it is given, and what it is called in messages. A dictionary may have dotted keys, and
    `extends` as a file may, relative to the folder that one is in."""
    if recipe is None:
        return {}, "the defaults"
    if isinstance(recipe, Config):
        return recipe.model_dump(mode="json"), "given as an object"
    if not isinstance(recipe, Mapping):
        return read_recipe(Path(recipe)), str(recipe)
    values = dict(recipe)
    base = read_recipe(Path(str(values.pop("extends")))) if "extends" in values else {}
    return _merged(base, _overridden({}, list(values.items()))), "given as a dictionary"


def _overridden(values: dict[str, Any], pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for key, value in sorted(pairs, key=lambda item: not item[0].endswith(".name")):  # names first: they decide which options there are
        _set(values, key, value)
    return values


def shipped_recipe(name: str) -> Path:
    """A recipe that comes with Turnwise: beside the package in a checkout, under the environment's share/ where it was installed."""
    for folder in (Path(__file__).parent.parent.parent / "recipes", Path(sys.prefix) / "share" / "turnwise" / "recipes"):
        if (folder / f"{name}.toml").is_file():
            return folder / f"{name}.toml"
    raise TurnwiseError(f"the recipe {name}.toml that comes with Turnwise was not found; give the path of a recipe")


def run_of(recipe: Path) -> Path | None:
    """The run folder that a recipe is the record of; none for a recipe that stands for itself."""
    beside = ("metrics.jsonl", "summary.json", "checkpoints", "model", "rollouts", "evals", TOKEN)
    return recipe.parent if recipe.name == "config.toml" and any((recipe.parent / name).exists() for name in beside) else None


def check(values: dict[str, Any], source: str) -> Config:
    """A config from plain values; all problems are listed at once."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problems = [_problem(item) for item in error.errors()]
        lines = problems[0] if len(problems) == 1 else "".join(f"\n  - {problem}" for problem in problems)
        raise TurnwiseError(redact(f"recipe {source}: {lines}")) from None


def read_recipe(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a recipe file, on top of those of the recipe it extends."""
    alone = run_of(path)
    if alone is not None:
        inside(alone, path)
    path = path.resolve()
    if path in seen:
        raise TurnwiseError(f"recipe {path} extends itself, by way of {' → '.join(p.name for p in seen)}")
    if path.is_dir():
        of_run = path / "config.toml"
        run = f". It is a run: go on with --resume {path}, or start anew from {of_run}" if of_run.is_file() else ""
        raise TurnwiseError(f"{path} is a folder, not a recipe{run}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.toml")], n=1) if path.parent.is_dir() else []
        raise TurnwiseError(f"no recipe {path}." + (f" Did you mean {path.parent / near[0]}?" if near else "")) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise TurnwiseError(f"recipe {path}: {error}") from None
    base = values.pop("extends", None)
    if base is None:
        return values
    if alone is not None:
        raise TurnwiseError(f"recipe {path}: the record of a run stands alone, and this one says extends = {base!r}: it was changed since")
    if not isinstance(base, str):
        raise TurnwiseError(f"recipe {path}: extends takes the path of another recipe, not {base!r}")
    below = read_recipe(path.parent / base, (*seen, path))
    both = _merged(below, values)
    if "name" not in values:
        _rename(both, _trained(below))
    return both


def _trained(values: Mapping[str, Any]) -> str:
    """The credit algorithm that a recipe's plain values name."""
    section = values.get("credit")
    return str(section.get("name", CREDIT) if isinstance(section, dict) else CREDIT)


def _rename(values: dict[str, Any], before: str) -> None:
    """A run's name says what is trained: where another algorithm than the recipe's was chosen, the name that was not chosen follows."""
    now, name = _trained(values), values.get("name", Config.model_fields["name"].default)
    if now == before or not isinstance(name, str):
        return
    word = re.sub(r"[^A-Za-z0-9._=-]+", "-", now.rsplit(":", 1)[-1])
    parts = re.split(r"([.=-])", name)
    values["name"] = "".join(word if part == before else part for part in parts) if before in parts else f"{name}-{word}"


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            if "name" in value:
                old = _renamed(key, old, value["name"])
            both[key] = _merged(old, value)
        else:
            both[key] = value
    return both


def _renamed(section: str, values: dict[str, Any], name: Any) -> dict[str, Any]:
    """A section that now names something else: the options of what it named before do not carry over."""
    if values.get("name", name) == name or section not in ("credit", "objective", "env"):
        return values
    return {key: value for key, value in values.items() if key != "options"} if section == "env" else {}


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value`: the value is TOML (3, true, [1, 2], "text") and any other word is text."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
        raise TurnwiseError(f"an override is written key=value, with dots between sections (credit.name=grpo), not {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def is_override(text: str) -> bool:
    """Whether a text is `key=value` and not a path: the folders of a sweep have equals signs in their names too."""
    key, equals, _ = text.partition("=")
    return bool(equals) and "/" not in key and os.sep not in key and not os.path.exists(text)  # noqa: PTH110 (Path.exists raises on long texts)


def _set(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        inner = values.get(section)
        inner = {} if inner is None or inner == "none" else inner
        if not isinstance(inner, dict):
            raise TurnwiseError(f"override {dotted}: {section} is {inner!r}, not a section")
        values[section] = inner = dict(inner)
        values = inner
    if last == "name" and len(sections) == 1:
        kept = dict(_renamed(sections[0], values, value))
        values.clear()
        values.update(kept)
    values[last] = value


def _problem(item: Any) -> str:
    place = [part for part in item["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
    dotted = ".".join(map(str, place))
    if item["type"] == "extra_forbidden":
        section = section_at(place[:-1])
        known = list(section.model_fields) if section else []
        wrong = str(place[-1])
        beside = [".".join([*map(str, place[:-1]), name]) for name in get_close_matches(wrong, known, n=1, cutoff=0.4)]
        near = beside if get_close_matches(wrong, known, n=1, cutoff=0.65) else _elsewhere(wrong) or beside
        return f"unknown key {dotted}." + (f" Did you mean {near[0]}?" if near else f" Known here: {', '.join(known)}")
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{dotted}: {message}" if dotted else message
    return f"{dotted}: {message[0].lower()}{message[1:]}, got {item['input']!r}"


def _elsewhere(key: str) -> list[str]:
    """A key of that name in another section."""
    return [dotted for dotted, _, _ in fields() if dotted.rsplit(".", 1)[-1] == key][:1]


def section_at(place: Sequence[Any]) -> type[BaseModel] | None:
    """The section class at a place of the config."""
    section: type[BaseModel] | None = Config
    for part in place:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section else None
        section = _section_of(field.annotation) if field else None
    return section


def _section_of(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def fields(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, Any, type[BaseModel] | None]]:
    """Every field of a recipe: its dotted key, pydantic's description of it, and its class where it is a section."""
    for name, field in section.model_fields.items():
        inner = _section_of(field.annotation)
        yield f"{prefix}{name}", field, inner
        if inner is not None:
            yield from fields(inner, f"{prefix}{name}.")


def help_config() -> str:
    """Every key with its type, default and meaning, as a commented recipe."""
    lines = ["# Every key of a recipe, with its default. Set what differs; override on the command line with key=value."]
    for dotted, field, inner in fields():
        if inner is not None:
            optional = " (a section that is absent by default)" if field.default is None or field.default == [] else ""
            lines += ["", f"# [{dotted}]  {' '.join((inner.__doc__ or '').split())}{optional}"]
            continue
        takes = str(field.annotation).replace("typing.", "") if get_args(field.annotation) else field.annotation.__name__
        default = "required" if field.is_required() else toml_value(field.default)
        lines.append(f"#   {dotted} = {default}   ({takes})\n#       {' '.join((field.description or '').split())}")
    return "\n".join(lines)


def contradictions(config: Config) -> list[str]:
    """Settings that cannot work together."""
    found = []
    name, size = config.credit.name, config.collect.group_size
    if name in GROUP_ALGORITHMS and size < 2:
        found.append(f"credit.name={name} compares the attempts of a group: collect.group_size must be at least 2, not {size}")
    if name in CRITIC_ALGORITHMS:
        level = CRITIC_ALGORITHMS[name] or config.credit.options.get("level", "turn")
        if config.learner.value is None or config.learner.value.level != level:
            found.append(f'credit.name={name} needs a critic: set learner.value.level="{level}"')
    if config.eval.split == config.env.split:
        found.append(f"eval.split and env.split are both {config.env.split!r}: results on training tasks would not count")
    if config.objective.kl != "off" and config.objective.kl_coef == 0:
        found.append(f"objective.kl={config.objective.kl} has no effect with objective.kl_coef=0")
    if config.objective.constant is not None and not config.objective.aggregation.endswith("_sum"):
        found.append("objective.constant goes with objective.aggregation=turn_sum or trajectory_sum")
    server = config.engine.name == "openai"
    if server and not (config.engine.url and config.engine.model):
        found.append("engine.name=openai needs engine.url (as http://127.0.0.1:8000/v1) and engine.model (the model's name there)")
    if not server and (config.engine.url or config.engine.model):
        found.append(
            f"engine.url and engine.model go with engine.name=openai, not with {config.engine.name}; a model's folder is model.path"
        )
    if config.model.path is None and not server:
        longest = config.agent.max_prompt_tokens + config.engine.max_tokens
        if longest > config.model.tiny.max_length:
            found.append(
                f"agent.max_prompt_tokens + engine.max_tokens = {longest} is more than model.tiny.max_length={config.model.tiny.max_length}"
            )
    return found


def to_toml(config: Config) -> str:
    """The whole config as TOML; reading it gives the same config."""
    return "\n".join(_table(config.model_dump(mode="json"), "")).strip() + "\n"


def _table(values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lists = {key: value for key, value in values.items() if isinstance(value, list) and value and isinstance(value[0], dict)}
    for key, value in values.items():
        if key not in tables and key not in lists:
            yield f"{_key(key)} = {toml_value(value)}"
    for key, value in tables.items():
        yield f"\n[{prefix}{_key(key)}]"
        yield from _table(value, f"{prefix}{_key(key)}.")
    for key, items in lists.items():
        for item in items:
            yield f"\n[[{prefix}{_key(key)}]]"
            yield from _table(item, f"{prefix}{_key(key)}.")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def toml_value(value: Any) -> str:
    """A value as TOML writes it; what is unset is the text "none"."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def content_hash(config: Config) -> str:
    """12 hex digits over everything but the name, the folder and the seed: runs with the same hash differ only by chance."""
    values = config.model_dump(mode="json", exclude={"name", "out", "seed"})
    return blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=6).hexdigest()
