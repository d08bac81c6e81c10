"""EAPO (IterResearch): every turn starts from a workspace of constant size, is a sample of its own, and gets the outcome discounted by
its distance to the end.

A prompt in the workspace has the goal, the agent's own report, the last action and its outcome, and the current observation. The agent
writes the report itself: the text between <report> and </report> in a response replaces it. A response without one leaves it as it is.

Credit compares all turns of the group:

    r_k = γ^(K−k) · R                 R: the trajectory's return, K: its last turn
    A_k = (r_k − mean r) / (std r + 1e-6)     over all turns of all trajectories of the group

A success in fewer turns has larger rewards, so it is preferred to a long one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from turnwise.agent.base import Parsed, Prompt
from turnwise.agent.context import PromptMaker, Window
from turnwise.agent.prompts import Past
from turnwise.agent.registry import register_context
from turnwise.agent.text import well_formed
from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import Norm, episode_returns, segment_count, standardise
from turnwise.data.rollouts import Floats, Rollouts
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation
from turnwise.methods.registry import Brings, method, section

REPORT = re.compile(r"<report>(.*?)</report>", re.DOTALL)
INSTRUCTIONS = (
    "You see only your own report and the last turn. Before you act, write what you know so far and what is left to do "
    "between <report> and </report>."
)
EarlyDiscount = Annotated[float, Help("factor per turn between a turn and the end", low=0, high=1)]


@register_context("workspace")
class Workspace(Window):
    """Each turn is a separate prompt with the goal, the report that the agent wrote, and the last turn."""

    def __init__(self, maker: PromptMaker):
        super().__init__(maker)
        self.report = ""

    def start(self, task: Task, observation: Observation) -> None:
        super().start(task, observation)
        self.report = ""

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        result = REPORT.findall(self.maker.chat.decode(tuple(response_ids)))
        self.report = well_formed(result[-1].strip()) if result else self.report
        super().record(response_ids, parsed, observation)

    def past(self) -> Sequence[Past]:
        return self.turns[-1:]

    def prompt(self) -> Prompt:
        seen = self.observation
        if self.report:
            self.observation = replace(seen, text=f"Your report so far: {self.report}\n\n{seen.text}")
        try:
            return super().prompt()
        finally:
            self.observation = seen


@credit.register("eapo", paper="IterResearch, arXiv 2511.07327", needs=("group.peers",))
def eapo_credit(r: Rollouts, *, gamma: EarlyDiscount = 0.995, norm: Norm = "std") -> Floats:
    """The return, discounted by the number of turns that follow, relative to all turns of the group."""
    length = segment_count(r.trajectory, len(r.trajectory_labels))
    reward = np.power(gamma, (length[r.trajectory] - 1 - r.t).astype(np.float64)) * episode_returns(r)[r.trajectory]
    return standardise(reward, r.group, len(r.group_labels), norm)


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
    settings: dict[str, Any] = section("credit", name="eapo", gamma=gamma) | section("objective", name="gspo", level="turn")
    settings |= {"agent.context": "workspace", "agent.instructions": INSTRUCTIONS} if workspace else {}
    return Brings(settings, {"objective.aggregation": "turn", "credit.norm": "std"})
