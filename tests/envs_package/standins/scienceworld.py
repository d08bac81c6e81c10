"""A stand-in for ScienceWorld's simulator, as the adapter's `Simulator` offers it: measure three times, never touch the acid."""

from __future__ import annotations

from turnwise_envs.scienceworld.simulator import Seen

VARIATIONS = {"boil": 8, "melt": 4}


class Simulator:
    def __init__(self, seconds: float, heap_mb: int):
        self.score, self.lost = 0, False

    def kinds(self) -> list[str]:
        return list(VARIATIONS)

    def variations(self, kind: str, split: str) -> list[int]:
        count = VARIATIONS[kind]
        first = {"train": 0, "dev": count // 2, "valid": count // 2, "test": count * 3 // 4}[split]
        return list(range(first, {0: count // 2, count // 2: count * 3 // 4}.get(first, count)))

    def load(self, kind: str, variation: int, simplifications: str) -> None:
        self.kind, self.variation, self.score = kind, variation, 0

    def solution(self, kind: str, variation: int, simplifications: str) -> list[str]:
        return [f"measure {variation}"] * 3

    def description(self) -> str:
        return f"Task Description:\nYour task is to {self.kind} thing {self.variation}."

    def step(self, command: str) -> None:
        self.play(command, False)

    def play(self, command: str, actions: bool) -> Seen:
        if command == f"measure {self.variation}":
            self.score = min(100, self.score + 34)
        if command == "drink acid":
            self.score = -100
        valid = (f"measure {self.variation}", "drink acid") if actions else None
        ended = self.score < 0 or self.score == 100
        return Seen(f"You did: {command[:20]}", self.score, ended, f"a thing, measured {self.score}", "nothing", valid)

    def close(self) -> None: ...
