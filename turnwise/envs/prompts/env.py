"""An environment made of a file of prompts and a function: the response is the action, the function scores it.

    score(task, response)            → a number, a bool, or {"reward": …, "success": …, further numbers}
    score(task, response, history)   → the same, with all messages so far
    reply(task, history)             → the next message to the agent, or None when the dialogue is over

`task` is the row of the file as a dictionary, with its `id`. `history` is a list of {"role", "content"}; its last message is the
response. Without `reply` a task is one turn. With it, the score is computed once, at the end: when `reply` gives None, or after
`max_turns` responses.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from turnwise.config.kinds import SCORE, Kind
from turnwise.config.loading import load_reference
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.episodes import EpisodeEnv
from turnwise.envs.prompts.prompt_file import as_task, read_rows, split_rows
from turnwise.util.errors import TurnwiseError

REPLY = Kind("reply", takes=("task", "history"), gives=("str", "none", "observation"))


class PromptsEnv(EpisodeEnv):
    """Your own prompts. `file`: a data set (JSONL, Parquet, a folder of these, or OWNER/NAME on a hub), each row with a prompt in the
    column `prompt_column` and whatever the score needs, such as an `answer`. `score`: the function that scores a response. `valid_file`:
    held-out prompts; without it every tenth prompt, by its hash, is `valid` and another tenth is `test`. `reply`: makes dialogues, of at
    most `max_turns` responses. `success_at`: the reward from which an attempt counts as a success, if the score does not say so
    itself."""

    name = "prompts"
    depends_on = ("max_turns",)

    def __init__(
        self,
        file: str | Sequence[Any],
        score: str | Callable[..., Any],
        valid_file: str | Sequence[Any] | None = None,
        reply: str | Callable[..., Any] | None = None,
        max_turns: int | None = None,
        success_at: float = 1.0,
        prompt_column: str = "prompt",
    ):
        super().__init__()
        self._rows = read_rows(file, column=prompt_column)
        self._held_out = read_rows(valid_file, column=prompt_column) if valid_file is not None else None
        self._score = load_reference(score, SCORE) if isinstance(score, str) else score
        self._reply = load_reference(reply, REPLY) if isinstance(reply, str) else reply
        if reply is None and max_turns not in (None, 1):
            raise TurnwiseError(
                "prompts: max_turns goes with reply, the function that gives the next message; without it a task is one turn"
            )
        self.max_turns, self._success_at = (max_turns or 8) if reply is not None else 1, success_at
        self._takes_history = takes_third(self._score, ("task", "response", "history"), "prompts: a score")
        if not callable(self._score) or not callable(self._reply or self._score):
            raise TurnwiseError("prompts: score and reply are functions, or their names as path/to/file.py:function")
        self._history: list[dict[str, str]] = []
        self._seen = Observation("")
        if all(_answers(row) for row in self._rows):
            self.expert = lambda task: _answers(task.data)  # the rows contain good responses: examples for a warm start

    def tasks(self, split: str = "train") -> TaskSet:
        """The prompts of a split."""
        rows = split_rows(self._rows, self._held_out, split)
        if not rows:
            raise TurnwiseError(
                f"none of the {len(self._rows)} prompts falls into the split {split!r}. Give held-out prompts in a separate file "
                "(env.options.valid_file), or more prompts"
            )
        return TaskSet([as_task(row, split, self._held_out is not None) for row in rows], f"prompts/{split}")

    def _begin(self, task: Task, seed: int) -> None:
        self._seen = Observation(str(task.data["prompt"]))
        self._history = [{"role": "user", "content": self._seen.text}]

    def _play(self, action: str) -> Transition:
        task = self._running()
        self._history.append({"role": "assistant", "content": action})
        row = {"id": task.id, **task.data}
        said = None
        if self._reply is not None and len(self._history) < 2 * self.max_turns:
            said = self._reply(row, [dict(message) for message in self._history])
        if said is not None:
            if not isinstance(said, str | Observation):
                wanted = "the next message as text is needed, or None when it is over"
                raise TypeError(f"reply gave {type(said).__name__} for task {task.id}: {wanted}")
            self._seen = Observation(said) if isinstance(said, str) else said
            self._history.append({"role": "user", "content": self._seen.text})
            return Transition(self._seen)
        history = ([dict(message) for message in self._history],) if self._takes_history else ()
        reward, success, measures = worth(self._score(row, action, *history), task.id, self._success_at)
        return Transition(Observation("over"), reward, True, success, {"measures": measures} if measures else {})

    def _see(self) -> Observation:
        return self._seen

    def snapshot(self) -> bytes | None:
        """The prompt and all messages so far; None if `reply` showed images or an anchor that is neither text nor a number."""
        self._running()
        plain = not self._seen.images and isinstance(self._seen.anchor, str | int | None)
        return super().snapshot() if plain else None

    def _kept(self) -> dict[str, Any]:
        return {"history": self._history, "actions": self._seen.actions, "anchor": self._seen.anchor}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        """`reply` and `score` are functions of the messages, so they return what they would have returned there."""
        self._history = [{"role": str(message["role"]), "content": str(message["content"])} for message in kept["history"]]
        actions = None if kept["actions"] is None else tuple(map(str, kept["actions"]))
        self._seen = Observation(self._history[-1]["content"], actions=actions, anchor=kept["anchor"])


def worth(said: Any, task: str, success_at: float = 1.0) -> tuple[float, bool, dict[str, float]]:
    """The result of a score function as reward, success and further numbers. A bool is 1 or 0, and success; of a number the reward,
    success from `success_at` on; a mapping names them, and its other numbers are reported as means."""
    fields = dict(said) if isinstance(said, Mapping) else {"reward": said}
    if "reward" not in fields:
        raise TypeError(f'score gave {shown(fields)} for task {task}: a dictionary needs a "reward"')
    raw = fields.pop("reward")
    given = finite(raw)
    if given is None:
        raise TypeError(f"score gave {shown(raw)} for task {task}: a finite number or a bool is needed")
    success = bool(fields.pop("success", given if isinstance(given, bool) else given >= success_at))
    numbers = {str(name): number for name, value in fields.items() if (number := finite(value)) is not None}
    return float(given), success, {name: float(number) for name, number in numbers.items()}


def finite(value: Any) -> int | float | None:
    """A number or a bool that a float can hold, also one of numpy or torch; None for anything else."""
    if hasattr(value, "item") and getattr(value, "size", 2) == 1:
        value = value.item()
    try:
        return value if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of many digits
        return None


def shown(value: Any) -> str:
    """A wrong value, shortened for a message."""
    try:
        return repr(value)[:200]
    except ValueError:  # an integer of many thousand digits
        return type(value).__name__


def takes_third(function: Callable[..., Any], parameters: tuple[str, str, str], what: str) -> bool:
    """Whether a function that scores also takes the last of these parameters: what happened before."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    for given in (parameters, parameters[:2]):
        with suppress(TypeError):
            signature.bind(*given)
            return len(given) == 3
    raise TurnwiseError(f"{what} function takes ({', '.join(parameters[:2])}) or ({', '.join(parameters)}), not {signature}")


def _answers(row: Mapping[str, Any]) -> list[str]:
    """The expert's response: the row's `answer`, or one answer per turn; None if it is something else."""
    given = row.get("answer")
    several = given if isinstance(given, list) else [given]
    plain = [isinstance(answer, str | int | float) and not isinstance(answer, bool) for answer in several]
    return [str(answer) for answer in several] if several and all(plain) else []
