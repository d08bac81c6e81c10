"""Multi-turn environments of the package `verifiers`: its own rollout runs, and the agent takes the model's place in it.

    tw.make("verifiers", environment="my_env.py:load_environment")

A `MultiTurnEnv` asks a model for every message. Here it asks the agent: the rollout is a task on an event loop in a thread of this
environment, and waits in `get_model_response` for the next action. Set-up, stop conditions, clean-up and the rubric are those of the
package; the rubric's reward comes with the last transition.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Mapping
from concurrent.futures import TimeoutError as Late
from hashlib import blake2b
from importlib import import_module
from typing import Any, Literal

from turnwise.config.loading import load_file
from turnwise.config.references import parse
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.third_party import Success, turn_limit, well_formed
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive
from turnwise_envs.shared.global_seeds import seeded
from turnwise_envs.shared.packages import load

LOADER = "load_environment"
MAX_TURNS = 20
HELD_OUT = 10  # without a dataset for evaluation, every tenth row is valid
SPLITS = ("train", "valid")


class VerifiersEnv:
    """An environment of `verifiers`. The options are explained in docs/environments/adapters.md."""

    def __init__(
        self,
        environment: str = "",
        arguments: Mapping[str, Any] | None = None,
        success: str | float = "reward",
        anchor: Literal["observation", "history"] = "observation",
        max_turns: int = MAX_TURNS,
        timeout: float = 60.0,
    ):
        if not environment:
            raise TurnwiseError("verifiers: give the option environment: an installed module, or path/to/my_env.py:load_environment")
        if anchor not in ("observation", "history"):
            raise unknown_name("anchor of verifiers:", str(anchor), ("observation", "history"))
        if timeout <= 0:
            raise TurnwiseError(f"verifiers: timeout is above 0, not {timeout}")
        load("verifiers", "the adapter for verifiers", "verifiers")
        self.name, self.anchor, self.timeout = environment, anchor, timeout
        self._success = Success(success, f"verifiers environment {environment}")
        self._env = loaded(environment, dict(arguments or {}))
        limit = turn_limit(max_turns, "verifiers")
        self.max_turns = min(limit, self._env.max_turns) if self._env.max_turns > 0 else limit
        self._env.max_turns = self.max_turns  # so that an attempt ends in the rubric, not before it
        self._env.get_model_response = self._ask
        self._thread: _LoopThread | None = None
        self._rollout: asyncio.Task[Any] | None = None
        self._asked: asyncio.Event | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._prompt: list[Any] = []
        self._seen, self._turn, self._seed, self._history = 0, 0, 0, ""
        self._over = "step() was called before reset(): call reset(task) first"

    # -- tasks --------------------------------------------------------------------------------------------------------------------

    def tasks(self, split: str = "train") -> TaskSet:
        """The rows of its dataset; `valid` are those of the dataset for evaluation, or every tenth row without one."""
        if split not in SPLITS:
            raise unknown_name("split of verifiers:", split, SPLITS)
        held = self._rows("eval")
        source = "eval" if split == "valid" and held is not None else "train"
        rows = self._rows(source)
        if rows is None:
            raise TurnwiseError(f"verifiers environment {self.name}: it has no dataset")
        numbers = [n for n in range(len(rows)) if held is not None or (n % HELD_OUT == HELD_OUT - 1) == (split == "valid")]
        return TaskSet([Task(f"{source} {number}", split, {"rows": source, "row": number}) for number in numbers], f"verifiers/{split}")

    def _rows(self, which: str) -> Any:
        return self._env.build_eval_dataset() if which == "eval" else self._env.build_dataset()

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        if not {"rows", "row"} <= set(task.data):
            raise TurnwiseError(f"task {task.id!r} is not a task of verifiers: its data has no rows and row")
        self._stop()
        row = dict(self._rows(str(task.data["rows"]))[int(task.data["row"])])
        self._seen, self._turn, self._seed, self._history, self._over = 0, 0, derive(seed, "verifiers", task.id), "", ""
        if self._run(self._start(row)) is not None:
            self._over = "the attempt ended before the first turn: call reset(task)"
            raise TurnwiseError(f"verifiers environment {self.name}: task {task.id!r} ended before the first turn")
        return self._see("")

    def step(self, action: str) -> Transition:
        if self._over:
            raise EpisodeOver(self._over)
        self._turn += 1
        state = self._run(self._continue(well_formed(action)))
        if state is None:
            return Transition(self._see(action))
        self._over = "the attempt is over: call reset(task) before the next step"
        metrics = {str(name): float(value) for name, value in (state.get("metrics") or {}).items()}
        reward = float(state.get("reward") or 0.0)
        won = self._success.of(reward, reward, True, metrics)
        info = {"stop": str(state.get("stop_condition") or ""), "measures": metrics}
        return Transition(self._see(action, state.get("final_env_response")), reward, True, won, info)

    def _see(self, action: str, final: Any = None) -> Observation:
        """What is new in the conversation."""
        new = _plain(final) if final is not None else _plain(self._prompt)[self._seen :]
        text = "\n\n".join(words for message in new if message.get("role") != "assistant" and (words := _words(message)))
        if not self._turn and self._env.tool_defs:
            text = f"{text}\n\n{_tools(self._env.tool_defs)}"
        self._seen = len(self._prompt)
        self._history = blake2b(f"{self._history}\n{action}\n{text}".encode("utf-8", "replace"), digest_size=16).hexdigest()
        return Observation(text or "(nothing said)", anchor=self._history if self.anchor == "history" else None)

    # -- the rollout, on the loop's thread ----------------------------------------------------------------------------------------

    async def _start(self, row: dict[str, Any]) -> Any:
        self._asked = asyncio.Event()
        self._rollout = asyncio.ensure_future(self._env.rollout(row, _seat(), "agent", {}))
        return await self._next()

    async def _continue(self, action: str) -> Any:
        assert self._answer is not None and self._asked is not None
        self._asked.clear()
        self._answer.set_result(_response(action, self._turn, self._env.tool_defs))
        return await self._next()

    async def _next(self) -> Any:
        """Wait until it asks again (None), or ends: its state, scored."""
        assert self._rollout is not None and self._asked is not None
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({self._rollout, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if not self._rollout.done():
            return None
        state = self._rollout.result()
        if state.get("error") is not None:
            raise TurnwiseError(f"it failed: {state['error']!r}")
        rubric = self._env.rubric
        try:
            await rubric.score_rollout(state)
        except AssertionError:  # a rubric that compares attempts: a group of one
            await rubric.score_group([state])
        return state

    async def _ask(self, state: Any, prompt: Any, *given: Any, **options: Any) -> Any:
        """What the package calls for a message of the model."""
        assert self._asked is not None
        self._prompt, self._answer = list(prompt), asyncio.get_running_loop().create_future()
        self._asked.set()
        return await self._answer

    def _run(self, work: Any) -> Any:
        if self._thread is None:
            self._thread = _LoopThread()
        try:
            with seeded(derive(self._seed, self._turn)):
                return self._thread.run(work, self.timeout)
        except Exception as error:
            self._stop()
            self._over = "the attempt failed: call reset(task) before the next step"
            told = f"no answer within {self.timeout:g} s" if isinstance(error, Late) else f"{type(error).__name__}: {error}"
            raise TurnwiseError(f"verifiers environment {self.name}: {told}") from error

    def _stop(self) -> None:
        """End a rollout that is still waiting, with its clean-up."""
        if self._thread is not None and self._rollout is not None and not self._rollout.done():
            with contextlib.suppress(Exception):
                self._thread.run(_cancelled(self._rollout), self.timeout)
        self._rollout = None

    def close(self) -> None:
        self._stop()
        self._over = "the environment was closed: call reset(task) first"
        if self._thread is not None:
            self._thread.end()
        self._thread = None


class _LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="verifiers")
        self._thread.start()

    def run(self, work: Any, timeout: float) -> Any:
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result(timeout)
        except Late:
            waiting.cancel()
            raise

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


def loaded(name: str, arguments: dict[str, Any]) -> Any:
    """The environment that a module or a file makes, checked to be one of several turns."""
    vf = import_module("verifiers")
    if ":" in name or name.endswith(".py"):
        place, attribute = parsed = parse(name)
        module = load_file(parsed.path) if parsed.path is not None else import_module(place)
        made_by = getattr(module, attribute or LOADER, None)
        if not callable(made_by):
            raise TurnwiseError(f"verifiers: {place} has no function {attribute or LOADER}")
        env = made_by(**arguments)
    else:
        try:
            env = vf.load_environment(name, **arguments)
        except (ImportError, ValueError, AttributeError) as error:
            raise TurnwiseError(f"verifiers: the environment {name!r} cannot be loaded: {error}. Is its package installed?") from None
    if not isinstance(env, vf.MultiTurnEnv):
        raise TurnwiseError(f"verifiers: {name} makes {type(env).__name__}, which is not a MultiTurnEnv of verifiers")
    return env


def _seat() -> Any:
    """A client that is never asked: the agent answers instead."""
    client = import_module("verifiers.clients").Client
    return type("Seat", (client,), dict.fromkeys(client.__abstractmethods__))("turnwise")


def _response(action: str, turn: int, tools: Any) -> Any:
    """The agent's text as a model's answer; a JSON object that names a tool is a call of it."""
    types = import_module("verifiers.types")
    calls = None
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(action) if tools else None
        if isinstance(given, dict) and given.get("name") in {_field(tool, "name") for tool in tools}:
            calls = [types.ToolCall(id=f"call_{turn}", name=given["name"], arguments=json.dumps(given.get("arguments") or {}))]
    message = types.ResponseMessage(content=action, finish_reason="tool_calls" if calls else "stop", is_truncated=False, tool_calls=calls)
    return types.Response(id=f"turn-{turn}", created=0, model="agent", message=message)


def _plain(messages: Any) -> list[dict[str, Any]]:
    rows = [messages] if isinstance(messages, str | Mapping) else list(messages or ())
    found = [{"role": "user", "content": row} if isinstance(row, str) else row for row in rows]
    return [dict(row) if isinstance(row, Mapping) else row.model_dump() for row in found]


def _words(message: Mapping[str, Any]) -> str:
    """The text of a message: content is a text, or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part if isinstance(part, Mapping) else {"text": part} for part in content]
        return "\n".join(str(part["text"]) for part in parts if part.get("text"))
    return str(content or "")


def _tools(tools: Any) -> str:
    shown = [json.dumps({key: _field(tool, key) for key in ("name", "description", "parameters")}) for tool in tools]
    return "\n".join(["Tools, called with a JSON object of name and arguments:", *shown])


def _field(tool: Any, key: str) -> Any:
    return tool.get(key) if isinstance(tool, Mapping) else getattr(tool, key, None)
