"""The examples of docs/guides/learner.md run, and do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.methods.registry import schedules

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "learner.md"


def test_the_examples_of_the_page_run_one_after_another() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(compile(blocks[0], str(PAGE), "exec"), names)
    chances = np.exp(names["learner"].logprobs(names["pack"](names["trajectories"])))
    assert chances[1] > 0.5 > 0.1 > chances[0]  # the rewarded answer is the likely one
    try:
        for block in blocks[1:]:
            exec(compile(block, str(PAGE), "exec"), names)
    finally:
        schedules._entries.pop("last_turns_first", None)
    assert names["metrics"]["steps"] == 1 and "explained_variance" in names["metrics"]
