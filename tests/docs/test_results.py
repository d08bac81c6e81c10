"""The runs behind the pages of results: each has its card, and the card says what the run's files say."""

from __future__ import annotations

from pathlib import Path

from turnwise.arena.card import PACKED, card_of, read_all, verify
from turnwise.runs.folder import SUMMARY

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def test_every_run_behind_a_page_has_a_card_with_the_same_numbers():
    cards = read_all([RESULTS / "runs.cards.tar.xz"])
    folders = {"-".join(path.parent.relative_to(RESULTS).parts): path.parent for path in RESULTS.rglob(SUMMARY)}
    assert set(cards) == set(folders) and len(folders) > 10
    for name, folder in folders.items():
        assert cards[name]["headline"] == card_of(folder, cards[name]["ended"])["headline"], name
        assert verify(cards[name]) == []


def test_the_smaller_packs_of_the_arenas_are_whole():
    """`turnwise card verify docs/results` reads the others, too, in half a minute."""
    packs = [path for path in RESULTS.rglob(f"*{PACKED}") if path.stat().st_size < 100_000]
    cards = read_all(packs)
    assert len(packs) > 1 and {key: wrong for key, card in cards.items() if (wrong := verify(card))} == {}
