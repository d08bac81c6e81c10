"""Sokoban: moves, rewards, the solver against a plain search, rooms that can be solved, splits, pictures, Boxoban's files."""

from __future__ import annotations

import lzma
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from conftest import shared_folder
from hypothesis import given, settings
from hypothesis import strategies as st

import turnwise as tw
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.sokoban.boxoban import BoxobanEnv, rooms
from turnwise.envs.sokoban.env import GeneratedSokoban, SokobanEnv, room_of
from turnwise.envs.sokoban.generator import Knobs, generate, standard_plan
from turnwise.envs.sokoban.room import DIRECTIONS, Room, read_room
from turnwise.envs.sokoban.solver import Solver

CORRIDOR = "#######\n#@ $ .#\n#######"
TWO = "#######\n#  .  #\n# $ $ #\n#@ .  #\n#######"

knobs = st.builds(
    Knobs, height=st.integers(5, 8), width=st.integers(5, 8), boxes=st.integers(1, 2), depth=st.integers(8, 25), least=st.integers(1, 4)
)


def task(text: str) -> Task:
    return Task("own", "train", {"room": text})


def moves_to_solve(room: Room) -> int | None:
    """The plain definition: all states, move by move."""
    start = (room.player, room.boxes)
    distance, queue = {start: 0}, deque([room])
    while queue:
        here = queue.popleft()
        if here.solved:
            return distance[here.player, here.boxes]
        for direction in DIRECTIONS:
            then = here.after(direction)
            if (then.player, then.boxes) not in distance:
                distance[then.player, then.boxes] = distance[here.player, here.boxes] + 1
                queue.append(then)
    return None


def test_a_box_is_pushed_and_never_pulled_or_pushed_through() -> None:
    room = read_room("########\n#@$ $$ #\n#  ... #\n########")
    assert room.after("right").text() == "########\n# @$$$ #\n#  ... #\n########"
    assert room.after("right").after("right") == room.after("right"), "two boxes in a row do not move"
    assert room.after("up") is room and room.after("left") is room, "walls do not move"
    assert room.after("right").after("left").text() == "########\n#@ $$$ #\n#  ... #\n########", "walking away leaves the box"


@given(knobs, st.integers(0, 50))
@settings(max_examples=60)
def test_a_room_is_read_as_it_was_written(knob: Knobs, index: int) -> None:
    room, _ = generate(knob, "train", index)
    assert read_room(room.text()) == room
    assert read_room(room.text("_")) == room


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("####\n# $.\n####", "exactly one player"),
        ("#####\n#@$ #\n#####", "as many boxes as targets"),
        ("#####\n#@  #\n#####", "at least one"),
        ("#####\n#@$.\n#   #", "gap"),
        ("#####\n#@$x#\n#####", "not a Sokoban letter"),
        ("", "exactly one player"),
    ],
)
def test_a_room_that_cannot_be_played_says_why(text: str, why: str) -> None:
    with pytest.raises(tw.TurnwiseError, match=why):
        read_room(text)


@given(knobs, st.sampled_from(["train", "valid", "test"]), st.integers(0, 200))
@settings(max_examples=80)
def test_every_generated_room_is_solved_by_the_solver_within_its_depth(knob: Knobs, split: str, index: int) -> None:
    room, moves = generate(knob, split, index)
    plan = Solver(room).plan(room.player, room.boxes)
    assert plan is not None
    for direction in plan:
        assert not room.solved, "the plan stops where the room is solved"
        room = room.after(direction)
    assert room.solved
    assert len(plan) <= moves <= knob.depth


@given(st.integers(0, 400), st.lists(st.sampled_from(DIRECTIONS), max_size=12), st.sampled_from([(6, 1), (5, 1), (6, 2)]))
@settings(max_examples=60)
def test_plans_are_shortest_from_any_state_and_none_means_lost(index: int, played: list[str], kind: tuple[int, int]) -> None:
    room, moves = generate(Knobs(kind[0], kind[0], kind[1], 15, 1), "train", index)
    assert moves_to_solve(room) == moves, "the layer is the length of a shortest solution"
    for direction in played:
        room = room.after(direction)
    plan = Solver(room).plan(room.player, room.boxes)
    assert (None if plan is None else len(plan)) == moves_to_solve(room)


def test_a_box_in_a_corner_is_lost_and_the_expert_says_so() -> None:
    env = SokobanEnv()
    env.reset(task("#####\n#@  #\n# $ #\n# . #\n#####"))
    assert env.expert_distance() == 2
    for move in ("down", "right"):
        env.step(move)
    assert env.room.text() == "#####\n#   #\n# @$#\n# . #\n#####"
    assert env.expert_plan() is None and env.expert_action() is None and env.expert_distance() is None


def test_the_expert_advises_from_wherever_the_agent_is() -> None:
    env = GeneratedSokoban()
    for number in range(30):
        env.reset(env.tasks("train")[number])
        for detour in ("up", "left", "nonsense", "down"):
            if not env.room.solved and env.step(detour).done:
                break
        while not env.room.solved and (advice := env.expert_action()) is not None:
            left = env.expert_distance()
            done = env.step(advice).done
            assert env.expert_distance() == (0 if done else (left or 0) - 1)


def test_rewards_are_those_of_the_game() -> None:
    env = SokobanEnv()
    env.reset(task(CORRIDOR))
    assert env.step("right").reward == pytest.approx(-0.1)
    assert env.step("right").reward == pytest.approx(-0.1)
    last = env.step(" RIGHT ")
    assert last.reward == pytest.approx(10.9) and last.done and last.success
    env.reset(task("########\n#@$. .##\n#    $ #\n########"))
    assert env.step("right").reward == pytest.approx(0.9)
    assert env.step("right").reward == pytest.approx(-1.1)


def test_what_is_no_move_costs_the_step_and_nothing_else() -> None:
    env = SokobanEnv()
    before = env.reset(task(CORRIDOR))
    for odd in ("", "jump", "up up", "left", "upwards"):
        answer = env.step(odd)
        assert answer.reward == pytest.approx(-0.1) and answer.observation.text == before.text
        assert answer.info["understood"] is (odd == "left")


def test_rooms_are_the_same_for_ever() -> None:
    assert tw.tasks("sokoban", "train", n=50).hash == "ab82ffe0f5f8148f4b8236c94e0d3e55"
    assert tw.tasks("sokoban", "valid", n=20, size=8, boxes=3, depth=30).hash == "7ab4485fc502278c21c0808f6d2fbbda"


def turned(room: Room) -> Room:
    lines = room.text().split("\n")
    return read_room("\n".join("".join(line[column] for line in reversed(lines)) for column in range(room.width)))


def test_splits_share_no_room_and_no_plan_even_turned_or_mirrored() -> None:
    splits = {split: [room_of(t) for t in tw.tasks("sokoban", split, n=400)] for split in ("train", "valid", "test")}
    plans = {split: {standard_plan(room) for room in found} for split, found in splits.items()}
    assert not plans["train"] & plans["valid"] and not plans["train"] & plans["test"] and not plans["valid"] & plans["test"]
    room = splits["train"][0]
    mirrored = read_room("\n".join(line[::-1] for line in room.text().split("\n")))
    assert standard_plan(room) == standard_plan(turned(room)) == standard_plan(mirrored) == standard_plan(turned(mirrored))
    assert not tw.tasks("sokoban", "train", n=2000).overlap(tw.tasks("sokoban", "valid", n=500))


def test_pictures_show_the_state_and_the_text_beside_them_does_not() -> None:
    env = SokobanEnv(observe="image", tile=8)
    first = env.reset(task(TWO))
    assert first.images[0].shape == (5 * 8, 7 * 8, 3) and first.images[0].dtype == np.uint8
    there = env.step("right").observation
    assert there.text == first.text and "@" not in there.text
    assert there.anchor != first.anchor
    assert env.step("left").observation.anchor == first.anchor, "the same picture is the same state"


def test_every_letter_has_a_picture_of_its_own() -> None:
    from turnwise.envs.sokoban.pictures import draw

    image = draw(read_room("########\n#+*.$$ #\n########"), 16)
    tiles = {image[16:32, 16 * column : 16 * column + 16].tobytes() for column in range(7) if column != 5}
    assert len(tiles) == 6


def test_state_anchors_are_the_same_for_text_and_pictures() -> None:
    text, image = SokobanEnv("text", "state"), SokobanEnv("image", "state")
    for move in ("right", "up", "nonsense", "right"):
        text.reset(task(TWO)), image.reset(task(TWO))
        assert text.step(move).observation.anchor == image.step(move).observation.anchor
    assert text.reset(task(TWO)).anchor != text.step("right").observation.anchor


# Boxoban


@pytest.fixture
def levels(tmp_path: Path) -> Path:
    file = tmp_path / "medium" / "train" / "000.txt"
    file.parent.mkdir(parents=True)
    file.write_text(f"; 0\n{CORRIDOR}\n\n; 1\n{TWO}\n\n; 2\n{TWO}\n")
    return tmp_path


def test_level_files_are_read_plain_and_packed(levels: Path) -> None:
    found = BoxobanEnv(data=levels).tasks("train")
    assert [task.id for task in found] == ["medium/train/000/0", "medium/train/000/1"], "a room that stands there twice is one task"
    assert [room_of(task).text() for task in found] == [CORRIDOR, TWO]
    plain = levels / "medium" / "train" / "000.txt"
    packed = plain.with_suffix(".txt.xz")
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert list(rooms(packed)) == list(rooms(plain))


def test_damaged_files_and_missing_folders_say_what_to_do(levels: Path, tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match=r"Known: train"):
        BoxobanEnv(data=levels).tasks("valid")
    with pytest.raises(tw.TurnwiseError, match="no Boxoban rooms there"):
        BoxobanEnv(data=tmp_path / "nothing")
    (levels / "medium" / "train" / "001.txt.xz").write_bytes(b"not packed")
    with pytest.raises(tw.TurnwiseError, match=r"001.txt.xz: this level file cannot be read"):
        list(rooms(levels / "medium" / "train" / "001.txt.xz"))
    (levels / "bad.txt").write_text(f"{CORRIDOR}\n")
    with pytest.raises(tw.TurnwiseError, match="NUMBER"):
        list(rooms(levels / "bad.txt"))


def test_the_real_levels_are_all_there_and_splits_share_none() -> None:
    folder = shared_folder("sokoban")
    sizes: dict[tuple[str, str], TaskSet] = {}
    for level, splits in (("medium", ("train", "valid")), ("unfiltered", ("valid", "test")), ("hard", ("train", "valid", "test"))):
        for split in splits:
            sizes[level, split] = BoxobanEnv(level, data=folder).tasks(split)
    assert sum(map(len, sizes.values())) == 19_332
    texts = {key: {task.data["room"] for task in found} for key, found in sizes.items()}
    for level in ("medium", "unfiltered", "hard"):
        own = [found for (kind, _), found in texts.items() if kind == level]
        assert sum(map(len, own)) == len(set().union(*own)), f"{level} has a room in two splits"


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_the_solver_wins_real_levels(level: str) -> None:
    env = BoxobanEnv(level, data=shared_folder("sokoban"))
    for task in env.tasks("valid").panel(4):
        env.reset(task)
        last = [env.step(move) for move in env.expert(task)][-1]
        assert last.success


def test_a_warm_start_ends_an_example_where_chance_has_spoiled_the_task() -> None:
    from turnwise.agent import Agent, AgentSettings
    from turnwise.collect.vocabulary import environment_texts
    from turnwise.collect.warmstart import expert_trajectories
    from turnwise.learn.tiny import build_tiny

    options = {"size": 5, "least": 1}
    _, tokenizer = build_tiny(environment_texts("sokoban", n=5, options=options), layers=1, hidden=16, heads=2)
    agent = Agent(tokenizer, AgentSettings(prompt="action"))
    found = expert_trajectories("sokoban", options, tw.tasks("sokoban", "train", n=40, **options), agent, max_turns=15, noise=0.5)
    assert any(trajectory.success for trajectory in found) and any(not trajectory.success for trajectory in found)
