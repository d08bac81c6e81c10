"""A run is a folder: its recipe, its logs and its results.

    config.toml      the resolved recipe                    metrics.jsonl   one line per iteration
    rollouts/        last batches: columns, texts, tokens   checkpoints/    weights, optimiser, progress
    evals/           every evaluation: outcomes, attempts   summary.json    before and after, for people and tools
    model/           the trained model, a Hugging Face folder   warnings.jsonl   what looked wrong during the run
    environment.json what its environment says about how to show its attempts, if it says anything
    memory.json      what was chosen for a GPU that is too small for the recipe as it is, if anything was

metrics.py says who writes and who reads metrics. Every write is atomic or append-only. After a crash the last line of metrics.jsonl may be
incomplete, and there may be lines of iterations that were never checkpointed. `rewind` drops both, so that a resumed run leaves the same
file as an uninterrupted one.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.config.trust import forget, remember
from turnwise.data.batch import Batch
from turnwise.data.images import load_pictures, save_pictures
from turnwise.data.rollouts import Rollouts, Trajectory
from turnwise.data.schema import to_record
from turnwise.data.tasks import Task
from turnwise.data.tokens import read_tokens, write_tokens
from turnwise.runs.metrics import METRICS, WARNINGS, Log
from turnwise.util.background import Pause
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside, sweep_files, write_atomically, write_text_atomically
from turnwise.util.lock import Lock
from turnwise.util.prefix import Prefix
from turnwise.util.terminal import command
from turnwise.util.unpack import packed_lines

if TYPE_CHECKING:
    from turnwise.collect.panel import Evaluation

CONFIG, SUMMARY, ARENA = "config.toml", "summary.json", "arena.json"
ENVIRONMENT = "environment.json"


@dataclass(frozen=True)
class Result:
    """What a training run leaves, as `tw.train` returns it: its folder, its summary, and whether it was interrupted before the end."""

    folder: Path
    summary: Mapping[str, Any]
    interrupted: bool = False
    metrics: list[dict[str, Any]] = field(default_factory=list, repr=False)


class Run:
    """The folder of one run."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.on_log: Callable[[Mapping[str, Any]], None] = lambda metrics: None
        self._lock: Lock | None = None
        self._blocks = 0  # the depth of nested `locked` blocks
        self._logs = {name: Log(self.folder, name) for name in (METRICS, WARNINGS)}

    @classmethod
    def create(cls, out: str | Path, name: str, config_text: str, doing: str | None = None) -> Run:
        """A new folder `out/name`, or `out/name-2`, `out/name-3` … if that exists already: nothing is ever overwritten. `doing`: with the
        run's lock, which is there before the run can be seen and stays until the end of the next `locked` block."""
        for number in range(1, 100_000):
            folder = Path(out) / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise TurnwiseError(f"cannot make the run's folder {folder}: {error.strerror}") from error
            run = cls(folder)
            with run.writing():
                run._lock = Lock(folder, doing) if doing is not None else None
                write_text_atomically(folder / CONFIG, config_text)
            remember(folder, tomllib.loads(config_text))
            return run
        raise TurnwiseError(f"{out} has too many runs called {name!r}: choose another name")

    @classmethod
    @contextmanager
    def started(cls, out: str | Path, name: str, config_text: str) -> Iterator[Run]:
        """A new run, locked while it trains. If a mistake stops it before it began, its folder is removed."""
        run = cls.create(out, name, config_text, doing="train")
        with run.locked("train"):
            try:
                yield run
            except TurnwiseError:
                # a mistake in a recipe leaves no folder behind
                parts = [run.folder / name for name in ("rollouts", "evals", "checkpoints", "model")]
                if not any(part.exists() for part in parts) and not run.metrics():
                    shutil.rmtree(run.folder, ignore_errors=True)
                    forget(run.folder)
                raise

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in an existing folder."""
        path = Path(folder)
        if not path.is_dir():
            raise TurnwiseError(f"{path} is not a folder, so it is not a run")
        if not (path / CONFIG).is_file():
            raise TurnwiseError(f"{path} is not a run: it has no {CONFIG}. A run is a folder that `turnwise train` made")
        for part in path.iterdir():
            if part.is_symlink():
                inside(path, part)
        return cls(path)

    @contextmanager
    def locked(self, doing: str, say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
        """Inside, this process is the only one that writes in the run's folder. If another process does, an error names it. Partial files
        of killed writers are removed."""
        lock = self._lock = self._lock or Lock(self.folder, doing, say=say)
        self._blocks += 1
        try:
            if self._blocks == 1:
                sweep_files(self.folder, [CONFIG, METRICS, WARNINGS, SUMMARY, ENVIRONMENT])
                for part in ("rollouts", "evals", "trackers"):
                    sweep_files(self.folder / part)
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                lock.release()
                self._lock = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns errors of the operating system while writing into a message that says how to continue."""
        try:
            yield
        except OSError as error:
            raise TurnwiseError(
                f"the run's folder {self.folder} could not be written ({error}). Is the disk full? What was written before is untouched: "
                f"make room, then go on with `{command('train', '--resume', str(self.folder))}`"
            ) from error

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer of a tiny model, so that its weights can be written without playing the environment again to collect its
        vocabulary."""
        return self.folder / "tokenizer"

    def file(self, *parts: str) -> Path:
        """A file inside the run's folder."""
        return inside(self.folder, self.folder.joinpath(*parts))

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of an iteration, and pass them on to the trackers."""
        with self.writing():
            self._logs[METRICS].append(metrics)
        self.on_log(metrics)

    def warn(self, record: Mapping[str, Any]) -> None:
        """Keep a warning: {"iteration", "name", "text"}."""
        with self.writing():
            self._logs[WARNINGS].append(record)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of all iterations, oldest first (turnwise/runs/metrics.py)."""
        return self._logs[METRICS].read()

    def warnings(self) -> list[dict[str, Any]]:
        """The warnings of the run, oldest first."""
        return self._logs[WARNINGS].read()

    @property
    def logs(self) -> dict[str, str]:
        """The log and the warnings as this run has written them: what a checkpoint keeps, regardless of later changes to the files."""
        return {name: log.text for name, log in self._logs.items()}

    def rewind(
        self, iteration: int, waiting: bool = False, logs: Mapping[str, str] | None = None, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """Forget everything after an iteration that a checkpoint of it does not contain. `waiting`: it is not evaluated and not logged
        yet. `logs` are the checkpoint's copies: they are restored if a file differs, and the file is then renamed and kept."""
        logged = iteration - 1 if waiting else iteration
        with self.writing():
            for name, log in self._logs.items():
                log.rewind(logged, None if logs is None else logs[name], say)
            for part, last in (("rollouts", iteration), ("evals", logged)):
                for path in self._numbered(part):
                    if int(path.name.split(".")[0]) > last:
                        path.unlink()

    def set_aside(self, name: str) -> Path:
        """Rename a log of the run, so that nothing is lost when it is replaced."""
        return self._logs[name].set_aside()

    def save_batch(self, iteration: int, batch: Batch, keep: int | None, tokens: bool = True, pause: Pause = lambda: None) -> None:
        """Everything known about one iteration's batch: columns, texts, tasks, exact tokens and images. Only the last `keep` iterations
        stay (None: all, 0: none). `pause` is called between small parts of the work."""
        if keep == 0:
            return
        folder, trajectories = self.folder / "rollouts", batch.trajectories
        with self.writing():
            batch.rollouts.save(folder / f"{iteration:06d}.npz")
            write_texts(folder / f"{iteration:06d}.jsonl.gz", trajectories, pause)
            if batch.tasks:
                lines = [json.dumps(task.to_json()) + "\n" for task in batch.tasks.values()]
                _write_lines(folder / f"{iteration:06d}.tasks.jsonl.gz", lines)
            if tokens:
                write_tokens(folder / f"{iteration:06d}.tokens.npz", trajectories, pause)
            if pictures := {image for trajectory in trajectories for turn in trajectory.turns for image in turn.images}:
                save_pictures(folder / f"{iteration:06d}.images.npz", sorted(pictures, key=lambda image: image.name))
        self.forget_batches(iteration, keep)

    def forget_batches(self, iteration: int, keep: int | None) -> None:
        """Of the batches until an iteration, keep only the last ones (None or 0: leave all that are there)."""
        with self.writing():
            for path in self._numbered("rollouts") if keep else ():
                if int(path.name.split(".")[0]) <= iteration - (keep or 0):
                    path.unlink()

    def _numbered(self, part: str) -> list[Path]:
        """The files of a part of the run (`rollouts`, `evals`) that belong to an iteration."""
        folder = inside(self.folder, self.folder / part)
        return [inside(self.folder, path) for path in folder.glob("*") if re.fullmatch("[0-9]{6,}", path.name.split(".")[0])]

    def iterations_of(self, part: str) -> list[int]:
        """The iterations of which `rollouts` or `evals` are kept."""
        return sorted({int(path.name.split(".")[0]) for path in self._numbered(part)})

    def last_iteration(self, part: str) -> int:
        """The last iteration of which `rollouts` or `evals` are kept."""
        if not (iterations := self.iterations_of(part)):
            hint = ": train with run.keep_rollouts above 0" if part == "rollouts" else ""
            raise TurnwiseError(f"{self.folder} keeps no {part}{hint}")
        return iterations[-1]

    def _stored(self, part: str, iteration: int, ending: str) -> Path:
        """A file of `rollouts` or `evals` of one iteration."""
        path = self.file(part, f"{iteration:06d}{ending}")
        if not path.is_file():
            iterations = self.iterations_of(part) or "none"
            hint = " (run.keep_rollouts says how many stay)" if part == "rollouts" else ""
            raise TurnwiseError(f"{self.folder} keeps no {part} of iteration {iteration}; it keeps {iterations}{hint}")
        return path

    def save_evaluation(self, iteration: int, result: Evaluation, settings: Mapping[str, Any]) -> None:
        """One evaluation: the result, task by task, and the attempts' texts. Evaluations are small, and all of them are kept."""
        folder = self.folder / "evals"
        record = {"iteration": iteration} | dict(settings) | result.to_dict() | {"outcomes": result.outcomes()}
        with self.writing():
            write_texts(folder / f"{iteration:06d}.jsonl.gz", result.trajectories)
            write_text_atomically(folder / f"{iteration:06d}.json", json.dumps(record, allow_nan=False, default=float) + "\n")

    def evaluation(self, iteration: int) -> dict[str, Any]:
        """What `save_evaluation` wrote, without the texts."""
        path = self._stored("evals", iteration, ".json")
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:  # not JSON, or not UTF-8
            raise TurnwiseError(f"{path}: not JSON; the file was damaged after it was written. Put it back from a copy") from None
        outcomes = record.get("outcomes") if isinstance(record, dict) else None
        if not isinstance(outcomes, list) or not all(isinstance(outcome, dict) for outcome in outcomes):
            raise TurnwiseError(f"{path}: not an evaluation; the file was damaged after it was written. Put it back from a copy")
        return record

    def trajectories(self, iteration: int, part: str = "rollouts") -> list[dict[str, Any]]:
        """The texts of one iteration, as plain data: what was trained on, or (`evals`) what its evaluation played."""
        path = self._stored(part, iteration, ".jsonl.gz")
        records = _read_lines(path)
        if not records or not all(isinstance(record, dict) and isinstance(record.get("turns"), list) for record in records):
            raise TurnwiseError(f"{path}: it holds no attempts, so it was damaged after it was written. Put it back from a copy")
        return records

    def columns(self, iteration: int) -> Rollouts:
        """The columns of one iteration, as its credit was computed from them."""
        return Rollouts.load(self._stored("rollouts", iteration, ".npz"))

    def tasks(self, iteration: int) -> dict[str, Task]:
        """The tasks that one iteration attempted, by id; empty if an earlier version of Turnwise wrote the run."""
        path = self.file("rollouts", f"{iteration:06d}.tasks.jsonl.gz")
        if not path.exists():
            return {}
        try:
            return {row["id"]: Task.from_json(row) for row in _read_lines(path)}
        except (KeyError, TypeError, ValueError):
            raise TurnwiseError(f"{path}: it holds no tasks, so it was damaged after it was written. Put it back from a copy") from None

    def tokens(self, iteration: int) -> list[tuple[Prefix, tuple[int, ...]]]:
        """Prompt and response ids of every turn of one iteration, trajectory by trajectory."""
        return read_tokens(self.file("rollouts", f"{iteration:06d}.tokens.npz"))

    def images(self, iteration: int) -> Mapping[str, Any]:
        """The images of one iteration by the names that its turns list; empty if none was shown."""
        path = self.file("rollouts", f"{iteration:06d}.images.npz")
        return load_pictures(path) if path.exists() else {}

    def recipe(self) -> dict[str, Any]:
        """The values of config.toml, unchecked."""
        path = self.file(CONFIG)
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # not TOML, or not UTF-8
            raise TurnwiseError(f"{path}: {error}; the file was damaged after it was written") from None

    def write_facts(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write a JSON file of the run, which `read_facts` reads."""
        with self.writing():
            write_text_atomically(self.folder / name, json.dumps(facts, indent=2, allow_nan=False, default=float) + "\n")

    def environment(self) -> dict[str, Any]:
        """What the run's environment says about how to show its attempts; empty if it says nothing that can be read."""
        return read_facts(self.folder, ENVIRONMENT)


def read_facts(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a folder; empty if it is missing or cannot be read."""
    try:
        facts = json.loads(inside(folder, folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, TurnwiseError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _read_lines(path: Path) -> list[Any]:
    """The records of a packed file of JSON lines."""
    try:
        return [json.loads(line.decode("utf-8", "surrogatepass")) for line in packed_lines(path)]
    except (EOFError, OSError, ValueError, zlib.error) as error:  # cut off, not an archive, not UTF-8, not JSON
        raise TurnwiseError(f"{path}: damaged after it was written ({error}). Put it back from a copy") from None


def write_texts(path: Path, trajectories: Sequence[Trajectory], pause: Pause = lambda: None) -> None:
    """Trajectories as packed lines of JSON, one each. `pause` is called after each of them."""
    lines = []
    for trajectory in trajectories:
        lines.append(json.dumps(to_record(trajectory)) + "\n")
        pause()
    _write_lines(path, lines)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    """Packed lines; the same ones give the same bytes."""
    packed = gzip.compress("".join(lines).encode("utf-8", "surrogatepass"), compresslevel=5, mtime=0)
    write_atomically(path, lambda file: file.write(packed))
