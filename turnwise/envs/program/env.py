"""A program as an environment: its tasks, and how it is run. It plays by itself, so `step` has nothing to do.

The collector for programs (`turnwise/collect/programs.py`) makes this environment, and runs each attempt with `start`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from turnwise.config.kinds import NUMBERS, SCORE, Kind
from turnwise.config.loading import load_reference
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.program.client import Client
from turnwise.envs.program.running import CommandAttempt, FunctionAttempt, Running, UrlAttempt
from turnwise.envs.prompts.prompt_file import SHARES, row_task
from turnwise.envs.registry import numbered
from turnwise.util.errors import TurnwiseError, unknown_name

PROGRAM = Kind(
    "program",
    takes=("task", "client"),
    gives=(*NUMBERS, "outcome", "none", "coroutine", "any"),
    example="def solve(task, client) -> float",
)
ANCHOR = Kind("anchor", takes=("call",), gives=("str", "bytes", "int"), example="def place(call) -> str")
ANCHORS = ("messages", "conversation", "own")
RESULTS = ("auto", "printed", "exit code")
SHARES_OF_OUTCOME = ("each", "last")
LINES = ("conversation", "attempt")


class ProgramEnv:
    """A program that calls the model itself.

    One of `function` (my_agent.py:solve), `command` (a list of words, with {task}, {id} and the fields of a row in braces), `url` (a
    server that is sent tasks).
    file          the tasks: JSONL, each row an object with what the program needs, and optionally `id` and `split`; none: numbered tasks
    reward        a function of (task, calls) or (task, calls, result) instead of what the program returns
    result        of a command: "printed" (the last line), "exit code", or "auto" (the last line if it is a number or a JSON object)
    crash_reward  what an attempt is worth that ends with an error; none: it is left out
    time_limit    seconds per attempt
    max_calls     calls of the model per attempt
    max_tokens    sampled tokens per attempt, 0: no limit
    at_once       attempts that run at the same time
    anchor        "messages" (those since the last turn of the assistant), "conversation" (all of them), "own" (only what the program
                  names), or file.py:function of a call
    outcome       the reward at the end goes to the last turn of "each" line of conversation, or only to the "last" call
    lines         a trajectory is a line of "conversation", or the whole "attempt" with all its calls in order, for programs that write
                  every prompt from scratch
    success_at    the reward at the end from which an attempt counts as a success, if the program does not say so; the sum of all rewards
                  if it returns none
    cwd           the folder in which a command is started
    """

    plays_itself = True

    def __init__(
        self,
        function: str | Callable[..., Any] | None = None,
        command: Sequence[str] | None = None,
        url: str | None = None,
        file: str | Sequence[Any] | None = None,
        reward: str | Callable[..., Any] | None = None,
        result: str = "auto",
        crash_reward: float | None = None,
        time_limit: float = 300.0,
        max_calls: int = 50,
        max_tokens: int = 0,
        at_once: int = 64,
        anchor: str | Callable[..., Any] = "messages",
        outcome: str = "each",
        lines: str = "conversation",
        success_at: float = 1.0,
        cwd: str | None = None,
    ):
        if sum(given is not None for given in (function, command, url)) != 1:
            raise TurnwiseError("program: give one of function (my_agent.py:solve), command (a list of words) and url")
        if isinstance(command, str) or (command is not None and not list(command)):
            raise TurnwiseError(f'program: command is a list of words, as ["python", "my_agent.py", "{{task}}"], not {command!r}')
        for name, value, known in (("result", result, RESULTS), ("outcome", outcome, SHARES_OF_OUTCOME), ("lines", lines, LINES)):
            if value not in known:
                raise unknown_name(f"program: {name}", str(value), known)
        if time_limit <= 0 or max_calls < 1 or max_tokens < 0 or at_once < 1:
            raise TurnwiseError("program: time_limit, max_calls and at_once are above 0, and max_tokens is not negative")
        self._function = load_reference(function, PROGRAM) if isinstance(function, str) else function
        self._command, self._url, self._result, self._cwd = [str(word) for word in command or ()], url, result, cwd
        self.reward = load_reference(reward, SCORE) if isinstance(reward, str) else reward
        self.anchor = anchor if not isinstance(anchor, str) or anchor in ANCHORS else _anchor(anchor)
        self._rows = None if file is None else read_tasks(file)
        self.crash_reward, self.time_limit, self.at_once = crash_reward, time_limit, at_once
        self.max_turns, self.max_tokens = max_calls, max_tokens
        self.outcome, self.lines, self.success_at = outcome, lines, success_at

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The tasks of a split: those rows that say so; of the others about eight tenths are `train`, by their hash."""
        if self._rows is None:
            return numbered("program", split, n)
        known = tuple(dict.fromkeys([*SHARES, *(str(row["split"]) for row in self._rows if "split" in row)]))
        if split not in known:
            raise unknown_name("split of environment 'program':", split, known)
        rows = [row for row in self._rows if split_of(row) == split]
        if not rows:
            raise TurnwiseError(f'none of the {len(self._rows)} tasks is in the split {split!r}: give rows a "split", or more tasks')
        return TaskSet([row_task(row, split) for row in rows[:n]], f"program/{split}")

    def start(self, task: Task, client: Client) -> Running:
        """Begin an attempt."""
        given = {"id": task.id, "split": task.split, **task.data}
        if self._function is not None:
            return FunctionAttempt(self._function, given, client)
        if self._url is not None:
            return UrlAttempt(self._url, given, client, self.time_limit)
        return CommandAttempt(self._command, given, client, self._result, self._cwd)

    def reset(self, task: Task, seed: int = 0) -> Observation:
        """The task as text: what the words of a tiny model are taken from."""
        return Observation(str(task.data.get("prompt") or json.dumps(dict(task.data), ensure_ascii=False)))

    def step(self, action: str) -> Transition:
        raise TurnwiseError("a program plays by itself: it is run by training and evaluation, and not turn by turn")


def _anchor(name: str) -> Any:
    if ":" not in name:
        raise unknown_name("anchor of environment 'program':", name, ANCHORS)
    return load_reference(name, ANCHOR)


def read_tasks(file: str | Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of a JSONL file, or those that were passed in; each has an id."""
    if not isinstance(file, str):
        return _checked([(f"task {number}", row) for number, row in enumerate(file, 1)])
    path = Path(file).expanduser()
    if not path.is_file():
        raise TurnwiseError(f"there is no file of tasks {file} (looked in {Path.cwd()})")
    stamp = path.stat()
    return _read(file, str(path.resolve()), stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=8)
def _read(file: str, path: str, changed: int, size: int) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                found.append((f"{file}, line {number}", json.loads(line)))
            except ValueError as error:
                raise TurnwiseError(f"{file}, line {number}: not JSON ({error}). Each line is one task, as an object") from None
    return _checked(found)


def _checked(given: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, (where, row) in enumerate(given, 1):
        if not isinstance(row, Mapping):
            raise TurnwiseError(f"{where}: a task is an object with what the program needs, not {type(row).__name__}")
        rows.append({**{str(key): value for key, value in row.items()}, "id": str(row.get("id", number))})
    if not rows:
        raise TurnwiseError("program: the file has no tasks")
    return rows


def split_of(row: Mapping[str, Any]) -> str:
    """The split that a row states, or one that depends only on its content."""
    if "split" in row:
        return str(row["split"])
    content = json.dumps({key: value for key, value in row.items() if key != "id"} or {"id": row["id"]}, sort_keys=True)
    place = int.from_bytes(blake2b(content.encode(), digest_size=8).digest(), "big") % 10
    return next(split for split, places in SHARES.items() if place in places)
