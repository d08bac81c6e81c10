"""Which sequences an update has to compute at all.

A turn whose credit is exactly 0 does not move the policy. With GiGPO these are all turns of a group without contrast, half of a batch
early in training. It still counts in the loss's normalisation, so it is left out of the computation only, after all weights are fixed.
That is valid if the objective vanishes with the advantage, which is tested and not assumed, and if nothing else depends on the turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from turnwise.learn.packing import Packed
from turnwise.learn.settings import LearnerSettings
from turnwise.objectives.loss import Loss
from turnwise.objectives.tokens import Tokens

Mask = NDArray[np.bool_]


def may_skip(settings: LearnerSettings) -> bool:
    """Whether sequences without credit can be left out: nothing but the objective needs them, and it vanishes on them."""
    loss = settings.loss
    others = loss.kl_coef > 0 or loss.entropy_coef > 0 or settings.value is not None or settings.kl_stop is not None
    return not others and vanishes(loss)


def vanishes(loss: Loss) -> bool:
    """Whether the loss of an objective is 0 and flat if all advantages are 0. An objective that reads further columns, or that has a
    state, is not tested: other columns may also move it."""
    if loss.reads or loss.is_class:
        return False
    generator = torch.Generator().manual_seed(0)
    logprob, old, engine = (-3 * torch.rand(24, generator=generator) for _ in range(3))
    logprob.requires_grad_()
    place = torch.arange(24)
    tokens = Tokens(
        logprob=logprob,
        old_logprob=old,
        advantage=torch.zeros(24),
        turn=place // 3,
        trajectory=place // 6,
        weight=torch.rand(24, generator=generator),
        engine_logprob=engine,
        entropy=torch.ones(24),
    )
    try:
        value, _ = loss(tokens)
        (slope,) = torch.autograd.grad(value, logprob)
    except (RuntimeError, ValueError):  # it needs more than this, or does not depend on the log-probs: nothing is known
        return False
    return value.item() == 0 and bool((slope == 0).all())


def with_credit(packed: Packed, kept: Mask, whole_trajectories: bool) -> Mask:
    """True for sequences with credit other than 0 on a token that counts (with `whole_trajectories`: for all of a trajectory that has
    some)."""
    credit = (np.asarray(packed.columns["advantage"]) != 0) & kept  # NaN counts as credit, and is noticed later
    owner = np.repeat(np.arange(len(packed)), np.diff(packed.token_offsets))
    needed = np.bincount(owner, weights=credit, minlength=len(packed)) > 0
    if whole_trajectories:
        of_trajectory = packed.sequence_trajectory
        needed = (np.bincount(of_trajectory, weights=needed) > 0)[of_trajectory] if len(packed) else needed
    return np.asarray(needed, np.bool_)


def keep_one(needed: Mask, packed: Packed, sequences: Any) -> None:
    """If none of a step's sequences is needed, its shortest is: every optimiser step is taken, if necessary with a gradient of zeros."""
    if len(sequences) and not needed[sequences].any():
        needed[sequences[np.argmin(packed.lengths[sequences])]] = True


def sample(packed: Packed, needed: Mask, tokens: int) -> Packed:
    """Some of the needed sequences, spread over all, with about `tokens` tokens."""
    which = np.flatnonzero(needed)
    share = min(1.0, tokens / max(int(packed.lengths[which].sum()), 1))
    count = max(1, round(share * len(which)))
    return packed.take(which[np.unique(np.linspace(0, len(which) - 1, count).round().astype(np.int64))])
