"""Writing recipes: a config as TOML that reads back the same, its hash, and every key explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, get_args

from turnwise.config.schema import Config, fields


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
