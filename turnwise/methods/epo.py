"""EPO: a clipped ratio with an entropy bonus, and a penalty on entropies that leave a band around their own history. For any credit.

    history(k) = mean over past updates of the mean entropy of tokens at turn index k, as the engine reported it when it sampled
    P = 0 inside low · history(k) < H < high · history(k)                                           H: under the current policy
    P = penalty outside
    loss = clipped loss − bonus · (H − smoothing · w(e) · P)                                        e: updates so far

The published P is a constant where it is not 0: it moves the value of the loss and no weight, so `epo` trains with the entropy bonus
alone. w decays over `decay` updates: slowly from 1 to about 0.8 in the first half, then quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.methods.registry import VERL_AGENT, Brings, method
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

PAPER = "Xu et al. 2025, EPO, arXiv 2509.22576"


@objectives.register(
    "epo", paper=PAPER, needs=("turn.t", "token.entropy"), former={"form": (None, "remove it: the published form is the only one")}
)
@dataclass(kw_only=True, eq=False)
class Epo:
    """PPO's clip with an entropy bonus, and the published constant penalty where an entropy leaves the band around its history."""

    level: Annotated[Literal["token", "turn"], Help("what is compared with the band: each token, or the mean of a turn")] = "token"
    bonus: Annotated[float, Help("coefficient of the entropy, and of the penalty with it", low=0)] = 0.001
    smoothing: Annotated[float, Help("weight of the penalty relative to the entropy", low=0)] = 1.0
    penalty: Annotated[float, Help("size of the penalty outside of the band", low=0)] = 0.1
    low: Annotated[float, Help("lower edge of the band, as a multiple of the history", low=0)] = 0.0
    high: Annotated[float, Help("upper edge of the band, as a multiple of the history", low=0)] = 2.0
    decay: Annotated[int | None, Help("updates over which the weight of the penalty decays; none: it does not", low=1)] = 150
    gate: Annotated[int, Help("penalise only in mini-batches that have a turn with at least this index", low=0)] = 0
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2
    clip_high: Annotated[float, Help("the ratio is clipped above at 1 + this", low=0)] = 0.2
    dual_clip: Annotated[float | None, Help("bound on the ratio if the advantage is negative", low=1)] = None

    def __post_init__(self) -> None:
        self.updates = 0
        self.sums, self.counts = np.zeros(0), np.zeros(0)  # over updates: the mean entropy at each turn index, and how many had one
        self._seen = np.zeros((2, 0))  # in this update: the entropies and the number of tokens, by turn index

    def prepare(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Note the mini-batch's entropies, and give each token the history of its turn index; NaN if there is none or no penalty."""
        t, counts = np.asarray(columns["t"], np.int64), np.asarray(columns["weight"]) != 0
        for row, values in enumerate((columns["token.entropy"], np.ones(len(t)))):
            own = np.bincount(t[counts], np.asarray(values, np.float64)[counts])
            self._seen = _longer(self._seen, len(own))
            self._seen[row, : len(own)] += own
        history = _longer(self.history(), int(t.max(initial=0)) + 1, np.nan)[t]
        return {"history": history if (t[counts] >= self.gate).any() else np.full(len(t), np.nan)}

    def history(self) -> Any:
        """The mean over past updates, by turn index; NaN for an index that no update had."""
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), np.nan)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        from turnwise.objectives.clip import clip

        entropy, history = tokens.need("entropy", "EPO"), tokens.need("history", "EPO")
        known, compared = ~history.isnan(), tokens.mean_over("turn", entropy) if self.level == "turn" else entropy
        centre = torch.where(known, history, 0.0)
        low, high = self.low * centre, self.high * centre
        outside = known & ~((compared > low) & (compared < high))
        weight = self.smoothing * smoothing_weight(self.updates, self.decay)
        loss, metrics = clip(tokens, clip_low=self.clip_low, clip_high=self.clip_high, dual_clip=self.dual_clip)
        return TokenLoss(loss - self.bonus * (entropy - weight * self.penalty * outside), {**metrics, "entropy_outside": outside})

    def observe(self, metrics: Mapping[str, float]) -> None:
        """An update is over: its mean entropies join the history."""
        size = max(len(self.sums), self._seen.shape[1])
        sums, counts = _longer(self._seen, size)
        had = counts > 0
        self.sums = _longer(self.sums, size) + np.where(had, sums / np.maximum(counts, 1), 0.0)
        self.counts = _longer(self.counts, size) + had
        self.updates, self._seen = self.updates + 1, np.zeros((2, 0))

    def state(self) -> dict[str, Any]:
        return {"updates": self.updates, "sums": self.sums.tolist(), "counts": self.counts.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.updates, self.sums, self.counts = int(state["updates"]), np.array(state["sums"], float), np.array(state["counts"], float)


def smoothing_weight(updates: int, last: int | None) -> float:
    """w: the weight of the penalty after this many updates, of `last`."""
    if last is None or last < 2:
        return 1.0
    done, half = min(updates, last), last // 2
    if done <= half:
        return 1 - 0.2 * (1 - math.exp(-2 * done / half))
    return 0.8 * math.exp(-3 * (done - half) / (last - half))


def _longer(values: Any, size: int, filler: float = 0.0) -> Any:
    """The array with at least this many entries along its last axis."""
    missing = max(0, size - values.shape[-1])
    return np.concatenate([values, np.full((*values.shape[:-1], missing), filler)], axis=-1)


@method("epo", paper=PAPER, changes="objective", costs="none: the engine reports the entropies that it samples with", evidence="code")
def epo() -> dict[str, Any]:
    """An entropy bonus, and a constant penalty where an entropy leaves a band around those of earlier updates."""
    return Brings({"objective.name": "epo", "objective.entropy_coef": 0.0}, VERL_AGENT)
