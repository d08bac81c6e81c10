"""All shared games: the stored walkthrough wins, and so does the expert, as shortly; and TextWorld's recorded answers, word for word."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import shared_folder

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.household.builtin import DOMAIN, GRAMMAR
from turnwise.envs.household.expert import Expert
from turnwise.envs.household.house import TASK_TYPES
from turnwise.envs.household.pddl import parse_problem
from turnwise.envs.household.world import Play, World
from turnwise.util.errors import TurnwiseError

PARTS = 4  # so that several workers can share the games


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("split, games", [("train", 3553), ("valid_seen", 140)])
def test_walkthrough_and_expert_win_every_game(split: str, games: int, part: int) -> None:
    library = AlfworldEnv(shared_folder("alfworld")).library
    entries = list(library.entries(split).values())
    assert len(entries) == games
    for entry in entries[part::PARTS]:
        game = library.read(entry)
        world = World.from_text(game.problem, game.domain, game.grammar)
        plan = Expert(world).plan(Play(world).state)
        assert len(plan) <= len(game.walkthrough), entry.id
        for commands in (game.walkthrough, plan):
            play = Play(world)
            for command in commands:
                assert command in play.commands and not play.won, (entry.id, command)
                play.step(command)
            assert play.won, entry.id


def test_expert_wins_from_wherever_random_play_has_led() -> None:
    env = AlfworldEnv(shared_folder("alfworld"))
    rng = random.Random(0)
    for task in env.tasks("valid_seen").panel(70):
        env.reset(task)
        for _ in range(40):
            actions = env.play.actions
            verb = rng.choice(sorted({action.split()[0] for action in actions}))
            if env.step(rng.choice([action for action in actions if action.startswith(verb)])).done:
                break
        else:
            distance = env.expert_distance()
            for left in range(distance, 0, -1):
                action = env.expert_action()
                assert action in env.play.commands
                done = env.step(action).done
                assert done == (left == 1), (task.id, action)
        with pytest.raises(EpisodeOver):
            env.expert_action()


def test_expert_of_a_task_leaves_the_game_being_played_alone() -> None:
    env = AlfworldEnv(shared_folder("alfworld"))
    one, other = env.tasks("valid_seen")[:2]
    env.reset(one)
    before = env.play.state.key()
    assert env.expert(other)
    assert env.play.state.key() == before


def test_expert_says_when_there_is_no_way() -> None:
    from turnwise.envs.household.house import Goal, House, Item, Receptacle

    house = House([Receptacle("desk 1", "desk")], [Item("mug 1", "mug", "desk 1")], {}, Goal(TASK_TYPES[0], "mug", "shelf"))
    play = Play(house.world())
    with pytest.raises(TurnwiseError, match="no way to win"):
        Expert(house.world()).plan(play.state)


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
