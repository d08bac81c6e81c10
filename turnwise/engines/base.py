"""The engine protocol: what turns prompts into responses.

An engine takes requests whenever they come and hands out responses as they finish, in any order; whoever finishes leaves at once. Token
ids go in and token ids come out: text is never re-tokenised between an engine and the learner. `sequence` names the trajectory that a
request belongs to: an engine may keep what it computed for that trajectory's earlier prompts and reuse the common prefix, until
`release`. The same seed gives the same tokens whatever else is in the batch, as far as the arithmetic allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Finish(StrEnum):
    """Why a response ended."""

    STOP = "stop"  # a stop token or stop string
    LENGTH = "length"  # max_tokens
    REFUSED = "refused"  # this request can never fit (prompt too long for the engine); `message` says why
    FAULT = "fault"  # the engine failed on this request alone; `message` says how


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. temperature 0 is greedy. Log-probs are of the drawn token at this temperature, before top-k, top-p and
    min-p (1.0 where greedy: the model's own distribution), which is what a learner's ratio needs."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 128
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. `key` comes back with the response; `sequence` is the trajectory it belongs to; `seed` fixes the draw."""

    key: int
    prompt_ids: Sequence[int]
    sampling: Sampling
    seed: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """What was sampled, stop token included, with one log-prob a token."""

    key: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: Finish = Finish.STOP
    message: str = ""


class Engine(Protocol):
    """`submit` never blocks for long; `poll` waits until at least one response is ready (or returns none where nothing is pending)."""

    @property
    def pending(self) -> int: ...

    def submit(self, requests: Sequence[Request]) -> None: ...

    def poll(self) -> list[Response]: ...

    def release(self, sequence: int) -> None:
        """The trajectory is over: what was kept for it may go."""

    def refresh(self) -> None:
        """The weights have changed: nothing that was computed with the old ones may be reused."""

    def close(self) -> None: ...
