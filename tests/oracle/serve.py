"""The oracle as a process: plays ALFWorld's games in TextWorld and answers over standard input and output, one JSON object a line.

It runs in a virtual environment of its own, which has textworld and alfworld and nothing of Turnwise; `play.py` starts it. Requests:
`{"game": path}` loads and resets, `{"command": text}` steps, `{"reset": true}` resets the loaded game again. Each answer carries the text,
the admissible commands, score, won, done, and the seconds (and CPU seconds) that TextWorld itself took. `--hurry` leaves out
work that no answer depends on; measurements are taken without it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from copy import deepcopy
from functools import lru_cache
from typing import Any


def make(path: str) -> Any:
    import textworld.gym
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
    from textworld import EnvInfos

    wanted = EnvInfos(won=True, admissible_commands=True)
    wrappers = [AlfredDemangler(shuffle=False), AlfredInfos]
    name = textworld.gym.register_games([path], wanted, max_episode_steps=None, wrappers=wrappers)  # no limit on steps
    return textworld.gym.make(name)


def hurry() -> None:
    """Leave out what never changes an answer: a second translation of each game for a planner that is not asked here, and parsing the
    same piece of grammar again and again (a parsed text is kept, and handed out as a fresh copy)."""
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    translate, parse, parse_query = fast_downward.pddl2sas, textgen._parse_and_convert, lru_cache(None)(Rule.parse_conjunctive_query)
    parsed: dict[str, Any] = {}

    def translate_once(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        return (None, "") if optimize else translate(domain, problem, verbose=verbose)

    def parse_once(text: str, rule_name: str, **options: Any) -> Any:
        if text not in parsed:
            parsed[text] = parse(text, rule_name=rule_name)
        return deepcopy(parsed[text])

    fast_downward.pddl2sas = translate_once
    textgen._parse_and_convert = parse_once
    Rule.parse_conjunctive_query = staticmethod(parse_query)


def main() -> None:
    if "--hurry" in sys.argv:
        hurry()
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
