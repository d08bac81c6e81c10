"""What an attempt is worth: a function of the task, the answer and what was done, or a command that checks it.

    reward(task, answer)            → a number, a bool, or {"reward": …, "success": …, further numbers}
    reward(task, answer, state)     → the same; `state` is the dictionary of the attempt: the tools' own entries, and `calls`

A check command gets the task as JSON in `TURNWISE_TASK`, the answer on its standard input and in `TURNWISE_ANSWER`. The last line that it
prints is the reward if it is a number; otherwise exit code 0 is 1 and any other 0.
"""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from turnwise.envs.tools.settings import ServerSettings
from turnwise.util.errors import TurnwiseError

LONGEST_VARIABLE = 100_000  # characters of an environment variable


class Command:
    """A program that scores answers. It sees the environment variables that any tool sees, and those that are listed."""

    def __init__(self, words: Sequence[str], variables: Sequence[str] = (), timeout: float | None = 60.0):
        self.words, self.timeout = list(map(str, words)), timeout
        self.settings = ServerSettings(command=tuple(self.words), variables=tuple(variables))

    def __call__(self, task: Mapping[str, Any], answer: str) -> float | bool:
        seen = self.settings.environment() | {"TURNWISE_TASK": json.dumps(task)[:LONGEST_VARIABLE]}
        seen["TURNWISE_ANSWER"] = answer.replace("\x00", "")[:LONGEST_VARIABLE]
        words = [word.replace("{task}", str(task["id"])) for word in self.words]
        try:
            ended = subprocess.run(
                words, input=answer, capture_output=True, text=True, errors="replace", env=seen, timeout=self.timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise TurnwiseError(f"the check {words[0]} of task {task['id']} did not end within {self.timeout:g} s") from None
        except OSError as error:
            raise TurnwiseError(f"the check {words[0]} cannot be started: {error}") from None
        return last_number(ended.stdout, ended.returncode == 0)


def last_number(printed: str, otherwise: bool) -> float | bool:
    """The number on the last line that is not empty."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    with suppress(ValueError, IndexError):
        return float(lines[-1])
    return otherwise


def takes_three(function: Callable[..., Any]) -> bool:
    """Whether a reward function also takes the state of the attempt."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    for given in (("task", "answer", "state"), ("task", "answer")):
        with suppress(TypeError):
            signature.bind(*given)
            return len(given) == 3
    raise TurnwiseError(f"tools: a reward function takes (task, answer) or (task, answer, state), not {signature}")
