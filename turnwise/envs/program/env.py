"""A program as an environment: its tasks, and how it is run. It plays by itself, so `step` has nothing to do.

The collector for programs (`turnwise/collect/programs.py`) makes this environment, and runs each attempt with `start`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.config.kinds import NUMBERS, SCORE, Kind
from turnwise.config.loading import load_reference
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.program.client import Client
from turnwise.envs.program.running import CommandAttempt, FunctionAttempt, Running, UrlAttempt
from turnwise.envs.prompts.prompt_file import place_of, read_rows, tasks_of_split
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
        self._rows = None if file is None else read_rows(file, "tasks")
        self.crash_reward, self.time_limit, self.at_once = crash_reward, time_limit, at_once
        self.max_turns, self.max_tokens = max_calls, max_tokens
        self.outcome, self.lines, self.success_at = outcome, lines, success_at

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The tasks of a split: those rows that say so; of the others about eight tenths are `train`, by their hash."""
        if self._rows is None:
            return numbered("program", split, n)
        return tasks_of_split("program", self._rows, split, content_place, n)

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


def content_place(row: Mapping[str, Any]) -> int:
    """A number from 0 to 9 that depends only on what a row says."""
    content = {key: value for key, value in row.items() if key != "id"} or {"id": row["id"]}
    return place_of(json.dumps(content, sort_keys=True))
