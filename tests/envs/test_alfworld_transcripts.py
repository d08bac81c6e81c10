"""TextWorld's own recorded answers: our simulator gives every one of them, word for word."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import shared_folder

from turnwise.data.tasks import Task
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.household.builtin import DOMAIN, GRAMMAR
from turnwise.envs.household.pddl import parse_problem
from turnwise.envs.household.world import Play, World


def transcripts(split: str) -> Iterator[dict[str, Any]]:
    with lzma.open(shared_folder("alfworld") / "transcripts" / f"{split}.jsonl.xz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


@pytest.mark.parametrize("split, games", [("train", 260), ("valid_seen", 140)])
def test_every_recorded_answer_is_given_word_for_word(split: str, games: int) -> None:
    env = AlfworldEnv(shared_folder("alfworld"))
    played = 0
    for transcript in transcripts(split):
        task = Task(transcript["id"], split)
        first, *rest = transcript["answers"]
        seen = env.reset(task)
        assert (seen.text, list(seen.actions or ())) == (first["text"], first["actions"]), task.id
        for answer in rest:
            move = env.step(answer["command"])
            ours = (move.observation.text, list(move.observation.actions or ()), move.reward, move.success, move.done)
            theirs = (answer["text"], answer["actions"], answer["score"], answer["won"], answer["done"])
            assert ours == theirs, (task.id, answer["command"])
        played += 1
    assert played == games


def test_our_own_statement_of_the_rules_gives_the_same_answers() -> None:
    """Generated houses are played under rules of our own; on the published houses these have the same consequences."""
    library = AlfworldEnv(shared_folder("alfworld")).library
    for transcript in transcripts("valid_seen"):
        game = library.read(library.entry(transcript["id"]))
        task = World.from_text(game.problem, game.domain, game.grammar).task
        play = Play(World(parse_problem(game.problem), DOMAIN, GRAMMAR, task=task))
        for answer in transcript["answers"]:
            if answer["command"] is not None:
                play.step(answer["command"])
                assert play.won == answer["won"]
            text = play.text.replace("Welcome to the household!", "Welcome to TextWorld, ALFRED!")
            assert (text, list(play.actions)) == (answer["text"], answer["actions"]), (transcript["id"], answer["command"])
