"""MiniHack and NetHack as environments: NetHack's screen as text, its keys as words."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive
from turnwise_envs.minihack import tasks as known
from turnwise_envs.minihack.explore import Explorer, wander
from turnwise_envs.minihack.words import NEIGHBOURS, Show, choices, described, key, text_of
from turnwise_envs.shared.task_cycle import in_turn

GAMES = 4  # kinds of tasks that are kept open
MOST_LISTED = 24  # actions
ESCAPE = "escape"

Reward = Literal["success", "task"]


class MiniHackEnv:
    """The tasks of MiniHack. An action is a word: a compass direction, or a command that the task allows, such as kick, open or apply.
    A question of the game is answered with one of its letters.

    `levels`: a task, a set ("easy", "navigation", "skills", "all") or a list. `show`: what is seen as words, as NetHack's map, or both.
    `reward`: 1 for success, or the package's reward ("task"). `max_turns` replaces the limit of turns.
    """

    nethack = False
    max_turns = 100
    instructions = (
        "You play NetHack. You are the hero; positions are in steps from you. You move in eight directions: north, northeast, east and "
        "so on. To fight a monster, move towards it. A closed door opens when you walk into it; you cannot walk through it diagonally. "
        "If the game asks a question, answer it with a letter or a direction."
    )

    def __init__(
        self,
        levels: Sequence[str] | str = "easy",
        show: Show = "words",
        reward: Reward = "success",
        max_turns: int | None = None,
    ):
        for what, value, allowed in (("show", show, Show), ("reward", reward, Reward)):
            if value not in get_args(allowed):
                raise unknown_name(f"{what} of minihack:", str(value), get_args(allowed))
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1):
            raise TurnwiseError(f"minihack: max_turns must be an integer from 1, not {max_turns!r}")
        self.levels, self._ids = known.chosen(levels, self.nethack), known.known(self.nethack)
        self.show, self.reward, self.max_turns = show, reward, max_turns or type(self).max_turns
        self._games: OrderedDict[str, Any] = OrderedDict()
        self._game: Any = None
        self._names: Mapping[str, int] = {}
        self._seen: Mapping[str, Any] = {}
        self._turn = 0
        self._explorer = Explorer()
        self._over = "step() was called before reset(): call reset(task) first"

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The tasks in turn, each with the seeds of its split."""
        return in_turn("minihack", self.levels, split, n, "level")

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        """Start a task. The task fixes the level and the hero; the seed drives NetHack's dice from then on."""
        name, number = task.data.get("level"), task.data.get("seed")
        if not isinstance(name, str) or name not in self._ids or isinstance(number, bool) or not isinstance(number, int):
            raise TurnwiseError(f"task {task.id!r} is not a task of this environment: its data has no known level and seed")
        self._over = "the last reset failed: call reset(task) first"
        self._game = self._opened(name)
        start = derive(0, "minihack task", name, number) % 2**31
        with known.seeded(start):
            known.seed_game(self._game, start)
            self._seen, _ = self._game.reset()
        dice = derive(seed, "minihack dice", task.id) % 2**31
        self._game.nethack.set_current_seeds(dice, dice, False)
        self._names = known.action_names(self._game.actions)
        self._explorer, self._turn, self._over = Explorer(), 0, ""
        return self._see(f"Your task is: {known.goal(name)}.")

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        self._turn += 1
        index = self._read(action)
        if index is None:
            listed = ", ".join(list(self._names)[:MOST_LISTED])
            return Transition(self._see(f"That is not an action here. Some actions are: {listed}."), info={"understood": False})
        with known.seeded(self._turn):
            self._seen, reward, done, truncated, info = self._game.step(index)
        success = getattr(info.get("end_status"), "name", "") == "TASK_SUCCESSFUL"
        if done or truncated:
            self._over = f"the attempt is over ({'success' if success else 'it failed'}): call reset(task) before the next step"
        given = float(reward) if self.reward == "task" else float(success)
        if self._over:  # the package gives an empty screen
            said = text_of(self._seen["message"])
            end = Observation("\n".join(filter(None, [said, "You did it." if success else "You failed."])))
            return Transition(end, given, True, success, {"understood": True})
        return Transition(self._see(""), given, False, False, {"understood": True})

    def _read(self, text: str) -> int | None:
        """The index of an action: its word in any case, or the character of its key."""
        word = text.strip()
        if len(word) == 1:
            keys = (index for index in self._names.values() if int(self._game.actions[index]) == ord(word))
            return next(keys, None)
        return self._names.get(" ".join(word.casefold().split()).rstrip("."))

    def _see(self, remark: str) -> Observation:
        moves = set(self._names) <= set(NEIGHBOURS)
        text = described(self._seen, self.show, inventory=not moves)
        return Observation(f"{remark}\n{text}" if remark else text, actions=self._listed(), anchor=key(self._seen, self._asking))

    @property
    def _asking(self) -> bool:
        """Whether the game waits for an answer."""
        inner = self._game.last_observation[self._game._internal_index]
        return bool(inner[1] or inner[2])

    def _listed(self) -> tuple[str, ...] | None:
        """The actions, if they are few."""
        if self._asking:
            letters = [letter for letter in choices(text_of(self._seen["message"])) if self._read(letter) is not None]
            if letters:
                return (*letters, *((ESCAPE,) if ESCAPE in self._names else ()))
        return tuple(self._names) if len(self._names) <= MOST_LISTED else None

    def _opened(self, name: str) -> Any:
        """The game of a task. A few are kept open: opening one compiles its level."""
        if name in self._games:
            self._games.move_to_end(name)
            return self._games[name]
        while len(self._games) >= GAMES:
            self._games.popitem(last=False)[1].close()
        self._games[name] = known.opened(self._ids[name])
        return self._games[name]

    # -- agents -------------------------------------------------------------------------------------------------------------------

    def expert_action(self) -> str | None:
        """A step of the explorer, which finds stairs; None if the task wants something else or it has no idea."""
        if self._over or self._game is None or not set(NEIGHBOURS) <= set(self._names):
            return None
        return self._explorer.act(self._seen, self._names)

    def scripted_action(self) -> str:
        """Walk straight to the stairs if they are in view, otherwise anywhere."""
        if self._over:
            raise EpisodeOver(self._over)
        return wander(self._seen, self._names, self._turn)

    def close(self) -> None:
        for game in self._games.values():
            game.close()
        self._games.clear()
        self._game = None
        self._over = "the environment was closed: call reset(task) first"


class NetHackEnv(MiniHackEnv):
    """NetHack itself, with the tasks of the package nle. The reward is the package's; most tasks have no success."""

    nethack = True
    max_turns = 500

    def __init__(
        self,
        levels: Sequence[str] | str = "NetHackStaircase",
        show: Show = "words",
        reward: Reward = "task",
        max_turns: int | None = None,
    ):
        super().__init__(levels, show, reward, max_turns)
