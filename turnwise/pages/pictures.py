"""Pictures for the pages: pixels as PNG files, and screenshots that an environment kept for people."""

from __future__ import annotations

import re
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


LARGEST = 100_000  # characters
ADDRESS = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/]+={0,2}")
PLACES = ("screenshot", "screenshot_after")


def take_screenshots(turn: dict[str, Any]) -> list[str]:
    """The screenshots of a turn, in order, and out of its `info`, which is shown as text."""
    env = turn["info"].get("env") if isinstance(turn.get("info"), dict) else None
    if not isinstance(env, dict):
        return []
    addresses = [env.pop(name) for name in PLACES if name in env]
    if not env:
        del turn["info"]["env"]
    return [one for one in addresses if isinstance(one, str) and len(one) <= LARGEST and ADDRESS.fullmatch(one)]
