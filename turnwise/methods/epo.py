"""EPO as one name: its objective on any credit. The formula is in objectives/epo.py."""

from __future__ import annotations

from typing import Any

from turnwise.methods.authors import VERL_AGENT
from turnwise.methods.registry import Brings, method


@method(
    "epo",
    paper="Xu et al. 2025, EPO, arXiv 2509.22576",
    changes="objective",
    costs="none: the engine reports the entropies that it samples with",
    evidence="code; the differentiable penalty is ours",
)
def epo() -> dict[str, Any]:
    """An entropy bonus that is held inside a band around the entropies of earlier updates."""
    return Brings({"objective.name": "epo", "objective.entropy_coef": 0.0}, VERL_AGENT)
