"""The engine protocol: what turns prompts into responses.

An engine takes requests at any time and returns responses as they finish, in any order. A finished row leaves at once. Token ids go in
and token ids come out: text is never re-tokenised between an engine and the learner. `sequence` names the trajectory that a request
belongs to: an engine may keep what it computed for that trajectory's earlier prompts and reuse the common prefix, until `release`. The
same seed gives the same tokens regardless of the other rows in the batch, as far as the arithmetic allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from turnwise.data.images import Picture
from turnwise.engines.reports import check_names, report_columns
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from torch import Tensor

COLDEST = 0.001  # below this the scaled logits of a peaked model overflow float32; for less, use greedy


class Finish(StrEnum):
    """Why a response ended."""

    STOP = "stop"  # a stop token or stop string
    LENGTH = "length"  # max_tokens
    RULE = "rule"  # the stop rule of its sampling
    REFUSED = "refused"  # this request can never fit (prompt too long for the engine); `message` says why
    FAULT = "fault"  # the engine failed on this request alone; `message` says how


class StopRule(Protocol):
    """Ends responses by what is reported about their tokens. `reads` are the columns of reports that it needs. `watch` is called once per
    response and returns a function that is asked after each drawn token, with the token and its reports: true ends the response."""

    @property
    def reads(self) -> tuple[str, ...]: ...

    def watch(self, tokenizer: Any) -> Callable[[int, Mapping[str, float]], bool]: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. Temperature 0 is greedy. Log-probs are those of the drawn token at this temperature, before top-k, top-p and
    min-p (1.0 if greedy: the model's own distribution), which is what a learner's ratio needs. `report` names what the engine reports
    about each token, of the same distribution (`engines/reports.py`). `rule` ends responses by these reports, while they are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    report: tuple[str, ...] = ()
    rule: StopRule | None = None

    def __post_init__(self) -> None:
        """A wrong setting concerns every request: it raises an error here and is not a fault of each request."""
        check_names(self.report)
        stop = self.stop
        for name, takes, good in (
            ("temperature", f"0 (greedy) or {COLDEST:g} and more", self.temperature == 0 or COLDEST <= self.temperature < math.inf),
            ("top_p", "a number above 0 and up to 1", 0 < self.top_p <= 1),
            ("top_k", "an integer, 0 for no limit", isinstance(self.top_k, int) and self.top_k >= 0),
            ("min_p", "a number from 0 up to 1", 0 <= self.min_p <= 1),
            ("max_tokens", "an integer of at least 1", isinstance(self.max_tokens, int) and self.max_tokens >= 1),
            ("stop", "a tuple of texts, none of them empty", isinstance(stop, tuple) and all(isinstance(s, str) and s for s in stop)),
        ):
            if not good:
                raise TurnwiseError(f"sampling: {name} takes {takes}, not {getattr(self, name)!r}")
        if self.rule is not None and (missing := set(self.rule.reads) - set(report_columns(self.report))):
            raise TurnwiseError(f"sampling: the stop rule reads {min(missing)!r}, which is not reported: ask for it in `report`")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. `key` comes back with the response; `sequence` is the trajectory it belongs to; `seed` fixes the draw. `messages` is
    the same prompt as a chat ({"role": …, "content": …}), for servers whose tokenizer is not available; other engines ignore it. `images`
    are the images whose tokens are in the prompt; only the transformers engine takes them, with a vision-language model."""

    key: int
    prompt_ids: Sequence[int]
    sampling: Sampling
    seed: int = 0
    sequence: int = 0
    messages: tuple[Mapping[str, str], ...] | None = None
    images: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """What was sampled, stop token included, with one log-prob per token. `text` is set only by an engine that received text and not
    tokens (a server). It is then authoritative, and the token ids are a re-encoding for the records, not for training. `reports` holds
    what `Sampling.report` asked for: by column, one number per token. `version` is that of the weights that drew the first token, -1 if
    it is unknown. `spans` are the versions of all tokens, in order, each with the number of tokens that it drew; empty if the engine
    does not say."""

    key: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: Finish = Finish.STOP
    message: str = ""
    text: str | None = None
    reports: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    version: int = -1
    spans: tuple[tuple[int, int], ...] = ()


class Engine(Protocol):
    """`submit` never blocks for long. `poll` waits until at least one response is ready, or returns none if nothing is pending; with
    `wait=False` it takes at most one step and returns what is ready, perhaps nothing. `version` is that of the engine's weights, -1 if
    it is unknown. `reports` are the kinds of reports that it can give (`engines/reports.py`).

    An engine whose device works while the host does something else may have two members more. If many responses end at once, they are
    read in pieces, the first of `early` responses (0: all at once). `start()` is called when the requests that follow on a piece were
    submitted, and others are still being prepared: the engine may begin with what it has. It never waits."""

    version: int

    @property
    def reports(self) -> Collection[str]: ...

    @property
    def pending(self) -> int: ...

    def submit(self, requests: Sequence[Request]) -> None: ...

    def poll(self, wait: bool = True) -> list[Response]: ...

    def release(self, sequence: int) -> None:
        """The trajectory is over: what was kept for it may be dropped."""

    def publish(self, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """The weights have this version from now on, and nothing that was computed with the old ones is reused. An engine on the
        learner's own model gets no `weights`; one with a separate copy gets them by name and loads them."""

    def refresh(self) -> None:
        """The weights have changed: nothing that was computed with the old ones may be reused. The version stays as it is."""

    def close(self) -> None: ...
