"""A model as the simulated user: a server that speaks the OpenAI protocol, or a function.

The model gets τ²'s own guidelines and the task's scenario, and sees the agent's messages as those of the other side. In telecom it has
tools: calls in the server's form, or written as the agent writes them. A server that does not answer raises an error with the reason, which
ends the attempt and not the run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.envs.blame import one_line
from turnwise.envs.tools.calls import Call, Final, Mistake, read_call
from turnwise.util.control_strings import for_server, neutral_deep
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.secret import redact
from turnwise.util.seeds import derive
from turnwise.util.transport import Failure, Transport
from turnwise_envs.tau2.users import Reply
from turnwise_envs.tau2.worlds import World

SPEAKER = Kind("user", gives=("str", "dict", "mapping"))
SCRIPTED = "scripted"
ENDS = {"###STOP###": "stop", "###TRANSFER###": "transfer", "###OUT-OF-SCOPE###": "out of scope"}
BEGIN = "The customer service agent is there. Write your first message."
MOST_CALLS = 10  # of the user's tools between two messages
LONGEST = 20_000  # characters of a message
PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between two tries

Speak = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], int], Any]


@dataclass(frozen=True)
class UserServer:
    """A server whose model plays the user.

    url, model    of the server, as http://127.0.0.1:8000/v1
    key_variable  the environment variable that holds the key; empty: none is sent
    temperature   0, as in τ²
    max_tokens    of one message
    timeout       seconds for one message
    retries       how often a lost connection, a busy server or a timeout is tried again
    extra         added to every request
    """

    url: str
    model: str
    key_variable: str = ""
    temperature: float = 0.0
    max_tokens: int = 512
    timeout: float = 60.0
    retries: int = 2
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not isinstance(self.model, str) or not self.model:
            raise TurnwiseError("tau2: the user's server needs a url and a model")
        numbers = ("temperature", "max_tokens", "timeout", "retries")
        if any(isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float) for name in numbers):
            raise TurnwiseError(f"tau2: {', '.join(numbers)} of the user's server are numbers")
        if self.timeout <= 0 or self.retries < 0 or self.max_tokens < 1 or self.temperature < 0:
            raise TurnwiseError("tau2: timeout and max_tokens of the user's server are positive, retries and temperature at least 0")

    def speaker(self) -> Speak:
        """A function that asks this server."""
        key = os.environ.get(self.key_variable, "").strip() if self.key_variable else ""
        if self.key_variable and not key:
            raise TurnwiseError(f"tau2: the key of the user's server is read from {self.key_variable}, which is not set")
        transport = Transport(self.url, key, self.timeout)

        def speak(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], seed: int) -> Any:
            body = {"model": self.model, "messages": for_server(messages), "seed": seed % 2**31, "temperature": self.temperature}
            body |= {"max_tokens": self.max_tokens} | ({"tools": neutral_deep(list(tools))} if tools else {}) | dict(self.extra or {})
            try:
                return self._posted(transport, body)["choices"][0]["message"]
            except (LookupError, TypeError):
                raise TurnwiseError(f"the answer of the server {redact(self.url)} has no choices[0].message") from None

        return speak

    def _posted(self, transport: Transport, body: Mapping[str, Any]) -> dict[str, Any]:
        left = int(self.retries)
        while True:
            try:
                return transport.post("chat/completions", body)
            except Failure as failure:
                if not left or not failure.passing:
                    key = "" if self.key_variable or failure.status not in (401, 403) else ". Name its key's variable with key_variable"
                    raise TurnwiseError(f"the server {redact(self.url)} gave no message: {failure}{key}") from None
                left -= 1
                time.sleep(min(failure.retry_after or PAUSE, LONGEST_PAUSE))


def read_user(given: Any) -> Speak | None:
    """The function that an option names; None: the scripted user."""
    if given == SCRIPTED:
        return None
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str):
        if ":" not in given or "://" in given:
            raise TurnwiseError(
                f'tau2: user is "{SCRIPTED}", a table {{url = "http://…/v1", model = "…"}}, or my_user.py:function, not {given!r}'
            )
        return load_reference(given, SPEAKER)  # type: ignore[no-any-return]
    if not isinstance(given, Mapping):
        raise TurnwiseError(f"tau2: user cannot be {type(given).__name__}")
    known = [field.name for field in fields(UserServer)]
    for name in given:
        if name not in known:
            raise unknown_name("setting of the user's server:", str(name), known)
    if missing := [name for name in ("url", "model") if name not in given]:
        raise TurnwiseError(f"tau2: the user's server needs {missing[0]}")
    return UserServer(**given).speaker()


class ModelUser:
    """A user that a model plays. `seed` is that of the attempt: message number i is asked for with a seed made of it and i."""

    def __init__(self, world: World, speak: Speak, seed: int):
        self.world, self.speak, self.seed = world, speak, seed
        scenario = world.record["user_scenario"]
        parts = [world.domain.guidelines(), "<scenario>", *_lines(scenario), "</scenario>"]
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "\n".join(parts)}]
        self.tools = [found.tool.schema for found in world.domain.user_tools.values()]

    def open(self) -> Reply:
        return self.answer(BEGIN)

    def answer(self, message: str) -> Reply:
        self.messages.append({"role": "user", "content": message})
        for _ in range(MOST_CALLS):
            said = self._said()
            self.messages.append(said)
            if not (calls := self._calls(said)):
                return _reply(str(said.get("content") or ""))
            self.messages.extend(calls)
        raise TurnwiseError(f"tau2: the simulated user called {MOST_CALLS} tools without a message")

    def shown(self) -> Any:
        return None

    def kept(self) -> dict[str, Any]:
        return {"messages": self.messages[1:], "seed": self.seed}

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.messages[1:] = [dict(message) for message in kept["messages"]]
        self.seed = int(kept["seed"])

    def _said(self) -> dict[str, Any]:
        """The model's next message, as plain values."""
        try:
            said = self.speak(self.messages, self.tools, derive(self.seed, "simulated user", len(self.messages)))
        except Exception as error:
            raise TurnwiseError(f"tau2: the simulated user did not answer: {one_line(error)}") from error
        said = {"content": said} if isinstance(said, str) else said
        if not isinstance(said, Mapping):
            raise TurnwiseError(f"tau2: the simulated user answered with {type(said).__name__}, not with a text or a message")
        content = said.get("content")
        kept: dict[str, Any] = {"role": "assistant", "content": str(content)[:LONGEST] if content is not None else ""}
        calls = said.get("tool_calls")
        return kept | ({"tool_calls": json.loads(json.dumps(calls, default=str))} if isinstance(calls, list) and calls else {})

    def _calls(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The results of the tools that the model called; none if it sent a message."""
        if not self.tools:
            return []
        results = []
        for one in said.get("tool_calls") or ():
            function = one.get("function") if isinstance(one, dict) else None
            function = function if isinstance(function, dict) else {}
            asked = read_call(json.dumps({"name": function.get("name"), "arguments": function.get("arguments") or {}}))
            key = str(one.get("id", "")) if isinstance(one, dict) else ""
            results.append({"role": "tool", "tool_call_id": key, "content": self._used(asked)})
        if results:
            return results
        asked = read_call(str(said.get("content") or ""), plain_answers=True)
        return [{"role": "user", "content": f"Result of your tool: {self._used(asked)}"}] if isinstance(asked, Call) else []

    def _used(self, asked: Call | Final | Mistake) -> str:
        if isinstance(asked, Call):
            return self.world.call("user", asked.name, asked.arguments).result
        return f"Error: {asked.text}"


def _reply(text: str) -> Reply:
    """A message; the marks that end a conversation are not shown to the agent."""
    ends = ""
    for mark, why in ENDS.items():
        if mark in text:
            ends, text = ends or why, text.replace(mark, "")
    return Reply(text.strip() or "(no words)", ends)


def _lines(scenario: Mapping[str, Any]) -> list[str]:
    """The scenario of a task as text."""
    told = scenario["instructions"]
    parts = {"instructions": told} if isinstance(told, str) else told
    named = {"persona": scenario.get("persona"), **parts}
    return [f"{name.replace('_', ' ').capitalize()}: {str(text).strip()}" for name, text in named.items() if text]
