"""AppWorld: the agent writes Python that calls the apps of a simulated person, and unit tests over their data decide whether the task is
done.

    python3 -m venv appworld-venv; appworld-venv/bin/pip install appworld
    appworld-venv/bin/appworld install; appworld-venv/bin/appworld download data
    tw.make("appworld", python="appworld-venv/bin/python", root=".")

AppWorld pins packages that Turnwise needs newer, allows one world in a process, and runs what the agent wrote. So every environment is a
process of AppWorld's own Python, with limits on time and memory. This protects the run from a bad program, but it is not a sandbox: see
docs/environments/adapters.md for what isolates it and what does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.third_party import turn_limit, well_formed
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive
from turnwise_envs.appworld import process

SPLITS = ("train", "dev", "test_normal", "test_challenge")
MAX_TURNS = 40
LARGEST_ANSWER = 64 * 2**20
REMEDY = "python3 -m venv appworld-venv && appworld-venv/bin/pip install appworld, then set APPWORLD_PYTHON to its python"
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
Reward = Literal["success", "tests"]
Anchor = Literal["observation", "history"]
INSTRUCTIONS = (
    "You act for a person by writing Python, one piece of code a turn. Variables live on from turn to turn, and what you print is shown to"
    " you. Call the apps as apis.APP.FUNCTION(...). To find out what there is: apis.api_docs.show_app_descriptions(),"
    " apis.api_docs.show_api_descriptions(app_name=...), apis.api_docs.show_api_doc(app_name=..., api_name=...). Passwords:"
    " apis.supervisor.show_account_passwords(). When the task is done: apis.supervisor.complete_task(), with answer=... if it asks for one."
)


def default_python() -> str:
    """The Python that has AppWorld: APPWORLD_PYTHON, otherwise this one."""
    return os.environ.get("APPWORLD_PYTHON") or sys.executable


def has_appworld() -> bool:
    """Whether that Python has the package, without importing it."""
    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('appworld') is None)"
    return subprocess.run([default_python(), "-c", question], check=False, timeout=30).returncode == 0


def find_data() -> Path:
    """The folder of AppWorld's data: data/ in the folder that APPWORLD_ROOT names, otherwise in the current folder."""
    return Path(os.environ.get("APPWORLD_ROOT", ".")).expanduser() / "data"


class Process:
    """One process of AppWorld's Python: `ask` sends a request and waits for its answer."""

    def __init__(self, python: str, root: Path, timeout: float, memory_mb: int | None):
        self._timeout, self._memory_mb = timeout, memory_mb
        command = [python, process.__file__, str(memory_mb or 0)]
        environment = {**os.environ, "APPWORLD_ROOT": str(root)}
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=root, env=environment)
        except OSError as error:
            raise TurnwiseError(f"appworld: {python!r} cannot be started: {error}. Give the Python that has AppWorld: {REMEDY}") from None
        self._buffer = b""

    def ask(self, call: str, **request: Any) -> dict[str, Any]:
        """The answer; if none comes in time, the process is ended and an error is raised."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"call": call, **request}).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line())
        except TimeoutError:  # also an OSError, hence first
            self._end()
            raise TurnwiseError(f"appworld: no answer to {call} within {self._timeout:g} seconds; its process was ended") from None
        except (OSError, EOFError):
            code = self._end()
            raise TurnwiseError(
                f"appworld: its process ended during {call} (exit code {code}; memory limit {self._memory_mb} MB)"
            ) from None
        if answer.get("missing"):
            raise TurnwiseError(f"appworld: its Python has no AppWorld. Install it with: {REMEDY}")
        if "error" in answer:
            raise TurnwiseError(f"appworld: {call}: {answer['error']}")
        return answer

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        until = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                read = os.read(self._process.stdout.fileno(), 2**16)
                self._buffer += read
                if not read or len(self._buffer) > LARGEST_ANSWER:
                    raise EOFError
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self) -> int:
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()  # the end of its requests is the end of the process
        try:
            self._process.wait(3.0)
        except subprocess.TimeoutExpired:
            self._end()
        if self._process.stdout is not None:
            self._process.stdout.close()


class AppWorldEnv:
    """Tasks of AppWorld. `python`: the Python that has it. `root`: the folder that has its data. `reward`: "success" (1 if every test
    passes) or "tests" (the share that does), given when the agent completes the task or its turns are over. `anchor`: "observation" or
    "history" (all that was run so far). `timeout` (seconds) and `memory_mb` limit its process; `world`: further arguments of AppWorld's."""

    instructions = INSTRUCTIONS

    def __init__(
        self,
        python: str | None = None,
        root: str | Path | None = None,
        reward: Reward = "success",
        anchor: Anchor = "observation",
        max_turns: int = MAX_TURNS,
        timeout: float = 120.0,
        memory_mb: int | None = 4096,
        world: Mapping[str, Any] | None = None,
    ):
        if reward not in get_args(Reward) or anchor not in get_args(Anchor):
            raise TurnwiseError(f"appworld: reward is success or tests, anchor is observation or history; got {reward!r} and {anchor!r}")
        self.root = (Path(root).expanduser() if root is not None else find_data().parent).resolve()
        if not (self.root / "data").is_dir():
            raise TurnwiseError(
                f"appworld: there is no {self.root / 'data'}. Run: appworld install && appworld download data. Then give the option root,"
                " or set APPWORLD_ROOT, to the folder that has data/"
            )
        self.reward, self.anchor, self.max_turns = reward, anchor, turn_limit(max_turns, "appworld")
        self._start = (str(Path(python).expanduser()) if python else default_python(), self.root, timeout, memory_mb)
        self._world = dict(world or {})
        self._process: Process | None = None
        self._over = "call reset(task) before the first step"
        self._turns, self._history = 0, ""

    def tasks(self, split: str = "train") -> TaskSet:
        if split not in SPLITS:
            raise unknown_name("split of AppWorld:", split, SPLITS)
        names = self._ask("tasks", split=split)["tasks"]
        return TaskSet([Task(name, split, {"task": name}, cluster=name.partition("_")[0]) for name in names], f"appworld/{split}")

    def reset(self, task: Task, seed: int = 0) -> Observation:
        chance = derive(seed, "appworld", task.id) % 2**31
        options = {"random_seed": chance, "max_interactions": self.max_turns + 1, **self._world}
        about = self._ask("reset", task=str(task.data.get("task", task.id)), options=options)
        self._over, self._turns, self._history = "", 0, ""
        who = "You act for {first_name} {last_name} (email {email}, phone {phone_number}).".format(**about["person"])
        return Observation(f"Your task is: {' '.join(about['instruction'].split())}\n{who}", anchor=self._key(""))

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(f"appworld: {self._over}")
        self._turns += 1
        code = code_of(action)
        answer = self._ask("step", code=code, last=self._turns >= self.max_turns)
        done = "success" in answer
        if done:
            self._over = "the episode is over: call reset(task) before the next step"
        success, reward = bool(answer.get("success")), self._reward(answer) if done else 0.0
        info = {"passed": answer["passed"], "failed": answer["failed"], "truncated": not answer["completed"]} if done else {}
        observation = Observation(answer["output"] or "(no output)", anchor=self._key(f"{code}\n{answer['output']}"))
        return Transition(observation, reward, done, success, info)

    def _reward(self, answer: Mapping[str, Any]) -> float:
        if self.reward == "success":
            return float(answer["success"])
        passed, failed = int(answer["passed"]), int(answer["failed"])
        return passed / max(1, passed + failed)

    def _key(self, happened: str) -> str | None:
        if self.anchor == "observation":
            return None
        self._history = blake2b(f"{self._history}\n{happened}".encode(), digest_size=16).hexdigest()
        return self._history

    def _ask(self, call: str, **request: Any) -> dict[str, Any]:
        if self._process is None:
            self._process = Process(*self._start)
        try:
            return self._process.ask(call, **request)
        except TurnwiseError:
            self.close()  # a world that failed is not to be trusted: the next reset has a fresh process
            raise

    def close(self) -> None:
        self._over = "it was closed: call reset(task) first"
        process, self._process = self._process, None
        if process is not None:
            process.close()


def code_of(action: str) -> str:
    """The program in what the agent wrote: inside the fences if there are any."""
    action = well_formed(action)
    fenced = FENCED.findall(action)
    return "\n".join(fenced) if fenced else action.strip()
