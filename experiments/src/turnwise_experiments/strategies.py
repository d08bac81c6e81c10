"""What methods share whose policy writes a text before it acts: asking for texts, showing one, and the trajectory from which writing it is
learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.methods.planning import TaskSlots

LONGEST = 600  # characters of a text that are shown


def written(slots: TaskSlots, starts: Sequence[Start], words: str, n: int, seed: int) -> list[list[Turn]]:
    """n texts of the policy for each of these attempts. {task} in `words` stands for how the attempt begins."""
    questions = [words.replace("{task}", opening) for opening in slots.openings(starts)]
    turns = slots.generated([question for question in questions for _ in range(n)], seed)
    return [turns[k * n : (k + 1) * n] for k in range(len(starts))]


def shown(turn: Turn, words: str) -> str:
    """The hint that shows a text. {text} in `words` stands for it; an empty text shows nothing."""
    text = " ".join(turn.action.split())[:LONGEST]
    return words.replace("{text}", text) if text else ""


def writing(slots: TaskSlots, start: Start, turn: Turn, attempts: Sequence[Trajectory]) -> Trajectory:
    """The trajectory of one turn that learns to write a text. Its return is the mean return of the attempts that were shown the text."""
    turn.reward = float(np.mean([attempt.reward for attempt in attempts]))
    won = any(attempt.success for attempt in attempts)
    return slots.adopt(Trajectory(start.group, "", start.task.id, [turn], success=won, goal=attempts[0].goal), start.group)


def note(turns: Sequence[Turn], notes: Mapping[str, Any]) -> None:
    """Note the same on all of these turns."""
    for turn in turns:
        turn.notes = {**turn.notes, **notes}
