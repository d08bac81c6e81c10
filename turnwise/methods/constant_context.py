"""Constant context: prompts have a state block instead of a history (`turnwise/agent/state_block.py`), groups of four, GRPO.

The paper adds rewards for subgoals by rules that were written per family of tasks and are not public. Your own rule is a reward term:
`[[reward]]` with `function = "path/to/file.py:NAME"`.
"""

from __future__ import annotations

from typing import Annotated, Any

from turnwise.config.options import Help
from turnwise.methods.registry import Brings, method


@method(
    "constant_context",
    paper="Constant-context skill learning, arXiv 2605.05413",
    changes="prompts",
    costs="nothing; prompts are shorter",
    evidence="notes; trackers are ours, rewards for subgoals are yours",
)
def constant_context(
    *,
    tracker: Annotated[str, Help("household, actions, or your own path/to/file.py:NAME")] = "household",
    group_size: Annotated[int | None, Help("attempts per group; none: the recipe's", low=2)] = None,
) -> dict[str, Any]:
    """A block of text about the state takes the place of the history in prompts."""
    own = {
        "agent.context": "state_block",
        "agent.options": {"tracker": tracker},
        "collect.group_size": group_size,
        "credit.name": "grpo",
    }
    return Brings(own, {"collect.group_size": 4})
