"""What an engine knows about a running request, and about one step of the model over many of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from turnwise.engines.base import Finish, Request, Response
from turnwise.engines.native.cache_pages import Chain
from turnwise.engines.sampling import Noted, frozen
from turnwise.engines.stopping import StopStrings


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request. `ids` are the prompt and what was sampled and seen; `flying` more tokens were drawn on the device and are not seen yet.
    `computed` counts the tokens whose keys and values are in the cache or on their way there; `end` is the largest allowed number of
    tokens."""

    request: Request
    ids: list[int]
    end: int
    stop: StopStrings | None
    chain: Chain = field(default_factory=Chain)
    slot: int = -1
    computed: int = 0
    flying: int = 0
    finished: bool = False
    keeps: bool = True  # until its trajectory is released
    logprobs: list[float] = field(default_factory=list)
    reports: dict[str, list[float]] = field(default_factory=dict)
    version: int = -1  # of the weights that drew the first token
    unchecked: int = 0  # tokens at the end of `ids` that nobody has looked at
    rule: Callable[[int, Mapping[str, float]], bool] | None = None  # asked after each token whether the response ends

    @property
    def length(self) -> int:
        return len(self.ids) + self.flying

    @property
    def todo(self) -> int:
        """Tokens that the model has to read before the next one can be drawn; 0 when the last one is drawn already."""
        length = len(self.ids) + self.flying
        return length - self.computed if length < self.end else 0

    @property
    def drawn(self) -> int:
        """How many tokens were drawn so far: the index of the next one."""
        return len(self.logprobs) + self.flying

    def response(self, finish: Finish, message: str = "") -> Response:
        sampled = tuple(self.ids[len(self.ids) - len(self.logprobs) :]) if self.logprobs else ()
        return Response(
            self.request.key, sampled, tuple(self.logprobs), finish, message, reports=frozen(self.reports), version=self.version
        )


@dataclass(slots=True)
class Step:
    """One forward: `counts[i]` more tokens of `rows[i]`. Those that have read all their tokens then draw one. Before it, `copies` of the
    beginnings of pages are made (source, target, tokens), and rows that got a slot since the last step are made known."""

    rows: list[RunningRequest] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    admitted: list[RunningRequest] = field(default_factory=list)

    drawing: list[int] = field(default_factory=list)  # the indices of the rows that draw
    tokens: int = 0

    def add(self, row: RunningRequest, count: int, draws: bool) -> None:
        if draws:
            self.drawing.append(len(self.rows))
        self.rows.append(row)
        self.counts.append(count)
        self.tokens += count


class StepResult(Protocol):
    """Tokens and log-probs of a step's drawing rows, perhaps not ready yet; `noted` is what is reported about them, to be read after
    `wait`, and None if no row asks for anything."""

    @property
    def noted(self) -> Noted | None: ...

    def wait(self) -> tuple[list[int], list[float]]: ...


class Runner(Protocol):
    """Runs steps on a device. `mixed`: prompts and single tokens go into one forward. `ahead`: how many steps may be launched before the
    result of the first is read."""

    mixed: bool
    ahead: int
    page_size: int
    page_count: int

    def run(self, step: Step) -> StepResult:
        """Launch one forward and the sampling that follows it."""

    def update(self) -> None:
        """The weights have changed."""

    def clean(self) -> None:
        """Part of the cache is NaN or infinite and must not reach another row."""

    def sleep(self) -> None:
        """Give the cache memory back; the next step takes it again."""
