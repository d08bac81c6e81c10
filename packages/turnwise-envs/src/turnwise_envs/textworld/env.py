"""TextWorld's games: generated ones, and files of your own, played by the `textworld` package.

    tw.make("textworld")                                       # coin, treasure and cooking games, made on demand
    tw.make("textworld", game="cooking", levels=[1, 2])
    tw.make("textworld", game="cooking", knobs={"recipe": 2, "take": 2, "go": 6, "cut": True})
    tw.make("textworld", games="games/")                       # a folder; its folders train/, valid/ and test/ are splits
    tw.make("textworld", games="games/one.z8")

A generated game is a task `kind/level/seed`. Its seed decides its split, it is made when it is first played (textworld_games.py), and it is
told in plain sentences (textworld_words.py).

A folder without folders for splits is split by the games' names, four fifths for training, a tenth each for validation and test: a game
stays in its split when others are added. Next to a `.z8` game there is a `.json` file that describes it; such a pair is one game. A `.json`
game on its own has no texts, so the agent is shown the facts that hold in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.registry import NUMBERED_DECADES, NUMBERED_SPLITS
from turnwise.envs.third_party import turn_limit, well_formed
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive
from turnwise_envs.shared.curious import Curious
from turnwise_envs.shared.packages import load
from turnwise_envs.textworld.games import KINDS, KNOBS, LIMIT_MB, Cache, Wanted, numbers, wanted
from turnwise_envs.textworld.words import MadeGame

ENDINGS = (".z8", ".z5", ".z3", ".z4", ".z6", ".z7", ".ulx", ".tw-pddl", ".json")
MAX_TURNS = 100
WANTED = ("admissible_commands", "score", "max_score", "won", "lost", "objective", "policy_commands", "facts", "inventory", "description")
Reward = Literal["score", "won"]
Anchor = Literal["observation", "state"]
Goal = Literal["brief", "detailed"]
USUAL = ("coin", "treasure", "cooking")


def default_games() -> Path | None:
    """The path in TEXTWORLD_GAMES, if it exists."""
    path = Path(os.environ.get("TEXTWORLD_GAMES", "")).expanduser()
    return path if os.environ.get("TEXTWORLD_GAMES") and path.exists() else None


class TextWorldEnv:
    """Generated games, or those of a file or a folder. `game`: kinds of generated games (coin, treasure, cooking, simple). `levels`: their
    levels. `knobs`: settings of cooking instead of a level. `goal`: "brief", or "detailed" with every step of the solution. `games`: your
    own file or folder. `reward`: "score" (the gain in score, as a share of the highest possible score) or "won" (1 for winning). `anchor`:
    "state" (the facts of the game; generated games) or "observation" (files). `cache`: the folder of generated games, and `cache_mb` its
    size. `max_turns`: the turn at which an attempt is cut off."""

    def __init__(
        self,
        games: str | Path | None = None,
        reward: Reward = "score",
        anchor: Anchor | None = None,
        max_turns: int = MAX_TURNS,
        game: str | Sequence[str] | None = None,
        levels: int | Sequence[int] | None = None,
        knobs: Mapping[str, int] | None = None,
        goal: Goal = "brief",
        cache: str | Path | None = None,
        cache_mb: int = LIMIT_MB,
    ):
        if reward not in get_args(Reward) or anchor not in (None, *get_args(Anchor)) or goal not in get_args(Goal):
            raise TurnwiseError(
                f"textworld: reward is one of {get_args(Reward)}, anchor of {get_args(Anchor)}, goal of {get_args(Goal)}; "
                f"got {reward!r}, {anchor!r} and {goal!r}"
            )
        self._textworld = load("textworld", "the adapter for TextWorld", "textworld")
        place = Path(games).expanduser() if games is not None else default_games() if game is None else None
        if games is not None and (game is not None or place is None or not place.exists()):
            said = "give the option game (generated games) or games (your own), not both" if game else f"there is nothing at {games}"
            raise TurnwiseError(f"textworld: {said}. The option games is a game or a folder of games, as is the variable TEXTWORLD_GAMES")
        self.place = place
        self.wanted = None if place is not None else chosen(game, levels, knobs, goal)
        self.cache = Cache(cache, cache_mb)
        self.anchor = anchor or ("state" if place is None else "observation")
        self.reward, self.max_turns = reward, turn_limit(max_turns, "textworld")
        self._game: Any = None
        self._playing: Path | Wanted | None = None
        self._state: Mapping[str, Any] = {}
        self._over = "call reset(task) before the first step"
        self._turns, self._score = 0, 0.0
        self._commands: list[str] = []
        self._curious = Curious()

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """One task per game. The data of a file contains its name and a hash of its content, so that the same game in two splits is
        noticed. Generated games are endless: kinds and levels in turn."""
        if self.wanted is not None:
            return generated(self.wanted, split, n)
        assert self.place is not None
        files = files_of(self.place)
        splits = split_games(self.place, files)
        if split not in splits:
            raise unknown_name(f"split of the games in {self.place}:", split, splits)
        root = self.place if self.place.is_dir() else self.place.parent
        found = splits[split]

        def task(index: int) -> Task:
            path = found[index]
            content = blake2b(path.read_bytes(), digest_size=16).hexdigest()
            return Task(path.relative_to(root).as_posix(), split, {"file": path.relative_to(root).as_posix(), "content": content})

        return TaskSet.lazy(len(found), task, f"textworld/{split}")[:n]

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._start(task)
        if callable(seeding := getattr(self._game, "seed", None)):
            seeding(derive(seed, "textworld", task.id) % 2**31)
        self._state = self._game.reset()
        self._over, self._turns, self._score = "", 0, float(self._state.get("score") or 0)
        self._commands, self._curious = [], Curious()
        return self._observation(first=True)

    def _start(self, task: Task) -> None:
        if "kind" in task.data:
            game = wanted(task)
            if game != self._playing:
                self.close()
                self._game, self._playing = MadeGame(self.cache.get(game)), game
            return
        if self.place is None:
            raise TurnwiseError(f"textworld: task {task.id!r} is not a generated game. Give the option games for a game of your own")
        root = self.place if self.place.is_dir() else self.place.parent
        file = root / str(task.data.get("file", task.id))
        if not file.is_file():
            raise TurnwiseError(f"textworld: task {task.id!r} names the game {file}, which is not there")
        if self._game is not None and file == self._playing:
            return
        self.close()
        infos = self._textworld.EnvInfos(**dict.fromkeys(WANTED, True))
        try:
            self._game = self._textworld.start(str(file), infos)
        except (NotImplementedError, ValueError) as error:
            raise TurnwiseError(f"textworld cannot play {file}: {error}") from None
        self._playing = file

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(f"textworld: {self._over}")
        self._turns += 1
        command = " ".join(well_formed(action).split())
        self._commands.append(command)
        self._state, _, done = self._game.step(command)
        won = bool(self._state.get("won"))
        ended = bool(done) or won or bool(self._state.get("lost"))
        reward = self._gain(won)
        if ended or self._turns >= self.max_turns:
            self._over = "the game is over: call reset(task) before the next step"
        info = {"score": self._score, "truncated": bool(self._over) and not ended}
        return Transition(self._observation(), reward, bool(self._over), won, info)

    def _gain(self, won: bool) -> float:
        before, self._score = self._score, float(self._state.get("score") or 0)
        most = float(self._state.get("max_score") or 0)
        if self.reward == "won" or most <= 0:  # a game without a score can only be won
            return float(won)
        return (self._score - before) / most

    def _observation(self, first: bool = False) -> Observation:
        commands = self._state.get("admissible_commands")
        actions = tuple(dict.fromkeys(commands)) if commands else None
        facts = sorted(str(fact) for fact in self._state.get("facts") or ())
        text = _clean(str(self._state.get("feedback") or ""))
        if isinstance(self._playing, Path) and self._playing.suffix == ".json":
            text = "\n".join(facts)
        objective = " ".join(str(self._state.get("objective") or "").split())
        state = text
        if first and objective and "your task is" not in text.lower():
            text = f"Your task is: {objective}\n{text}"
        if self.anchor == "state" and facts:
            return Observation(text, actions=actions, anchor=blake2b("\n".join(facts).encode(), digest_size=16).digest())
        return Observation(text, actions=actions, anchor=None if text == state else state)

    def expert_action(self) -> str | None:
        """The next command of the game's own solution, if it knows one from here."""
        if self._over:
            return None
        if isinstance(self._game, MadeGame):
            plan = self._game.policy()
            walk = self._game.walkthrough[len(self._commands) :]
            followed = self._commands == self._game.walkthrough[: len(self._commands)]
            return plan[0] if plan else walk[0] if walk and followed else None
        commands: Sequence[str] = self._state.get("policy_commands") or ()
        return str(commands[0]) if commands else None

    def scripted_action(self) -> str | None:
        """The listed command that was tried least with this text in view."""
        if self._over:
            return None
        seen = _clean(str(self._state.get("feedback") or ""))
        place = seen.splitlines()[1 if self._turns else 0 :][:1] if isinstance(self._game, MadeGame) else seen
        return self._curious.choose(str(place), sorted(set(self._state.get("admissible_commands") or ())))

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        game, self._game, self._playing = self._game, None, None
        if game is not None:
            game.close()


def chosen(
    game: str | Sequence[str] | None, levels: int | Sequence[int] | None, knobs: Mapping[str, int] | None, goal: str
) -> list[Wanted]:
    """The generated games of seed 0 for these options, one per kind and level."""
    kinds = USUAL if game is None else (game,) if isinstance(game, str) else tuple(game)
    for kind in kinds:
        if kind not in KINDS:
            raise unknown_name("game of TextWorld", kind, KINDS)
    if not kinds or ((levels is not None or knobs) and len(kinds) != 1):
        raise TurnwiseError("textworld: levels and knobs are for one kind of games: name it, as in game='cooking'")
    if knobs:
        return [_with_knobs(kinds[0], knobs, goal)]
    named = None if levels is None else (levels,) if isinstance(levels, int) else tuple(levels)
    for level in named or ():
        if level not in KINDS[kinds[0]].levels:
            known = KINDS[kinds[0]].levels
            raise TurnwiseError(f"textworld: {kinds[0]} has the levels {known[0]} to {known[-1]}, not {level!r}")
    return [Wanted(kind, level, 0, goal) for kind in kinds for level in named or KINDS[kind].usual]


def _with_knobs(kind: str, knobs: Mapping[str, int], goal: str) -> Wanted:
    if kind != "cooking":
        raise TurnwiseError(f"textworld: only cooking has knobs; {kind} has levels")
    for knob, value in knobs.items():
        if knob not in KNOBS:
            raise unknown_name("knob of cooking in TextWorld:", knob, KNOBS)
        if not isinstance(value, int) or value < 0 or (knob == "go" and value not in (1, 6, 9, 12)):
            raise TurnwiseError(f"textworld: knob {knob} is a number (go: 1, 6, 9 or 12) or true, not {value!r}")
    recipe, take = int(knobs.get("recipe", 1)), int(knobs.get("take", 0))
    if not 1 <= recipe <= 5 or take > recipe:
        raise TurnwiseError(f"textworld: a recipe has 1 to 5 ingredients, of which at most all are to be taken, not {recipe} and {take}")
    return Wanted(kind, 0, 0, goal, tuple(sorted((knob, int(value)) for knob, value in knobs.items() if value)))


def generated(games: Sequence[Wanted], split: str, n: int | None) -> TaskSet:
    """The tasks of generated games: kinds and levels in turn, each with the seeds of the split."""
    seed, kinds = numbers(split), list(games)

    def task(index: int) -> Task:
        return replace(kinds[index % len(kinds)], seed=seed(index // len(kinds))).task(split)

    usual = len(NUMBERED_SPLITS[split]) * NUMBERED_DECADES * len(kinds)
    return TaskSet.lazy(usual if n is None else n, task, f"textworld/{split}")


def files_of(place: Path) -> list[Path]:
    """The games of a folder and the folders below it, by name; of files that differ only in their suffix, the one with texts."""
    if place.is_file():
        return [place]
    found: dict[Path, Path] = {}
    for path in sorted(place.rglob("*")):
        if path.suffix in ENDINGS and path.is_file():
            known = found.setdefault(path.with_suffix(""), path)
            if ENDINGS.index(path.suffix) < ENDINGS.index(known.suffix):
                found[path.with_suffix("")] = path
    if not found:
        raise TurnwiseError(f"textworld: there is no game in {place}. Games end in {', '.join(ENDINGS)}")
    return [found[stem] for stem in sorted(found)]


def split_games(place: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The games of each split: by their folder, or by a hash of the name. A single game is for training."""
    if place.is_file():
        return {"train": list(files)}
    folders = {path.relative_to(place).parts[0] for path in files if len(path.relative_to(place).parts) > 1}
    if folders & NUMBERED_SPLITS.keys():
        return {folder: [path for path in files if path.relative_to(place).parts[0] == folder] for folder in sorted(folders)}
    splits: dict[str, list[Path]] = {split: [] for split in NUMBERED_SPLITS}
    for path in files:
        digit = derive(0, "textworld split", path.relative_to(place).as_posix()) % 10
        splits[next(split for split, digits in NUMBERED_SPLITS.items() if digit in digits)].append(path)
    return splits


def _clean(feedback: str) -> str:
    """A game's answer without the prompts and empty lines at both ends."""
    lines = [line.rstrip() for line in feedback.replace("\r\n", "\n").split("\n")]
    while lines and lines[-1] in ("", ">"):
        lines.pop()
    while lines and lines[0] in ("", ">"):
        lines.pop(0)
    return "\n".join(lines)
