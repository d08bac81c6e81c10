"""The oracle as a process: plays ALFWorld's games in TextWorld and answers over standard input and output, one JSON object a line.

It runs in a virtual environment of its own, which has textworld and alfworld and nothing of Turnwise; `play.py` starts it. Requests:
`{"game": path}` loads and resets, `{"command": text}` steps, `{"reset": true}` resets the loaded game again. Each answer carries the text,
the admissible commands, score, won, done, and the seconds (and CPU seconds) that TextWorld itself took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def make(path: str) -> Any:
    import textworld.gym
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
    from textworld import EnvInfos

    wanted = EnvInfos(won=True, admissible_commands=True)
    wrappers = [AlfredDemangler(shuffle=False), AlfredInfos]
    name = textworld.gym.register_games([path], wanted, max_episode_steps=None, wrappers=wrappers)  # no limit on steps
    return textworld.gym.make(name)


def main() -> None:
    # Whatever the packages print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    env = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        if "command" in request:
            start, cpu = time.perf_counter(), time.process_time()
            text, score, done, infos = env.step(request["command"])  # type: ignore[attr-defined]
            answer = {"text": text, "score": score, "done": done}
        else:
            if "game" in request:
                env = make(request["game"])
            start, cpu = time.perf_counter(), time.process_time()
            text, infos = env.reset()  # type: ignore[attr-defined]
            answer = {"text": text}
        answer |= {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
        answer |= {"actions": infos["admissible_commands"], "won": infos["won"]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
