"""AppWorld's side of the adapter: a script for the Python that has AppWorld, one process per world.

AppWorld needs older releases of packages than Turnwise does, so the two never share an interpreter: this file uses only the standard
library and `appworld`. Requests and answers are JSON, one line each. The agent's programs run in this process, so the two pipes are moved
away from standard input and output first: what a program prints or reads never becomes part of the protocol.
"""

import json
import os
import resource
import sys
from typing import Any, TextIO

LONGEST_OUTPUT = 20_000  # characters of one answer: a program can print without end


def tasks(split: str) -> dict[str, Any]:
    from appworld import load_task_ids

    return {"tasks": [str(name) for name in load_task_ids(split)]}


class Worlds:
    """One world at a time: AppWorld stops the clock of the whole process for the task that is played."""

    def __init__(self) -> None:
        self.world: Any = None

    def reset(self, task: str, options: dict[str, Any]) -> dict[str, Any]:
        from appworld import AppWorld

        self.close()
        self.world = AppWorld(task_id=task, experiment_name=f"turnwise-{os.getpid()}", **options)
        about = self.world.task
        person = about.supervisor
        parts = ("first_name", "last_name", "email", "phone_number")
        known = {part: str(person.get(part, "") if isinstance(person, dict) else getattr(person, part, "")) for part in parts}
        return {"instruction": str(about.instruction), "person": known}

    def step(self, code: str, last: bool) -> dict[str, Any]:
        output = str(self.world.execute(code)).strip()
        if len(output) > LONGEST_OUTPUT:
            output = f"{output[:LONGEST_OUTPUT]}\n… and {len(output) - LONGEST_OUTPUT} more characters"
        completed = bool(self.world.task_completed())
        answer: dict[str, Any] = {"output": output, "completed": completed}
        if completed or last:
            tests = self.world.evaluate()
            answer.update(success=bool(tests.success), passed=len(tests.passes), failed=len(tests.failures))
            self.close()
        return answer

    def close(self) -> None:
        world, self.world = self.world, None
        if world is not None:
            world.close()


def serve(requests: TextIO, answers: TextIO) -> None:
    worlds = Worlds()
    for line in requests:
        request = json.loads(line)
        call = request.pop("call")
        try:
            answer = tasks(**request) if call == "tasks" else getattr(worlds, call)(**request)
        except ModuleNotFoundError as error:
            answer = {"error": str(error), "missing": error.name == "appworld"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    worlds.close()


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this script, whose files have the names of third-party packages
    memory_mb = int(sys.argv[1])
    if memory_mb:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * 2**20, memory_mb * 2**20))
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    serve(requests, answers)
