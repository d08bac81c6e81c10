"""The context of EAPO: a workspace of constant size, rebuilt for every turn.

A prompt has the goal, the agent's own report, the last action and its outcome, and the current observation. The agent writes the
report itself: the text between <report> and </report> in a response replaces it. A response without one leaves it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from turnwise.agent.base import Parsed, Prompt
from turnwise.agent.context import PromptMaker, Window
from turnwise.agent.prompts import Past
from turnwise.agent.registry import register_context
from turnwise.agent.text import well_formed
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation

REPORT = re.compile(r"<report>(.*?)</report>", re.DOTALL)


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
        found = REPORT.findall(self.maker.chat.decode(tuple(response_ids)))
        self.report = well_formed(found[-1].strip()) if found else self.report
        super().record(response_ids, parsed, observation)

    def past(self) -> Sequence[Past]:
        return self.turns[-1:]

    def _prompt(self, history: Sequence[Past], dropped: int) -> Prompt:
        seen = self.observation
        if self.report:
            seen = replace(seen, text=f"Your report so far: {self.report}\n\n{seen.text}")
        return self.maker.prompt(self.maker.write(seen, goal=self.goal, turn=len(self.turns) + 1, history=history), dropped)
