"""An environment for tests that does on request what bad environments do by accident."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from turnwise.data.tasks import Task
from turnwise.envs import EpisodeOver, Observation, Transition


class Troubled:
    """A random walk: the task and the seed fix it. Some actions are accidents."""

    max_turns = 20

    def __init__(self, start: int = 0, marker: str = ""):
        self.start, self.marker, self.over = start, marker, True

    def reset(self, task: Task, seed: int = 0) -> Observation:
        if task.id == "damaged":
            raise ValueError("this task cannot be read")
        self.rng = random.Random(f"{task.id} {seed}")
        self.place, self.over = self.start, False
        return Observation(f"place {self.place}", actions=("walk", "end"))

    def step(self, action: str) -> Transition:
        if self.over:
            raise EpisodeOver("reset first")
        accident(action)
        if action == "tuple":
            return ("not", "a", "transition")  # type: ignore[return-value]
        info = {"function": lambda: 0} if action == "unpicklable" else {"pid": os.getpid()}
        self.place += self.rng.randrange(1000)
        if action == "forget":
            self.place += int.from_bytes(os.urandom(6))
        self.over = action == "end"
        text = "x" * 3_000_000 if action == "long" else f"place {self.place}"
        return Transition(Observation(text, actions=("walk", "end")), float(self.over), self.over, self.over, info)

    def close(self) -> None:
        if self.marker:
            with Path(self.marker).open("a") as file:
                file.write("closed\n")


def accident(action: str) -> None:
    if action == "exit":
        os._exit(3)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if action == "hang":
        while True:
            time.sleep(1000)
    if action == "raise":
        raise ZeroDivisionError("the environment's own mistake")
    if action == "sys.exit":
        sys.exit(1)
    if action == "eat":
        bytearray(4 * 2**30)
    if action == "nibble":
        eaten = []
        while len(eaten) < 4096:
            eaten.append(b"x" * 2**20)
    if action == "daemon":  # in a session of its own, and its parent has ended
        script = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)  # child of {os.getpid()}"
        subprocess.run([sys.executable, "-c", script], check=True)
    if action == "child":
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(1000)  # child of {os.getpid()}"])
