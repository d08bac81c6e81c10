"""Trajectories as rows of plain values, one per turn, and back: what tables are written from, and what a plan's state can hold.

Pictures are named by their hashes. Their pixels are kept only with `reports`, which is for a plan's state: once, in the first row that
shows them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import compress, decompressobj

import numpy as np
from numpy.typing import NDArray

from turnwise.data.images import Picture, content_hash, picture
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.util.errors import TurnwiseError
from turnwise.util.jsonable import json_value

Row = dict[str, Any]
TOKENS = ("prompt_ids", "response_ids", "logprobs")
NO_TURN = -1  # the `t` of the one row of a trajectory without turns


def to_rows(
    trajectories: Iterable[Trajectory], tokens: bool = False, columns: Mapping[str, Any] | None = None, reports: bool = False
) -> list[Row]:
    """One row per turn. `columns` are further ones by name, one entry per turn, in the trajectories' order. With `reports`, a row also has
    what the engine reported, what a plan noted, whether the turn is learned from, and the pixels of its pictures."""
    rows: list[Row] = []
    seen: set[str] = set()
    number = 0
    for trajectory in trajectories:
        shared = {
            "trajectory": trajectory.id,
            "group": trajectory.group,
            "task": trajectory.task,
            "goal": trajectory.goal,
            "seed": trajectory.seed,
            "stop": trajectory.stop.value,
            "stop_detail": trajectory.stop_detail,
            "success": trajectory.success,
            "return": trajectory.reward,
            "parent": trajectory.parent,
            "branch_t": trajectory.branch_t,
        }
        for t, turn in enumerate(trajectory.turns):
            after = trajectory.turns[t + 1].anchor if t + 1 < len(trajectory.turns) else trajectory.final_anchor
            more = {name: _scalar(values[number]) for name, values in (columns or {}).items()}
            rows.append(shared | _turn_row(t, turn, after, tokens) | (_reported(turn, seen) if reports else {}) | more)
            number += 1
        if not trajectory.turns:
            nothing = _turn_row(NO_TURN, Turn(None), trajectory.final_anchor, tokens)
            rows.append(shared | nothing | dict.fromkeys(columns or {}))
    return rows


def _turn_row(t: int, turn: Turn, after: Any, tokens: bool) -> Row:
    row: Row = {
        "t": t,
        "observation": turn.observation,
        "thought": turn.thought,
        "action": turn.action,
        "response": turn.response,
        "reward": float(turn.reward),
        "valid": bool(turn.valid),
        "version": turn.version,
        "info": json_value(turn.info),
        "images": [image.name for image in turn.images],
    }
    for name, anchor in (("anchor", turn.anchor), ("next_anchor", after)):
        row[name], row[f"{name}_key"] = _anchor_out(anchor)
    if tokens:
        row |= {name: [_scalar(value) for value in getattr(turn, name)] for name in TOKENS}
    return row


def _reported(turn: Turn, seen: set[str]) -> Row:
    new = {image.name: image for image in turn.images if image.name not in seen}
    seen.update(new)
    return {
        "pictures": {name: _packed(image.pixels) for name, image in new.items()},
        "reports": {name: [_scalar(value) for value in values] for name, values in turn.reports.items()},
        "notes": {name: _scalar(value) for name, value in turn.notes.items()},
        "learned": turn.learned,
    }


def _packed(pixels: NDArray[np.uint8]) -> str:
    """Pixels as a text: height, width, and the compressed bytes."""
    return f"{pixels.shape[0]} {pixels.shape[1]} {b64encode(compress(pixels.tobytes())).decode('ascii')}"


def _unpacked(text: str) -> Picture:
    height, width, packed = text.split(" ")
    size = int(height) * int(width) * 3
    return picture(np.frombuffer(decompressobj().decompress(b64decode(packed), size + 1), np.uint8).reshape(int(height), int(width), 3))


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


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def from_rows(rows: Iterable[Mapping[str, Any]], where: str = "rows") -> list[Trajectory]:
    """The trajectories of these rows; columns that `to_rows` does not write by itself are passed over."""
    found: dict[Any, Trajectory] = {}
    pictures: dict[str, Picture] = {}
    for number, row in enumerate(rows, 1):
        try:
            pictures |= {name: _unpacked(text) for name, text in (row.get("pictures") or {}).items()}
            _add(found, row, pictures)
        except (KeyError, TypeError, ValueError) as error:
            detail = f"the column {error} is missing" if isinstance(error, KeyError) else str(error)
            raise TurnwiseError(f"{where}, row {number}: not a turn as `turnwise trajectories` writes it: {detail}") from None
    return list(found.values())


def _add(found: dict[Any, Trajectory], row: Mapping[str, Any], pictures: Mapping[str, Picture]) -> None:
    label = row["trajectory"]
    trajectory = found.get(label)
    if trajectory is None:
        trajectory = found[label] = Trajectory(row["group"], label, row["task"], [], Stop(row["stop"]), row["stop_detail"])
        trajectory.success, trajectory.seed, trajectory.goal = bool(row["success"]), int(row["seed"]), row.get("goal") or ""
        trajectory.parent, trajectory.branch_t = row.get("parent"), int(row.get("branch_t") or 0)
    trajectory.final_anchor = _anchor_in(row["next_anchor"], row["next_anchor_key"])
    if row["t"] == NO_TURN:
        return
    if row["t"] != len(trajectory.turns):
        raise ValueError(f"turn {row['t']} of trajectory {label!r} comes after {len(trajectory.turns)} turns: rows are in order, from 0")
    turn = Turn(_anchor_in(row["anchor"], row["anchor_key"]), float(row["reward"]), bool(row["valid"]))
    turn.observation, turn.thought, turn.action, turn.response = (row[name] for name in ("observation", "thought", "action", "response"))
    turn.info, turn.version = row["info"], int(row.get("version", -1))
    for name in TOKENS:
        setattr(turn, name, tuple(row.get(name) or ()))
    turn.reports, turn.notes, turn.learned = row.get("reports") or {}, row.get("notes") or {}, bool(row.get("learned", True))
    if all(name in pictures for name in row.get("images") or ()):
        turn.images = tuple(pictures[name] for name in row.get("images") or ())
    trajectory.turns.append(turn)
