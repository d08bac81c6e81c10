"""EAPO (IterResearch): every turn starts from a workspace of constant size, is a sample of its own, and gets the outcome discounted by
its distance to the end.

Credit is in `turnwise/credit/eapo.py`, the workspace in `turnwise/agent/workspace.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.credit.eapo import EarlyDiscount
from turnwise.methods.registry import Brings, method

INSTRUCTIONS = (
    "You see only your own report and the last turn. Before you act, write what you know so far and what is left to do "
    "between <report> and </report>."
)


@method(
    "eapo",
    paper="IterResearch: Efficiency-Aware Policy Optimization, arXiv 2511.07327",
    changes="context, credit, objective",
    costs="none; prompts have a constant length, reports make responses longer",
    evidence="notes",
)
def eapo(
    *,
    gamma: EarlyDiscount = 0.995,
    workspace: Annotated[bool, Help("build prompts from the agent's own report; false keeps the recipe's context")] = True,
) -> dict[str, Any]:
    """The outcome is discounted by the distance to the end, and every turn starts from a report that the agent keeps."""
    settings: dict[str, Any] = {
        "credit.name": "eapo",
        "credit.gamma": gamma,
        "objective.name": "gspo",
        "objective.level": "turn",
    }
    settings |= {"agent.context": "workspace", "agent.instructions": INSTRUCTIONS} if workspace else {}
    return Brings(settings, {"objective.aggregation": "turn", "credit.norm": "std"})
