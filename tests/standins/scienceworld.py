"""A stand-in that speaks the part of ScienceWorld's interface that the adapter uses: measure three times, never touch the acid."""

from __future__ import annotations

from typing import Any

VARIATIONS = {"boil": 8, "melt": 4}


class ScienceWorldEnv:
    def __init__(self, task: str, envStepLimit: int = 100):
        self.score, self.moves, self.gold = 0, 0, False

    def get_task_names(self) -> list[str]:
        return list(VARIATIONS)

    def load(self, task: str, variation: int, simplifications: str, generateGoldPath: bool = False) -> None:
        self.task, self.variation, self.gold = task, variation, generateGoldPath
        self.score, self.moves = 0, 0

    def get_variations_train(self) -> list[int]:
        return list(range(VARIATIONS[self.task] // 2))

    def get_variations_dev(self) -> list[int]:
        return list(range(VARIATIONS[self.task] // 2, VARIATIONS[self.task] * 3 // 4))

    def get_variations_test(self) -> list[int]:
        return list(range(VARIATIONS[self.task] * 3 // 4, VARIATIONS[self.task]))

    def get_gold_action_sequence(self) -> list[str]:
        return [f"measure {self.variation}"] * 3 if self.gold else ["ERROR"]

    def reset(self) -> tuple[str, dict[str, Any]]:
        self.score, self.moves = 0, 0
        text, _, _, info = self.step("look around")
        return text, info

    def step(self, command: str) -> tuple[str, int, bool, dict[str, Any]]:
        before, self.moves = self.score, self.moves + 1
        if command == f"measure {self.variation}":
            self.score = min(100, self.score + 34)
        if command == "drink acid":
            self.score = -100
        info = {
            "score": self.score,
            "moves": self.moves,
            "taskDesc": f"Task Description:\nYour task is to {self.task} thing {self.variation}.",
            "valid": [f"measure {self.variation}", "drink acid", "drink acid"],
            "look": f"a thing, measured {self.score}",
            "inv": "nothing",
        }
        return f"You did: {command[:20]}", self.score - before, self.score < 0 or self.score == 100, info

    def close(self) -> None: ...
