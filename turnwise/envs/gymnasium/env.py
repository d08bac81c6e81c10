"""Any Gymnasium environment whose actions can be written as text.

    tw.make("gymnasium", id="Blackjack-v1")
    tw.make("gymnasium", id="my_gym.py:MyEnv", action_names=["wait", "buy", "sell"], success=100.0)

The task fixes the initial state: Gymnasium's `reset` gets a seed made of the task's id. The attempt's seed drives all randomness after
it: once reset, the environment's generator (`np_random`) is replaced. An environment that keeps another generator elsewhere draws all
random numbers from the task's seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from turnwise.config.kinds import GYM
from turnwise.config.loading import load_reference
from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.gymnasium.spaces import Named, actions_of, is_picture, too_large, words_of
from turnwise.envs.gymnasium.words import Words, described_by, drawing, prepare, recognised, words_for
from turnwise.envs.needs import load
from turnwise.envs.third_party import Success, plain_values, turn_limit, well_formed
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

MAX_TURNS = 100  # if neither the environment nor the user sets one
Show = Literal["auto", "state", "ansi", "picture"]
NOT_UNDERSTOOD = "That is not an action here."
RENDER_MODES = {"ansi": "ansi", "picture": "rgb_array"}


class GymnasiumEnv:
    """A Gymnasium environment by its id, or a class from your own file. `kwargs` go to it; `action_names` name its actions; `goal` says
    what to do; `describe` is a function that writes an observation as text, `"file.py:function"`; `success` and `show` are explained in
    docs/environments/gymnasium.md; `max_turns` replaces its own limit of steps."""

    def __init__(
        self,
        id: str = "FrozenLake-v1",
        kwargs: Mapping[str, Any] | None = None,
        action_names: Sequence[Any] | None = None,
        goal: str = "",
        success: str | float | None = None,
        show: Show = "auto",
        max_turns: int | None = None,
        describe: str | Callable[[Any, Any], str] | None = None,
    ):
        self.where = f"gymnasium environment {id!r}"
        if show not in get_args(Show):
            raise TurnwiseError(f"{self.where}: show is one of {', '.join(get_args(Show))}, not {show!r}")
        words = words_for(id) if describe is None else described_by(describe, words_for(id))
        self._env, self.show = self._open(id, dict(kwargs or {}), show, words)
        self._words = words = words or recognised(self._env)
        self._goal = goal or (words.goal if words else "")
        names = action_names if action_names is not None or words is None else words.actions
        self._actions = actions_of(self._env.action_space, names, self.where)
        self._check_words()
        self._success = Success(success if success is not None else words.success if words else "reward", self.where)
        own_limit = self._env.spec.max_episode_steps if self._env.spec is not None else None
        self.max_turns = turn_limit(max_turns, self.where) if max_turns is not None else int(own_limit or MAX_TURNS)
        self._over = "call reset(task) before the first step"
        self._seen: Any = None
        self._info: Mapping[str, Any] = {}
        self._return, self._turns = 0.0, 0

    def _open(self, id: str, kwargs: dict[str, Any], show: Show, words: Words | None) -> tuple[Any, Show]:
        gymnasium = load("gymnasium", "the adapter for Gymnasium", "gymnasium")

        def make(**more: Any) -> Any:
            try:
                if ".py" in id:
                    return load_reference(id, GYM)(**kwargs, **more)
                return gymnasium.make(id, disable_env_checker=True, **{**prepare(id), **kwargs}, **more)
            except TurnwiseError:
                raise
            except Exception as error:  # any error that its author raises for wrong arguments
                given = f" with kwargs {kwargs}" if kwargs else ""
                raise TurnwiseError(f"{self.where} cannot be made{given}: {type(error).__name__}: {error}") from error

        env = make()
        modes = env.metadata.get("render_modes") or ()
        if show == "auto":
            show = "ansi" if words is not None and words.draw and "ansi" in modes else "state"
        if show == "state":
            return env, show
        env.close()
        if RENDER_MODES[show] not in modes:
            raise TurnwiseError(f"{self.where} cannot be shown as {show!r}: its render modes are {', '.join(modes) or 'none'}")
        return make(render_mode=RENDER_MODES[show]), show

    def _check_words(self) -> None:
        """Observations must be shown in some way."""
        space = self._env.observation_space
        described = self._words is not None and self._words.describe is not None
        large = ", ".join(too_large(space))
        if self.show != "state" or described or is_picture(space) or not large:
            return
        self._env.close()
        raise TurnwiseError(
            f"{self.where}: observations of {large} are too large for text. Name a function that describes them, "
            "describe='my_words.py:describe' with def describe(env, observation) -> str, or try show='picture'"
        )

    def reset(self, task: Task, seed: int = 0) -> Observation:
        start = derive(0, "gymnasium task", task.id) % 2**31
        if self._words is not None and self._words.seed is not None:
            self._words.seed(self._env.unwrapped, start)
        self._seen, self._info = self._env.reset(seed=start)
        chance = derive(seed, "gymnasium chance", task.id)
        self._env.unwrapped.np_random = np.random.Generator(np.random.PCG64(chance))
        self._over, self._return, self._turns = "", 0.0, 0
        goal = self._goal
        if not goal and self._words is not None and self._words.mission is not None:
            goal = self._words.mission(self._env.unwrapped)
        return self._observe(f"Your task is: {goal}" if goal else "")

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(f"{self.where}: {self._over}")
        self._turns += 1
        choice = self._actions.read(well_formed(action))
        if choice is None:
            return self._result(0.0, False, self._turns >= self.max_turns, NOT_UNDERSTOOD)
        self._seen, reward, terminated, truncated, self._info = self._env.step(choice)
        return self._result(float(reward), bool(terminated), bool(truncated) or self._turns >= self.max_turns, "")

    def _result(self, reward: float, terminated: bool, truncated: bool, remark: str) -> Transition:
        self._return += reward
        done = terminated or truncated
        if done:
            self._over = "the episode is over: call reset(task) before the next step"
        success = done and self._success.of(reward, self._return, terminated, self._info)
        info = {**plain_values(self._info), "understood": not remark, "truncated": truncated and not terminated}
        return Transition(self._observe(remark), reward, done, success, info)

    def _observe(self, remark: str) -> Observation:
        """The state as text. A remark is shown to the agent but is not part of the anchor: it does not change the state."""
        picture = self._picture()
        state = "" if picture else self._state()
        text = "\n".join(part for part in (remark, state or "The picture shows the state.") if part)
        if self._words is not None and self._words.anchor is not None:
            return Observation(text, picture, self._admissible(), self._words.anchor(self._env.unwrapped))
        return Observation(text, picture, self._admissible(), picture[0] if picture else state if remark else None)

    def _state(self) -> str:
        words = self._words
        parts = [drawing(str(self._env.render()))] if self.show == "ansi" else []
        if words is not None and words.describe is not None:
            text = words.describe(self._env.unwrapped, self._seen)
            if not isinstance(text, str):
                raise TurnwiseError(f"{self.where}: the function describe(env, observation) returned {type(text).__name__}, not text")
            parts.append(text)
        return "\n".join(parts) or words_of(self._seen)

    def _picture(self) -> tuple[Any, ...]:
        if self.show == "picture":
            pixels = np.asarray(self._env.render())
        elif self._words is not None and self._words.describe is not None:
            return ()
        elif self.show == "state" and is_picture(self._env.observation_space):
            pixels = np.asarray(self._seen)
        else:
            return ()
        colours = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, :3]
        return (np.ascontiguousarray(colours, np.uint8),)

    def _admissible(self) -> tuple[str, ...] | None:
        mask = self._info.get("action_mask")
        if mask is not None and isinstance(self._actions, Named):
            return self._actions.allowed(mask)
        return self._actions.names

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        self._env.close()
