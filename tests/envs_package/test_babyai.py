"""BabyAI: the describer alone, then the environment on the real package."""

from __future__ import annotations

import random
from importlib.util import find_spec

import numpy as np
import pytest

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise_envs.babyai import levels, words
from turnwise_envs.babyai.scripted import Wish, wishes

package = pytest.mark.skipif(find_spec("minigrid") is None, reason="needs minigrid: pip install minigrid")
EMPTY, WALL, DOOR, KEY, BALL = 1, 2, 4, 5, 6


def view(**cells: tuple[int, int, int]) -> np.ndarray:
    """A 7 × 7 view with empty floor; a cell is named by column and row, as in x3y6."""
    image = np.zeros((7, 7, 3), np.uint8)
    image[:, :, 0] = EMPTY
    for name, code in cells.items():
        image[int(name[1]), int(name[3])] = code
    return image


# -- without the package ------------------------------------------------------------------------------------------------------------------


def test_what_is_in_view_is_named_with_steps_from_the_agent() -> None:
    image = view(x2y4=(BALL, 0, 0), x6y6=(DOOR, 2, 2), x3y2=(WALL, 5, 0), x3y1=(WALL, 5, 0), x0y0=(WALL, 5, 0), x3y5=(DOOR, 1, 0))
    assert words.described(words.partial_view(image)).splitlines() == [
        "You see:",
        "an open green door 1 step forward",
        "a red ball 2 steps forward and 1 step left",
        "a locked blue door 3 steps right",
        "a wall 4 steps forward",
    ]


def test_the_agents_own_cell_is_what_it_carries() -> None:
    text = words.described(words.partial_view(view(x3y6=(KEY, 4, 0))))
    assert text == "You carry a yellow key.\nYou see nothing."


def test_a_view_of_the_whole_grid_is_described_from_the_agents_place_and_direction() -> None:
    image = view(x3y3=(words.AGENT, 0, 1), x3y5=(BALL, 2, 0), x2y3=(KEY, 0, 0), x3y0=(WALL, 5, 0))  # it looks down
    found = words.whole_view(image)
    assert found is not None
    assert [(thing.name, thing.place) for thing in found.things] == [("red key", (0, 1)), ("blue ball", (2, 0))]
    assert found.walls == ((-3, 0),)
    assert words.whole_view(view()) is None


@pytest.mark.parametrize("direction", range(4))
def test_places_and_cells_are_each_others_reverse(direction: int) -> None:
    pose = (4, 7, direction)
    for cell in ((4, 6), (9, 2), (0, 0)):
        assert words.cell_at(pose, words.seen_from(pose, cell)) == cell


def test_a_mission_is_read_in_the_order_in_which_it_is_done() -> None:
    assert wishes("go to a door after you pick up the red box") == [
        Wish("pick up", ("red", "box"), None),
        Wish("go to", ("", "door"), None),
    ]
    assert wishes("put the grey key next to the ball, then open the blue door") == [
        Wish("put", ("grey", "key"), ("", "ball")),
        Wish("open", ("blue", "door"), None),
    ]


def test_levels_are_named_by_name_id_or_set() -> None:
    assert levels.chosen("BabyAI-GoToObjS6-v1") == ("GoToObjS6",)
    assert levels.chosen(["GoTo", "hard"])[0] == "GoTo"
    assert len(levels.SETS["all"]) + len(levels.UNUSABLE) == 96 == len({*levels.SETS["all"], *levels.UNUSABLE})


# -- on the package -----------------------------------------------------------------------------------------------------------------------


@package
def test_every_level_of_the_package_is_known() -> None:
    assert set(levels._factories()) >= {*levels.SETS["all"], *levels.UNUSABLE}


@package
@pytest.mark.parametrize("level", ["GoToRedBall", "PutNextS5N2Carrying", "KeyInBox", "UnlockToUnlock", "OpenDoorsOrderN4", "MiniBossLevel"])
def test_the_expert_wins_also_where_the_packages_bot_fails(level: str) -> None:
    env = tw.make("babyai", levels=level)
    for task in env.tasks("valid", 2):
        assert won(env, task, env.expert_action) == 1.0


def won(env, task, choose) -> float:
    env.reset(task)
    for _ in range(env.max_turns):
        transition = env.step(choose())
        if transition.done:
            return transition.reward
    return -1.0


@package
def test_the_expert_helps_from_any_state_and_knows_a_restored_one() -> None:
    env, other, rng = tw.make("babyai", levels="MiniBossLevel"), tw.make("babyai", levels="MiniBossLevel"), random.Random(3)
    wins = 0
    for task in env.tasks("train", 6):
        seen = env.reset(task)
        for _ in range(15):
            if env.step(rng.choice(seen.actions)).done:
                break
        else:
            other.restore(env.snapshot())
            assert other.expert_action() == env.expert_action()
            for _ in range(110):
                action = other.expert_action()
                if action is None or (last := other.step(action)).done:
                    wins += action is not None and last.success
                    break
    assert wins >= 4


@package
def test_the_anchor_is_the_state_and_not_the_path() -> None:
    env = tw.make("babyai", levels="GoToObj")
    first = env.reset(env.tasks("train", 1)[0])
    seen = [env.step("turn left").observation for _ in range(4)]
    assert len({first.key, *(observation.key for observation in seen)}) == 4
    assert seen[-1].key == first.key and seen[-1].text != first.text  # the first one says the task
    again = env.step("drop").observation
    assert again.key == first.key and again.text.startswith("Nothing happens.")


@package
def test_the_whole_room_shows_what_is_behind_the_agent() -> None:
    near, whole = (tw.make("babyai", levels="GoToLocal", view=view) for view in ("partial", "room"))
    task = near.tasks("train", 1)[0]
    less, more = near.reset(task).text.splitlines(), whole.reset(task).text.splitlines()
    assert set(less) < set(more) and any(" back" in line for line in more)


@package
def test_splits_share_no_seed_and_the_speed_reward_is_the_packages() -> None:
    env = tw.make("babyai", levels=["GoToLocal", "OpenDoor"], reward="speed")
    seeds = [{(task.data["level"], task.data["seed"]) for task in env.tasks(split, 50)} for split in ("train", "valid", "test")]
    assert len(set.union(*seeds)) == 150
    assert 0.1 < won(env, env.tasks("valid", 1)[0], env.expert_action) < 1.0


# -- the adapter for Gymnasium ------------------------------------------------------------------------------------------------------------


@package
def test_minigrid_is_described_by_the_adapter() -> None:
    env = tw.make("gymnasium", id="MiniGrid-Empty-5x5-v0")
    first = env.reset(Task("1"))
    assert first.text.splitlines() == [
        "Your task is: get to the green goal square",
        "You face east.",
        "You see:",
        "a goal 2 steps forward and 2 steps right",
        "a wall 3 steps forward",
        "a wall 1 step left",
        "a wall 3 steps right",
    ]
    assert first.actions == (*words.ACTIONS, "done")
    for action in ("go forward", "go forward", "turn right", "go forward", "go forward"):
        last = env.step(action)
    assert last.done and last.success and last.reward > 0.9


@package
def test_wrapped_views_are_also_described() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper

    from turnwise.envs.gymnasium.words import recognised

    bare = gymnasium.make("MiniGrid-Empty-5x5-v0")
    for wrapped, walls in ((FullyObsWrapper(bare), 4), (ImgObsWrapper(bare), 3)):
        known = recognised(wrapped)
        assert known is not None and known.describe is not None
        seen, _ = wrapped.reset(seed=0)
        text = known.describe(wrapped.unwrapped, seen)
        assert "a goal 2 steps forward and 2 steps right" in text and text.count("a wall") == walls


@package
def test_the_adapters_anchor_of_minigrid_is_the_state_and_not_the_view() -> None:
    env = tw.make("gymnasium", id="MiniGrid-Empty-16x16-v0")
    first = env.reset(Task("1"))
    walked = [
        env.step(action).observation for action in ("turn right", "go forward", "go forward", "go forward", "turn left", "turn right")
    ]
    assert len({seen.key for seen in (first, *walked[:4])}) == 5
    assert walked[5].key == walked[3].key and walked[5].key != walked[2].key
    own = tw.make("gymnasium", id="MiniGrid-Empty-16x16-v0", describe=lambda env, seen: "the same")
    own.reset(Task("1"))
    assert own.step("turn right").observation.key == own.step("turn right").observation.key, "a user's text is the anchor"


@package
def test_levels_print_nothing_through_the_adapter(capfd: pytest.CaptureFixture[str]) -> None:
    env = tw.make("gymnasium", id="BabyAI-GoToRedBall-v0")
    for number in range(6):
        env.reset(Task(str(number)))
    assert capfd.readouterr().out == ""
