"""Reads columns: from a user's sequences, with every check, and from and to one compressed file.

Each error names the column and the first bad row. The file is a numpy archive without pickles: numbers as arrays, texts as one UTF-8
blob with offsets, and a header with the schema's name and version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.anchors import AnchorTable, Ints, dense, encode
from turnwise.data.tasks import LARGEST_REWARD
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_atomically
from turnwise.util.unpack import open_archive

if TYPE_CHECKING:
    from turnwise.data.rollouts import Rollouts

SCHEMA = "turnwise.rollouts"
VERSION = 1
BY_TURN = ("group", "trajectory", "t", "reward", "anchor", "valid", "next_anchor", "success", "value", "tokens")
BY_TOKEN = ("token_value", "token_logprob")
FURTHER = ("extra", "token_extra", "trajectory_extra", "group_extra")
LEARNERS = ("old_logprob", "ref_logprob")  # per token, added by `Learner.annotate`


def bad(column: str, row: int | np.integer, what: str) -> TurnwiseError:
    """The error for one bad entry."""
    return TurnwiseError(f"column {column!r}, row {int(row)}: {what}")


def read_columns(cls: type[Rollouts], inputs: dict[str, Any]) -> Rollouts:
    """The steps of `Rollouts.from_columns`: lengths, values, ids, anchors, then the shape of the trajectories."""
    inputs = inputs | {name: _as_array(inputs[name]) for name in (*BY_TURN, *BY_TOKEN)}
    rows = _check_lengths({name: inputs[name] for name in BY_TURN if inputs[name] is not None})
    columns: dict[str, Any] = {"reward": _numbers("reward", inputs["reward"]), "t": _whole("t", inputs["t"])}
    if (wrong := np.abs(columns["reward"]) > LARGEST_REWARD).any():
        row = wrong.argmax()
        raise bad("reward", row, f"{columns['reward'][row]:g} is beyond ±{LARGEST_REWARD:g}; scale the rewards down")
    columns["valid"] = np.ones(rows, np.bool_) if inputs["valid"] is None else _flags("valid", inputs["valid"])
    columns["group"], columns["group_labels"] = _ids("group", inputs["group"])
    columns["trajectory"], columns["trajectory_labels"] = _ids("trajectory", inputs["trajectory"])
    anchors = {name: inputs[name] for name in ("anchor", "next_anchor") if inputs[name] is not None}
    codes, columns["anchor_table"] = encode(anchors)
    columns.update(codes)
    if inputs["success"] is not None:
        columns["success"] = _flags("success", inputs["success"])
    if inputs["value"] is not None:
        columns["value"] = _numbers("value", inputs["value"])
    if inputs["tokens"] is not None:
        columns["tokens"] = _whole("tokens", inputs["tokens"], low=0)
    _read_flat(columns, inputs, rows)
    _check_trajectories(columns)
    return cls(**columns)


def _as_array(values: Any) -> Any:
    """Tensors, data-frame columns and anything else that numpy can read as an array; lists and tuples are unchanged."""
    if isinstance(values, (np.ndarray, list, tuple)) or not hasattr(values, "__array__"):
        return values
    return np.asarray(values)


def _check_lengths(columns: dict[str, Any]) -> int:
    sizes: dict[str, int] = {}
    for name, column in columns.items():
        try:
            sizes[name] = len(column)
        except TypeError:
            raise TurnwiseError(f"column {name!r}: one value per turn is required, got a single {type(column).__name__}") from None
    rows = sizes["group"]
    for name, size in sizes.items():
        if size != rows:
            raise TurnwiseError(
                f"column {name!r} has {size} entries and column 'group' has {rows}: row {min(size, rows)} is the first without a partner"
            )
    if rows == 0:
        raise TurnwiseError("column 'group' is empty: rollouts need at least one turn")
    return rows


def _numbers(name: str, values: Any) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        for index, value in enumerate(values):
            if not isinstance(value, (int, float, np.number)):
                raise bad(name, index, f"a number is required, got {value!r}") from None
        raise TurnwiseError(f"column {name!r}: the values cannot be read as numbers") from None
    if array.ndim != 1:
        raise TurnwiseError(f"column {name!r}: one value per turn is required, got an array of shape {array.shape}")
    wrong = ~np.isfinite(array)
    if wrong.any():
        row = wrong.argmax()
        raise bad(name, row, f"a finite number is required, got {array[row]}")
    return array.copy() if array is values else array


def _whole(name: str, values: Any, low: int | None = None) -> Ints:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        number = _numbers(name, values)
        wrong = number != np.floor(number)
        if wrong.any():
            raise bad(name, wrong.argmax(), f"an integer is required, got {number[wrong.argmax()]}")
        array = number
    array = array.astype(np.int64)
    if low is not None and (wrong := array < low).any():
        raise bad(name, wrong.argmax(), f"must be at least {low}, got {array[wrong.argmax()]}")
    return array


def _flags(name: str, values: Any) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype.kind == "b" and array.ndim == 1:
        return array.copy()
    number = _numbers(name, values)
    wrong = (number != 0) & (number != 1)
    if wrong.any():
        raise bad(name, wrong.argmax(), f"true or false is required, got {number[wrong.argmax()]:g}")
    return number.astype(np.bool_)


def _ids(name: str, values: Any) -> tuple[Ints, NDArray[Any]]:
    """Dense codes in the order of the sorted labels, and the labels."""
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise TurnwiseError(f"column {name!r}: one id per turn is required, got an array of shape {values.shape}")
    plain = values.tolist() if isinstance(values, np.ndarray) and values.dtype.kind not in "iu" else values
    kinds = {int} if isinstance(plain, (np.ndarray, range)) else set(map(type, plain))
    if all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
        labels, codes = dense(np.asarray(plain).astype(np.int64))
        return codes, labels
    if kinds == {str}:
        sorted_labels = sorted(set(plain))
        code_of = {label: code for code, label in enumerate(sorted_labels)}
        return np.fromiter(map(code_of.__getitem__, plain), np.int64, len(plain)), np.asarray(sorted_labels)
    row = next((i for i, value in enumerate(plain) if type(value) is not type(plain[0])), 0)
    raise bad(name, row, f"ids must be all integers or all text, got {plain[row]!r}" + (f" after {plain[0]!r}" if row else ""))


def _read_flat(columns: dict[str, Any], inputs: dict[str, Any], rows: int) -> None:
    """The per-token columns and the extra ones."""
    counts = columns.get("tokens")
    total = None if counts is None else int(counts.sum())
    for name in BY_TOKEN:
        if inputs[name] is None:
            continue
        if total is None:
            raise TurnwiseError(f"column {name!r} has one entry per token, so the column 'tokens' (tokens of each turn) is required too")
        columns[name] = _numbers(name, inputs[name])
        if len(columns[name]) != total:
            raise TurnwiseError(f"column {name!r} has {len(columns[name])} entries; the column 'tokens' adds up to {total}")
    columns["extra"] = {name: _extra(name, values, rows, "turn", total) for name, values in (inputs["extra"] or {}).items()}
    columns["token_extra"] = {name: _extra(name, values, total, "token", rows) for name, values in (inputs["token_extra"] or {}).items()}
    if twice := sorted(columns["extra"].keys() & columns["token_extra"].keys()):
        raise TurnwiseError(f"extra column {twice[0]!r} is given per turn (extra) and per token (token_extra): choose one")


def _extra(name: str, values: Any, size: int | None, level: str, other: int | None) -> NDArray[Any]:
    """A user's column at the declared level: `extra` has one entry per turn, `token_extra` one per token."""
    if name in BY_TURN or name in BY_TOKEN:
        raise TurnwiseError(f"extra column {name!r} has the name of a built-in column: pass it as {name}=…")
    if size is None:
        raise TurnwiseError(f"extra column {name!r} has one entry per token, so the column 'tokens' (tokens of each turn) is required too")
    try:
        return checked_column(name, np.array(values), size, level)
    except TurnwiseError as error:
        if not np.ndim(values) or len(values) != other:
            raise
        another, elsewhere = ("token", "token_extra") if level == "turn" else ("turn", "extra")
        raise TurnwiseError(f"{error}; with one entry per {another} it belongs in {elsewhere}={{…}}") from None


def checked_column(name: str, values: Any, size: int, level: str) -> NDArray[Any]:
    """A column of numbers, flags or text with one entry per `level`."""
    array = np.asarray(values)
    if array.ndim == 0 or len(array) != size or array.dtype.kind not in "biufSU":
        raise TurnwiseError(
            f"column {name!r}: an array of numbers or text with {size} entries (one per {level}) is needed, got {array.dtype} {array.shape}"
        )
    return array


def _check_trajectories(columns: dict[str, Any]) -> None:
    """Each trajectory belongs to one group and numbers its turns 0, 1, 2 …; success is the same on all of them."""
    trajectory, t, group = columns["trajectory"], columns["t"], columns["group"]
    label, group_label = columns["trajectory_labels"].tolist(), columns["group_labels"].tolist()
    lengths = np.bincount(trajectory)

    def first_of(column: NDArray[Any]) -> NDArray[Any]:
        value = np.empty(len(lengths), column.dtype)
        value[trajectory[::-1]] = column[::-1]  # the first row is written last and stays
        return value

    group_of = first_of(group)
    if (wrong := group != group_of[trajectory]).any():
        row = wrong.argmax()
        one, two = group_label[group_of[trajectory[row]]], group_label[group[row]]
        raise bad("trajectory", row, f"trajectory {label[trajectory[row]]!r} is in group {one!r} and in group {two!r}")
    if columns.get("success") is not None and (wrong := columns["success"] != first_of(columns["success"])[trajectory]).any():
        row = wrong.argmax()
        raise bad("success", row, f"trajectory {label[trajectory[row]]!r} has both true and false; success applies to the whole trajectory")
    starts = np.cumsum(lengths) - lengths
    good = (t >= 0) & (t < lengths[trajectory])
    if not good.all() or (np.bincount(starts[trajectory] + t, minlength=len(t)) != 1).any():
        raise _explain_turns(trajectory, t, label)


def _explain_turns(trajectory: Ints, t: Ints, label: list[Any]) -> TurnwiseError:
    """The row that breaks the numbering 0, 1, 2 … of its trajectory (only called if there is one)."""
    row_of: dict[tuple[int, int], int] = {}
    for row, place in enumerate(zip(trajectory.tolist(), t.tolist(), strict=True)):
        if place[1] < 0:
            return bad("t", row, f"turns are numbered from 0, got {place[1]}")
        if place in row_of:
            return bad("t", row, f"trajectory {label[place[0]]!r} has t={place[1]} twice (first in row {row_of[place]})")
        row_of[place] = row
    row, number, turn = next((row, number, turn) for (number, turn), row in row_of.items() if turn and (number, turn - 1) not in row_of)
    return bad("t", row, f"trajectory {label[number]!r} has t={turn} but no t={turn - 1}: a gap (turns are numbered from 0)")


def write(rollouts: Rollouts, path: Path) -> Path:
    """Save to one compressed file, atomically."""
    arrays: dict[str, Any] = {}
    for name in (*BY_TURN, *BY_TOKEN, "group_labels", "trajectory_labels"):
        if (column := getattr(rollouts, name)) is not None:
            arrays[name] = column
    texts = rollouts.anchor_table.texts
    blobs = [b"" if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
    arrays["anchor_hashes"] = rollouts.anchor_table.hashes
    arrays["anchor_is_text"] = np.array([text is not None for text in texts], np.bool_)
    arrays["anchor_text_ends"] = np.cumsum([len(blob) for blob in blobs], dtype=np.int64)
    arrays["anchor_text"] = np.frombuffer(b"".join(blobs), np.uint8)
    for attribute in FURTHER:
        arrays |= {f"{attribute}.{name}": column for name, column in getattr(rollouts, attribute).items()}
    header = json.dumps({"schema": SCHEMA, "version": VERSION, "token_extra": sorted(rollouts.token_extra)})
    return write_atomically(path, lambda file: np.savez_compressed(file, header=np.array(header), **arrays))


def read(cls: type[Rollouts], path: Path) -> Rollouts:
    """Load, with different errors for a missing, a foreign, a damaged and an older file."""
    if not path.is_file():
        raise TurnwiseError(f"{path}: no such rollouts file")
    try:
        with open_archive(path) as archive:
            if not hasattr(archive, "files") or "header" not in archive.files:
                raise TurnwiseError(f"{path}: not a Turnwise rollouts file (it has no header)")
            by_token = _check_header(path, str(archive["header"]))
            arrays = {name: archive[name] for name in archive.files if name != "header"}
    except TurnwiseError:
        raise
    except Exception as error:  # a damaged archive fails in many ways: zip, zlib, numpy's header, text
        raise TurnwiseError(f"{path}: damaged, or not a Turnwise rollouts file ({error})") from None
    try:
        return _assemble(cls, arrays, by_token)
    except (KeyError, IndexError, UnicodeDecodeError) as error:
        raise TurnwiseError(f"{path}: damaged: its columns do not fit together ({error})") from None


def _check_header(path: Path, text: str) -> list[str] | None:
    """The names of the extra columns with one entry per token; none if the file does not declare them."""
    try:
        header = json.loads(text)
        schema, version = header["schema"], header["version"]
    except (ValueError, KeyError, TypeError):
        raise TurnwiseError(f"{path}: not a Turnwise rollouts file (its header cannot be read)") from None
    if schema != SCHEMA:
        raise TurnwiseError(f"{path}: holds {schema!r}, not {SCHEMA!r}")
    if version != VERSION:
        which = "an older" if version < VERSION else "a newer"
        raise TurnwiseError(
            f"{path}: written with {which} schema (version {version}); this Turnwise reads version {VERSION}. "
            "Read it with the Turnwise that wrote it, or collect the rollouts again"
        )
    named = header.get("token_extra")
    return [str(name) for name in named] if isinstance(named, list) else None


def _assemble(cls: type[Rollouts], arrays: dict[str, Any], by_token: list[str] | None) -> Rollouts:
    ends = arrays.pop("anchor_text_ends").tolist()
    blob = arrays.pop("anchor_text").tobytes()
    is_text = arrays.pop("anchor_is_text").tolist()
    starts = [0, *ends[:-1]]
    if any(start > end for start, end in zip(starts, ends, strict=True)) or (ends and ends[-1] > len(blob)):
        raise IndexError("texts of anchors that overlap")
    texts = tuple(
        blob[start:end].decode("utf-8", "surrogatepass") if stored else None
        for start, end, stored in zip(starts, ends, is_text, strict=True)
    )
    table = AnchorTable(arrays.pop("anchor_hashes"), texts)
    columns = {name: arrays[name] for name in (*BY_TURN, *BY_TOKEN, "group_labels", "trajectory_labels") if name in arrays}
    for attribute in FURTHER:
        prefix = f"{attribute}."
        columns[attribute] = {name.removeprefix(prefix): column for name, column in arrays.items() if name.startswith(prefix)}
    extra = columns["extra"]
    if by_token is None:  # written before levels were declared: columns not per turn, and those that only a learner adds, are per token
        by_token = [name for name, column in extra.items() if name in LEARNERS or len(column) != len(columns["t"])]
    if not columns["token_extra"]:  # older files hold columns of turns and of tokens together
        columns["token_extra"] = {name: extra.pop(name) for name in by_token if name in extra}
    return cls(anchor_table=table, **columns)
