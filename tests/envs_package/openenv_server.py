"""A small server of the real OpenEnv package, for test_environments.py: guess a number, with task lists and metadata. Prints its port."""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

SIZES = {"train": 6, "validation": 4}


class Guess(Action):
    number: str


class Told(Observation):
    text: str = ""
    legal_actions: tuple[str, ...] = ()


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.wanted, self.steps = 1, 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Told:
        first = 0 if given.get("split", "train") == "train" else 2
        self.wanted, self.steps = (given["index"] + first if "index" in given else int(seed or 0)) % 4 + 1, 0
        return self.told("Guess a number from 1 to 4.")

    def step(self, action: Guess, timeout_s: float | None = None, **given: Any) -> Told:
        self.steps += 1
        right = action.number == str(self.wanted)
        return self.told("Right." if right else "Wrong.", right)

    def told(self, text: str, right: bool = False) -> Told:
        metadata = {"step": self.steps, "episode": f"{id(self)}"}
        return Told(text=text, legal_actions=("1", "2", "3", "4"), done=right, reward=float(right), metadata=metadata)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)

    def list_splits(self) -> list[str]:
        return list(SIZES)

    def num_tasks(self, split: str) -> int:
        return SIZES[split]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return [{"id": f"{split}-{number}", "answer": "hidden"} for number in range(SIZES[split])]


def main() -> None:
    app = create_fastapi_app(Guessing, Guess, Told, max_concurrent_envs=16, env_name="guessing")
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    sys.exit(main())
