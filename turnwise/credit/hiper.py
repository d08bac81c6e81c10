"""HiPER: advantages inside subgoal segments, across segments, and for the decision to switch, each on its own tokens.

A segment starts at the first turn and at every turn that says SWITCH. V_next after a trajectory's end is 0.

    low    δ = r + γ V_next − V_low       V_next: V_low of the next turn, at a segment's end V_high of the next segment
           A_low = δ + γ λ A_low(next turn of the segment)                                    on the tokens of the action
    high   δ = Σ γ^j r_j + γ^d V_high(next segment) − V_high     d: the turns of the segment
           A_high = δ + γ^d λ_high A_high(next segment)                                       on the subgoal of a segment's first turn
    term   A_term = G − V_term     G = r + γ G_next inside the segment, V_high of the next segment after it       on the switch

Each of the three is z-scored over the turns that have such tokens. All other tokens are masked. The targets of the three heads are the
advantages before that, plus the values. With `bootstrap`, a trajectory that a limit ended goes on with its own last value instead of 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, relative, reverse_scan
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Bools, Floats, Rollouts

PART, SWITCH, LOW_AT, TRUNCATED = "token.part", "turn.switch", "turn.low_at", "trajectory.truncated"
VALUES = ("turn.value_low", "turn.value_high", "turn.value_term")
TARGETS = ("token.target_low", "turn.target_high", "turn.target_term")
SWITCH_PART, SUBGOAL_PART, ACTION_PART = 1, 2, 3  # what a token belongs to; 0: none of them

Lambda = Annotated[float, Help("λ inside a segment", low=0, high=1)]
SegmentLambda = Annotated[float, Help("λ across segments", low=0, high=1)]
Bootstrap = Annotated[bool, Help("after a trajectory that a limit ended: its own last value instead of 0")]


@register("hiper", paper="HiPER, arXiv 2602.16165", needs=(PART, SWITCH, LOW_AT, TRUNCATED, *VALUES), gives=TARGETS)
def hiper(
    r: Rollouts, *, gamma: TurnDiscount = 1.0, lam: Lambda = 1.0, lam_high: SegmentLambda = 0.95, bootstrap: Bootstrap = True
) -> dict[str, Any]:
    """Advantages of actions inside a subgoal's segment, of subgoals across segments, and of switches, on their own tokens."""
    v_low, v_high, v_term = (np.asarray(r.need(name, "hiper"), np.float64) for name in VALUES)
    first = np.append(True, r.trajectory[1:] != r.trajectory[:-1])
    starts = first | (np.asarray(r.column(SWITCH)) > 0)
    goes_on = bootstrap & np.asarray(r.column(TRUNCATED)).astype(bool)[r.trajectory]
    segment = np.cumsum(starts) - 1
    ends, last = np.append(starts[1:], True), np.append(first[1:], True)
    own_start = np.flatnonzero(starts)[segment]
    after = np.where(last, np.where(goes_on, v_high[own_start], 0.0), np.append(v_high[1:], 0.0))  # what follows a segment's last turn
    following = np.where(ends & ~last, after, np.where(last, np.where(goes_on, v_low, 0.0), np.append(v_low[1:], 0.0)))
    low = reverse_scan(r.reward + gamma * following - v_low, gamma * lam, segment)
    to_go = reverse_scan(r.reward + gamma * np.where(ends, after, 0.0), gamma, segment)
    high = across(r, np.flatnonzero(starts), to_go, v_high, gamma, lam_high)
    rows = np.repeat(np.arange(len(r)), np.diff(r.token_offsets))
    part = np.asarray(r.column(PART))
    advantage, kept, every = np.zeros(len(rows)), np.zeros(len(rows), np.bool_), np.ones(len(r), np.bool_)
    kinds = ((ACTION_PART, low, every), (SUBGOAL_PART, high, starts), (SWITCH_PART, to_go - v_term, every))
    for number, values, turns in kinds:
        chosen = (part == number) & turns[rows]
        advantage[chosen] = normalised(values, np.bincount(rows[chosen], minlength=len(r)) > 0)[rows[chosen]]
        kept |= chosen
    if r.has("token.mask"):
        kept &= r.column("token.mask").astype(bool)
    targets = (at_tokens(r, low + v_low), np.where(starts, high + v_high, np.nan), to_go)
    return {"token.advantage": np.where(kept, advantage, 0.0), "token.mask": kept, **dict(zip(TARGETS, targets, strict=True))}


def across(r: Rollouts, at: Ints, to_go: Floats, v_high: Floats, gamma: float, lam: float) -> Floats:
    """Advantages over segments, by the first turn of each; 0 for other turns. `to_go` of that turn has the value after the segment."""
    length = np.diff(np.append(at, len(r))).astype(np.float64)
    found = np.zeros(len(r))
    found[at] = reverse_scan(to_go[at] - v_high[at], np.power(gamma, length) * lam, r.trajectory[at])
    return found


def normalised(values: Floats, chosen: Bools) -> Floats:
    """z-scores over the chosen turns, 0 for others; equal values give exactly 0."""
    found = np.zeros(len(values))
    own = values[chosen]
    if len(own):
        difference = relative(own, np.zeros(len(own), np.int64), 1)
        found[chosen] = (difference - difference.mean()) / (difference.std() + 1e-8) if difference.any() else 0.0
    return found


def at_tokens(r: Rollouts, values: Floats) -> Floats:
    """A number per token: the turn's value at the token where V_low is read, NaN elsewhere."""
    found = np.full(int(r.token_offsets[-1]), np.nan)
    some = np.diff(r.token_offsets) > 0
    place = r.token_offsets[:-1] + np.asarray(r.column(LOW_AT)).astype(np.int64)
    found[place[some]] = values[some]
    return found
