"""TextWorld's games, and other games for the Z-machine, played by the `textworld` package.

    tw.make("textworld", games="games/")          # a folder; its folders train/, valid/ and test/ are splits
    tw.make("textworld", games="games/one.z8")

A folder without such folders is split by the games' names, four fifths for training, a tenth each for validation and test: a game stays
in its split when others are added. Next to a `.z8` game there is a `.json` file that describes it; such a pair is one game. A `.json`
game on its own has no texts, so the agent is shown the facts that hold in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.adapters.base import load, turn_limit, well_formed
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.registry import NUMBERED_SPLITS
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive

ENDINGS = (".z8", ".z5", ".z3", ".z4", ".z6", ".z7", ".ulx", ".tw-pddl", ".json")
MAX_TURNS = 100
WANTED = ("admissible_commands", "score", "max_score", "won", "lost", "objective", "policy_commands", "facts", "inventory", "description")
Reward = Literal["score", "won"]
Anchor = Literal["observation", "state"]


def default_games() -> Path | None:
    """The path in TEXTWORLD_GAMES, if it exists."""
    path = Path(os.environ.get("TEXTWORLD_GAMES", "")).expanduser()
    return path if os.environ.get("TEXTWORLD_GAMES") and path.exists() else None


class TextWorldEnv:
    """Games of a file or a folder. `reward`: "score" (the gain in score, as a share of the highest possible score) or "won" (1 for
    winning). `anchor`: "observation" or "state" (the facts of the game, if it reports them). `max_turns`: the turn at which an attempt is
    cut off."""

    def __init__(
        self,
        games: str | Path | None = None,
        reward: Reward = "score",
        anchor: Anchor = "observation",
        max_turns: int = MAX_TURNS,
    ):
        if reward not in get_args(Reward) or anchor not in get_args(Anchor):
            raise TurnwiseError(
                f"textworld: reward is one of {get_args(Reward)}, anchor of {get_args(Anchor)}; got {reward!r} and {anchor!r}"
            )
        self._textworld = load("textworld", "the adapter for TextWorld", "textworld")
        place = Path(games).expanduser() if games is not None else default_games()
        if place is None or not place.exists():
            said = f"there is nothing at {games}" if games is not None else "no games were named"
            raise TurnwiseError(f"textworld: {said}. Give the option games (a game or a folder of games), or set TEXTWORLD_GAMES to one")
        self.place = place
        self.reward, self.anchor, self.max_turns = reward, anchor, turn_limit(max_turns, "textworld")
        self._game: Any = None
        self._file: Path | None = None
        self._state: Mapping[str, Any] = {}
        self._over = "call reset(task) before the first step"
        self._turns, self._score = 0, 0.0

    def tasks(self, split: str = "train") -> TaskSet:
        """One task per game. Its data contains the file's name and a hash of its content, so that the same game in two splits is
        noticed."""
        files = files_of(self.place)
        splits = split_games(self.place, files)
        if split not in splits:
            raise unknown_name(f"split of the games in {self.place}:", split, splits)
        root = self.place if self.place.is_dir() else self.place.parent
        chosen = splits[split]

        def task(index: int) -> Task:
            path = chosen[index]
            content = blake2b(path.read_bytes(), digest_size=16).hexdigest()
            return Task(path.relative_to(root).as_posix(), split, {"file": path.relative_to(root).as_posix(), "content": content})

        return TaskSet.lazy(len(chosen), task, f"textworld/{split}")

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._start(task)
        if callable(seeding := getattr(self._game, "seed", None)):
            seeding(derive(seed, "textworld", task.id) % 2**31)
        self._state = self._game.reset()
        self._over, self._turns, self._score = "", 0, float(self._state.get("score") or 0)
        return self._observation(first=True)

    def _start(self, task: Task) -> None:
        root = self.place if self.place.is_dir() else self.place.parent
        file = root / str(task.data.get("file", task.id))
        if not file.is_file():
            raise TurnwiseError(f"textworld: task {task.id!r} names the game {file}, which is not there")
        if self._game is not None and file == self._file:
            return
        self.close()
        infos = self._textworld.EnvInfos(**dict.fromkeys(WANTED, True))
        try:
            self._game = self._textworld.start(str(file), infos)
        except (NotImplementedError, ValueError) as error:
            raise TurnwiseError(f"textworld cannot play {file}: {error}") from None
        self._file = file

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(f"textworld: {self._over}")
        self._turns += 1
        command = " ".join(well_formed(action).split())
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
        if self._file is not None and self._file.suffix == ".json":
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
        commands: Sequence[str] = self._state.get("policy_commands") or ()
        return str(commands[0]) if commands and not self._over else None

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        game, self._game, self._file = self._game, None, None
        if game is not None:
            game.close()


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
