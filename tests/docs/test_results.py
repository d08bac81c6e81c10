"""The runs behind the pages of results: each has its card, and the card says what the run's files say."""

from __future__ import annotations

from pathlib import Path

from turnwise.arena.card import card_of, read_all, verify
from turnwise.runs.folder import SUMMARY

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_every_run_behind_a_page_has_a_card_with_the_same_numbers():
    cards = read_all([RESULTS / "runs.cards.tar.xz"])
    folders = {"-".join(path.parent.relative_to(RESULTS).parts): path.parent for path in RESULTS.rglob(SUMMARY)}
    assert set(cards) == set(folders) and len(folders) > 10
    for name, folder in folders.items():
        assert cards[name]["headline"] == card_of(folder, cards[name]["ended"])["headline"], name
        assert verify(cards[name]) == []


def test_the_cards_of_the_arenas_are_whole():
    cards = read_all([RESULTS / "arena" / "cards"])
    assert len(cards) > 1000 and {key: wrong for key, card in cards.items() if (wrong := verify(card))} == {}
