"""Snapshots: an attempt goes on from one exactly as it would have gone on, in another instance, and nothing else is accepted as one."""

from __future__ import annotations

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import shared_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from search_data import write_data
from webshop_case import write_shop

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.collect.players import Advised
from turnwise.data.tasks import Task
from turnwise.envs import EpisodeOver, Observation, Restorable, Transition
from turnwise.envs.prompts.env import PromptsEnv
from turnwise.envs.search.answers import ANSWER_FORM, SEARCH_FORM
from turnwise.envs.snapshots import pack, unpack

BOUND = 8_000  # bytes
OWN_WORDS = {
    "search[<your query>]": ("search[lamp]", "search[steel kettle \ud800]", "search[no such thing]"),
    SEARCH_FORM: ("search[London]", "search[Ada Lovelace]"),
    ANSWER_FORM: ("search[rock band]", "search[mountain]", "search[London]", "answer[London]"),
}


def reply(task: dict[str, Any], history: list[dict[str, str]]) -> Observation | str | None:
    said = sum(len(message["content"]) for message in history)
    if said % 7 == 0:
        return None
    return Observation(f"{said} so far", actions=("more", "enough"), anchor=said) if said % 2 else f"only {said}"


def dialogues() -> PromptsEnv:
    rows = [{"prompt": f"Say {n} things"} for n in range(30)]
    return PromptsEnv(rows, lambda task, response, history: len(history) / 10, reply=reply, max_turns=6)


@cache
def scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="turnwise-snapshots-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_shop(folder / "shop")
    write_data(folder / "qa")
    return folder


def shop(**options: Any) -> Any:
    return tw.make("webshop", data=scratch() / "shop", **options)


def questions(**options: Any) -> Any:
    return tw.make("search", data=scratch() / "qa", **options)


def games(**options: Any) -> Any:
    return tw.make("alfworld", data=shared_folder("alfworld"), **options)


CASES: dict[str, Callable[[], Any]] = {
    "household tiny": partial(tw.make, "household", size="tiny"),
    "household full": partial(tw.make, "household", size="full", anchor="state", expert_knows="seen"),
    "alfworld": partial(games, anchor="state"),
    "webshop": shop,
    "webshop states": partial(shop, anchor="state", reward="success"),
    "sokoban": partial(tw.make, "sokoban", size=7, boxes=2),
    "sokoban pictures": partial(tw.make, "sokoban", observe="image", tile=4),
    "numberline": partial(tw.make, "numberline", highest=9),
    "ezpoints": partial(tw.make, "ezpoints", rewards="gym_cards"),
    "points24": partial(tw.make, "points24", anchor="state", faces_as_ten=False),
    "blackjack": partial(tw.make, "blackjack", rewards="gym_cards"),
    "blackjack pictures": partial(tw.make, "blackjack", observe="both", scale=1),
    "search": partial(questions, anchor="state", topk=2, max_turns=8),
    "prompts": dialogues,
}
SPLIT = {"alfworld": "valid_seen"}


@cache
def tasks_of(case: str) -> list[Task]:
    env = CASES[case]()
    if not hasattr(env, "tasks"):
        return [Task(str(number)) for number in range(12)]
    found = env.tasks(SPLIT.get(case, "train"))
    return [found[place] for place in range(min(12, len(found)))]


def choose(chance: random.Random, observation: Observation) -> str:
    """Any listed action, now and then something else."""
    if chance.random() < 0.1 or not observation.actions:
        return chance.choice(("xyzzy", "", "nothing of the kind \ud800", "some words"))
    action = chance.choice(observation.actions)
    return chance.choice(OWN_WORDS.get(action, (action,)))


def seen(answer: Any) -> tuple[Any, ...]:
    """All that an observation or a transition says."""
    if isinstance(answer, Transition):
        return (*seen(answer.observation), answer.reward, answer.done, answer.success, dict(answer.info))
    return answer.text, answer.actions, answer.anchor, answer.key, [np.asarray(image).tolist() for image in answer.images]


def walk(env: Any, chance: random.Random, observation: Observation, turns: int) -> Iterator[tuple[str, Transition]]:
    for _ in range(turns):
        action = choose(chance, observation)
        transition = env.step(action)
        yield action, transition
        observation = transition.observation
        if transition.done:
            return


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12)
@given(data=st.data())
def test_a_restored_attempt_goes_on_as_it_would_have_gone_on(case: str, data: st.DataObject) -> None:
    number, before, after = (data.draw(st.integers(0, top), name) for name, top in (("seed", 10**6), ("before", 12), ("after", 12)))
    chance, found = random.Random(number), tasks_of(case)
    env = CASES[case]()
    observation = env.reset(found[number % len(found)], number)
    for _, transition in walk(env, chance, observation, before):
        if transition.done:
            return
        observation = transition.observation
    state = env.snapshot()
    assert len(state) < BOUND and state == env.snapshot()
    expected = list(walk(env, chance, observation, after))
    other = CASES[case]()
    assert seen(other.restore(state)) == seen(observation)
    for action, transition in expected:
        assert seen(other.step(action)) == seen(transition)
    if expected and expected[-1][1].done:
        with pytest.raises(EpisodeOver):
            other.step("xyzzy")
        with pytest.raises(EpisodeOver):
            other.snapshot()
    assert seen(env.restore(state)) == seen(observation)  # in the same instance too, whatever was played meanwhile
    for action, transition in expected:
        assert seen(env.step(action)) == seen(transition)


@pytest.mark.parametrize("case", CASES)
def test_damaged_and_foreign_snapshots_are_refused_and_harm_nothing(case: str) -> None:
    env, chance = CASES[case](), random.Random(5)
    with pytest.raises(EpisodeOver):
        env.snapshot()
    task = tasks_of(case)[0]
    env.reset(task, 3)
    state = env.snapshot()
    changed = [bytearray(state) for _ in range(20)]
    for copy in changed:
        copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(7)
    foreign = pack("another", {}, {})
    for damaged in (*changed, b"", b"{}", state[:-1], state[: len(state) // 2], state + b" ", foreign, state.decode()):
        with pytest.raises(TurnwiseError):
            env.restore(bytes(damaged) if isinstance(damaged, bytearray) else damaged)
    first = env.reset(task, 3)
    assert seen(env.restore(state)) == seen(first)


@pytest.mark.parametrize(
    ("case", "other", "message"),
    [
        ("household tiny", partial(tw.make, "household", size="tiny", anchor="state"), "taken with anchor='observation', this environment"),
        ("sokoban", partial(tw.make, "sokoban", observe="both"), "observe='text', this environment has observe='both'"),
        ("sokoban", partial(tw.make, "household"), "environment 'household': this is a snapshot of environment 'sokoban'"),
        ("ezpoints", partial(tw.make, "points24"), "environment 'points24': this is a snapshot of environment 'ezpoints'"),
        ("numberline", partial(tw.make, "numberline"), "highest=9, this environment has highest=5"),
        ("webshop", partial(shop, reward="success"), "Use the same options"),
        ("search", partial(questions, anchor="state", max_turns=8), "topk=2, this environment has topk=3"),
    ],
)
def test_a_snapshot_of_other_options_or_another_environment_is_refused_with_what_differs(
    case: str, other: Callable[[], Any], message: str
) -> None:
    env = CASES[case]()
    env.reset(tasks_of(case)[0])
    with pytest.raises(TurnwiseError, match=message):
        other().restore(env.snapshot())


def test_a_snapshot_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = pack("guess", {"low": 1})
    assert unpack(state, "guess") == {"low": 1}
    monkeypatch.setattr("turnwise.envs.snapshots.VERSION", 2)
    with pytest.raises(TurnwiseError, match="a snapshot of version 1; this Turnwise reads version 2"):
        unpack(state, "guess")


@pytest.mark.parametrize(
    ("case", "state"),
    [
        ("household tiny", {"changes": {"inreceptacle": [[], [[0, 10**6]]]}}),
        ("household tiny", {"changes": {"no such predicate": [[], []]}}),
        ("household tiny", {"task": {"id": "x", "split": "train"}}),
        ("sokoban", {"player": 0}),
        ("sokoban", {"boxes": [9, 9]}),
        ("webshop", {"page": ["done", "", 1, "B000000001", [], ""]}),
        ("webshop", {"page": ["item", "lamp", 1, "no product", [], ""]}),
        ("numberline", {"played": 99}),
        ("points24", {"played": ["="]}),
        ("blackjack", {"played": 40}),
        ("prompts", {"history": []}),
    ],
)
def test_a_state_that_cannot_be_is_refused(case: str, state: dict[str, Any]) -> None:
    """Well-formed and with the right checksum, as a program of another version could have written it."""
    env = CASES[case]()
    env.reset(tasks_of(case)[0])
    good = env.snapshot()
    name = good.split(b" ")[2].decode()
    options = json.loads(good.partition(b"\n")[2])["options"]
    with pytest.raises(TurnwiseError):
        CASES[case]().restore(pack(name, {**unpack(good, name, options), **state}, options))


def test_another_game_under_the_same_name_is_refused() -> None:
    env = games()
    task = env.tasks("valid_seen")[0]
    env.reset(Task(task.id, task.split))  # of a task without its game's digest too
    state = env.snapshot()
    entry = env.library.entry(task.id)
    assert entry.digest.encode() in state
    other = games()
    other.library = SimpleNamespace(entry=lambda name: replace(entry, digest="0" * 32))
    with pytest.raises(TurnwiseError, match="not the game that the task"):
        other.restore(state)


def test_states_that_cannot_be_kept_have_no_snapshot() -> None:
    rows = [{"prompt": f"look {n}"} for n in range(20)]
    picture = np.zeros((2, 2, 3), np.uint8)
    env = PromptsEnv(rows, lambda task, response: 1.0, reply=lambda task, history: Observation("see", (picture,)), max_turns=3)
    env.reset(env.tasks("train")[0])
    assert env.snapshot() is not None
    env.step("go on")
    assert env.snapshot() is None


def test_an_environment_with_its_expert_has_no_snapshots_because_the_plan_would_not_follow() -> None:
    assert not isinstance(Advised(partial(tw.make, "household", size="tiny"))(), Restorable)
