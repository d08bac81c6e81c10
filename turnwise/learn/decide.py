"""Decisions that all processes of a learner must take together.

Processes that train one model side by side must do the same thing at the same moment: if one of them retries with a smaller batch, stops
an update early or skips a step while the others do not, the next collective operation never ends. So each such decision is made here, and
nowhere else in the learner:

| decision | rule |
|---|---|
| `retry` after running out of memory | if any process ran out of memory |
| `tokens` computed at once | the smallest number that any process has room for |
| `recompute` activations | if any process has to |
| `stop` of an update by its KL | by the KL of all tokens, each process weighted by its own |
| `trust` in the engine's log-probs | if all processes find them near |
| `skip` of a step whose loss or gradient is not finite | if any process has one |

Every process calls them in the same order, as often as the others. `Decide` is the whole interface to a cluster. In one process (`Alone`)
each answer is what was asked, so nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol


class Decide(Protocol):
    """How processes communicate. All of them call the same method and get the same answer."""

    def any(self, flag: bool) -> bool:
        """Whether the flag is set anywhere."""

    def smallest(self, number: float) -> float:
        """The smallest of all numbers."""

    def total(self, number: float) -> float:
        """The sum of all numbers."""


class Alone:
    """One process: it decides for itself."""

    def any(self, flag: bool) -> bool:
        return flag

    def smallest(self, number: float) -> float:
        return number

    def total(self, number: float) -> float:
        return number


@dataclass
class Decisions:
    """The learner's decisions, taken together with the other processes."""

    together: Decide = field(default_factory=Alone)

    def retry(self, out_of_memory: bool) -> bool:
        """Whether a step is tried again with fewer tokens at once. Call it after every attempt, whether it succeeded or not."""
        return self.together.any(out_of_memory)

    def tokens(self, room: int) -> int:
        """The tokens that are computed at once."""
        return int(self.together.smallest(room))

    def recompute(self, must: bool) -> bool:
        """Whether activations are computed twice instead of being kept."""
        return self.together.any(must)

    def stop(self, kl: float, limit: float | None, tokens: int = 1) -> bool:
        """Whether the policy has moved so far from the old one that the update ends. `tokens` is what this process's KL is a mean of.
        Without a limit nothing is exchanged."""
        if limit is None:
            return False
        if type(self.together) is Alone:
            return kl > limit  # exactly this number: a product and a quotient could round it
        return self.together.total(kl * tokens) / max(self.together.total(tokens), 1) > limit

    def trust(self, near: bool) -> bool:
        """Whether the engine's log-probs are the old ones."""
        return not self.together.any(not near)

    def skip(self, *numbers: float) -> bool:
        """Whether an optimiser step is skipped, because a loss or a gradient norm is not finite."""
        return self.together.any(not all(math.isfinite(number) for number in numbers))
