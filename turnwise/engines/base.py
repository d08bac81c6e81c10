"""What an engine is: `Sampler` turns prompts into responses, `WeightReceiver` takes new weights, and `Engine` is the base of both.

An engine takes requests at any time and returns responses as they finish, in any order. A finished row leaves at once. Token ids go in
and token ids come out: text is never re-tokenised between an engine and the learner. `sequence` names the trajectory that a request
belongs to: an engine may keep what it computed for that trajectory's earlier prompts and reuse the common prefix, until `release`. The
same seed gives the same tokens regardless of the other rows in the batch, as far as the arithmetic allows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

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


StopRules = Literal["cheap", "costly", "none"]


class Sampler(Protocol):
    """What turns requests into responses, and what it declares about itself. Code that holds a sampler asks these members: never for its
    name or its class, nor whether it happens to have a method."""

    version: int = 0
    """The version of the engine's weights, -1 if it is unknown."""
    reports: Collection[str] = ()
    """The kinds of reports that it can give (`engines/reports.py`)."""
    in_process: bool = True
    """It computes in this process, from a model that the run loads. False: a server elsewhere has the model, and decides on its batches."""
    images: bool = False
    """It reads prompts with images, and is given the model's processor (`vision`)."""
    sleeps: bool = False
    """`sleep()` gives its memory back while the weights are updated."""
    early: int = 0
    """If many responses end at once, they are read in chunks, the first of so many responses (0: all at once), and `start()` is called when
    the requests that follow on a chunk were submitted and others are still being prepared."""
    stop_rules: StopRules = "cheap"
    """What a stop rule of a request costs. `cheap`: a call per token. `costly`: every token has to be handed over from another process on
    its own. `none`: it cannot be asked while tokens are drawn, and such a request is an error."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """How many requests have not been answered."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Take these requests. It never blocks for long."""

    @abstractmethod
    def poll(self, wait: bool = True) -> list[Response]:
        """Wait until at least one response is ready, or return none if nothing is pending. With `wait=False` take at most one step and
        return what is ready, perhaps nothing."""

    def start(self) -> None:
        """Begin with the requests that are here, while the host prepares others. It never waits."""
        return

    def release(self, sequence: int) -> None:
        """The trajectory is over: what was kept for it may be dropped."""
        return

    def forget(self) -> None:
        """Be as if this engine were new: nothing that was computed is reused. The weights stay."""
        return

    def sleep(self) -> None:
        """Give memory back until the next poll."""
        return

    def close(self) -> None:
        """Abandon what is under way, and free everything."""
        return


class WeightReceiver(Protocol):
    """How new weights reach an engine."""

    version: int = 0
    shares_weights: bool = True
    """It samples with the module that it was made with, so weights that are changed in place there are its weights: it is only told of
    them. False: it has a copy, and loads what is published."""

    def publish(self, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """The weights have this version from now on, and nothing that was computed with the old ones is reused. Without `weights` they are
        those of the module that the engine was made with. An engine with a copy of its own loads `weights`, by name."""
        self.refresh()
        self.version = version

    def refresh(self) -> None:
        """The module's weights have changed: nothing that was computed with the old ones may be reused. The version stays as it is."""
        return


CacheKind = Literal["sized", "grows", "reserved"]


class Engine(Sampler, WeightReceiver):
    """The base of every engine: both protocols with defaults, and what a recipe has to know before an engine is made. An engine of one's
    own needs `__init__`, `submit`, `poll` and `pending`; see docs/guides/engines.md."""

    trains: bool = True
    """A policy can be trained with it: its weights can be replaced, and its tokens and log-probs are exact."""
    several_gpus: bool = False
    """One engine can compute on several GPUs (`cluster.tensor_parallel`)."""
    packages: tuple[str, ...] = ()
    """Distributions that it needs beside torch and transformers."""
    cache_kind: CacheKind = "grows"
    """Where keys and values are. `sized`: in memory of a size that the recipe or the free memory decides, which `sleep` frees; `grows`: in
    tensors of the rows that run; `reserved`: in a share of the GPU that also has a copy of the weights."""
    past_key_values: bool = False
    """It runs the model's own forward with `past_key_values`: a model that takes none is refused before it is loaded."""
    fallback: str = ""
    """The engine that serves a model which this one does not take (`unsupported`)."""

    former_options: Mapping[str, str] = MappingProxyType({})
    """Options that it had before, each with what to do instead."""

    @staticmethod
    def unsupported(model: Any) -> str | None:
        """Why this engine cannot run a model; None if it can, or if that is found when it is made."""
        return None

    @staticmethod
    def check_model(model: Any) -> None:
        """Try a model as it was loaded, before anything is learned or played; an error if the engine would sample something else."""

    @staticmethod
    def check_options(sampling: Sampling, options: Mapping[str, Any]) -> None:
        """An error for what cannot work, before a model is loaded: packages, versions, devices, options."""

    @staticmethod
    def approximates(options: Mapping[str, Any]) -> str:
        """The option with which it samples from a slightly different policy than the learner's, which then needs importance weights;
        empty if there is none."""
        return ""

    def forget(self) -> None:
        self.refresh()
