"""What an engine knows about a running request, and about one step of the model over many of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from turnwise.engines.native.cache_pages import Chain
from turnwise.engines.sampling import Noted
from turnwise.engines.stopping import Running


@dataclass(slots=True, eq=False)
class RunningRequest(Running):
    """Besides the tokens that are seen, `flying` more were drawn on the device and are not seen yet. `computed` counts the tokens whose
    keys and values are in the cache or on their way there."""

    chain: Chain = field(default_factory=Chain)
    slot: int = -1
    computed: int = 0
    flying: int = 0
    keeps: bool = True  # until its trajectory is released
    unchecked: int = 0  # tokens at the end of `ids` that nobody has looked at

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


class Ready:
    """A result that is ready; without tokens, that of a step in which none is sampled."""

    def __init__(self, tokens: list[int] | None = None, logprobs: list[float] | None = None, noted: Noted | None = None):
        self._result, self.noted = (tokens or [], logprobs or []), noted

    def wait(self) -> tuple[list[int], list[float]]:
        return self._result


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
