"""VinePPO: the value of a state is the mean return of fresh attempts that started there; no critic is trained.

    A_k = r_k + γ · V(s_{k+1}) − V(s_k)        V after the end = 0

V is the column `turn.mc_value`, the value of the state before each turn; the plan `vineppo` makes it. A state without an estimate (NaN)
takes what follows: V(s_k) = r_k + γ · V(s_{k+1}), so its turn gets exactly 0 and an earlier estimate is compared with what came after.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import register
from turnwise.credit.segments import TurnDiscount, reverse_scan
from turnwise.credit.segments import whiten as whitened
from turnwise.data.rollouts import NOISE, Floats, Rollouts


@register("vineppo", paper="Kazemnejad et al. 2024, VinePPO, arXiv 2410.01679", needs=("turn.mc_value",))
def vineppo(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 1.0,
    whiten: Annotated[bool, Help("subtract the mean and divide by the standard deviation over the tokens of the batch")] = False,
) -> Floats:
    """How much a turn changed the value of the state, by the mean return of fresh attempts from the states before and after it."""
    estimate = np.asarray(r.need("turn.mc_value", "vineppo"), np.float64)
    unknown = np.isnan(estimate)
    value = reverse_scan(np.where(unknown, r.reward, estimate), np.where(unknown, gamma, 0.0), r.trajectory)
    after = np.zeros(len(value))
    after[:-1] = np.where(r.trajectory[:-1] == r.trajectory[1:], gamma * value[1:], 0.0)
    advantage = r.reward + after - value
    advantage[unknown | (np.abs(advantage) <= NOISE * (np.abs(r.reward) + np.abs(after) + np.abs(value)))] = 0.0
    return whitened(advantage, None if r.tokens is None else r.tokens.astype(np.float64)) if whiten else advantage
