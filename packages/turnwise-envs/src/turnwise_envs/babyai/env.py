"""BabyAI as an environment: the package's levels as text, its bot as the expert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.babyai import levels as known
from turnwise_envs.babyai.bot import Guide
from turnwise_envs.babyai.scripted import Walker
from turnwise_envs.babyai.state import World
from turnwise_envs.babyai.words import ACTIONS, FORWARD, Place, Scene, cell_at, described, partial_view, scene, seen_from, thing
from turnwise_envs.shared.task_cycle import in_turn

WAIT = 6  # the package's action "done", which changes nothing
NAMES = {**{name: number for number, name in enumerate(ACTIONS)}, "left": 0, "right": 1, "forward": 2, "pickup": 3}

View = Literal["partial", "room"]
Reward = Literal["success", "speed"]
Knows = Literal["seen", "all"]


class BabyAIEnv:
    """The levels of BabyAI. An action is one of six: turn left, turn right, go forward, pick up, drop, toggle.

    `levels`: a level, a set ("easy", "medium", "hard", "all") or a list. `view`: the 7 × 7 cells in front of the agent ("partial") or the
    whole room that it is in ("room"). `reward`: 1 for success, or less the longer it took ("speed", as in the package).
    `expert_knows`: what was seen so far, as the package's bot does, or "all". `max_turns` replaces the limit of the levels' set.
    """

    instructions = (
        "You are in a room of a grid world. You see what is in front of you, up to walls and closed doors. "
        f"The actions are {', '.join(ACTIONS[:-1])} and {ACTIONS[-1]}. "
        "To pick up, drop or toggle, face the cell: it is 1 step forward. Toggle opens and closes doors and opens boxes. "
        "A locked door opens if you carry the key of its colour. You can carry one thing. To go to a thing is to face it."
    )

    _key: bytes  # of the state, once a task was started, like the following
    _scene: Scene
    _seen: Any
    _guide: Guide
    _walker: Walker

    def __init__(
        self,
        levels: Sequence[str] | str = "easy",
        view: View = "partial",
        reward: Reward = "success",
        expert_knows: Knows = "seen",
        max_turns: int | None = None,
    ):
        for what, value, choices in (("view", view, View), ("reward", reward, Reward), ("expert_knows", expert_knows, Knows)):
            if value not in get_args(choices):
                raise unknown_name(f"{what} of babyai:", str(value), get_args(choices))
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1):
            raise TurnwiseError(f"babyai: max_turns must be an integer from 1, not {max_turns!r}")
        known.load()
        self.levels = known.chosen(levels)
        self.view, self.reward, self.expert_knows = view, reward, expert_knows
        self.max_turns = max_turns or known.turns(self.levels)
        self._task: Task | None = None
        self._world: World | None = None
        self._over = "step() was called before reset(): call reset(task) first"
        self._remark = ""

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The levels in turn, each with the seeds of its split."""
        return in_turn("babyai", self.levels, split, n, "level")

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        """Start a task. After that nothing is random, so the seed has no effect."""
        level = self._start(task).level
        return self._see(level.gen_obs(), f"Your task is: {level.mission}.")

    def step(self, action: str) -> Transition:
        world = self._playing
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        number = NAMES.get(" ".join(action.casefold().split()).rstrip("."))
        before = self._key
        seen, reward, terminated, truncated, _ = world.level.step(WAIT if number is None else number)
        self._key = world.key()
        success = bool(terminated and reward > 0)
        self._guide.took(WAIT if number is None else number)
        if terminated or truncated:
            self._over = (
                f"the attempt is over ({'mission accomplished' if success else 'it failed'}): call reset(task) before the next step"
            )
        remark = "" if number is not None else f"That is not an action. The actions are: {', '.join(ACTIONS)}."
        if number is not None and not terminated and self._key == before:
            remark = "Nothing happens."
        elif terminated or truncated:
            remark = "You did it." if success else "You failed." if terminated else "The time is up."
        given = float(reward) if self.reward == "speed" else float(success)
        info = {"understood": number is not None, "level": str(self._task.data["level"]) if self._task else ""}
        return Transition(self._see(seen, remark), given, bool(terminated or truncated), success, info)

    @property
    def _playing(self) -> World:
        if self._world is None or self._over:
            raise EpisodeOver(self._over)
        return self._world

    def _start(self, task: Task) -> World:
        name, seed = task.data.get("level"), task.data.get("seed")
        if not isinstance(name, str) or isinstance(seed, bool) or not isinstance(seed, int):
            raise TurnwiseError(f"task {task.id!r} is not a BabyAI task: its data has no level and seed")
        (name,) = known.chosen(name)[:1]
        level = known.make(name)
        level.reset(seed=seed)
        self._task, self._world, self._over = task, World(level), ""
        self._key = self._world.key()
        self._seen = np.zeros((level.width, level.height), bool)
        self._guide, self._walker = Guide(level), Walker(level.mission)
        return self._world

    def _see(self, given: Mapping[str, Any], remark: str) -> Observation:
        self._remark, self._scene = remark, self._looked(given["image"])
        text = described(self._scene)
        return Observation(f"{remark}\n{text}" if remark else text, actions=ACTIONS, anchor=self._key)

    def _looked(self, image: Any) -> Scene:
        """What the agent sees; the cells are remembered as seen."""
        assert self._world is not None
        level, pose = self._world.level, self._world.pose
        columns, rows = np.nonzero(image[:, :, 0])
        x, y = cell_at(pose, (image.shape[1] - 1 - rows, columns - image.shape[0] // 2))
        inside = (x >= 0) & (x < level.width) & (y >= 0) & (y < level.height)
        self._seen[x[inside], y[inside]] = True
        if self.view == "partial":
            return partial_view(image)
        cells = dict(_room(level, pose))
        for cell in cells:
            self._seen[cell] = True
        carried = None if level.carrying is None else thing(level.carrying.encode(), (0, 0))
        return scene(((seen_from(pose, cell), code) for cell, code in cells.items()), carried)

    # -- agents -------------------------------------------------------------------------------------------------------------------

    def expert_action(self) -> str | None:
        """What the package's bot would do now; None if it does not know."""
        if self._world is None or self._over:
            return None
        advice = self._guide.advise(np.ones_like(self._seen) if self.expert_knows == "all" else self._seen)
        return None if advice is None else ACTIONS[advice]

    def scripted_action(self) -> str:
        """Walk straight to what the mission names if it is in view, otherwise wander."""
        turn = int(self._playing.level.step_count)
        return ACTIONS[self._walker.act(self._scene, turn)]

    # -- states -------------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The task, the state of all objects and of the mission, and which cells were seen."""
        world = self._playing
        assert self._task is not None
        state = {"task": self._task.to_json(), "state": world.state(), "details": world.details(), "remark": self._remark}
        return pack("babyai", state | {"seen": np.packbits(self._seen).tobytes().hex()}, self._options())

    def restore(self, state: bytes) -> Observation:
        """Continue where a snapshot was taken. The expert plans again."""
        kept = unpack(state, "babyai", self._options())
        with restoring("babyai"):
            world = self._start(Task.from_json(kept["task"]))
            self._over = "the snapshot could not be restored: call reset(task) first"
            world.put(kept["state"], kept["details"])
            bits = np.frombuffer(bytes.fromhex(kept["seen"]), np.uint8)
            self._seen = np.unpackbits(bits, count=self._seen.size).astype(bool).reshape(self._seen.shape)
            remark = str(kept["remark"])
        self._over, self._key = "", world.key()
        return self._see(world.level.gen_obs(), remark)

    def _options(self) -> dict[str, Any]:
        """What the observation and the rewards depend on in addition to the state."""
        return {"view": self.view, "reward": self.reward}

    def close(self) -> None:
        self._task = self._world = None
        self._over = "the environment was closed: call reset(task) first"


def _room(level: Any, pose: tuple[int, int, int]) -> Iterator[tuple[Place, Sequence[int]]]:
    """The cells of the room around the agent with what is in them: up to walls and doors, which belong to it."""
    start = pose[:2]
    found, waiting = {start}, [start]
    while waiting:
        cell = waiting.pop()
        content = level.grid.get(*cell)
        if cell != start:
            yield cell, (1, 0, 0) if content is None else content.encode()
        if cell != start and content is not None and content.type in ("wall", "door"):
            continue
        for dx, dy in FORWARD:
            near = (cell[0] + dx, cell[1] + dy)
            if near not in found and 0 <= near[0] < level.width and 0 <= near[1] < level.height:
                found.add(near)
                waiting.append(near)
