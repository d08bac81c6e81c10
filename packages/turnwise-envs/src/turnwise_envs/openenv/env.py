"""A client for OpenEnv servers: the environment runs there, often in a container; only its texts arrive here.

    tw.make("openenv", url="http://127.0.0.1:8000")

Every environment of a pool is one session, so the server must allow as many as there are slots (`max_concurrent_envs`). The task gives
the seed of the server's `reset`, or, from a file of tasks, whatever parameters it takes. OpenEnv has only one seed: the task also fixes
what happens after the start, and the attempt's seed has no effect.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from turnwise.data.rollouts import LARGEST_REWARD
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.gymnasium.spaces import words_of
from turnwise.envs.registry import numbered
from turnwise.envs.third_party import Success, plain_values, turn_limit, well_formed
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.secret import redact
from turnwise.util.seeds import derive
from turnwise_envs.openenv.wire import Broken, Lost, Refused, Session, TaskLists, action_schema, http_url
from turnwise_envs.shared.packages import load

LISTS_OF_ACTIONS = ("legal_actions", "available_actions", "valid_actions")
METADATA = "metadata"  # counters and ids of the server: not for the agent, and no part of the state
ALIASES = {"valid": ("validation", "dev", "val"), "train": ("training",), "test": ("testing",)}
LONGEST_WAIT = 30.0
MAX_TURNS = 50
Answer = TypeVar("Answer")
OnError = Literal["fault", "answer"]
Anchor = Literal["observation", "history"]


def default_url() -> str:
    """The server that OPENENV_URL names."""
    return os.environ.get("OPENENV_URL", "")


class OpenEnvClient:
    """An environment on an OpenEnv server. The options are explained in docs/environments/adapters.md."""

    def __init__(
        self,
        url: str | None = None,
        action_field: str | None = None,
        show: Sequence[str] | None = None,
        success: str | float = "reward",
        tasks_file: str | Path | None = None,
        server_tasks: bool = True,
        on_error: OnError = "fault",
        anchor: Anchor = "observation",
        max_turns: int = MAX_TURNS,
        timeout: float = 60.0,
        retries: int = 5,
        first_wait: float = 0.5,
        key_variable: str = "OPENENV_KEY",
    ):
        self.url = url or default_url()
        if not self.url:
            raise TurnwiseError("openenv: give the option url, as in http://127.0.0.1:8000, or set OPENENV_URL")
        if on_error not in get_args(OnError) or anchor not in get_args(Anchor):
            raise TurnwiseError(f"openenv: on_error is fault or answer, anchor is observation or history; got {on_error!r}, {anchor!r}")
        if timeout <= 0 or retries < 0 or first_wait < 0:
            raise TurnwiseError(
                f"openenv: timeout is above 0, retries and first_wait are not negative; got {timeout}, {retries}, {first_wait}"
            )
        load("websockets", "the adapter for OpenEnv", "openenv")
        self.on_error, self.anchor, self.max_turns = on_error, anchor, turn_limit(max_turns, "openenv")
        self.timeout, self.retries, self.first_wait = timeout, retries, first_wait
        self.action_field, self.show, self.tasks_file, self.server_tasks = action_field, show, tasks_file, server_tasks
        http_url(self.url)  # a wrong address raises an error here
        self._key = os.environ.get(key_variable, "").strip()
        self._success = Success(success, f"openenv server {redact(self.url)}")
        self._fields: dict[str, Any] | None = None
        self._wire: Session | None = None
        self._sleep: Callable[[float], None] = time.sleep
        self._over = "call reset(task) before the first step"
        self._last = Observation("")
        self._return, self._turns, self._history = 0.0, 0, ""

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The tasks of `tasks_file`, else those of the server, else numbers that are used as seeds."""
        if self.tasks_file is not None:
            found = read_tasks(Path(self.tasks_file).expanduser())
            return TaskSet([task for task in found if task.split == split], f"openenv/{split}")
        if self.server_tasks:
            lists = TaskLists(self.url, self.timeout, self._key)
            if known := self._patiently(lists.splits, "its splits"):
                return self._listed(lists, split, known)
        return numbered("openenv", split, n)

    def _listed(self, lists: TaskLists, split: str, known: Mapping[str, str]) -> TaskSet:
        """The server's tasks of a split: its `reset` is given the split and the number."""
        named = matching(split, known)
        count, rows = self._patiently(lambda: lists.tasks(named), f"the tasks of {named}")

        def task(index: int) -> Task:
            row = rows[index] if index < len(rows) else None
            own = row.get("id", row.get("task_id")) if isinstance(row, Mapping) else None
            number = f"{index} {own}" if isinstance(own, str | int) else str(index)
            return Task(f"{named} {number}", split, {"reset": {"split": named, "index": index}})

        return TaskSet.lazy(count, task, f"openenv/{split}")

    def reset(self, task: Task, seed: int = 0) -> Observation:
        given = task.data.get("reset")
        data = {"seed": derive(0, "openenv", task.id) % 2**31, **(given if isinstance(given, Mapping) else {})}
        answer = self._patiently(lambda: self._open().reset(data), f"task {task.id!r}")
        self._over, self._return, self._turns, self._history = "", 0.0, 0, ""
        self._last = self._observation(answer, "")
        return self._last

    def step(self, action: str) -> Transition:
        if self._over or self._wire is None:
            raise EpisodeOver(f"openenv: {self._over}")
        self._turns += 1
        try:
            answer = self._wire.step(self._action(well_formed(action)))
        except Refused as error:
            return self._unchanged(f"That is not an action here: {error}")
        except Broken as error:
            if self.on_error == "answer":
                return self._unchanged(f"Error: {error}")
            self.close()
            raise TurnwiseError(f"openenv server {redact(self.url)}: its environment failed: {error}") from None
        except Lost as error:
            self.close()  # the step may have been taken: it must not be sent again
            raise TurnwiseError(f"openenv server {redact(self.url)}: {error}") from None
        return self._result(answer, action)

    def _result(self, answer: Mapping[str, Any], action: str) -> Transition:
        reward, ended = self._number(answer), self._ended(answer)
        self._return += reward
        done = ended or self._turns >= self.max_turns
        if done:
            self._over = "the episode is over: call reset(task) before the next step"
        seen = answer.get("observation")
        parts = (answer.get("metadata"), seen.get("metadata") if isinstance(seen, Mapping) else None, seen)
        fields = {name: value for part in parts if isinstance(part, Mapping) for name, value in part.items()}
        info = {name: value for name, value in plain_values(fields).items() if not isinstance(value, str)}  # texts are in the observation
        success = done and self._success.of(reward, self._return, ended, info)
        self._last = self._observation(answer, action)
        return Transition(self._last, reward, done, success, {**info, "understood": True, "truncated": done and not ended})

    def _number(self, answer: Mapping[str, Any]) -> float:
        """The reward; 0 if the server gives none for a step."""
        given = answer.get("reward")
        if given is None:
            return 0.0
        if not isinstance(given, int | float) or not abs(given) <= LARGEST_REWARD:
            raise TurnwiseError(f"openenv server {redact(self.url)}: the reward is {str(given)[:60]!r}, not a finite number")
        return float(given)

    def _ended(self, answer: Mapping[str, Any]) -> bool:
        given = answer.get("done")
        if given is not None and given not in (0, 1):
            raise TurnwiseError(f"openenv server {redact(self.url)}: done is {str(given)[:60]!r}, not true or false")
        return bool(given)

    def _unchanged(self, remark: str) -> Transition:
        """The state is as it was; the agent is told why."""
        done = self._turns >= self.max_turns
        if done:
            self._over = "the episode is over: call reset(task) before the next step"
        observation = Observation(f"{remark}\n{self._last.text}", actions=self._last.actions, anchor=self._last.key)
        return Transition(observation, 0.0, done, False, {"understood": False, "truncated": done})

    def _observation(self, answer: Mapping[str, Any], action: str) -> Observation:
        fields = answer.get("observation")
        fields = fields if isinstance(fields, Mapping) else {"observation": fields}
        listed = next((fields[name] for name in LISTS_OF_ACTIONS if isinstance(fields.get(name), list)), None)
        actions = tuple(dict.fromkeys(words_of(entry) for entry in listed)) if listed else None
        shown = [name for name in fields if name not in (*LISTS_OF_ACTIONS, METADATA)] if self.show is None else list(self.show)
        parts = {name: fields[name] for name in shown if fields.get(name) not in (None, "", [], {})}
        single = next(iter(parts.values())) if len(parts) == 1 else None
        text = single if isinstance(single, str) else words_of(parts)
        anchor = None
        if self.anchor == "history":
            self._history = blake2b(f"{self._history}\n{action}\n{text}".encode(), digest_size=16).hexdigest()
            anchor = self._history
        return Observation(text, actions=actions, anchor=anchor)

    def _action(self, text: str) -> dict[str, Any]:
        """What the agent wrote as an action of the server: a JSON object as it is, any other text as the value of its only field."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = text
        if isinstance(given, dict):
            return given
        fields = self._known_fields()
        name = self.action_field or self._only_field(fields)
        wants = fields.get(name, {}).get("type", "string") if isinstance(fields.get(name), Mapping) else "string"
        return {name: text.strip() if wants == "string" else given}

    def _known_fields(self) -> dict[str, Any]:
        if self._fields is None:
            try:
                schema = action_schema(self.url, self.timeout, self._key)
            except Lost as error:
                if self.action_field is None:
                    raise TurnwiseError(f"openenv: the form of an action is not known: {error}. Give the option action_field") from None
                schema = {}
            properties = schema.get("properties")
            fields: dict[str, Any] = dict(properties) if isinstance(properties, Mapping) else {}
            required = schema.get("required") or [name for name in fields if name != "metadata"]
            self._fields = {name: fields.get(name, {}) for name in required} if not self.action_field else fields
        return self._fields

    def _only_field(self, fields: Mapping[str, Any]) -> str:
        if len(fields) != 1:
            raise TurnwiseError(
                f"openenv server {redact(self.url)}: an action has the fields {', '.join(fields) or '(none told)'}."
                " Give the option action_field, or let the agent write JSON objects"
            )
        return next(iter(fields))

    def _open(self) -> Session:
        if self._wire is None:
            self._wire = Session(self.url, self.timeout, self._key)
        return self._wire

    def _patiently(self, ask: Callable[[], Answer], what: str) -> Answer:
        """Retry temporary failures: a server that is starting, or has no free session. Only for what can be repeated, such as a reset."""
        for attempt in range(self.retries + 1):
            try:
                return ask()
            except (Refused, Broken) as error:
                raise TurnwiseError(f"openenv server {redact(self.url)}: {what} cannot be started: {error}") from None
            except Lost as error:
                self.close()
                if not error.passing or attempt == self.retries:
                    advice = "Is it running, and does it allow as many sessions (max_concurrent_envs) as there are slots?"
                    raise TurnwiseError(f"openenv server {redact(self.url)}: {error} (tried {attempt + 1} times). {advice}") from None
                self._sleep(min(self.first_wait * 2.0**attempt, LONGEST_WAIT))
        raise AssertionError("unreachable: the last try returns or raises")

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


def matching(split: str, known: Mapping[str, str]) -> str:
    """The server's name of a split: the same name, another name for it, or the only one of its type."""
    for name in (split, *ALIASES.get(split, ())):
        if name in known:
            return name
    of_type = [name for name, kind in known.items() if kind in (split, *ALIASES.get(split, ()))]
    if len(of_type) == 1:
        return of_type[0]
    raise unknown_name("split of the OpenEnv server:", split, known)


def read_tasks(path: Path) -> list[Task]:
    """Tasks from a file of JSON lines: `{"id": "a", "split": "train", "goal": "…", "reset": {…}}`; only the id is needed."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise TurnwiseError(f"openenv: {path} cannot be read as JSON lines: {error}") from None
    found = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("id"), str | int) or not isinstance(row.get("reset", {}), dict):
            raise TurnwiseError(f'{path}, line {number}: a task looks like {{"id": "a", "split": "train", "reset": {{…}}}}')
        data = {name: value for name, value in row.items() if name not in ("id", "split")}
        found.append(Task(str(row["id"]), str(row.get("split", "train")), data))
    return found
