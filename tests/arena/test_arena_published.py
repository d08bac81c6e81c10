"""The published arenas: their cards belong to their files as they are, numbers follow, and their regimes can be played."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.arena import card as cards
from turnwise.arena.plan import Arena
from turnwise.envs import registry
from turnwise.recipe.schema import Config

HERE = Path(__file__).parents[2] / "docs" / "results" / "arena"
ARENAS = sorted(HERE.glob("*.toml"))
REGIMES = sorted(path for path in (HERE / "recipes").glob("*.toml") if path.stem != "base" and not path.stem.endswith("-0.5b"))


@pytest.mark.parametrize("path", ARENAS, ids=lambda path: path.stem)
def test_cards_were_made_with_the_arena_file_as_it_is_and_their_numbers_follow(path):
    arena, folder = Arena.load(path), HERE / "cards" / path.stem
    found = cards.read_all([folder] if folder.is_dir() else [HERE / "cards" / f"{path.stem}{cards.PACKED}"])
    assert found and {card["about"]["arena_hash"] for card in found.values()} == {arena.hash}
    some = list(found.values())[::100]
    assert [cards.verify(card) for card in some] == [[] for _ in some]


@pytest.mark.parametrize("path", REGIMES, ids=lambda path: path.stem)
def test_the_expert_of_a_regime_wins(path):
    config = Config.load(path).trusted()
    env = registry.make(config.env.name, **config.env.options)
    tasks = env.tasks("train")
    for number in range(3):
        env.reset(tasks[number])
        for _ in range(config.env.max_turns or env.max_turns):
            result = env.step(env.expert_action())
            if result.done:
                break
        assert result.success, tasks[number]
