"""Wrappers: other ways to play any environment. A method registers those that it consists of.

    @wrapper(option="parallel")               every environment takes the option, as in make("household", parallel=4), unless it has one of
    class Parallel:                           that name itself
        def __init__(self, factory, copies): …
        def __call__(self): return ParallelEnv([self.factory() for _ in range(self.copies)])

    @wrapper(need="env.expert_action")        applied where a stage of the run declares this need; made with the factory alone

A wrapper is made from a factory of environments and is one itself. It can be sent to worker processes. `Around` and `Instead` are bases of
the environments that it makes.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Any, TypeVar

from turnwise.config import plugins
from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_snapshot, read_transition
from turnwise.envs.base import EpisodeOver, Observation, Restorable, Transition
from turnwise.envs.episodes import CLOSED, NOT_BEGUN
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError

Factory = Callable[[], Any]
Made = TypeVar("Made", bound=Callable[..., Factory])
OF_TASKS = ("tasks", "max_turns", "instructions", "reward_range", "splits")  # what stays, however an environment is played

_by_option: dict[str, Callable[[Factory, Any], Factory]] = {}
_by_need: dict[str, Callable[[Factory], Factory]] = {}


def wrapper(*, option: str = "", need: str = "") -> Callable[[Made], Made]:
    """Decorator of a wrapper: which option of an environment asks for it, or which need of a stage."""

    def add(made: Made) -> Made:
        if option:
            _by_option[option] = made
        if need:
            _by_need[need] = made
        return made

    return add


def split_options(options: Mapping[str, Any], parameters: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of an environment with these parameters, and those that ask for wrappers."""
    own = dict(options)
    others = [name for name in options if name not in parameters]
    if any(name not in _by_option for name in others):
        plugins.load_folders()
    return own, {name: own.pop(name) for name in _by_option if name in others}


def wrapped(factory: Factory, values: Mapping[str, Any]) -> Factory:
    """The factory within the wrappers that these options ask for."""
    for option, value in values.items():
        factory = _by_option[option](factory, value)
    return factory


def meeting(needs: Collection[str]) -> Callable[[Factory], Factory] | None:
    """The wrappers that meet some of these needs, as one; None if no need asks for a wrapper."""
    if any(need.startswith("env.") and need not in _by_need for need in needs):
        plugins.load_folders()
    wrappers = [made for need, made in _by_need.items() if need in needs]
    return (lambda factory: reduce(lambda inner, made: made(inner), wrappers, factory)) if wrappers else None


class Around:
    """An environment around another one. Whatever it does not define itself is the other's own."""

    def __init__(self, env: Any):
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # asked before __init__ has run: while it is copied
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        return read_observation(self._env.reset(task, seed), self._env)

    def step(self, action: str) -> Transition:
        return read_transition(self._env.step(action), self._env)


class Instead:
    """An environment that shows other texts than those inside it, or takes other actions. Tasks, limits and instructions are those of the
    first one inside. It has an expert and snapshots if that has them: write `_expert`, `_expert_action`, `_snapshot` and `_restore`."""

    option = ""  # what asks for it, and what is shown then, as messages say it
    shown = ""

    def __init__(self, *envs: Any):
        self._envs, self._over = envs, NOT_BEGUN
        for name in ("expert", "expert_action"):
            if callable(getattr(envs[0], name, None)):
                setattr(self, name, getattr(self, f"_{name}"))
        if isinstance(envs[0], Restorable):
            self.snapshot, self.restore = self._snapshot, self._restore

    def __getattr__(self, name: str) -> Any:
        if name in OF_TASKS:
            return getattr(self._envs[0], name)
        raise AttributeError(name)

    def _snapshot(self) -> bytes | None:
        raise NotImplementedError

    def _restore(self, state: bytes) -> Observation:
        raise NotImplementedError

    def close(self) -> None:
        for env in self._envs:
            if callable(closing := getattr(env, "close", None)):
                closing()
        self._over = CLOSED

    def _check_going(self) -> None:
        if self._over:
            raise EpisodeOver(self._over)

    def _text_only(self, seen: Observation) -> Observation:
        """The observation; an error if it is more than a text for one player."""
        if seen.images:
            raise TurnwiseError(f"{self.shown} are shown as text: set observe to text, or leave out the option {self.option}")
        if seen.seat:
            fixed = "choose a fixed opponent instead of self-play"
            raise TurnwiseError(f"{self.shown} are for one player: {fixed}, or leave out {self.option}")
        return seen


def state_around(env: Any, kind: str, state: Any, value: int) -> bytes | None:
    """A snapshot: the state of a wrapper, which was made with this value of its option, and that of the environment inside."""
    inside = read_snapshot(env.snapshot(), env)
    return None if inside is None else pack(kind, {"at": state, "state": b64encode(inside).decode()}, {kind: value})


def restored_around(env: Any, kind: str, state: bytes, value: int) -> tuple[Observation, Any]:
    """What the environment inside shows after its part of a snapshot was restored, and the state of the wrapper."""
    saved = unpack(state, kind, {kind: value})
    with restoring(kind):
        inside, at = b64decode(saved["state"]), saved["at"]
    return read_observation(env.restore(inside), env, "restore"), at


def expert_target(env: Any, actions: int) -> str | None:
    """The last of the expert's next actions; the next one where the environment cannot return to this state."""
    act = last = env.expert_action()
    state = read_snapshot(env.snapshot(), env) if isinstance(env, Restorable) else None
    for _ in range(actions - 1 if state is not None and act is not None else 0):
        if read_transition(env.step(act), env).done or (act := env.expert_action()) is None:
            break
        last = act
    if state is not None:
        env.restore(state)
    return None if last is None else str(last)
