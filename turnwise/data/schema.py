"""The schema of trajectories: every field of `Turn` and `Trajectory`, once, with its type and where a run folder keeps it.

Everything that leaves the process is derived from the two tables TURN and TRAJECTORY:

- the texts of a run folder: one JSON object per trajectory (`to_record`, `from_record`); fields of part "text"
- tables for other tools, and a plan's state: one row of plain values per turn (`to_rows`, `from_rows`); all fields

What a file says is checked here, by the type of its field, and nowhere else. Fields of part "column" and "token" are in a run folder's
columns and tokens (turnwise/data/columns.py, turnwise/data/tokens.py), so its texts do not repeat them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal
from zlib import compress, decompressobj

import numpy as np
from numpy.typing import NDArray

from turnwise.data.images import Picture, content_hash, picture
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.util.errors import TurnwiseError
from turnwise.util.jsonable import json_value

Row = dict[str, Any]
Pictures = Mapping[str, Picture]
NO_TURN = -1  # the `t` of the one row of a trajectory without turns


@dataclass(frozen=True, eq=False)
class Type:
    """How a value is written to JSON and read from it. `decode` raises TypeError or ValueError for what is not of this type."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _unchanged(value: Any) -> Any:
    return value


def _instance_of(kinds: type | tuple[type, ...], what: str, value: Any) -> Any:
    if not isinstance(value, kinds):
        raise ValueError(f"{what} is required, got {value!r}")
    return value


def _numbers(values: Iterable[Any]) -> list[float]:
    return list(map(float, values))


TEXT = Type("text", _unchanged, partial(_instance_of, str, "a text"))
LABEL = Type("label", _unchanged, partial(_instance_of, (int, str), "an integer or a text"))
FLAG = Type("flag", bool, bool)
INTEGER = Type("integer", _unchanged, int)
NUMBER = Type("number", float, float)
STOP = Type("stop", attrgetter("value"), Stop)
INFO = Type("info", json_value, partial(_instance_of, Mapping, "an object"))
TOKEN_IDS = Type("token ids", lambda ids: list(map(int, ids)), lambda ids: tuple(map(int, ids)))
NUMBERS = Type("numbers", _numbers, lambda values: tuple(map(float, values)))
REPORTS = Type("reports", lambda reports: {name: _numbers(values) for name, values in reports.items()}, dict)
NOTES = Type("notes", lambda notes: {name: float(value) for name, value in notes.items()}, dict)
IMAGES = Type("images", lambda images: [image.name for image in images], tuple)  # their names; `_with_pictures` has the rest
ANCHOR = Type("anchor", _unchanged, _unchanged)  # in rows as two values: see `_anchor_out`


@dataclass(frozen=True)
class Field:
    """A field of `Turn` or `Trajectory`.

    part       "text", "column" or "token": where a run folder keeps it, and which rows have it; "state": only in a plan's state
    optional   a file may lack it, or have null: then it has the default of its class, as it does in files of earlier versions
    """

    name: str
    type: Type
    part: Literal["text", "column", "token", "state"] = "text"
    optional: bool = False


TRAJECTORY = (
    Field("id", LABEL),
    Field("group", LABEL),
    Field("task", TEXT),
    Field("goal", TEXT, optional=True),
    Field("parent", LABEL, optional=True),
    Field("branch_t", INTEGER, optional=True),
    Field("seed", INTEGER),
    Field("stop", STOP),
    Field("stop_detail", TEXT),
    Field("success", FLAG),
    Field("final_anchor", ANCHOR, "column"),
)
TURN = (
    Field("observation", TEXT),
    Field("thought", TEXT),
    Field("action", TEXT),
    Field("response", TEXT),
    Field("reward", NUMBER),
    Field("valid", FLAG),
    Field("info", INFO, optional=True),
    Field("images", IMAGES, optional=True),
    Field("version", INTEGER, "column", optional=True),
    Field("anchor", ANCHOR, "column"),
    Field("prompt_ids", TOKEN_IDS, "token", optional=True),
    Field("response_ids", TOKEN_IDS, "token", optional=True),
    Field("logprobs", NUMBERS, "token", optional=True),
    Field("reports", REPORTS, "state", optional=True),
    Field("notes", NOTES, "state", optional=True),
    Field("learned", FLAG, "state", optional=True),
)


class _Part:
    """The fields of some parts: encodes them from objects, and decodes them from JSON."""

    def __init__(self, fields: Sequence[Field], *parts: str) -> None:
        self.fields = tuple(field for field in fields if field.part in parts and field.type is not ANCHOR)
        self._values = attrgetter(*(field.name for field in self.fields))

    def encode(self, thing: Trajectory | Turn) -> Row:
        return {field.name: field.type.encode(value) for field, value in zip(self.fields, self._values(thing), strict=True)}

    def decode(self, row: Mapping[str, Any]) -> dict[str, Any]:
        values = {}
        for field in self.fields:
            value = row.get(field.name) if field.optional else row[field.name]
            if value is not None or not field.optional:
                values[field.name] = field.type.decode(value)
        return values


TRAJECTORY_TEXTS, TURN_TEXTS = _Part(TRAJECTORY, "text"), _Part(TURN, "text")
TURN_ROW, TURN_TOKENS, TURN_STATE = _Part(TURN, "text", "column"), _Part(TURN, "token"), _Part(TURN, "state")
TURN_ALL = _Part(TURN, "text", "column", "token", "state")
OMITTED: Row = {"goal": "", "parent": None, "branch_t": 0, "images": []}  # values that the texts of a run folder leave out


# -- the texts of a run folder -----------------------------------------------------------------------------------------------------------


def to_record(trajectory: Trajectory) -> Row:
    """A trajectory as plain data, texts only."""
    return {
        **_without_omitted(TRAJECTORY_TEXTS.encode(trajectory)),
        "reward": trajectory.reward,
        "turns": [_without_omitted(TURN_TEXTS.encode(turn)) | {"tokens": len(turn.response_ids)} for turn in trajectory.turns],
    }


def _without_omitted(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in OMITTED or value != OMITTED[name]}


def from_record(record: Mapping[str, Any], pictures: Pictures | None = None) -> Trajectory:
    """The trajectory that `to_record` wrote; pictures that are not there are left out."""
    turns = [Turn(None, **_with_pictures(TURN_TEXTS.decode(turn), pictures or {})) for turn in record["turns"]]
    return Trajectory(turns=turns, **TRAJECTORY_TEXTS.decode(record))


def _with_pictures(values: dict[str, Any], pictures: Pictures) -> dict[str, Any]:
    images = tuple(pictures[name] for name in values.get("images", ()) if name in pictures)
    return values | {"images": images}


# -- rows: tables and states -------------------------------------------------------------------------------------------------------------


def to_rows(
    trajectories: Iterable[Trajectory], tokens: bool = False, columns: Mapping[str, Any] | None = None, reports: bool = False
) -> list[Row]:
    """One row per turn. `columns` are further ones by name, one entry per turn, in the trajectories' order. With `reports`, which is for a
    plan's state, a row also has what the engine reported, what a plan noted, whether the turn is learned from, and the pixels of its
    pictures: once, in the first row that shows them."""
    rows: list[Row] = []
    seen: set[str] = set()
    number = 0
    for trajectory in trajectories:
        shared = TRAJECTORY_TEXTS.encode(trajectory)
        shared = {"trajectory": shared.pop("id"), **shared, "return": trajectory.reward}
        anchors = [turn.anchor for turn in trajectory.turns[1:]] + [trajectory.final_anchor]
        for t, (turn, after) in enumerate(zip(trajectory.turns, anchors, strict=False)):
            row = shared | _turn_row(t, turn, after, tokens)
            if reports:
                new = {image.name: _pixels_out(image.pixels) for image in turn.images if image.name not in seen}
                seen.update(new)
                row |= TURN_STATE.encode(turn) | {"pictures": new}
            further = {name: values[number] for name, values in (columns or {}).items()}
            rows.append(row | {name: value.item() if isinstance(value, np.generic) else value for name, value in further.items()})
            number += 1
        if not trajectory.turns:
            rows.append(shared | _turn_row(NO_TURN, Turn(None), trajectory.final_anchor, tokens) | dict.fromkeys(columns or {}))
    return rows


def _turn_row(t: int, turn: Turn, after: Any, tokens: bool) -> Row:
    row = {"t": t, **TURN_ROW.encode(turn)}
    for name, anchor in (("anchor", turn.anchor), ("next_anchor", after)):
        row[name], row[f"{name}_key"] = _anchor_out(anchor)
    return row | TURN_TOKENS.encode(turn) if tokens else row


def from_rows(rows: Iterable[Mapping[str, Any]], where: str = "rows") -> list[Trajectory]:
    """The trajectories of these rows; columns that `to_rows` does not write by itself are ignored."""
    trajectories: dict[Any, Trajectory] = {}
    pictures: dict[str, Picture] = {}
    for number, row in enumerate(rows, 1):
        try:
            pictures |= {name: _pixels_in(text) for name, text in (row.get("pictures") or {}).items()}
            _add(trajectories, row, pictures)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            detail = f"the column {error} is missing" if isinstance(error, KeyError) else str(error)
            raise TurnwiseError(f"{where}, row {number}: not a turn as `turnwise trajectories` writes it: {detail}") from None
    return list(trajectories.values())


def _add(trajectories: dict[Any, Trajectory], row: Mapping[str, Any], pictures: Pictures) -> None:
    label = row["trajectory"]
    trajectory = trajectories.get(label)
    if trajectory is None:
        trajectory = trajectories[label] = Trajectory(**TRAJECTORY_TEXTS.decode({**row, "id": label}))
    trajectory.final_anchor = _anchor_in(row["next_anchor"], row["next_anchor_key"])
    if row["t"] == NO_TURN:
        return
    if row["t"] != len(trajectory.turns):
        raise ValueError(f"turn {row['t']} of trajectory {label!r} comes after {len(trajectory.turns)} turns: rows are in order, from 0")
    values = TURN_ALL.decode(row)
    if not all(name in pictures for name in values.get("images", ())):
        values["images"] = ()
    trajectory.turns.append(Turn(_anchor_in(row["anchor"], row["anchor_key"]), **_with_pictures(values, pictures)))


def _anchor_out(anchor: Any) -> tuple[str | None, str | None]:
    """A text as it is; anything else as a key: `int:5`, `bytes:` in hex, `hash:` of an image."""
    if anchor is None or isinstance(anchor, str):
        return anchor, None
    if isinstance(anchor, (int, np.integer)):
        return None, f"int:{int(anchor)}"
    if isinstance(anchor, (bytes, bytearray)):
        return None, f"bytes:{bytes(anchor).hex()}"
    return None, f"hash:{content_hash([anchor]).hex()}"


def _anchor_in(text: str | None, key: str | None) -> Any:
    if key is None:
        return text
    kind, _, value = key.partition(":")
    return int(value) if kind == "int" else bytes.fromhex(value)


def _pixels_out(pixels: NDArray[np.uint8]) -> str:
    """Pixels as a text: height, width, and the compressed bytes."""
    return f"{pixels.shape[0]} {pixels.shape[1]} {b64encode(compress(pixels.tobytes())).decode('ascii')}"


def _pixels_in(text: str) -> Picture:
    height, width, packed = text.split(" ")
    size = int(height) * int(width) * 3
    return picture(np.frombuffer(decompressobj().decompress(b64decode(packed), size + 1), np.uint8).reshape(int(height), int(width), 3))
