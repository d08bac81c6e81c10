"""TextWorld's games made on demand: which there are, how one is made, and the cache of those that were made.

    python -m turnwise_envs.textworld.games coin --levels 5 105 --n 200 --workers 4     # make games ahead
    python -m turnwise_envs.textworld.games --clear

A game is fixed by its kind, level and seed, with any process and hash seed. Only its description is made, which takes about a second.
TextWorld's compiler for full texts (17 to 20 seconds per game) is not needed to play; where TextWorld uses it to try out a solution, its
logic in Python does that here. A description is stored compressed, with a checksum,
under `$TURNWISE_CACHE/textworld` (default `~/.cache/turnwise`). One process makes a game while others wait for it, a damaged file is made
again, and the games that were not used for longest are removed when the folder exceeds its limit. It may be deleted at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from turnwise.data.tasks import Task
from turnwise.envs.registry import NUMBERED_SPLITS
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.files import write_atomically
from turnwise.util.terminal import say, told_after
from turnwise_envs.shared.global_seeds import seeded
from turnwise_envs.shared.packages import load

try:
    import fcntl
except ImportError:  # no such locks on this system: two processes may make the same game, with the same result
    fcntl = None  # type: ignore[assignment]

SCHEMA = b"turnwise.textworld 1"
LIMIT_MB = 1000
PATIENCE = 3.0  # seconds of making after which a line says so
COOKING: Mapping[int, Mapping[str, int | bool]] = {
    1: {"recipe": 1, "take": 1, "go": 1},
    2: {"recipe": 1, "take": 1, "go": 1, "open": True},
    3: {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True},
    4: {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True, "cut": True},
    5: {"recipe": 2, "take": 2, "go": 1, "open": True, "cook": True, "cut": True},
    6: {"recipe": 3, "take": 3, "go": 6, "open": True, "cook": True, "cut": True},
    7: {"recipe": 3, "take": 3, "go": 9, "open": True, "cook": True, "cut": True},
    8: {"recipe": 4, "take": 4, "go": 12, "open": True, "cook": True, "cut": True},
}
KNOBS = ("recipe", "take", "go", "open", "cook", "cut", "drop")
REWARDS = {1: "dense", 2: "balanced", 3: "sparse"}


@dataclass(frozen=True)
class Kind:
    """A kind of games: the module of TextWorld that makes them, the levels it has, and those that are played if none are named."""

    module: str
    levels: range
    usual: tuple[int, ...]


KINDS = {
    "coin": Kind("tw_coin_collector.coin_collector", range(1, 301), (5, 105, 205)),
    "treasure": Kind("tw_treasure_hunter.treasure_hunter", range(1, 31), (3, 6, 12)),
    "cooking": Kind("tw_cooking.cooking", range(1, 9), (1, 2, 3, 4)),
    "simple": Kind("tw_simple.simple", range(1, 4), (1,)),
}


@dataclass(frozen=True)
class Wanted:
    """One game. `knobs` replaces a level of cooking; `goal` is "brief" or "detailed" (with every step of the solution)."""

    kind: str
    level: int
    seed: int
    goal: str = "brief"
    knobs: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Kind, level and seed: the task's id."""
        level = "-".join(f"{knob}{value}" for knob, value in self.knobs) or str(self.level)
        return f"{self.kind}/{level}/{self.seed}"

    @property
    def split(self) -> str:
        return next(split for split, digits in NUMBERED_SPLITS.items() if self.seed % 10 in digits)

    def task(self, split: str) -> Task:
        data = {"kind": self.kind, "level": self.level, "seed": self.seed, "goal": self.goal, "knobs": dict(self.knobs)}
        return Task(self.name, split, data)


def wanted(task: Task) -> Wanted:
    """The game that a task names."""
    try:
        data = task.data
        knobs = tuple(sorted((str(knob), int(value)) for knob, value in dict(data["knobs"]).items()))
        found = Wanted(str(data["kind"]), int(data["level"]), int(data["seed"]), str(data["goal"]), knobs)
        if found.kind not in KINDS or found.seed < 0 or not (knobs or found.level in KINDS[found.kind].levels):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise TurnwiseError(f"task {task.id!r} is not a generated game of TextWorld: its data names no kind, level and seed") from None
    return found


def make(game: Wanted) -> dict[str, Any]:
    """The description of a game, as TextWorld writes it, with lists that have no order sorted. Global generators are left as they were."""
    load("textworld", "the adapter for TextWorld", "textworld")
    module = load(f"textworld.challenges.{KINDS[game.kind].module}", "the adapter for TextWorld", "textworld")
    options = load("textworld.generator.game", "the adapter for TextWorld", "textworld").GameOptions()
    with seeded(game.seed), _not_compiled():
        options.seeds = game.seed
        options.grammar.only_last_action = game.goal == "brief"
        made: dict[str, Any] = module.make(_settings(game), options).serialize()
    made["grammar"]["names_to_exclude"] = sorted(made["grammar"]["names_to_exclude"], key=str)
    for quest in made["quests"]:
        quest["fail_events"] = sorted(quest["fail_events"], key=lambda event: json.dumps(event, sort_keys=True))
    return made


def _settings(game: Wanted) -> dict[str, Any]:
    if game.kind == "cooking":
        knobs = {knob: value if knob in KNOBS[:3] else bool(value) for knob, value in game.knobs} or dict(COOKING[game.level])
        return {**dict.fromkeys(KNOBS[3:], False), **knobs, "split": game.split, "recipe_seed": game.seed if knobs.get("take") else 0}
    if game.kind == "simple":
        return {"rewards": REWARDS[game.level], "goal": game.goal, "test": game.split == "test"}
    return {"level": game.level}


@contextmanager
def _not_compiled() -> Iterator[None]:
    """TextWorld plays a solution once while it makes a game: its logic in Python does so from the description, without the compiler. That
    logic does not know commands without effect, such as to open what is open, so they are left out."""
    package = load("textworld", "the adapter for TextWorld", "textworld")
    maker = load("textworld.generator.maker", "the adapter for TextWorld", "textworld").GameMaker
    compiling, walking = maker.compile, maker.set_walkthrough

    def describe(self: Any, path: str) -> str:
        described = str(Path(path).with_suffix(".json"))
        self._working_game = self.build()
        self._working_game.save(described)
        return described

    def walk(self: Any, commands: list[str]) -> None:
        with TemporaryDirectory() as folder:
            game = package.start(describe(self, f"{folder}/game.json"))
            game.reset()
            walking(self, [command for command in commands if game.step(command)[0]["_last_action"] is not None])

    maker.compile, maker.set_walkthrough = describe, walk
    try:
        yield
    finally:
        maker.compile, maker.set_walkthrough = compiling, walking


class Cache:
    """The games in a folder. `limit_mb`: its size, above which the games that were not used for longest are removed."""

    def __init__(self, folder: str | Path | None = None, limit_mb: int = LIMIT_MB):
        self.folder = Path(folder).expanduser() if folder is not None else default_folder()
        self.limit = limit_mb << 20

    def get(self, game: Wanted, making: Callable[[Wanted], dict[str, Any]] = make) -> dict[str, Any]:
        """A game's description: from the cache, or made and stored."""
        path = self._path(game)
        if (found := _read(path)) is not None:
            return found
        with _locked(path):
            if (found := _read(path)) is None:
                text = f"textworld: making the game {game.name}. It is made once and kept in {self.folder}"
                with told_after(PATIENCE, partial(say, err=True), text):
                    found = making(game)
                self._store(path, found)
        return found

    def _path(self, game: Wanted) -> Path:
        return self.folder / f"textworld-{_version()}" / f"{game.name}-{game.goal}.game"

    def _store(self, path: Path, made: Mapping[str, Any]) -> None:
        body = zlib.compress(json.dumps(made, sort_keys=True, separators=(",", ":")).encode())
        head = SCHEMA + b" " + blake2b(body, digest_size=16).hexdigest().encode() + b"\n"
        try:
            write_atomically(path, lambda file: file.write(head + body))
            self._trim(path)
        except OSError as error:
            raise TurnwiseError(f"{path.parent} cannot be written ({error.strerror}). Set TURNWISE_CACHE to another folder") from None

    def _trim(self, kept: Path) -> None:
        """Remove the least recently used games if there are too many bytes; never the one that was just made."""
        found = [(path.stat(), path) for path in self.folder.rglob("*.game") if path != kept]
        total = kept.stat().st_size + sum(about.st_size for about, _ in found)
        for about, path in sorted(found, key=lambda pair: (pair[0].st_mtime, str(pair[1]))):
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= about.st_size

    def clear(self) -> int:
        """Remove all games; how many there were."""
        count = sum(1 for _ in self.folder.rglob("*.game"))
        if self.folder.is_dir():
            shutil.rmtree(self.folder)
        return count


def default_folder() -> Path:
    """The folder of the games in the user's cache."""
    base = os.environ.get("TURNWISE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise"
    return Path(base).expanduser() / "textworld"


def _version() -> str:
    """Another release of TextWorld may make other games from the same seed."""
    try:
        return version("textworld")
    except Exception:  # a copy without metadata
        return "unknown"


def _read(path: Path) -> dict[str, Any] | None:
    """A stored description; None if there is none, or if it is damaged."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        if head != SCHEMA + b" " + blake2b(body, digest_size=16).hexdigest().encode():
            return None
        found = json.loads(zlib.decompress(body))
        with suppress(OSError):
            os.utime(path)
        return found if isinstance(found, dict) else None
    except (OSError, ValueError, zlib.error):
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time makes this game. The lock's file stays: removing it would let two others in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = (path.parent / f".{path.stem}.lock").open("w")
    except OSError as error:
        raise TurnwiseError(f"{path.parent} cannot be written ({error.strerror}). Set TURNWISE_CACHE to another folder") from None
    with lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def numbers(split: str) -> Callable[[int], int]:
    """The seeds of a split, by index: its digits in turn."""
    if split not in NUMBERED_SPLITS:
        raise unknown_name("split of TextWorld's generated games:", split, NUMBERED_SPLITS)
    digits = NUMBERED_SPLITS[split]
    return lambda index: index // len(digits) * 10 + digits[index % len(digits)]


def make_ahead(games: list[Wanted], workers: int = 1, folder: str | Path | None = None, tell: Callable[[str], None] = say) -> None:
    """Make games before they are needed, in several processes."""
    one = partial(_make_one, folder=folder)
    if workers < 2:
        for done, name in enumerate(map(one, games), 1):
            tell(f"{done} of {len(games)}: {name}")
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done, name in enumerate(pool.map(one, games), 1):
            tell(f"{done} of {len(games)}: {name}")


def _make_one(game: Wanted, folder: str | Path | None) -> str:
    Cache(folder).get(game)
    return game.name


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m turnwise_envs.textworld.games", description="Make games of TextWorld ahead.")
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--levels", nargs="+", type=int, help="levels of one kind")
    parser.add_argument("--split", default="train", choices=list(NUMBERED_SPLITS))
    parser.add_argument("--n", type=int, default=100, help="games of each level")
    parser.add_argument("--goal", default="brief", choices=("brief", "detailed"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clear", action="store_true", help="remove all games from the cache")
    args = parser.parse_args()
    if args.clear:
        say(f"{Cache().clear()} games were removed from {default_folder()}")
        return
    for kind in args.kinds:
        if kind not in KINDS:
            raise SystemExit(str(unknown_name("kind of games of TextWorld", kind, KINDS)))
    seed = numbers(args.split)
    places = [(kind, level) for kind in args.kinds for level in args.levels or KINDS[kind].usual]
    make_ahead([Wanted(kind, level, seed(index), args.goal) for index in range(args.n) for kind, level in places], args.workers)


if __name__ == "__main__":
    main()
