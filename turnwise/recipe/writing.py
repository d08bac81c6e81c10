"""Writing recipes: a config as TOML that reads back the same, its hash, and every key explained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, get_args

from turnwise.recipe.schema import Config, fields

BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that needs no quotes


def to_toml(config: Config) -> str:
    """The whole config as TOML, in the order of the schema; reading it gives the same config."""
    return toml(config.model_dump(mode="json"))


def toml(table: Mapping[str, Any], above: str = "") -> str:
    """A table as TOML: its values, then the tables in it under their full names. `above`: the name of this table and a dot."""
    lines, tables = [], []
    for key, value in table.items():
        name = _key(key)
        listed = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
        if isinstance(value, dict) or listed:
            head = f"[[{above}{name}]]" if listed else f"[{above}{name}]"
            tables += [f"\n{head}\n{toml(item, f'{above}{name}.')}" for item in (value if listed else [value])]
        else:
            lines.append(f"{name} = {toml_value(value)}\n")
    return "".join(lines + tables)


def toml_value(value: Any) -> str:
    """A value as TOML writes it, on one line. TOML has no null: a recipe writes "none"."""
    match value:
        case None:
            return '"none"'
        case bool(flag):
            return "true" if flag else "false"
        case str(text):
            return _quoted(text)
        case int() | float() as number:
            return str(number)
        case list() | tuple() as items:
            return f"[{', '.join(map(toml_value, items))}]"
        case dict() as table:
            return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in table.items()) + "}"
    raise TypeError(f"TOML has no {type(value).__name__}: {value!r}")


def _key(text: str) -> str:
    return text if BARE.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    """TOML escapes a text as JSON does, and one more character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def content_hash(config: Config) -> str:
    """12 hex digits over everything but the name, the folder and the seed: runs with the same hash differ only by their seed. What a
    method has set is included under its own keys."""
    later = {name for name in ("models", "cluster") if not getattr(config, name)}  # what a recipe lacks does not count: an old hash stays
    values = config.model_dump(mode="json", exclude={"name", "out", "seed", "method"} | later)
    return blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=6).hexdigest()


def help_config() -> str:
    """Every key with its type, default and meaning, as a commented recipe."""
    lines = ["# Every key of a recipe, with its default. Set what differs; override on the command line with key=value."]
    for dotted, field, inner in fields():
        if inner is not None:
            optional = " (an optional section)" if field.default is None or field.default == [] else ""
            lines += ["", f"# [{dotted}]  {' '.join((inner.__doc__ or '').split())}{optional}"]
            continue
        takes = str(field.annotation).replace("typing.", "") if get_args(field.annotation) else field.annotation.__name__
        takes = re.sub(r"Annotated\[(.*), \w+\(func=.*\)\]", r"\1", takes)  # how pydantic checks it
        default = "required" if field.is_required() else toml_value(field.default)
        lines.append(f"#   {dotted} = {default}   ({takes})\n#       {' '.join((field.description or '').split())}")
    return "\n".join(lines)
