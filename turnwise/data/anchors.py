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
NO_DIGEST = b""


@dataclass(frozen=True)
class AnchorTable:
    """The distinct anchors of a batch: `hashes` is uint64[k, 2], sorted; `texts` the text of those that are text, else None."""

    hashes: NDArray[np.uint64]
    texts: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.hashes)


def encode(columns: dict[str, Any]) -> tuple[dict[str, Ints], AnchorTable]:
    """Encode anchor columns (name → values) into codes that share one table."""
    rows = {name: _as_list(name, values) for name, values in columns.items()}
    digests = {name: _digests(name, values) for name, values in rows.items()}
    texts: dict[bytes, str | None] = {}
    for name, values in rows.items():
        for anchor, found in zip(values, digests[name], strict=True):
            if found not in texts:
                texts[found] = anchor if isinstance(anchor, str) else None
    texts.pop(NO_DIGEST, None)
    ordered = sorted(texts)
    code_of = {found: code for code, found in enumerate(ordered)} | {NO_DIGEST: UNKNOWN}
    codes = {name: np.fromiter(map(code_of.__getitem__, found), np.int64, len(found)) for name, found in digests.items()}
    hashes = np.frombuffer(b"".join(ordered), dtype=">u8").astype(np.uint64).reshape(-1, 2)
    return codes, AnchorTable(hashes, tuple(texts[found] for found in ordered))


def _as_list(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.tolist()  # type: ignore[no-any-return]  # plain Python values
    if isinstance(values, (str, bytes)):
        raise TurnwiseError(f"column {name!r}: one value per turn is required, got a single {type(values).__name__}")
    return values if isinstance(values, (list, tuple)) else list(values)


def _digests(name: str, values: Sequence[Any]) -> list[bytes]:
    """The hash of each value of a column; `NO_DIGEST` for an unknown one, which only `next_anchor` may have."""
    unknown = {None: NO_DIGEST} if name == "next_anchor" else {}
    try:
        if set(map(type, values)) <= {str, int, bytes, type(None)}:  # the common case: once per distinct value
            digest_of = unknown | {value: digest(value) for value in dict.fromkeys(values) if value not in unknown}
            return [digest_of[value] for value in values]
        return [NO_DIGEST if unknown and value is None else digest(value) for value in values]
    except _NoAnchor as error:
        row = next(row for row, value in enumerate(values) if value is error.value)
        raise TurnwiseError(f"column {name!r}, row {row}: {error}") from None


class _NoAnchor(TurnwiseError):
    """A value that cannot be an anchor."""

    def __init__(self, value: Any):
        super().__init__(f"an anchor must be text, bytes, an integer or an image, not {type(value).__name__}")
        self.value = value


def digest(anchor: Any) -> bytes:
    """The 16-byte hash of one anchor: equal for equal states, on every machine."""
    if isinstance(anchor, str):
        return _digest(b"text", anchor.encode("utf-8", "surrogatepass"))
    if isinstance(anchor, (bytes, bytearray, memoryview)):
        return _digest(b"bytes", bytes(anchor))
    if isinstance(anchor, (int, np.integer)) and not isinstance(anchor, bool):
        number = int(anchor)
        if -(2**63) <= number < 2**63:
            return int(INTEGER_TAG).to_bytes(8, "big") + (number % 2**64).to_bytes(8, "big")
        return _digest(b"big integer", str(number).encode())
    if hasattr(anchor, "__array_interface__") or hasattr(anchor, "__array__"):
        image = np.ascontiguousarray(anchor)
        if image.dtype.kind in "biufc":
            return _digest(f"array {image.dtype.str} {image.shape}".encode(), image.tobytes())
    raise _NoAnchor(anchor)


def _digest(kind: bytes, content: bytes) -> bytes:
    return blake2b(kind + b"\0" + content, digest_size=16).digest()


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
