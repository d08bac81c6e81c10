"""Generated households: always solvable, the same everywhere, splits that share nothing, knobs that are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs import tasks
from turnwise.envs.household import generator
from turnwise.envs.household.generated import HouseholdEnv
from turnwise.envs.household.house import TASK_TYPES
from turnwise.envs.household.knobs import LAMP, SIZES, TASK_ROOMS, furnishings
from turnwise.util.errors import TurnwiseError

# The first 50 houses of each size. They may change only on purpose: runs that name a task by its place would mean another house.
GOLDEN = {
    "tiny": "cf70d220380f54d572ca9e3277810ba5",
    "small": "6756ad18ae033f6214d4efc8d4a631b5",
    "full": "aec6406d6b2fb75d9f0cc2cc1f40ec5d",
}


def win(env: HouseholdEnv, task: Task) -> list[str]:
    """Play the expert's plan and see it win with its last command and no earlier."""
    plan = env.expert(task)
    env.reset(task)
    ends = [env.step(action) for action in plan]
    assert [end.done for end in ends] == [False] * (len(plan) - 1) + [True], task.id
    assert ends[-1].success
    assert ends[-1].reward == 1.0
    return plan


def kind(name: str) -> str:
    return name.rpartition(" ")[0]


@pytest.mark.parametrize("task_type", TASK_TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_expert_wins_every_house(size: str, task_type: str) -> None:
    env = HouseholdEnv(size, task_types=[task_type])
    for split in ("train", "valid"):
        for task in env.tasks(split, 30):
            assert task.data["task_type"] == task_type
            assert 2 <= len(win(env, task)) <= SIZES[size].max_turns


@pytest.mark.parametrize("size", SIZES)
def test_task_types_take_turns_and_every_room_comes_up(size: str) -> None:
    found = list(tasks("household", n=120, size=size))
    for start in range(0, 120, 6):
        assert {task.data["task_type"] for task in found[start : start + 6]} == set(TASK_TYPES)
    assert {task.data["room"] for task in found} == {"kitchen", "bedroom", "livingroom", "bathroom"}


def test_things_lie_only_where_such_things_belong_and_no_wanted_one_at_its_target() -> None:
    for task in tasks("household", n=300, size="full"):
        room = furnishings().rooms[task.data["room"]]
        for name, place in task.data["objects"].items():
            assert kind(place) in room.objects[kind(name)][1]
            assert kind(name) == LAMP or kind(name) in furnishings().fits[kind(place)]
        places = [kind(place) for name, place in task.data["objects"].items() if kind(name) == task.data["object"]]
        assert places and task.data["target"] not in places


# The same everywhere


@pytest.mark.parametrize("size", SIZES)
def test_the_houses_are_the_same_on_every_machine(size: str) -> None:
    assert tasks("household", n=50, size=size).hash == GOLDEN[size]


def test_a_task_is_made_when_it_is_asked_for_whatever_was_asked_before() -> None:
    many = tasks("household", n=10**9, size="tiny")
    last = many[10**9 - 1]
    assert many[10**9 - 1].hash == last.hash
    assert many[7].hash == tasks("household", n=8, size="tiny")[7].hash
    assert len(tasks("household")) == 10_000


def test_a_task_carries_its_whole_house() -> None:
    task = tasks("household", n=1, size="full")[0]
    copy = Task(task.id, task.split, dict(task.data))
    tiny, full = HouseholdEnv("tiny"), HouseholdEnv("full")
    assert tiny.reset(copy).text == full.reset(task).text
    assert tiny.expert(copy) == full.expert(task)


# Splits


def core(task: Task) -> str:
    """What two houses must differ in to be different problems, written down independently of the generator."""
    data = task.data
    wanted = sorted(f"{kind(name)} in {kind(place)}" for name, place in data["objects"].items() if kind(name) == data["object"])
    lamps = sorted(kind(place) for name, place in data["objects"].items() if kind(name) == LAMP) if data["target"] == LAMP else []
    furniture = sorted(kind(name) for name in data["receptacles"])
    return repr((data["room"], data["task_type"], data["object"], data["target"], furniture, wanted, lamps))


@pytest.mark.parametrize(("size", "count"), [("tiny", 1000), ("small", 500), ("full", 200)])
def test_the_splits_share_no_house_and_no_core(size: str, count: int) -> None:
    sets: dict[str, list[Task]] = {split: list(tasks("household", split, n=count, size=size)) for split in generator.SPLITS}
    for identity in (lambda task: task.hash, core):
        seen = {split: {identity(task) for task in found} for split, found in sets.items()}
        assert not seen["train"] & seen["valid"]
        assert not seen["train"] & seen["test"]
        assert not seen["valid"] & seen["test"]
    assert not TaskSet(sets["train"]).overlap(TaskSet(sets["valid"]))


def test_training_and_evaluation_may_use_different_sizes() -> None:
    """The core does not know the knobs: the houses of one size's train split are in no other size's valid split."""
    train = {core(task) for size in SIZES for task in tasks("household", "train", n=500, size=size, rooms="bathroom")}
    valid = {core(task) for size in SIZES for task in tasks("household", "valid", n=500, size=size, rooms="bathroom")}
    assert not train & valid


@pytest.mark.parametrize(
    ("size", "split", "count"),
    [("tiny", "train", 10_000), ("tiny", "valid", 1000), ("small", "train", 1000), ("full", "train", 500)],
)
def test_the_named_sizes_do_not_repeat_a_house_soon(size: str, split: str, count: int) -> None:
    assert len({task.id for task in tasks("household", split, n=count, size=size)}) == count


def test_too_few_houses_for_a_split_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "ATTEMPTS", 0)
    with pytest.raises(TurnwiseError, match="too few different houses to keep the splits apart"):
        tasks("household", "valid", n=1)[0]


# Knobs


def test_full_closes_everything() -> None:
    assert not any("open" in task.data["receptacles"].values() for task in tasks("household", n=50, size="full"))


def test_tasks_that_a_room_does_not_allow_are_left_out_unless_they_were_asked_for() -> None:
    assert HouseholdEnv(rooms="bedroom").knobs.task_types == ("pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place")
    assert "look_at_obj_in_light" not in HouseholdEnv(receptacles=50).knobs.task_types


@settings(max_examples=60)
@given(
    receptacles=st.integers(3, 25),
    distractors=st.integers(0, 30),
    copies=st.integers(1, 4),
    closed=st.none() | st.integers(0, 10),
    task_type=st.sampled_from(TASK_TYPES),
    index=st.integers(0, 10**6),
    data=st.data(),
)
def test_any_knobs_give_solvable_houses(
    receptacles: int, distractors: int, copies: int, closed: int | None, task_type: str, index: int, data: st.DataObject
) -> None:
    room = data.draw(st.sampled_from(sorted(TASK_ROOMS[task_type])))
    options: dict[str, Any] = {"receptacles": receptacles, "distractors": distractors, "copies": copies, "closed": closed}
    env = HouseholdEnv(rooms=room, task_types=task_type, **options)
    task = env.tasks("valid", index + 1)[index]
    assert task.data["room"] == room
    assert len(task.data["receptacles"]) == receptacles
    lamp = task_type == "look_at_obj_in_light"
    wanted = max(copies, 2 if task_type == "pick_two_obj_and_place" else 1)
    assert sum(kind(name) == task.data["object"] for name in task.data["objects"]) == wanted
    assert len(task.data["objects"]) == distractors + wanted + lamp
    openable = [state for name, state in task.data["receptacles"].items() if kind(name) in furnishings().openable]
    assert set(openable) <= {"open", "closed"}
    if closed is not None:
        assert openable.count("closed") == min(closed, len(openable))
    win(env, task)


# As an environment


def test_a_house_written_by_hand_can_be_played() -> None:
    data = {
        "task_type": "pick_clean_then_place_in_recep",
        "object": "mug",
        "target": "desk",
        "receptacles": {"cabinet 1": "closed", "sinkbasin 1": "", "desk 1": ""},
        "objects": {"mug 1": "cabinet 1"},
    }
    assert win(HouseholdEnv(), Task("by hand", data=data))[:2] == ["go to cabinet 1", "open cabinet 1"]
    with pytest.raises(TurnwiseError, match="a household task needs task_type"):
        HouseholdEnv().reset(Task("empty"))
    with pytest.raises(TurnwiseError, match="kind of object"):
        HouseholdEnv().reset(Task("strange", data={**data, "objects": {"unicorn 1": "desk 1"}}))
    with pytest.raises(TurnwiseError, match="attic 1"):
        HouseholdEnv().reset(Task("nowhere", data={**data, "objects": {"mug 1": "attic 1"}}))


FURNITURE = ["toilet", "cabinet", "countertop", "shelf"]


def house(task: Task) -> str:
    return json.dumps([task.data[key] for key in ("object", "target", "receptacles", "objects")])


def test_every_house_has_the_furniture_that_was_asked_for() -> None:
    knobs: dict[str, Any] = {"size": "tiny", "rooms": "bathroom", "task_types": "pick_and_place_simple", "furniture": FURNITURE}
    env = HouseholdEnv(**knobs)
    for split in ("train", "valid"):
        for task in env.tasks(split, 200):
            assert list(task.data["receptacles"]) == [f"{piece} 1" for piece in sorted(FURNITURE)]
            win(env, task)
    train, valid = ({house(task) for task in env.tasks(split, 500)} for split in ("train", "valid"))
    assert not train & valid
    assert len(train) > 400
    cores = [{core(task) for task in env.tasks(split, 500)} for split in ("train", "valid")]
    assert len(cores[1] - cores[0]) < 0.2 * len(cores[1])  # nothing about the wanted object tells the splits apart
    some = [tuple(task.data["receptacles"]) for task in HouseholdEnv(**knobs, receptacles=3).tasks("train", 200)]
    assert {len(set(names) & {f"{piece} 1" for piece in FURNITURE}) for names in some} == {3}
    assert len(set(some)) == 4
    lit = HouseholdEnv("tiny", task_types="look_at_obj_in_light", rooms="bedroom", furniture=["bed", "desk", "drawer"])
    assert all(win(lit, task) for task in lit.tasks("train", 20))


def test_furniture_without_a_task_is_refused_when_a_house_is_asked_for() -> None:
    env = HouseholdEnv("tiny", rooms="kitchen", task_types="pick_heat_then_place_in_recep", furniture=["cabinet", "drawer", "shelf"])
    with pytest.raises(TurnwiseError, match="add furniture"):
        env.tasks("train", 1)[0]


@pytest.mark.parametrize("size", SIZES)
def test_an_expert_that_knows_what_it_has_seen_searches_and_wins(size: str) -> None:
    env, knowing = HouseholdEnv(size, expert_knows="seen"), HouseholdEnv(size)
    longer = 0
    for task in env.tasks("valid", 40):
        plan = win(env, task)
        longer += len(plan) - len(knowing.expert(task))
        assert plan == env.expert(task)
    assert longer > 0


def test_a_searching_expert_looks_first_where_chance_says() -> None:
    """With four receptacles, the first one it looks into is the right one in a quarter of the houses: it does not know more."""
    env = HouseholdEnv("tiny", expert_knows="seen", task_types="pick_and_place_simple", rooms="bathroom", closed=0, furniture=FURNITURE)
    houses = list(env.tasks("train", 400))
    hits = sum(f"go to {place}" == env.expert(task)[0] for task in houses for place in [task.data["objects"][f"{task.data['object']} 1"]])
    assert 60 <= hits <= 140


def test_advice_after_a_detour_goes_on_from_what_was_seen() -> None:
    env = HouseholdEnv("tiny", expert_knows="seen", task_types="pick_and_place_simple")
    for task in env.tasks("train", 20):
        first = env.reset(task)
        assert first.actions is not None
        places = [action for action in first.actions if action.startswith("go to")]
        for action in places:
            end = env.step(action)
        for _ in range(20):  # all is seen, apart from what is closed
            if end.done:
                break
            end = env.step(env.expert_action())
        assert end.success
