"""Pixels as a PNG file, with the standard library alone."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def png(pixels: NDArray[Any]) -> bytes:
    """An RGB picture (uint8, height × width × 3) as a PNG."""
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # every row starts with its filter; 0 is none
    rows[:, 1:] = pixels.reshape(height, width * 3)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
