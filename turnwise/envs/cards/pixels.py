"""Cards and short texts as pictures: RGB arrays, drawn here from letters of 5 × 7 pixels and suits of 7 × 7, with numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Colour = tuple[int, int, int]

TABLE, WHITE, BLACK, RED, BACK, EDGE = (38, 106, 72), (255, 255, 255), (24, 24, 24), (200, 30, 40), (52, 70, 140), (120, 120, 120)
CARD_HEIGHT, CARD_WIDTH, GAP = 46, 34, 4
LETTER_WIDTH, LINE_HEIGHT = 6, 10
LARGEST_SCALE = 16

# Seven rows of five pixels per letter, each row two hexadecimal digits.
LETTERS = {
    "0": "0E11131519110E", "1": "040C040404040E", "2": "0E11010204081F", "3": "1F02040201110E", "4": "02060A121F0202",
    "5": "1F101E0101110E", "6": "0608101E11110E", "7": "1F010204080808", "8": "0E11110E11110E", "9": "0E11110F01020C",
    "A": "0E1111111F1111", "C": "0E11101010110E", "D": "1C12111111121C", "E": "1F10101E10101F", "F": "1F10101E101010",
    "G": "0E11101711110F", "J": "0702020202120C", "K": "11121418141211", "L": "1010101010101F", "M": "111B1515111111",
    "N": "11111915131111", "O": "0E11111111110E", "P": "1E11111E101010", "Q": "0E11111115120D", "R": "1E11111E141211",
    "T": "1F040404040404", "U": "1111111111110E", "Y": "1111110A040404", " ": "00000000000000",
    "+": "0004041F040400", "-": "0000001F000000", "*": "0004150E150400", "/": "00010204081000",
    "(": "02040808080402", ")": "08040202020408", "=": "00001F001F0000",
}  # fmt: skip
SUIT_ROWS = {
    "H": (".##.##.", "#######", "#######", "#######", ".#####.", "..###..", "...#..."),
    "D": ("...#...", "..###..", ".#####.", "#######", ".#####.", "..###..", "...#..."),
    "S": ("...#...", "..###..", ".#####.", "#######", "#######", "...#...", "..###.."),
    "C": ("..###..", "..###..", "##.#.##", "#######", "##.#.##", "...#...", "..###.."),
}


def canvas(height: int, width: int, colour: Colour = TABLE) -> Image:
    """An empty picture."""
    return np.full((height, width, 3), colour, np.uint8)


def enlarged(image: Image, scale: int) -> Image:
    """Every pixel `scale` times in both directions: first within the lines, then whole lines, which is the faster order."""
    return image if scale == 1 else image.repeat(scale, 1).repeat(scale, 0)


def put(image: Image, shape: NDArray[np.bool_], top: int, left: int, colour: Colour) -> None:
    """Paint a shape; what is outside the picture is cut off."""
    space = image[top : top + shape.shape[0], left : left + shape.shape[1]]
    space[shape[: space.shape[0], : space.shape[1]]] = colour


def write(image: Image, text: str, top: int, left: int, colour: Colour = WHITE, size: int = 1) -> None:
    """A line of text."""
    for place, letter in enumerate(text):
        put(image, _letter(letter, size), top, left + place * LETTER_WIDTH * size, colour)


def write_wrapped(image: Image, pieces: Sequence[str], top: int, left: int, colour: Colour = WHITE) -> None:
    """Pieces with spaces between them, in as many lines as they need."""
    room, line = (image.shape[1] - left) // LETTER_WIDTH, ""
    for piece in pieces:
        longer = f"{line} {piece}" if line else piece
        if len(longer) > room:
            write(image, line, top, left, colour)
            top, longer = top + LINE_HEIGHT, piece
        line = longer
    write(image, line, top, left, colour)


def lay_out(image: Image, cards: Sequence[str | None], top: int, left: int = GAP) -> None:
    """Cards in a row, face down if None is given; they overlap if the row would be too long, and their corners stay visible."""
    room = image.shape[1] - left - GAP - CARD_WIDTH
    step = min(CARD_WIDTH + GAP, room // max(len(cards) - 1, 1))
    for place, card in enumerate(cards):
        at = left + place * step
        image[top : top + CARD_HEIGHT, at : at + CARD_WIDTH] = _card(card)


@lru_cache(maxsize=256)
def _letter(letter: str, size: int) -> NDArray[np.bool_]:
    rows = bytes.fromhex(LETTERS[letter])
    shape = np.array([[row >> (4 - column) & 1 for column in range(5)] for row in rows], np.bool_)
    return shape.repeat(size, 0).repeat(size, 1)


@lru_cache(maxsize=64)
def _card(card: str | None) -> Image:
    image = canvas(CARD_HEIGHT, CARD_WIDTH, EDGE)
    if card is None:
        image[1:-1, 1:-1] = BACK
        image[3:-3:3, 3:-3] = WHITE
        return image
    image[1:-1, 1:-1] = WHITE
    colour = RED if card[0] in "HD" else BLACK
    suit = np.array([[pixel == "#" for pixel in row] for row in SUIT_ROWS[card[0]]], np.bool_)
    rank = "10" if card[1] == "T" else card[1]
    write(image, rank, 3, 3, colour)
    put(image, suit, 12, 3, colour)
    write(image, rank, 24, CARD_WIDTH - 3 - len(rank) * 2 * LETTER_WIDTH, colour, size=2)
    put(image, suit, 6, CARD_WIDTH - 14, colour)
    return image
