"""Negative controls: credit from which what a method knows has been removed. One that does as well as its method shows that the method's
gain has another cause, such as the size of the updates. Recipes name them as `turnwise.arena.controls:shuffled`.

shuffled         the method's credit, exchanged at random between all turns of a group
random_anchors   the method's credit, after the states were exchanged at random between all turns of a group
constant         every turn of the batch gets the same credit, of the size of the method's
flipped          the method's credit with the other sign

They are pure, as all credit is: what is random follows from the columns themselves.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import algorithms, compute
from turnwise.credit.segments import TurnDiscount
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Floats, Rollouts

CONTROLS = ("shuffled", "random_anchors", "constant", "flipped")
Base = Annotated[str, Help("the credit algorithm that is compared with its control; one number per turn")]


def shuffled(r: Rollouts, *, base: Base = "gigpo", gamma: TurnDiscount = 0.95) -> Floats:
    """A method's credit, exchanged at random between the turns of each group."""
    return _credit(base, r, gamma)[_exchanged(r)]


def random_anchors(r: Rollouts, *, base: Base = "gigpo", gamma: TurnDiscount = 0.95) -> Floats:
    """A method's credit on states that were exchanged at random between the turns of each group."""
    return _credit(base, r.with_columns({"turn.anchor": r.anchor[_exchanged(r)]}), gamma)


def constant(r: Rollouts, *, base: Base = "gigpo", gamma: TurnDiscount = 0.95) -> Floats:
    """The same credit for every turn, as large as the method's on average."""
    return np.full(len(r), np.abs(_credit(base, r, gamma)).mean())


def flipped(r: Rollouts, *, base: Base = "gigpo", gamma: TurnDiscount = 0.95) -> Floats:
    """A method's credit with the other sign."""
    return -_credit(base, r, gamma)


def _credit(base: str, r: Rollouts, gamma: float) -> Floats:
    options = {"gamma": gamma} if "gamma" in algorithms[base].options else {}
    return compute(base, r, **options).astype(np.float64)


def _exchanged(r: Rollouts) -> Ints:
    """For each row, the row of the same group whose place it takes."""
    digest = blake2b(r.reward.tobytes() + r.anchor.tobytes() + r.t.tobytes(), digest_size=8).digest()
    noise = np.random.default_rng(int.from_bytes(digest, "big")).random(len(r))
    before, after = np.lexsort((np.arange(len(r)), r.group)), np.lexsort((noise, r.group))
    result = np.empty(len(r), np.int64)
    result[before] = after
    return result
