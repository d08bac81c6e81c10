"""TextWorld-Express: eight small text games, generated from a seed in a Java process.

    tw.make("textworld-express", games=["coin", "twc"])
    tw.make("textworld-express", games="coin", params={"numLocations": 5, "includeDoors": 0})

A task is one seed of one game, and the splits are the package's own folds: each has a thousand seeds per game, and other things to find and
to name. All environments of a Python process share one Java process. A game has no dice: the attempt's seed does nothing. There are no
snapshots: a branch replays its actions, which is exact and takes less than a millisecond per action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.third_party import turn_limit, well_formed
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive
from turnwise_envs.shared.curious import Curious
from turnwise_envs.shared.java import Java, lease, require
from turnwise_envs.shared.java_wire import Ref
from turnwise_envs.shared.packages import load

NAME = "textworld-express"
SOLVERS = {  # the package's class that plays each game; it takes its own random generator otherwise, so no solution would be found twice
    "arithmetic": "Arithmetic",
    "coin": "Coin",
    "cookingworld": "CookingWorld",
    "mapreader": "MapReader",
    "peckingorder": "PeckingOrder",
    "simonsays": "SimonSays",
    "sorting": "Sorting",
    "twc": "TWC",
}
GAMES = tuple(SOLVERS)
PROBLEMS = "textworldexpress.data.SortingProblemGenerator$"  # whose things to sort are the same objects in every game
PROBLEM = "textworldexpress.preprocessing.SortingProblem"
TRIES = 50  # to solve a game, as the package does
SOLUTIONS = 3  # of which the shortest is taken
FOLDS = {"train": ("train", 0), "valid": ("dev", 10_000), "test": ("test", 20_000)}  # the package's name of a split, and its first seed
SEEDS = 1000
MAX_TURNS = 100
LONGEST = 1000  # characters of a command that the program is given
OPTIONS = ("-XX:+ExitOnOutOfMemoryError",)
HIDDEN = ("seed", "gameSet", "hidden_", "actual")  # what a game tells of itself that is not a setting
Anchor = Literal["state", "observation"]


class TextWorldExpressEnv:
    """Games of TextWorld-Express. `games`: those that are played, all eight if none are named. `params`: the settings of a single game, as
    the package names them. `anchor`: "state" (what is seen and carried, and the score) or "observation". `seconds`: the time limit of a
    call into Java. `heap_mb`: the memory that Java may use for all environments of a process. The reward is the gain in score; a full score
    is 1."""

    def __init__(
        self,
        games: Sequence[str] | str | None = None,
        params: Mapping[str, int] | None = None,
        anchor: Anchor = "state",
        max_turns: int = MAX_TURNS,
        seconds: float = 60.0,
        heap_mb: int = 1024,
    ):
        package = load("textworld_express.constants", "the adapter for TextWorld-Express", NAME)
        require(NAME)
        self.games = (games,) if isinstance(games, str) else tuple(games or GAMES)
        for game in self.games:
            if game not in GAMES:
                raise unknown_name("game of TextWorld-Express", game, GAMES)
        if anchor not in get_args(Anchor):
            raise TurnwiseError(f"{NAME}: anchor is state or observation, not {anchor!r}")
        if not seconds > 0 or heap_mb < 64:
            raise TurnwiseError(f"{NAME}: seconds must be positive and heap_mb at least 64, not {seconds!r} and {heap_mb!r}")
        self.params = dict(params or {})
        if self.params and len(self.games) != 1:
            raise TurnwiseError(f"{NAME}: params are the settings of one game: name it, as in games='coin'")
        if wrong := [key for key, value in self.params.items() if isinstance(value, bool) or not isinstance(value, int)]:
            raise TurnwiseError(f"{NAME}: params are integers, as in numLocations=5; {wrong[0]} is {self.params[wrong[0]]!r}")
        self.anchor, self.max_turns = anchor, turn_limit(max_turns, NAME)
        self._start = (str(Path(package.JAR_PATH)), (*OPTIONS, f"-Xmx{heap_mb}m"))
        self._seconds = seconds
        self._java: Java | None = None
        self._server = Ref()
        self._over = "call reset(task) before the first step"
        self._task: Task | None = None
        self._actions: list[str] = []
        self._plans: dict[str, list[str]] = {}
        self._state: Mapping[str, Any] = {}
        self._curious = Curious()

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """One task per seed, the games in turn."""
        if split not in FOLDS:
            raise unknown_name("split of TextWorld-Express:", split, FOLDS)
        games, first = self.games, FOLDS[split][1]

        def task(index: int) -> Task:
            game, seed = games[index % len(games)], first + index // len(games)
            return Task(f"{game}/{seed}", split, {"game": game, "seed": seed})

        count = SEEDS * len(games)
        if n is not None and n > count:
            raise TurnwiseError(f"{NAME}: {split} has {count:,} tasks, fewer than n={n}")
        return TaskSet.lazy(count if n is None else n, task, f"{NAME}/{split}")

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._over, self._task, self._actions = "call reset(task) before the first step", None, []
        self._state = self._begin(task)
        self._task, self._over, self._curious = task, "", Curious()
        goal = " ".join(str(self._ask("getTaskDescription")).split())
        goal = goal if goal.lower().startswith("your") else f"Your task is: {goal}"
        return self._observation(f"{goal}\n")

    def _begin(self, task: Task) -> Mapping[str, Any]:
        """Start a task, in a new Java process if the last one is gone."""
        game, fold, number = place_of(task)
        if self._java is None or self._java.closed:
            self._java = lease(NAME, *self._start, self)
            self._java.seconds = self._seconds
            self._server = Ref()
        if not self._server:
            self._server = self._java.new("textworldexpress.runtime.PythonInterface")
        if game == "sorting":
            _renewed(self._java, fold, number)
        if message := self._ask("load", game, ",".join(f"{key}={value}" for key, value in sorted(self.params.items()))):
            raise TurnwiseError(f"{NAME}: {game} with {self.params or 'its defaults'}: {message}")
        found: dict[str, Any] = json.loads(str(self._ask("generateNewGameJSON", number, fold, False)))
        self._known_params(game)
        return found

    def _known_params(self, game: str) -> None:
        if not self.params:
            return
        made = json.loads(str(self._ask("getGenerationPropertiesJSON")))
        known = [key for key in made if not key.startswith(HIDDEN)]
        for key, value in self.params.items():
            if key not in made:
                raise unknown_name(f"setting of {game} in TextWorld-Express:", key, known)
            if made[key] != value:
                raise TurnwiseError(f"{NAME}: {game} has {key}={made[key]}, not {value}: it does not allow that value")

    def _ask(self, method: str, *arguments: Any) -> Any:
        assert self._java is not None
        return self._java.call(self._server, method, *arguments)

    def step(self, action: str) -> Transition:
        if self._over or self._task is None:
            raise EpisodeOver(f"{NAME}: {self._over}")
        if self._java is None or self._java.closed:
            self._again(self._task)
        command = " ".join(well_formed(action).split())[:LONGEST]
        before = float(self._state["score"])
        try:
            self._state = json.loads(str(self._ask("stepJSON", command)))
        except TurnwiseError:
            self._over = "the program failed: call reset(task) before the next step"
            raise
        self._actions.append(command)
        success = bool(self._state["tasksuccess"])
        ended = success or bool(self._state["taskfailure"])
        if ended or len(self._actions) >= self.max_turns:
            self._over = "the game is over: call reset(task) before the next step"
        info = {"score": float(self._state["score"]), "truncated": bool(self._over) and not ended}
        return Transition(self._observation(), float(self._state["score"]) - before, bool(self._over), success, info)

    def _again(self, task: Task) -> None:
        """Another environment's call has ended the Java process: this attempt is played again in a new one."""
        self._begin(task)
        for action in self._actions:
            self._ask("stepJSON", action)

    def _observation(self, opening: str = "") -> Observation:
        state = self._state
        text = str(state["observation"]).strip()
        anchor: bytes | str | None = text if opening else None
        if self.anchor == "state":
            parts = [str(state[part]) for part in ("look", "inventory", "scoreRaw")]
            anchor = blake2b("\x00".join(parts).encode(), digest_size=16).digest()
        return Observation(opening + text, actions=tuple(sorted(set(state["validActions"]))), anchor=anchor)

    def expert(self, task: Task) -> list[str]:
        """The package's own solution, up to the action that wins. The attempt being played is left as it was."""
        if task.id not in self._plans:
            planner = TextWorldExpressEnv(self.games, self.params, self.anchor, self.max_turns, self._seconds)
            planner._start = self._start
            try:
                self._plans[task.id] = planner._solved(task)
            finally:
                planner.close()
        return self._plans[task.id]

    def _solved(self, task: Task) -> list[str]:
        """The shortest of a few solutions, or of more if all of them are longer than an attempt may be: the package's player wanders."""
        found: list[list[str]] = []
        for number in range(TRIES):
            self._begin(task)
            plan = self._played(task, number)
            self._begin(task)
            for turn, action in enumerate(plan, 1):
                if json.loads(str(self._ask("stepJSON", action)))["tasksuccess"]:
                    found.append(plan[:turn])
                    break
            if len(found) >= SOLUTIONS and min(map(len, found)) <= self.max_turns:
                break
        if not found:
            raise TurnwiseError(f"{NAME}: the package does not solve task {task.id!r}")
        return min(found, key=len)

    def _played(self, task: Task, number: int) -> list[str]:
        """The actions of the package's own player in the game that was just made."""
        java = self._java
        assert java is not None
        game = self._ask("game")
        player = java.new(f"textworldexpress.goldagent.{SOLVERS[place_of(task)[0]]}GoldAgent", game)
        chance = java.new("scala.util.Random", derive(number, NAME, task.id) % 2**31)
        found = java.call(player, "mkGoldPath", chance)
        names = java.call(found, "_2")
        self._ask("goldPath_$eq", names)  # whose list can be read at once
        for ref in (game, player, chance, found, names):
            java.forget(ref)
        return java.texts(self._server, "getGoldActionSequence")

    def scripted_action(self) -> str | None:
        """The listed action that was tried least in what is seen here."""
        if self._over or not self._state:
            return None
        return self._curious.choose(str(self._state["look"]), tuple(sorted(set(self._state["validActions"]))))

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        java, self._java = self._java, None
        if java is not None:
            if self._server:
                java.forget(self._server)
            java.leave(self)


def place_of(task: Task) -> tuple[str, str, int]:
    """The game of a task, its fold and its seed."""
    game, seed = task.data.get("game"), task.data.get("seed")
    if not isinstance(game, str) or game not in GAMES or isinstance(seed, bool) or not isinstance(seed, int):
        raise TurnwiseError(f"task {task.id!r} is not a task of TextWorld-Express: its data names no game and seed")
    fold = next((fold for fold, first in FOLDS.values() if first <= seed < first + SEEDS), None)
    if fold is None:
        raise TurnwiseError(f"task {task.id!r}: TextWorld-Express has no seed {seed}")
    return game, fold, seed


def _renewed(java: Java, fold: str, seed: int) -> None:
    """Put a new copy of a problem into the program's table of problems: games that were made before keep the old one."""
    arrays, shelf = "java.lang.reflect.Array", java.shelf
    if not shelf:
        table = java.field(f"z:{PROBLEMS}", "MODULE$")
        shelf.update({known: java.call(table, f"{known}Set") for known, _ in FOLDS.values()})
        kind = java.static("java.lang.Class", "forName", PROBLEM)
        shelf["items"] = java.call(kind, "getDeclaredField", "inputItems")
        java.call(shelf["items"], "setAccessible", True)
    place = seed % int(java.static(arrays, "getLength", shelf[fold]))
    old = java.static(arrays, "get", shelf[fold], place)
    items = java.call(shelf["items"], "get", old)
    new = java.new(PROBLEM, items)
    java.static(arrays, "set", shelf[fold], place, new)
    for ref in (old, items, new):
        java.forget(ref)
