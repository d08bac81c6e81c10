"""The arguments of a sweep: lists and ranges of values, their product, and the name of each run.

    credit.name=gigpo,grpo    two values            seed=0..4              the integers 0, 1, 2, 3, 4
    learner.lr=1e-4,3e-4      two values            seed=0..2,7            0, 1, 2, 7
    engine.stop=["a","b"]     ONE value: a list     betas=[0.9,0.99],[0.8,0.9]   two values, each a list
    env.options.tag="x,y"     ONE value: a text with a comma in it

The rule: commas separate values unless they are inside brackets, braces or quotes; each value is then read as `turnwise train` reads an
override. A key with one value is set in every run and does not enter the names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Any

from turnwise.recipe.reading import parse_override
from turnwise.recipe.writing import toml_value
from turnwise.util.errors import TurnwiseError

RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
LONGEST_NAME = 180  # file systems take 255 bytes; a number may be added, and files are inside
OPENING, CLOSING = "[{(", "]})"
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Point:
    """One run of a sweep: the overrides that make it, and the part of its name that says what differs."""

    changes: Mapping[str, Any]
    suffix: str


def read_axes(arguments: Sequence[str]) -> dict[str, list[Any]]:
    """The values of every key, in the order in which they were given."""
    axes: dict[str, list[Any]] = {}
    for text in arguments:
        key, _ = parse_override(text)
        if key in axes:
            raise TurnwiseError(f"{key} is given twice: list all of its values in one place, as in {key}=a,b")
        values = [value for part in split_values(text) for value in _values(key, part)]
        texts = [toml_value(value) for value in values]
        if len(set(texts)) < len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise TurnwiseError(f"{key}: the value {twice} is listed twice; the two runs would be one and the same")
        axes[key] = values
    return axes


def split_values(text: str) -> list[str]:
    """The values of `key=a,b,[c,d]`: split at commas outside brackets, braces and quotes."""
    key, _, rest = text.partition("=")
    parts, depth, quote, start = [], 0, "", 0
    for position, letter in enumerate(rest):
        if quote:
            quote = "" if letter == quote and rest[position - 1] != "\\" else quote
        elif letter in "\"'":
            quote = letter
        elif letter in OPENING or letter in CLOSING:
            depth += 1 if letter in OPENING else -1
        elif letter == "," and depth == 0:
            parts.append(rest[start:position])
            start = position + 1
    parts.append(rest[start:])
    if quote or depth:
        raise TurnwiseError(f"{text!r}: a quote or bracket is not closed. A list as a value is written {key}=[1,2]; quote it in a shell")
    if len(parts) > 1 and any(not part.strip() for part in parts):
        raise TurnwiseError(f"{text!r}: a value between the commas is missing")
    return parts


def _values(key: str, part: str) -> Iterator[Any]:
    numbers = RANGE.fullmatch(part.strip())
    if not numbers:
        yield parse_override(f"{key}={part}")[1]
        return
    first, last = int(numbers[1]), int(numbers[2])
    if last < first or last - first >= MOST_RUNS:
        raise TurnwiseError(f"{key}={part}: a range goes up, from its first to its last number, as in {key}=0..4")
    yield from range(first, last + 1)


def points(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The product of all values. The key given last changes fastest; every run has a unique name."""
    varied = [key for key, values in axes.items() if len(values) > 1]
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise TurnwiseError(f"these values make {count:,} runs; a sweep takes at most {MOST_RUNS:,}")
    runs: list[Point] = []
    for values in product(*axes.values()):
        changes = dict(zip(axes, values, strict=True))
        runs.append(Point(changes, "-".join(f"{key}={_word(changes[key])}" for key in varied)))
    count_of = Counter(point.suffix for point in runs)
    return [point if count_of[point.suffix] == 1 and len(point.suffix) <= LONGEST_NAME else _with_digest(point) for point in runs]


def _with_digest(point: Point) -> Point:
    """The same point under a name that a digest of its values makes unique: for names that are too long, or equal once they are made fit
    for a folder."""
    text = "\n".join(f"{key}={toml_value(value)}" for key, value in sorted(point.changes.items()))
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return Point(point.changes, f"{point.suffix[:LONGEST_NAME]}-{digest}")


def _word(value: Any) -> str:
    """A value as part of a folder's name: letters, digits, dots and dashes; for a long text its end, where paths differ."""
    text = value if isinstance(value, str) else toml_value(value)
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_")[-40:] or "empty"
