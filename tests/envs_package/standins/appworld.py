"""A stand-in that speaks the part of AppWorld's interface that the adapter uses. Its programs run with a bare `exec`."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

open_worlds = 0


def load_task_ids(split: str) -> list[str]:
    return (Path(os.environ["APPWORLD_ROOT"]) / "data" / "datasets" / f"{split}.txt").read_text().split()


class AppWorld:
    def __init__(self, task_id: str, experiment_name: str, random_seed: int, max_interactions: int):
        global open_worlds
        open_worlds += 1
        assert open_worlds == 1, "one world a process"
        self.answer: Any = None
        self.completed = False
        person = {"first_name": "Ada", "last_name": "Byron", "email": "ada@example.com", "phone_number": "12"}
        self.task = SimpleNamespace(instruction=f"Tell the number of\ntask {task_id}.", supervisor=person)
        self.number = int(task_id.rpartition("_")[2])
        self.names = {"apis": SimpleNamespace(supervisor=SimpleNamespace(complete_task=self.complete, number=lambda: self.number))}

    def complete(self, answer: Any = None) -> None:
        self.answer, self.completed = answer, True

    def execute(self, code: str) -> str:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, self.names)
        except Exception:
            return f"Execution failed. Traceback:\n{traceback.format_exc().splitlines()[-1]}"
        return printed.getvalue()

    def task_completed(self) -> bool:
        return self.completed

    def evaluate(self) -> SimpleNamespace:
        right = self.answer == self.number
        return SimpleNamespace(success=right, passes=["a", "b"] if right else ["a"], failures=[] if right else ["b"])

    def close(self) -> None:
        global open_worlds
        open_worlds -= 1
