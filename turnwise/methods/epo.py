"""EPO as one name: its objective on any credit; and the same with a penalty that has a gradient. Formulas are in objectives/epo.py."""

from __future__ import annotations

from typing import Any

from turnwise.methods.authors import VERL_AGENT
from turnwise.methods.registry import Brings, method

PAPER = "Xu et al. 2025, EPO, arXiv 2509.22576"
COSTS = "none: the engine reports the entropies that it samples with"


@method("epo", paper=PAPER, changes="objective", costs=COSTS, evidence="code")
def epo() -> dict[str, Any]:
    """An entropy bonus, and a constant penalty where an entropy leaves a band around those of earlier updates."""
    return Brings({"objective.name": "epo", "objective.entropy_coef": 0.0}, VERL_AGENT)


@method("epo_hinge", paper=f"ours, after {PAPER}", changes="objective", costs=COSTS, evidence="ours")
def epo_hinge() -> dict[str, Any]:
    """An entropy bonus that is held inside a band around the entropies of earlier updates."""
    return {"objective.name": "epo_hinge", "objective.entropy_coef": 0.0}
