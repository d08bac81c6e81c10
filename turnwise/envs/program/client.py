"""What a program is given: the address and the key of its attempt, and two words to the run: a reward, and an anchor.

    def solve(task, client):
        answer = client.openai().chat.completions.create(model=client.model, messages=[…])
        client.reward(0.2, "found the file")        # at any time, for the last response
        client.anchor("room 3")                     # the state of the next call
        return 1.0                                  # or True, an Outcome, or nothing

A command has the same in its environment variables: `Client.from_environment()`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.util.errors import TurnwiseError
from turnwise.util.transport import Failure, Transport

MODEL = "turnwise"
SECONDS = 30.0


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. `success` is by default whether the reward reaches `success_at` of the environment; `measures` are further
    numbers, whose means evaluations report."""

    reward: float = 0.0
    success: bool | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """The endpoint of one attempt. Any client that takes a base URL and a key will do; `openai` is a short way to one. `seed` is that of
    the attempt, for all chance in the program."""

    base_url: str
    api_key: str
    seed: int = 0
    model: str = MODEL

    @classmethod
    def from_environment(cls) -> Client:
        """The client of a program that was started as a command."""
        try:
            seed = int(os.environ.get("TURNWISE_SEED") or 0)
            return cls(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], seed)
        except KeyError as missing:
            raise TurnwiseError(f"the environment variable {missing} is not set: start this program with turnwise") from None

    def openai(self, **options: Any) -> Any:
        """A client of the package openai."""
        return self._made("OpenAI", options)

    def async_openai(self, **options: Any) -> Any:
        """The same for async functions."""
        return self._made("AsyncOpenAI", options)

    def _made(self, name: str, options: Mapping[str, Any]) -> Any:
        try:
            import openai
        except ImportError:
            raise TurnwiseError("client.openai() needs the package openai: pip install openai. Any other client takes base_url") from None
        if self.base_url.startswith("http://") and "http_client" not in options:  # certificates, which take 60 ms to load, are not needed
            kind = openai.DefaultHttpxClient if name == "OpenAI" else openai.DefaultAsyncHttpxClient
            options = {**options, "http_client": kind(verify=False)}
        return getattr(openai, name)(base_url=self.base_url, api_key=self.api_key, **options)

    def reward(self, value: float, note: str = "", call: str | None = None) -> None:
        """Give a reward to the last response, or to the one with this id."""
        self._post("reward", {"value": float(value), "note": note} | ({} if call is None else {"call": call}))

    def anchor(self, key: str) -> None:
        """Name the state that the next call starts from: calls of a group with the same name are compared with each other."""
        self._post("anchor", {"key": str(key)})

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            Transport(self.base_url, self.api_key, SECONDS).post(path, body)
        except Failure as error:
            raise TurnwiseError(f"the run did not take {path} ({json.dumps(body)[:200]}): {error}") from None
