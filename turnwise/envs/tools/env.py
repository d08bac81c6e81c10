"""Tasks with tools. The agent calls tools, one per turn, and ends the attempt with its answer.

Tools are Python functions (`functions.py`) and MCP servers (`servers.py`). A call that cannot be read, a tool that fails, hangs or says too
much, and a server that dies are observations with a message; none of them ends the attempt. Snapshots are left out: what a tool changed
elsewhere cannot be restored.

What an attempt is worth is said by a function of the task, the answer and what was done, or by a command that checks it:

    reward(task, answer)            → a number, a bool, or {"reward": …, "success": …, further numbers}
    reward(task, answer, state)     → the same; `state` is the dictionary of the attempt: the tools' own entries, and `calls`

A check command gets the task as JSON in `TURNWISE_TASK`, the answer on its standard input and in `TURNWISE_ANSWER`. The last line that it
prints is the reward if it is a number; otherwise exit code 0 is 1 and any other 0.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from turnwise.config.kinds import SCORE
from turnwise.config.loading import load_reference
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.prompts.env import takes_third, worth
from turnwise.envs.prompts.prompt_file import place_of, read_rows, tasks_of_split
from turnwise.envs.tools.calls import ANSWER, ANSWER_FORM, FORM, HOW, Call, Final, read_call
from turnwise.envs.tools.functions import FunctionTool, Hangs, load_functions
from turnwise.envs.tools.schemas import Tool, fitted
from turnwise.envs.tools.servers import Connection, Gone, servers
from turnwise.envs.tools.settings import ServerSettings, read_servers
from turnwise.util.errors import TurnwiseError, unknown_name

ANCHORS = ("observation", "calls")
LONGEST_VARIABLE = 100_000  # characters of an environment variable
ANSWER_TOOL = Tool(
    ANSWER,
    "Give the final answer. This ends the task.",
    {"type": "object", "properties": {"answer": {"type": "string", "description": "The answer."}}, "required": ["answer"]},
)


class ToolsEnv:
    """Your own tasks with tools. `file`: JSONL, each row with a `prompt`, and optionally `id`, `data`, `split` and `expert` (a list of
    actions that wins). `functions`: my_tools.py, my_tools.py:name, or a list of them. `servers`: MCP servers, each a URL or a table
    (`ServerSettings`). `reward`: the function that scores the answer, or `check`: a command that does. `max_turns`: without an answer by
    then, the attempt is over and is worth 0. `tool_timeout`: seconds per call; none: no limit. `longest_result`: characters of a result
    that are shown. `show_tools`: list the tools in the first observation; false if the model's chat template does (agent.prompt = "tool").
    `plain_answers`: a response that is not a call is the answer. `anchor`: "observation" (the text), or "calls" (all calls and results so
    far). `variables`: environment variables that the check command may see. `success_at`: the reward from which an attempt counts as a
    success, if the reward function does not say so."""

    def __init__(
        self,
        file: str | Sequence[Any],
        functions: str | Sequence[Any] | Callable[..., Any] = (),
        servers: str | Mapping[str, Any] | Sequence[Any] | None = None,
        reward: str | Callable[..., Any] | None = None,
        check: Sequence[str] | None = None,
        max_turns: int = 8,
        tool_timeout: float | None = 30.0,
        longest_result: int = 8000,
        show_tools: bool = True,
        plain_answers: bool = False,
        anchor: str = "observation",
        variables: Sequence[str] = (),
        success_at: float = 1.0,
    ):
        if anchor not in ANCHORS:
            raise unknown_name("anchor", anchor, ANCHORS)
        if (reward is None) == (check is None):
            raise TurnwiseError("tools: an answer is scored by reward (file.py:function) or by check (a command); give one of them")
        if max_turns < 1 or longest_result < 1 or (tool_timeout is not None and tool_timeout <= 0):
            raise TurnwiseError("tools: max_turns and longest_result are at least 1, and tool_timeout is positive or none")
        self._rows, self._settings = read_rows(file), read_servers(servers)
        score: Any = load_reference(reward, SCORE) if isinstance(reward, str) else reward
        self._score = Command(check, variables, tool_timeout) if check is not None else score
        self._takes_state = check is None and takes_third(score, ("task", "answer", "state"), "tools: a reward")
        self._functions = {tool.tool.name: tool for tool in load_functions(functions) if tool.function is not score}
        if not self._functions and not self._settings:
            raise TurnwiseError("tools: there are no tools. Give functions (my_tools.py) or servers")
        self.max_turns, self._timeout, self._longest = max_turns, tool_timeout, longest_result
        self._show, self._plain, self._anchor, self._success_at = show_tools, plain_answers, anchor, success_at
        self._connections: dict[ServerSettings, Connection] = {}
        self._offered: dict[str, tuple[Tool, FunctionTool | ServerSettings]] = {}
        self._task: Task | None = None
        self._state: dict[str, Any] = {}
        self._turn = 0
        if all(isinstance(row.get("expert"), list) for row in self._rows):
            self.expert = lambda task: [
                call if isinstance(call, str) else json.dumps(call, ensure_ascii=False) for call in task.data["expert"]
            ]

    @classmethod
    def offered_tools(cls, **options: Any) -> list[dict[str, Any]]:
        """The schemas of all tools, for an agent whose prompts show them in the model's own form."""
        env = cls(**options)
        try:
            return [tool.schema for tool in env.tools_now()]
        finally:
            env.close()

    def tools_now(self) -> list[Tool]:
        """All tools, with the one that gives the answer; servers are started to ask them."""
        if not self._offered:
            offered: dict[str, tuple[Tool, FunctionTool | ServerSettings]] = {
                name: (found.tool, found) for name, found in self._functions.items()
            }
            for settings in self._settings:
                for tool in self._connection(settings).tools:
                    if tool.name in offered or tool.name == ANSWER:
                        raise TurnwiseError(f"two tools are called {tool.name!r}: choose those of a server with its setting `tools`")
                    offered[tool.name] = (tool, settings)
            self._offered = offered
        return [*(tool for tool, _ in self._offered.values()), ANSWER_TOOL]

    def tasks(self, split: str = "train") -> TaskSet:
        """The tasks of a split: those that say so, and of the others about eight tenths are `train`, by the hash of the prompt."""
        return tasks_of_split("tools", self._rows, split, lambda row: place_of(row["prompt"]))

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._give_back()
        tools = self.tools_now()
        self._task, self._state, self._turn = task, {"calls": []}, 0
        text = str(task.data["prompt"])
        if self._show:
            listed = "\n".join(tool.as_text() for tool in tools)
            text = f"{text}\n\nTools, as JSON schemas:\n{listed}\n\nCall one tool per turn, as {FORM}. Give the answer as {ANSWER_FORM}."
        return self._observation(text)

    def step(self, action: str) -> Transition:
        if self._task is None:
            raise EpisodeOver("the task is over: call reset first")
        self._turn += 1
        wanted = read_call(action, self._plain)
        if isinstance(wanted, Final):
            state = (self._state,) if self._takes_state else ()
            reward, success, measures = worth(
                self._score({"id": self._task.id, **self._task.data}, wanted.text, *state), self._task.id, self._success_at
            )
            self._task = None
            return Transition(Observation("over"), reward, True, success, {"measures": measures} if measures else {})
        text = self._cut(self._result(wanted)) if isinstance(wanted, Call) else wanted.text
        self._state["calls"].append({"action": action[: self._longest], "result": text})
        observation = self._observation(text)
        if self._turn < self.max_turns:
            return Transition(observation)
        self._task = None
        return Transition(observation, done=True)

    def _result(self, call: Call) -> str:
        """What comes of a call: the tool's result, or what went wrong."""
        if call.name not in self._offered:
            return f"{unknown_name('tool', call.name[:100], [*self._offered, ANSWER])}. {HOW}"
        tool, found = self._offered[call.name]
        if wrong := fitted(tool, call.arguments):
            return f"Error: {wrong}"
        if isinstance(found, FunctionTool):
            try:
                return found.call(call.arguments, self._state, self._timeout)
            except Hangs:
                return f"Error: {call.name} did not return within {self._timeout:g} s and was given up."
        return self._called(found, call)

    def _called(self, settings: ServerSettings, call: Call) -> str:
        try:
            connection = self._connection(settings)
            return connection.call(call.name, call.arguments, self._timeout)
        except Gone as why:
            servers.drop(self._connections.pop(settings))
            again = "connected again" if settings.url else "started again"
            return f"Error: {call.name} failed: {why}. The server is {again}; what it remembered is lost."

    def _connection(self, settings: ServerSettings) -> Connection:
        if settings not in self._connections:
            self._connections[settings] = servers.take(settings)
        return self._connections[settings]

    def _cut(self, text: str) -> str:
        if len(text) <= self._longest:
            return text
        return f"{text[: self._longest]}\n[cut: the result has {len(text):,} characters, and the first {self._longest:,} are shown]"

    def _observation(self, text: str) -> Observation:
        if self._anchor == "observation":
            return Observation(text)
        done = [self._task.id if self._task else "", self._state["calls"]]
        return Observation(text, anchor=blake2b(json.dumps(done).encode(), digest_size=16).digest())

    def _give_back(self) -> None:
        """An attempt is over: what its servers have seen does not reach the next one."""
        for connection in self._connections.values():
            servers.give_back(connection)
        self._connections = {}

    def close(self) -> None:
        self._give_back()
        self._task = None


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
