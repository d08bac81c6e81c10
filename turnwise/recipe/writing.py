"""Writing recipes: a config as TOML that reads back the same, its hash, and every key explained."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any, get_args

import tomli_w

from turnwise.recipe.merging import none_as_text
from turnwise.recipe.schema import Config, fields


def to_toml(config: Config) -> str:
    """The whole config as TOML, in the order of the schema; reading it gives the same config."""
    return tomli_w.dumps(none_as_text(config.model_dump(mode="json")))


def toml_value(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{tomli_w.dumps({key: 0}).split(' = 0')[0]} = {toml_value(item)}" for key, item in value.items()) + "}"
    return tomli_w.dumps({"value": none_as_text(value)}).removeprefix("value = ").removesuffix("\n")


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
