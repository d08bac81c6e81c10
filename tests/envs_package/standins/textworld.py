"""A stand-in that speaks the part of TextWorld's interface that the adapter uses: a room, a lamp, and a file that says how it is lit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any


class EnvInfos:
    def __init__(self, **wanted: bool):
        self.wanted = wanted


class Game:
    def __init__(self, path: str):
        if path.endswith(".ulx"):
            raise NotImplementedError("Glulx games are not supported anymore.")
        self.word = Path(path).read_text().strip()
        self.closed = False

    def seed(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def reset(self) -> dict[str, Any]:
        self.score = 0
        return self._state("A dark room with a lamp.\n\n>")

    def step(self, command: str) -> tuple[dict[str, Any], float, bool]:
        if command == "roll":
            return self._state(f"You rolled {self.rng.randint(1, 1000)}.\n\n>"), 0, False
        if command == "look":
            self.score = max(self.score, 1)
        if command == self.word:
            self.score = 4
        return self._state("It is light." if self.score == 4 else "Nothing happens.\n\n>"), self.score, self.score == 4

    def _state(self, feedback: str) -> dict[str, Any]:
        won = self.score == 4
        plan = [] if won else [self.word]
        facts = [f"score({self.score})", "at(P, room)"]
        known = {
            "admissible_commands": ["look", "look", self.word],
            "policy_commands": plan,
            "facts": facts,
            "objective": "Light the lamp.",
        }
        return {"feedback": feedback, "score": self.score, "max_score": 4, "won": won, "lost": False, **known}

    def close(self) -> None:
        self.closed = True


def start(path: str, infos: EnvInfos) -> Game:
    assert infos.wanted["admissible_commands"]
    return Game(path)
