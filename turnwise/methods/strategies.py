"""What methods share whose policy writes a text before it acts: asking for texts, showing one, choosing different ones, and the trajectory
from which the writing of a text is learned."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.methods.planning import Places

LONGEST = 600  # characters of a text that are shown
GRAM = 3  # characters per gram
DONE = "<sub_done>"  # what a response says to get the next part of a text
PART = re.compile(r"\n|;|(?:^|(?<=\s))\d+[.)](?=\s)")  # what stands between the parts of a list


def written(places: Places, starts: Sequence[Start], words: str, n: int, seed: int) -> list[list[Turn]]:
    """n texts of the policy for each of these attempts. {task} in `words` stands for how the attempt begins."""
    questions = [words.replace("{task}", opening) for opening in places.openings(starts)]
    turns = places.said([question for question in questions for _ in range(n)], seed)
    return [turns[k * n : (k + 1) * n] for k in range(len(starts))]


def shown(turn: Turn, words: str) -> str:
    """The hint that shows a text. {text} in `words` stands for it; an empty text shows nothing."""
    text = " ".join(turn.action.split())[:LONGEST]
    return words.replace("{text}", text) if text else ""


@dataclass
class OneByOne:
    """A hint that shows one part of a text after another: the next one after DONE in a response, or after `budget` responses. {text}, {k}
    and {n} in `words` stand for the part, its number and how many there are."""

    words: str
    parts: tuple[str, ...]
    budget: int
    at: int = 0
    said: int = 0

    def __call__(self, observation: str) -> str:
        return self.words.replace("{k}", str(self.at + 1)).replace("{n}", str(len(self.parts))).replace("{text}", self.parts[self.at])

    def heard(self, response: str) -> None:
        """The attempt has responded."""
        self.said += 1
        if (DONE in response or self.said >= self.budget) and self.at < len(self.parts) - 1:
            self.at, self.said = self.at + 1, 0


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a list: its lines, or what stands between semicolons or numbers; the whole text if it is none."""
    found = (" ".join(part.split()).strip("-*• ") for part in PART.split(text[:LONGEST]))
    return tuple(part for part in found if part)


def writing(places: Places, start: Start, turn: Turn, attempts: Sequence[Trajectory]) -> Trajectory:
    """The trajectory of one turn that learns to write a text. Its return is the mean return of the attempts that were shown the text."""
    turn.reward = float(np.mean([attempt.reward for attempt in attempts]))
    won = any(attempt.success for attempt in attempts)
    return places.adopt(Trajectory(start.group, "", start.task.id, [turn], success=won, goal=attempts[0].goal), start.group)


def summary(attempts: Sequence[Trajectory]) -> dict[str, float]:
    """Counts of the attempts alone, for a batch that also has trajectories of texts."""
    n = max(len(attempts), 1)
    return {
        "trajectories": float(len(attempts)),
        "success": sum(attempt.success for attempt in attempts) / n,
        "reward": sum(attempt.reward for attempt in attempts) / n,
        "length": sum(len(attempt.turns) for attempt in attempts) / n,
    }


def note(turns: Sequence[Turn], notes: Mapping[str, Any]) -> None:
    """Note the same on all of these turns."""
    for turn in turns:
        turn.notes = {**turn.notes, **notes}


def grams(texts: Sequence[str]) -> Any:
    """Texts as vectors of unit length: how often each run of three characters occurs in them."""
    counts = [Counter(text[k : k + GRAM] for k in range(max(len(text) - GRAM + 1, 1))) for text in texts]
    place = {gram: k for k, gram in enumerate(dict.fromkeys(gram for count in counts for gram in count))}
    vectors = np.zeros((len(texts), len(place)))
    for row, count in zip(vectors, counts, strict=True):
        row[[place[gram] for gram in count]] = list(count.values())
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def farthest(vectors: Any, number: int, first: int = 0) -> list[int]:
    """Farthest-point sampling: `first`, then again and again the one whose largest inner product with those chosen is smallest. Of equals
    the earlier."""
    points = np.asarray(vectors, np.float64)
    products = np.round(points @ points.T, 9)  # the same choice on every processor
    chosen, nearest = [first], products[first].copy()
    while len(chosen) < min(number, len(points)):
        nearest[chosen] = np.inf
        chosen.append(int(np.argmin(nearest)))
        nearest = products[chosen].max(axis=0)
    return chosen
