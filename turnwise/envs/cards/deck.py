"""Playing cards as short texts, `H2` to `SK`: the suit (hearts, spades, diamonds, clubs), then the rank (A, 2 to 9, T, J, Q, K)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnwise.envs.dice import Dice
from turnwise.util.errors import TurnwiseError

SUITS = {"H": "hearts", "S": "spades", "D": "diamonds", "C": "clubs"}
RANKS = "A23456789TJQK"
NAMES = {"A": "ace", "T": "10", "J": "jack", "Q": "queen", "K": "king"}


def draw_card(dice: Dice) -> str:
    """Any card: from an infinite pack, so earlier draws have no influence."""
    return dice.pick("HSDC") + dice.pick(RANKS)


def points(card: str, faces_as_ten: bool = True) -> int:
    """An ace is 1, a jack, queen or king 10 (or 11, 12, 13)."""
    number = RANKS.index(card[1]) + 1
    return min(number, 10) if faces_as_ten else number


def card_name(card: str) -> str:
    """`HK` is "king of hearts"."""
    return f"{NAMES.get(card[1], card[1])} of {SUITS[card[0]]}"


def read_cards(given: Any, count: int, where: str) -> tuple[str, ...]:
    """The cards of a task's data, checked."""
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != count:
        raise TurnwiseError(f"{where}: {count} cards are needed, got {given!r}")
    for card in given:
        if not isinstance(card, str) or len(card) != 2 or card[0] not in SUITS or card[1] not in RANKS:
            raise TurnwiseError(f"{where}: {card!r} is not a card. A card is a suit of {', '.join(SUITS)} and a rank of {RANKS}, as HK")
    return tuple(given)
