"""Rooms as pictures: RGB arrays made of small tiles that are drawn here, pixel by pixel, with numpy only."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.sokoban.room import Room

Image = NDArray[np.uint8]

TILE = 16
SMALLEST_TILE, LARGEST_TILE = 4, 128
FLOOR, MORTAR, BRICK = (226, 217, 200), (96, 70, 58), (152, 92, 70)
WOOD, WOOD_EDGE, AT_HOME, AT_HOME_EDGE = (214, 158, 72), (120, 78, 28), (104, 176, 88), (44, 104, 44)
TARGET, SHIRT, SKIN, HAIR = (200, 56, 56), (48, 92, 180), (240, 200, 160), (70, 44, 30)


def draw(room: Room, tile: int = TILE) -> Image:
    """The room as an array of height × width × 3 bytes."""
    tiles = _tiles(tile)
    letters = [list(line) for line in room.text().split("\n")]
    return np.concatenate([np.concatenate([tiles[letter] for letter in line], axis=1) for line in letters], axis=0)


@lru_cache(maxsize=8)
def _tiles(side: int) -> dict[str, Image]:
    """One tile per letter, scaled to the wanted size."""
    drawn = {
        " ": _floor(),
        "#": _wall(),
        ".": _with_target(_floor()),
        "$": _box(WOOD, WOOD_EDGE),
        "*": _box(AT_HOME, AT_HOME_EDGE),
        "@": _with_player(_floor()),
        "+": _with_player(_with_target(_floor())),
    }
    nearest = np.arange(side) * TILE // side
    return {letter: np.ascontiguousarray(image[nearest][:, nearest]) for letter, image in drawn.items()}


def _floor() -> Image:
    tile = np.full((TILE, TILE, 3), FLOOR, np.uint8)
    tile[0, :], tile[:, 0] = np.array(FLOOR, np.uint8) - 14, np.array(FLOOR, np.uint8) - 14
    return tile


def _wall() -> Image:
    """Four rows of bricks, every second one shifted."""
    tile = np.full((TILE, TILE, 3), BRICK, np.uint8)
    for course in range(4):
        tile[4 * course] = MORTAR
        for seam in (3 if course % 2 else 7, 11 if course % 2 else 15):
            tile[4 * course : 4 * course + 4, seam] = MORTAR
    return tile


def _disc(radius: float, row: float = 7.5, column: float = 7.5) -> NDArray[np.bool_]:
    rows, columns = np.mgrid[:TILE, :TILE]
    return np.asarray((rows - row) ** 2 + (columns - column) ** 2 <= radius**2, np.bool_)


def _with_target(tile: Image) -> Image:
    tile[_disc(5.0) & ~_disc(3.2)] = TARGET
    tile[_disc(1.5)] = TARGET
    return tile


def _box(face: tuple[int, int, int], edge: tuple[int, int, int]) -> Image:
    tile = _floor()
    tile[1:15, 1:15] = edge
    tile[3:13, 3:13] = face
    along = np.arange(3, 13)
    tile[along, along], tile[along, 15 - along] = edge, edge
    return tile


def _with_player(tile: Image) -> Image:
    tile[9:15, 4:12] = SHIRT
    tile[_disc(3.6, 5.5)] = SKIN
    tile[_disc(3.6, 5.5) & (np.mgrid[:TILE, :TILE][0] < 4)] = HAIR
    tile[6, [6, 9]] = HAIR
    return tile
