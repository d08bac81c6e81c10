"""Anchors: from a state key (text, bytes, an integer, an image) to 128-bit content hashes and dense integers.

The dense integer of an anchor is its rank among the batch's hashes, so it does not depend on the order of the rows. Equal content of
the same kind has the same hash on every machine; the text "1" and the integer 1 are different states. Python code runs once per
distinct anchor; the rest runs inside numpy and dict look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.util.errors import TurnwiseError

Ints = NDArray[np.int64]

INTEGER_TAG = np.uint64(0x696E7465676572)  # "integer": the upper half of an integer's hash, its value is the lower
UNKNOWN = -1  # the code of an unknown anchor (only in `next_anchor`)


@dataclass(frozen=True)
class AnchorTable:
    """The distinct anchors of a batch: `hashes` is uint64[k, 2], sorted; `texts` the text of those that are text, else None."""

    hashes: NDArray[np.uint64]
    texts: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.hashes)


def encode(columns: dict[str, Any]) -> tuple[dict[str, Ints], AnchorTable]:
    """Encode anchor columns (name → values) into codes that share one table."""
    if all(_is_integer_array(values) for values in columns.values()):
        return _encode_integers({name: np.asarray(values).astype(np.int64) for name, values in columns.items()})
    rows = {name: _as_list(name, values) for name, values in columns.items()}
    code_of: dict[Any, int] = {}
    hashes: list[bytes] = []
    texts: list[str | None] = []
    codes: dict[str, Ints] = {}
    for name, values in rows.items():
        keys = _keys(name, values, code_of, hashes, texts)
        codes[name] = np.fromiter(map(code_of.__getitem__, keys), np.int64, len(keys))
    halves = np.frombuffer(b"".join(hashes), dtype=">u8").astype(np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    rank = np.empty(len(order) + 1, np.int64)
    rank[order], rank[UNKNOWN] = np.arange(len(order)), UNKNOWN
    table = AnchorTable(halves[order], tuple(texts[i] for i in order))
    return {name: rank[values] for name, values in codes.items()}, table


def _is_integer_array(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in "iu" and values.dtype != np.uint64
    if not isinstance(values, (list, tuple)) or set(map(type, values)) != {int}:
        return False
    return bool(min(values) >= -(2**63) and max(values) < 2**63)


def _encode_integers(columns: dict[str, Ints]) -> tuple[dict[str, Ints], AnchorTable]:
    distinct, inverse = dense(np.concatenate(list(columns.values())))
    hashes = np.stack([np.full(len(distinct), INTEGER_TAG), distinct.astype(np.uint64)], axis=1)
    order = np.argsort(hashes[:, 1], kind="stable")  # as in the general path: sorted by hash, so negative numbers come last
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ends = np.cumsum([len(values) for values in columns.values()])
    parts = np.split(rank[inverse], ends[:-1])
    return dict(zip(columns, parts, strict=True)), AnchorTable(hashes[order], (None,) * len(distinct))


def _as_list(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.tolist()  # type: ignore[no-any-return]  # numpy text, bytes or objects: plain Python values
    if isinstance(values, (str, bytes)):
        raise TurnwiseError(f"column {name!r}: one value per turn is required, got a single {type(values).__name__}")
    return values if isinstance(values, (list, tuple)) else list(values)


def digest(anchor: Any) -> bytes:
    """The 16-byte hash of one anchor: equal for equal states, on every machine."""
    if isinstance(anchor, str):
        return _digest(b"text", anchor.encode("utf-8", "surrogatepass"))
    return _content("anchor", 0, anchor)


def _keys(name: str, values: Sequence[Any], code_of: dict[Any, int], hashes: list[bytes], texts: list[str | None]) -> Sequence[Any]:
    """Make sure that every value has a code; return the look-up key of each row."""
    if set(map(type, values)) <= {str}:  # the common case, without a Python step per row
        for text in dict.fromkeys(values):
            if text not in code_of:
                code_of[text] = len(hashes)
                hashes.append(_digest(b"text", text.encode("utf-8", "surrogatepass")))
                texts.append(text)
        return values
    keys: list[Any] = []
    label: str | None
    for row, value in enumerate(values):
        key: Any
        if isinstance(value, str):
            key, label = value, value
            content = _digest(b"text", value.encode("utf-8", "surrogatepass")) if key not in code_of else b""
        else:
            content, label = _content(name, row, value), None
            key = content
        keys.append(key)
        if key not in code_of:
            if content == b"":  # unknown: allowed only in next_anchor, checked by _content
                code_of[key] = UNKNOWN
                continue
            code_of[key] = len(hashes)
            hashes.append(content)
            texts.append(label)
    return keys


def _content(name: str, row: int, value: Any) -> bytes:
    """The 16-byte hash of an anchor that is not text; empty for an unknown one."""
    if value is None and name == "next_anchor":
        return b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _digest(b"bytes", bytes(value))
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)
        if -(2**63) <= number < 2**63:
            return int(INTEGER_TAG).to_bytes(8, "big") + (number % 2**64).to_bytes(8, "big")
        return _digest(b"big integer", str(number).encode())
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        image = np.ascontiguousarray(value)
        if image.dtype.kind in "biufc":
            return _digest(f"array {image.dtype.str} {image.shape}".encode(), image.tobytes())
    raise TurnwiseError(f"column {name!r}, row {row}: an anchor must be text, bytes, an integer or an image, not {type(value).__name__}")


def _digest(kind: bytes, content: bytes) -> bytes:
    digest = blake2b(kind + b"\0", digest_size=16)
    digest.update(content)
    return digest.digest()


def dense(values: Ints) -> tuple[Ints, Ints]:
    """The sorted distinct values and, for each entry, the index of its value: `np.unique` with an O(n) path for narrow ranges."""
    if len(values) == 0:
        return values.astype(np.int64), values.astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low >= 4 * len(values) + 1024:
        distinct, inverse = np.unique(values, return_inverse=True)
        return distinct.astype(np.int64), inverse.astype(np.int64).reshape(-1)
    offset = values.astype(np.int64) - low
    present = np.zeros(high - low + 1, np.bool_)
    present[offset] = True
    code = np.cumsum(present) - 1
    return np.flatnonzero(present) + low, code[offset]
