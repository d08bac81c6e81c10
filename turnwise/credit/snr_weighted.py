"""Credit of another algorithm, weighted by how much the returns of the group differ: the soft form of StarPO-S's filter.

    A' = A · σ_g / max σ        σ_g: sample standard deviation of the returns of group g

A group that nearly always ends the same way has a small signal and the noise of any other group; its weight is small. Divided by σ_g in the
base algorithm already (norm="std"), the weight would only undo that, so the default is norm="none".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.registry import algorithms, assign, register
from turnwise.credit.segments import Norm, Penalty, deviation, episode_returns, trajectory_groups
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.util.errors import TurnwiseError


@register("snr_weighted", paper="Wang et al. 2025, RAGEN, arXiv 2504.20073", needs=("group.peers",))
def snr_weighted(
    r: Rollouts,
    *,
    base: Annotated[str, Help("the credit algorithm that is weighted")] = "grpo",
    options: Annotated[dict[str, Any] | None, Help("further options of it")] = None,
    norm: Norm = "none",
    invalid_penalty: Penalty = 0.0,
) -> dict[str, Any]:
    """Credit of another algorithm times the spread of the group's returns, relative to the largest spread of the batch."""
    known = algorithms[base].options
    own = {"norm": norm, "invalid_penalty": invalid_penalty}
    found = assign(base, r, **({name: value for name, value in own.items() if name in known} | (options or {})))
    weight = group_weights(r)
    of_turns = weight[r.group]
    values = found.values * (of_turns if found.level == "turn" else np.repeat(of_turns, np.diff(r.token_offsets)))
    columns = {**found.columns, f"{found.level}.advantage": values, "group.snr": weight}
    return columns if found.targets is None else columns | {f"{found.level}.target": found.targets}


def group_weights(r: Rollouts) -> Floats:
    """σ_g / max σ, by group; 0 for all where no group has a spread."""
    spread = deviation(episode_returns(r), trajectory_groups(r), len(r.group_labels))
    largest = spread.max(initial=0.0)
    return spread / largest if largest > 0 else spread


def needs_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What the weighted algorithm needs."""
    if options["base"] == "snr_weighted":
        raise TurnwiseError("credit algorithm 'snr_weighted' cannot weight itself: set credit.base to another one")
    return algorithms[options["base"]].needed(options.get("options") or {})


snr_weighted.needs_of = needs_of  # type: ignore[attr-defined]
