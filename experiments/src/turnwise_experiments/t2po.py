"""T²PO: a thought ends when the policy's uncertainty stops changing, and a turn that does not move it is drawn again.

    C = −mean of the j largest log-probs of a token            large: the distribution is peaked
    M = a · Hn + (1 − a) · (1 − Cn)                            entropy and C, scaled to [0, 1] by their smallest and largest values
    stop    after `least` tokens, if the mean of |M(t) − M(t−1)| over the last `window` tokens is below `flat`, or after `most` tokens:
            `insert` is put behind the thought, once per response. Here values are scaled by those of the tokens so far
    again   Φ = geometric mean of M over the turn, scaled over the whole turn; if 0 < |Φ − Φ of the turn before| < eta, the turn is drawn
            again from the same state, at most `tries` times

Both need the engine only while it draws: the rule is asked after every token (collect/drawing.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.data.masks import INSERTED
from turnwise.data.rollouts import Turn
from turnwise.methods.planning import Plain
from turnwise.methods.registry import VERL_AGENT, Brings, method, plan

PAPER = "T²PO 2026, arXiv 2605.02178"
TAIL = 16  # tokens at the end of a response in which a tag is looked for
FLOOR = 1e-8  # an uncertainty of 0 would make the geometric mean 0 whatever the others are


@plan("t2po", paper=PAPER, needs=("token.entropy", "token.top_logprob_{tops}"))
@dataclass(kw_only=True, eq=False)
class T2po(Plain):
    """Every group once; thoughts end when uncertainty is flat, and turns that do not move it are drawn again."""

    mix: Annotated[float, Help("share of the entropy in the uncertainty; the rest is the confidence", low=0, high=1)] = 0.5
    tops: Annotated[int, Help("most likely tokens that the confidence is computed from", low=1, high=100)] = 5
    stops: Annotated[bool, Help("end thoughts whose uncertainty is flat")] = True
    window: Annotated[int, Help("tokens over which changes of the uncertainty are averaged", low=1)] = 16
    flat: Annotated[float, Help("a thought ends if the mean change is below this", low=0)] = 0.05
    least: Annotated[int, Help("tokens that a response has before its thought may be ended", low=1)] = 32
    most: Annotated[int | None, Help("tokens after which a thought is ended in any case; none: never", low=1)] = 450
    opening: Annotated[str, Help("what a thought begins with; empty: a response begins as a thought")] = "<think>"
    closing: Annotated[str, Help("what a thought ends with")] = "</think>"
    insert: Annotated[str, Help("what is put behind a thought that is ended")] = "</think>\n<action>"
    eta: Annotated[float, Help("a turn is drawn again if it changes the uncertainty by less than this", low=0)] = 0.3
    tries: Annotated[int, Help("how often a turn is drawn again at most; 0: never", low=0)] = 2

    @property
    def reads(self) -> tuple[str, ...]:
        return ("entropy", *(f"top_logprob_{place}" for place in range(1, self.tops + 1)))

    @property
    def drawing(self) -> T2po:
        return self

    @property
    def rule(self) -> T2po | None:
        return self if self.stops else None

    def watch(self, tokenizer: Any) -> Callable[[int, Mapping[str, float]], bool]:
        """A function that is asked after each token of one response whether its thought ends."""
        ids: list[int] = []
        seen = Running(self.mix)
        state = {"open": not self.opening, "over": False}

        def ends(token: int, reports: Mapping[str, float]) -> bool:
            ids.append(token)
            seen.add(reports["entropy"], confidence([reports[column] for column in self.reads[1:]]))
            if not state["over"]:
                tail = tokenizer.decode(ids[-TAIL:], skip_special_tokens=False)
                state["open"] = state["open"] or self.opening in tail
                state["over"] = state["open"] and self.closing in tail
            if not state["open"] or state["over"]:
                return False
            return (self.most is not None and len(ids) >= self.most) or settled(seen.values, self.least, self.window, self.flat)

        return ends

    def again(self, before: Turn | None, turn: Turn, draws: int) -> bool:
        if before is None or draws >= self.tries:
            return False
        change = abs(self.uncertainty(turn) - self.uncertainty(before))
        return 0 < change < self.eta

    def uncertainty(self, turn: Turn) -> float:
        """Φ of a turn, from the tokens that the policy has drawn; not a number if nothing was reported about them."""
        if any(column not in turn.reports for column in self.reads):
            return math.nan
        reports = {column: np.asarray(turn.reports[column], np.float64) for column in self.reads}
        drawn = np.asarray(turn.reports.get(INSERTED, np.zeros(len(turn.response_ids)))) == 0
        if not drawn.any():
            return 0.0
        confident = -np.mean([reports[column][drawn] for column in self.reads[1:]], axis=0)
        values = self.mix * _scaled(reports["entropy"][drawn]) + (1 - self.mix) * (1 - _scaled(confident))
        return float(np.exp(np.log(np.maximum(values, FLOOR)).mean()))


class Running:
    """The uncertainties of a response's tokens, each scaled by the smallest and largest values up to it."""

    def __init__(self, mix: float):
        self.mix, self.values = mix, list[float]()
        self._range = [[math.inf, -math.inf], [math.inf, -math.inf]]

    def add(self, entropy: float, confident: float) -> None:
        places = []
        for known, value in zip(self._range, (entropy, confident), strict=True):
            known[:] = min(known[0], value), max(known[1], value)
            places.append((value - known[0]) / (known[1] - known[0]) if known[1] > known[0] else 0.0)
        self.values.append(self.mix * places[0] + (1 - self.mix) * (1 - places[1]))


def confidence(logprobs: Sequence[float]) -> float:
    """C of a token."""
    return -sum(logprobs) / len(logprobs)


def settled(values: Sequence[float], least: int, window: int, flat: float) -> bool:
    """Whether the last `window` changes of the uncertainty are small on average."""
    if len(values) < max(least, window + 1):
        return False
    last = values[-window - 1 :]
    return sum(abs(after - before) for before, after in pairwise(last)) / window < flat


def _scaled(values: Any) -> Any:
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros(len(values))


@method(
    "t2po",
    paper=PAPER,
    changes="collection",
    costs="up to `tries` further generations per turn; the engine reports entropies and log-probs",
    evidence="notes; code (drawing a turn again)",
)
def t2po() -> dict[str, Any]:
    """Thoughts end when uncertainty is flat, turns that do not move it are drawn again, and GiGPO gives the credit."""
    credit = {"credit.gamma": 0.95, "credit.omega": 1.0, "credit.norm": "std", "credit.invalid_penalty": 0.1}
    return Brings({"plan.name": "t2po", "credit.name": "gigpo"}, VERL_AGENT | credit)
