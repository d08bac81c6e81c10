"""Gymnasium's environments through the adapter: words for spaces, seeds, ends, success, and errors that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.envs.check import check
from turnwise.envs.gymnasium.spaces import words_of
from turnwise.envs.gymnasium.words import drawing
from turnwise.util.errors import TurnwiseError

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium: pip install gymnasium")

OWN = '''
import gymnasium
import numpy as np
from gymnasium import spaces

class Switches(gymnasium.Env):
    """Set two switches; every step says what the dice say."""
    observation_space = spaces.Dict({"left": spaces.Discrete(3), "level": spaces.Box(0, 1, (2,))})
    action_space = spaces.MultiDiscrete([3, 2])
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = int(self.np_random.integers(3))
        return {"left": self.wanted, "level": np.zeros(2, np.float32)}, {}
    def step(self, action):
        won = int(action[0]) == self.wanted and int(action[1]) == 1
        return {"left": self.wanted, "level": self.np_random.random(2)}, 1.5, won, False, {"solved": won}

class Echo(gymnasium.Env):
    observation_space = spaces.Text(100)
    action_space = spaces.Text(5, charset="abc")
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return "say", {}
    def step(self, action):
        return action, float(action == "abc"), action == "abc", False, {}

class Continuous(Echo):
    action_space = spaces.Box(-1, 1, (2,))

class Huge(Echo):
    observation_space = spaces.Box(0, 1, (100, 100))

class Grid(Echo):
    observation_space = spaces.Dict({"map": spaces.Box(0, 9, (20, 20), np.int8), "size": spaces.Discrete(3)})
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return {"map": np.eye(20, dtype=np.int8), "size": 2}, {}

def in_words(env, observation) -> str:
    return f"{int(observation['map'].sum())} marks, size {observation['size']}, {type(env).__name__}"

def in_numbers(env, observation) -> str:
    return 7

class Picture(Echo):
    observation_space = spaces.Box(0, 255, (4, 5, 1), np.uint8)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.full((4, 5, 1), 7, np.uint8), {}
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own_gym.py").write_text(OWN)
    return str(tmp_path / "own_gym.py")


def rolls(env: Any, task: Task, seed: int, action: str, count: int = 12) -> list[str]:
    seen = [env.reset(task, seed).text]
    for _ in range(count):
        transition = env.step(action)
        seen.append(transition.observation.text)
        if transition.done:
            break
    return seen


def test_a_classic_is_told_in_words_and_a_remark_does_not_change_the_state() -> None:
    env: Any = tw.make("gymnasium", id="FrozenLake-v1", kwargs={"is_slippery": False})
    first = env.reset(Task("1"))
    assert first.text.startswith("Your task is: walk over the frozen lake")
    assert "[S]FFF" in first.text
    assert first.actions == ("left", "down", "right", "up")
    refused = env.step("fly")
    assert "not an action" in refused.observation.text
    assert refused.info["understood"] is False
    assert refused.observation.key == first.key == env.step("LEFT").observation.key
    assert env.step(" Right ").observation.text.splitlines()[0] == "S[F]FF"


def test_frozen_lake_is_won_by_its_known_way() -> None:
    env: Any = tw.make("gymnasium", id="FrozenLake-v1", kwargs={"is_slippery": False})
    env.reset(Task("1"))
    ends = [env.step(action) for action in ("down", "down", "right", "right", "down", "right")]
    assert [end.done for end in ends] == [False] * 5 + [True]
    assert (ends[-1].reward, ends[-1].success) == (1.0, True)


def test_the_cliff_is_a_success_at_its_goal_though_no_reward_is_positive() -> None:
    env: Any = tw.make("gymnasium", id="CliffWalking-v1")
    env.reset(Task("1"))
    ends = [env.step(action) for action in ["up", *["right"] * 11, "down"]]
    assert ends[-1].done and ends[-1].success and ends[-1].reward < 0


def test_the_task_fixes_the_start_and_the_seed_what_comes_after() -> None:
    env: Any = tw.make("gymnasium", id="Blackjack-v1")
    starts = {env.reset(Task(str(task)), seed).text for task in range(20) for seed in range(3)}
    assert 5 < len(starts) <= 20
    slippery: Any = tw.make("gymnasium", id="FrozenLake-v1")
    assert len({tuple(rolls(slippery, Task("1"), seed, "right")) for seed in range(8)}) > 1
    assert rolls(slippery, Task("1"), 5, "right") == rolls(slippery, Task("1"), 5, "right")


def test_a_limit_of_steps_ends_the_episode_without_success() -> None:
    env: Any = tw.make("gymnasium", id="CliffWalking-v1", max_turns=3)
    assert env.max_turns == 3
    env.reset(Task("1"))
    last = [env.step(action) for action in ("left", "nonsense", "left")][-1]
    assert last.done and not last.success and last.info["truncated"] is True


def test_several_choices_at_once_and_their_names(own: str) -> None:
    env: Any = tw.make("gymnasium", id=f"{own}:Switches", action_names=[["a", "b", "c"], ["off", "on"]], success="info.solved")
    first = env.reset(Task("3"))
    assert first.actions is not None and len(first.actions) == 6 and first.actions[0] == "a, off"
    assert first.text.splitlines()[1] == "level: 0 0"
    assert env.step("a on b").info["understood"] is False
    wanted = "abc"[env._env.wanted]
    end = env.step(f"{wanted.upper()}, ON")
    assert end.done and end.success
    env.reset(Task("3"))
    assert env.step(f"[{env._env.wanted}, 1]").success


def test_a_number_as_rule_of_success_is_a_return_to_reach(own: str) -> None:
    for needed, success in ((3.0, True), (4.0, False)):
        env: Any = tw.make("gymnasium", id=f"{own}:Switches", success=needed, max_turns=2)
        env.reset(Task("3"))
        wrong = f"{(env._env.wanted + 1) % 3}, 0"
        assert [env.step(wrong).success for _ in range(2)] == [False, success]


def test_text_spaces_pass_what_they_contain(own: str) -> None:
    env: Any = tw.make("gymnasium", id=f"{own}:Echo")
    assert env.reset(Task("1")).text == "say"
    assert env.step("hello").info["understood"] is False
    assert env.step("ab").observation.text == "ab"
    assert env.step(" abc ").success
    assert check("gymnasium", id=f"{own}:Echo", turns=5, episodes=2).ok


def test_a_picture_is_passed_on_with_three_colours(own: str) -> None:
    seen = tw.make("gymnasium", id=f"{own}:Picture").reset(Task("1"))
    assert seen.images[0].shape == (4, 5, 3) and seen.images[0].dtype == np.uint8
    assert np.array_equal(seen.anchor, seen.images[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"id": "NoSuchEnv-v0"}, "NoSuchEnv"),
        ({"id": "Blackjack-v1", "action_names": ["stick"]}, "2 different names"),
        ({"id": "Blackjack-v1", "success": "luck"}, "success is"),
        ({"id": "Blackjack-v1", "show": "ansi"}, "cannot be shown as 'ansi'"),
        ({"id": "Blackjack-v1", "show": "smell"}, "show is one of"),
        ({"id": "{own}:Continuous"}, "cannot be written as text"),
        ({"id": "{own}:Huge"}, r"observations of \(100, 100\) are too large for text.*describe='my_words.py:describe'"),
        ({"id": "{own}:Huge", "describe": "{own}:Echo"}, "describer"),
        ({"id": "FrozenLake-v1", "kwargs": {"bogus": 1}}, "cannot be made with kwargs .*TypeError.*bogus"),
        ({"id": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}}, "cannot be made with kwargs .*KeyError.*9x9"),
        ({"id": "FrozenLake-v1", "max_turns": 0}, "max_turns must be an integer from 1, not 0"),
        ({"id": "FrozenLake-v1", "max_turns": -2}, "max_turns must be an integer from 1, not -2"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(own: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        tw.make("gymnasium", **{key: value.format(own=own) if isinstance(value, str) else value for key, value in options.items()})


def test_a_users_function_describes_what_is_too_large_for_text_and_pictures(own: str) -> None:
    with pytest.raises(TurnwiseError, match=r"observations of map \(20, 20\) are too large"):
        tw.make("gymnasium", id=f"{own}:Grid")
    env = tw.make("gymnasium", id=f"{own}:Grid", describe=f"{own}:in_words", goal="count.")
    assert env.reset(Task("1")).text == "Your task is: count.\n20 marks, size 2, Grid"
    with pytest.raises(TurnwiseError, match="returned int, not text"):
        tw.make("gymnasium", id=f"{own}:Grid", describe=f"{own}:in_numbers").reset(Task("1"))
    seen = tw.make("gymnasium", id=f"{own}:Picture", describe=lambda env, observation: f"mean {observation.mean():.0f}").reset(Task("1"))
    assert seen.text == "mean 7" and seen.images == ()


def test_drawings_lose_colours_and_keep_what_was_highlighted() -> None:
    assert drawing("  (Down)\n\x1b[41mS\x1b[0mF\n\x1b[34;1mY\x1b[0m \x1b[43m \x1b[0m\n") == "[S]F\nY [ ]"


def test_numbers_are_written_short() -> None:
    assert words_of((np.int64(3), np.float32(0.123456), np.array([1.0, 2.5]))) == "3, 0.1235, 1 2.5"
