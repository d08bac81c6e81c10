"""What every section of a recipe shares: strict types, "none" for what is unset, and options of the component that it names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from turnwise.config.options import mistaken
from turnwise.util.errors import TurnwiseError
from turnwise.util.secret import redact

NAME = "run"  # of a run whose recipe has no name


class Section(BaseModel):
    """A table of a recipe. The text "none" clears an optional field."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        """A section that is made in Python. What is wrong with it is said in the words for a recipe."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            known = list(type(self).model_fields)
            raise TurnwiseError(redact(f"{type(self).__name__}: {'; '.join(problem(item, known) for item in error.errors())}")) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # sections inside a recipe are not made by calling it

    @field_validator("*", mode="before")
    @classmethod
    def _kind(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject implicit conversions: true is not a number, 1 is not a boolean."""
        field = cls.model_fields.get(info.field_name or "")
        if field is not None and (wrong := mistaken(value, field.annotation)):
            raise ValueError(wrong)
        return value

    @model_validator(mode="before")
    @classmethod
    def _unset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        optional = {name for name, field in cls.model_fields.items() if type(None) in getattr(field.annotation, "__args__", ())}
        values = {key: None if isinstance(value, str) and value == "none" and key in optional else value for key, value in given.items()}
        return values | option_table({key: value for key, value in values.items() if key not in cls.model_fields})


def problem(item: Any, known: Sequence[str], elsewhere: Sequence[str] = ()) -> str:
    """One of pydantic's errors in few words. `known`: the keys of the section that it lies in; `elsewhere`: a key of the same name in
    another section, suggested unless a known one is close."""
    place = [str(part) for part in item["loc"] if not (isinstance(part, str) and part.startswith("function-"))]
    dotted = ".".join(place)
    if item["type"] == "extra_forbidden":
        beside = [".".join([*place[:-1], name]) for name in get_close_matches(place[-1], known, n=1, cutoff=0.4)]
        near = beside if get_close_matches(place[-1], known, n=1, cutoff=0.65) else elsewhere or beside
        return f"unknown key {dotted}." + (f" Did you mean {near[0]}?" if near else f" Known here: {', '.join(known)}")
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{dotted}: {message}" if dotted else message
    if item["type"] == "model_type":
        return f"{dotted}: must be a table of settings, got {item['input']!r}"
    message = message.split(", unable to parse")[0].split(", got a number with")[0]
    for theirs, ours in (("Input should be a valid integer", "must be an integer"), ("Input should be a valid", "must be a")):
        message = message.replace(theirs, ours)
    message = message.replace("Input should be", "must be").replace("greater than or equal to", "at least")
    expected = re.findall(r"'([^']*)'", message) if item["type"] == "literal_error" and isinstance(item["input"], str) else []
    hint = "".join(f". Did you mean {name!r}?" for name in get_close_matches(str(item["input"]), expected, n=1))
    return f"{dotted}: {message[0].lower()}{message[1:]}, got {item['input']!r}{hint}"


def option_table(options: Any) -> Any:
    """Options as a recipe stores them. None becomes "none"; the component's signature says where that is read as None."""
    if not isinstance(options, Mapping):
        return options
    return {key: "none" if value is None else storable(value, str(key)) for key, value in options.items()}


def storable(value: Any, key: str = "") -> Any:
    """A value as TOML can hold it. None inside a list or a table is an error: it would be read back as a text."""
    if isinstance(value, Mapping):
        if wrong := [inner for inner in value if not isinstance(inner, str)]:
            raise ValueError(f"{key}: the keys of a table are texts, not {wrong[0]!r}")
        return {inner: storable(one, f"{key}.{inner}".strip(".")) for inner, one in value.items()}
    if isinstance(value, list | tuple):
        return [storable(one, f"{key}.{number}".strip(".")) for number, one in enumerate(value)]
    if value is None:
        raise ValueError(f"{key} is None (null), which a recipe cannot store inside a list or a table: leave it out, or put it into a file")
    return value


Options = Annotated[dict[str, Any], BeforeValidator(option_table)]
Stored = BeforeValidator(lambda value: None if value is None else storable(value))


class Named(Section):
    """A section whose further keys are options of the component it names."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, frozen=True, allow_inf_nan=False)

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return dict(self.model_extra or {})

    def check_names(self, known: Iterable[str]) -> None:
        """A key that is not an option of the named component may be a misspelt key of the section."""
        own = list(type(self).model_fields)
        for key in self.options:
            near = get_close_matches(key, [*own, *known], n=1, cutoff=0.6) if key not in known else []
            if near and near[0] in own:
                raise TurnwiseError(f"unknown key {key}. Did you mean {type(self).__name__.lower()}.{near[0]}?")
