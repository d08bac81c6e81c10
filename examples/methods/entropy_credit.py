"""Credit scaled by entropy: a token that was drawn from a wide distribution was a decision, and gets more of its turn's credit.

    A(token) = A(turn) · ((1 − strength) + strength · H(token) / mean H)        H: the entropy that the engine reported

The credit of turns comes from any other algorithm. Only its share among tokens changes: the mean scale over all tokens is 1, unless one
reaches `most`.

Use it in a recipe with

    [credit]
    name = "examples/methods/entropy_credit.py:entropy_credit"
    base = "grpo"
    strength = 0.5
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

import turnwise as tw
from turnwise.config.options import Help


# `needs` names what must be there before credit is given. The engine can report token.entropy while it samples, so this one line is enough:
# the run asks the engine for it. If no component gives what is needed, the run is rejected before it starts.
@tw.credit.register("entropy_credit", needs=("token.entropy", "group.peers"))
def entropy_credit(
    rollouts: tw.Rollouts,
    *,
    base: Annotated[str, Help("the algorithm that gives the credit of turns")] = "grpo",
    strength: Annotated[float, Help("0: every token of a turn gets the same; 1: in proportion to its entropy", low=0, high=1)] = 0.5,
    most: Annotated[float, Help("largest scale of a token", low=1)] = 4.0,
) -> dict[str, np.ndarray]:
    """Credit of another algorithm, shared out among a turn's tokens by the entropies that the engine reported."""
    # Options are the keyword-only parameters. Their types and limits are checked when the recipe is read, and `turnwise algos` shows them.
    of_turns = tw.credit.compute(base, rollouts)
    of_tokens = np.repeat(of_turns, np.diff(rollouts.token_offsets))  # token columns are flat, turn after turn

    entropy = rollouts.column("token.entropy")
    mean = entropy.mean()
    relative = entropy / mean if mean > 0 else np.ones_like(entropy)  # a policy that is sure of everything: no scaling
    scale = np.minimum(1 - strength + strength * relative, most)

    # A level is part of a column's name, so it is never guessed from a length whether this is per turn or per token. Further columns are
    # kept with the batch: this one is there to look at, in the run's pages and in `stored_batch`.
    return {"token.advantage": of_tokens * scale, "token.entropy_scale": scale}
