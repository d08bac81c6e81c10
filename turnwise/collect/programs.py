"""The collector for programs: runs attempts of a program against an endpoint over the run's engine, and makes trajectories of their calls.

Many attempts run at once, each in a thread or a process of its own. The endpoint batches whatever they ask. Nothing here waits for a
program longer than its limit: an attempt that crashes, hangs, uses up its limits or never calls the model ends with a stop reason. Seeds
come from the attempt and the place of a call in its conversation, so they do not depend on the order in which programs ask; the last digits
of log-probs do, because they depend on what is computed together.
"""

from __future__ import annotations

import inspect
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from turnwise.agent.chat import Chat
from turnwise.collect.call_trees import plain, trajectories_of
from turnwise.collect.hooks import Hooks
from turnwise.collect.rewards import BadReward, Rewards
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.engines.base import Engine, Sampling
from turnwise.engines.serve.calls import Limits, Recorder
from turnwise.engines.serve.endpoint import Endpoint
from turnwise.envs.blame import one_line, own_lines
from turnwise.envs.pool import EnvResult, Fault
from turnwise.envs.program.client import Client, Outcome
from turnwise.envs.program.env import ProgramEnv
from turnwise.envs.program.running import Ended, Running
from turnwise.envs.prompts.env import finite, shown, worth
from turnwise.util.errors import TurnwiseError
from turnwise.util.garbage import rare_searches
from turnwise.util.terminal import Once

ASK_SECONDS = 0.05  # how often limits and cancelling are looked at while programs run
NEVER = "the program never called the model"
SHOWN_CALLS = 20


@dataclass
class Attempt:
    """A running attempt."""

    start: Start
    name: str
    running: Running
    until: float


@dataclass(frozen=True)
class Worth:
    """What an attempt is worth. `stated`: a reward was given at the end, which alone decides about success."""

    reward: float = 0.0
    success: bool | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    per_call: Mapping[int, float] = field(default_factory=dict)
    stated: bool = False


@dataclass
class ProgramCollector:
    """Plays attempts of a program to their ends. `whole`: an attempt is one trajectory, for evaluations, which count attempts; otherwise
    it is one per line of conversation, for learning. `counts` has what is reported about all attempts."""

    env: ProgramEnv
    engine: Engine
    chat: Chat
    sampling: Sampling
    max_turns: int
    rewards: Rewards = field(default_factory=Rewards)
    hooks: Hooks = field(default_factory=Hooks)
    whole: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    lost: str = ""
    say: Once = field(default_factory=lambda: Once(lambda text: None))
    _side: int = field(default=0, init=False)

    def run(self, starts: Iterable[Start]) -> list[Trajectory]:
        """The trajectories of all starts, in their order. If cancelled, the partial ones of those that had begun."""
        waiting = deque(starts)
        for start in waiting:
            self._possible(start)
        order = [start.number for start in waiting]
        self.hooks.on_start(len(order))
        limits = Limits(calls=self.max_turns, tokens=self.env.max_tokens)
        with rare_searches(), Endpoint(self.engine, self.chat, self.sampling, limits, say=self.say) as endpoint:
            done = self._play(endpoint, waiting)
        trajectories = [trajectory for number in order if number in done for trajectory in self._numbered(done[number])]
        self.counts["attempts"] += len(done)
        self.counts["lines"] += len(trajectories)
        return trajectories

    def _numbered(self, lines: list[Trajectory]) -> list[Trajectory]:
        """Ids for further lines, in the order of the attempts, not of their ends."""
        for line in lines[1:]:
            line.id = int(line.id) + self._side
        self._side += len(lines) - 1
        return lines

    @staticmethod
    def _possible(start: Start) -> None:
        if start.branch is not None:
            raise TurnwiseError("the plan branches attempts, and a program cannot be started in the middle: use another plan")
        if start.hint:
            raise TurnwiseError("the plan shows hints in prompts, and a program makes its own prompts: use another plan")
        if start.temperature is not None:
            raise TurnwiseError("the plan gives attempts their own temperature, and the endpoint has one for all: use another plan")

    def _play(self, endpoint: Endpoint, waiting: deque[Start]) -> dict[int, list[Trajectory]]:
        ended: SimpleQueue[tuple[int, Ended]] = SimpleQueue()
        active: dict[int, Attempt] = {}
        done: dict[int, list[Trajectory]] = {}
        while waiting or active:
            while waiting and len(active) < self.env.at_once:
                start = waiting.popleft()
                active[start.number] = self._launch(endpoint, start, ended)
            with suppress(Empty):
                number, how = ended.get(timeout=ASK_SECONDS)
                if number in active:
                    done[number] = self._finish(endpoint, active.pop(number), how)
            endpoint.check()
            for attempt in [one for one in active.values() if time.monotonic() > one.until]:
                why = f"the program did not end within {self.env.time_limit:g} s"
                done[attempt.start.number] = self._finish(
                    endpoint, active.pop(attempt.start.number), Ended(), Stop.ENVIRONMENT_TIMEOUT, why
                )
            if self.hooks.cancelled():
                waiting.clear()
                for number in list(active):
                    done[number] = self._finish(endpoint, active.pop(number), Ended(), Stop.CANCELLED)
        return done

    def _launch(self, endpoint: Endpoint, start: Start, ended: SimpleQueue[tuple[int, Ended]]) -> Attempt:
        name, own = str(start.number), start.max_turns
        limits = None if own is None else Limits(calls=min(own, self.max_turns), tokens=self.env.max_tokens)
        opened = endpoint.open(name, seed=start.policy_seed, limits=limits)
        running = self.env.start(start.task, Client(opened.base_url, opened.key, start.env_seed))
        Thread(target=lambda: ended.put((start.number, running.run())), daemon=True, name=f"program {name}").start()
        return Attempt(start, name, running, time.monotonic() + self.env.time_limit)

    def _finish(self, endpoint: Endpoint, attempt: Attempt, how: Ended, stop: Stop | None = None, detail: str = "") -> list[Trajectory]:
        """An attempt is over: what was recorded becomes trajectories, with a stop reason and what they are worth."""
        attempt.running.kill()
        recorder = endpoint.close(attempt.name)
        if stop is None:
            stop, detail = stop_of(recorder, how, self.env.crash_reward is not None)
        lines = how.own_lines
        found = Worth()
        try:
            if stop in (Stop.DONE, Stop.STEP_LIMIT, Stop.CONTEXT_LIMIT):
                found = self._worth(attempt.start, recorder, how)
            made = self._made(attempt.start, recorder, found, stop, detail)
        except BadReward as error:
            stop, detail, lines = Stop.ENVIRONMENT_FAULT, str(error), error.lines
            made = [Trajectory(attempt.start.group, attempt.start.number, attempt.start.task.id, [], stop, detail)]
        if stop in (Stop.ENVIRONMENT_FAULT, Stop.ENVIRONMENT_TIMEOUT):
            fault = Fault.TIMEOUT if stop is Stop.ENVIRONMENT_TIMEOUT else Fault.ERROR
            self.hooks.on_fault(made[0], EnvResult(0, None, fault, detail, "", lines))
        self.hooks.on_end(made[0])
        return made

    def _made(self, start: Start, recorder: Recorder, found: Worth, stop: Stop, detail: str) -> list[Trajectory]:
        decides = found.reward if found.stated else recorder.reward + math.fsum(found.per_call.values())
        success = found.success if found.success is not None else stop is Stop.DONE and decides >= self.env.success_at
        goal = str(start.task.data.get("prompt") or start.task.data.get("goal") or "")[:2000]
        return trajectories_of(
            recorder,
            start,
            self.env.anchor,
            self.rewards,
            reward=found.reward,
            per_call=found.per_call,
            success=success,
            measures=found.measures,
            stop=stop,
            detail=detail,
            whole=self.whole or self.env.lines == "attempt",
            outcome=self.env.outcome,
            goal=goal,
        )

    def _worth(self, start: Start, recorder: Recorder, how: Ended) -> Worth:
        """What the reward function says, or else the program itself. An error counts as `crash_reward`."""
        if how.problem:
            return Worth(self.env.crash_reward or 0.0, False)
        numbers = [call.number for call in recorder.finished()]
        if self.env.reward is None:
            if how.result is None and not recorder.rewards:
                self.say(f"task {start.task.id}: {how.silent}, and no reward was posted: the attempt is worth 0", "no result")
            return read_worth(how.result, start.task.id, numbers)
        task = {"id": start.task.id, "split": start.task.split, **start.task.data}
        given = [task, [plain(call) for call in recorder.finished()], how.result]
        try:
            takes = len(inspect.signature(self.env.reward).parameters)
            return read_worth(self.env.reward(*given[: max(2, min(takes, 3))]), start.task.id, numbers)
        except BadReward:
            raise
        except Exception as error:
            raise BadReward(f"the reward function failed at task {start.task.id}: {one_line(error)}", own_lines(error)) from error


def read_worth(result: Any, task: str, calls: Sequence[int] = ()) -> Worth:
    """What a program or a reward function returned: nothing, a number, a bool, an Outcome, or a dictionary with `reward`, `success`,
    `calls` (rewards by the number of a call, one of `calls`) and further numbers."""
    if result is None:
        return Worth()
    if isinstance(result, Outcome):
        fields, per_call = {**dict(result.measures), "reward": result.reward}, {}
        fields |= {} if result.success is None else {"success": result.success}
    else:
        fields = dict(result) if isinstance(result, Mapping) else {"reward": result}
        per_call = _per_call(fields.pop("calls", None), task, calls)
    stated = "success" in fields or isinstance(fields.get("reward"), bool)
    try:
        reward, success, measures = worth({"reward": 0.0, **fields}, task)
    except TypeError as error:
        raise BadReward(str(error).replace("score gave", "the program gave")) from None
    return Worth(reward, success if stated else None, measures, per_call, "reward" in fields)


def _per_call(given: Any, task: str, calls: Sequence[int]) -> dict[int, float]:
    """The rewards of single calls, by their numbers."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BadReward(
            f"the program gave calls = {shown(given)} for task {task}: rewards by the number of a call are needed, as {{0: 0.5}}"
        )
    names = {str(number): number for number in calls}
    per_call: dict[int, float] = {}
    for name, value in given.items():
        number, reward = names.get(name if isinstance(name, str) else shown(name)), finite(value)
        if number is None:
            answered = ", ".join([*list(names)[:SHOWN_CALLS], *(["…"] if len(names) > SHOWN_CALLS else [])]) or "none"
            raise BadReward(f"the program rewards call {shown(name)} of task {task}, which is not one of its answered calls: {answered}")
        if reward is None:
            raise BadReward(f"the program gave {shown(value)} for call {number} of task {task}: a finite number is needed")
        per_call[number] = float(reward)
    return per_call


def stop_of(recorder: Recorder, how: Ended, crashes_count: bool) -> tuple[Stop, str]:
    """Why an attempt ended. A limit comes before the error that it has caused in the program."""
    if recorder.stop:
        return (Stop.CONTEXT_LIMIT if "tokens" in recorder.stop else Stop.STEP_LIMIT), recorder.stop
    if recorder.faults:
        return Stop.ENGINE_FAULT, recorder.faults[0]
    refused = next((call for call in recorder.calls if call.stop_reason == "refused"), None)
    if how.problem and refused is not None:
        return Stop.CONTEXT_LIMIT, f"call {refused.number} did not fit: {how.problem}"
    if not recorder.finished():
        return Stop.ENVIRONMENT_FAULT, f"{NEVER}: {how.problem}" if how.problem else NEVER
    if how.problem and not crashes_count:
        return Stop.ENVIRONMENT_FAULT, how.problem
    return Stop.DONE, how.problem
