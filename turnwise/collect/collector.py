"""The collector: who generates when.

Attempts at tasks run side by side: one waits for its environment while others wait for the policy. Whatever is ready goes on; a finished
attempt leaves at once and its slot starts the next one, so no generation is ever made for an attempt that is over. The collector knows
no model and no environment: a `Pool` plays the environments, a `Policy` finds the actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnwise.agent.text import stated_goal
from turnwise.collect.order import Answers
from turnwise.collect.rewards import BadReward, Rewards
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import Fault, Pool, Result
from turnwise.util.garbage import rare_searches

LONGEST_GOAL = 2000  # characters of a goal that are kept with an attempt


@dataclass(frozen=True, slots=True)
class Start:
    """One attempt to be made: the task, the group it is compared in, its number in the batch, the environment's seed, and the seed of
    everything the policy draws."""

    task: Task
    group: int
    number: int
    env_seed: int = 0
    policy_seed: int = 0


@dataclass(slots=True)
class Attempt:
    """A running attempt."""

    start: Start
    slot: int
    trajectory: Trajectory
    observation: Observation | None = None
    turn: Turn | None = None  # chosen, waiting for the environment's answer
    over: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy decided for the attempt in a slot: a turn to play, or a reason to stop."""

    slot: int
    turn: Turn | None
    stop: Stop | None = None
    detail: str = ""


class Policy(Protocol):
    """Finds actions for the attempts, which it knows by their slots. `ask`: the slot's observation is new, an action is wanted; `answers`
    waits for at least one decision where any is pending; `observe`: what a turn led to; `end`: the slot's attempt is over."""

    @property
    def pending(self) -> int: ...

    def begin(self, slot: int, start: Start, observation: Observation) -> None: ...

    def ask(self, slot: int) -> None: ...

    def answers(self) -> list[Answer]: ...

    def observe(self, slot: int, turn: Turn, transition: Transition) -> None: ...

    def end(self, slot: int) -> None: ...


@dataclass
class Collector:
    """Plays attempts to their ends. `max_turns` is the step limit; `cancelled` is asked between turns and ends everything when true.
    `ordered`: what comes out does not depend on how quick worker processes are (order.py)."""

    pool: Pool
    policy: Policy
    max_turns: int
    rewards: Rewards = field(default_factory=Rewards)
    max_invalid: int | None = None
    cancelled: Callable[[], bool] = lambda: False
    on_turn: Callable[[Trajectory], None] = lambda trajectory: None
    on_start: Callable[[int], None] = lambda count: None  # so many attempts more will be made
    on_end: Callable[[Trajectory], None] = lambda trajectory: None  # one of them is over
    ordered: bool = True
    on_fault: Callable[[Trajectory, Result], None] = lambda trajectory, result: None

    def run(self, starts: Iterable[Start]) -> list[Trajectory]:
        """The trajectories of all starts, in their order. Where cancelled, those that had begun, as far as they came."""
        waiting = deque(starts)
        order = [start.number for start in waiting]
        self.on_start(len(order))
        with rare_searches():
            done = self._play(waiting)
        return [done[number] for number in order if number in done]

    def _play(self, waiting: deque[Start]) -> dict[int, Trajectory]:
        free = deque(range(self.pool.size))
        self._answers = Answers(self.pool, self.ordered)
        active: dict[int, Attempt] = {}
        done: dict[int, Trajectory] = {}
        while waiting or active:
            while waiting and free:
                slot = free.popleft()
                active[slot] = self._launch(waiting.popleft(), slot)
            for result in self._answers.next(bool(self.policy.pending), len(active)):
                self._observed(active[result.slot], result)
            for answer in self.policy.answers() if self.policy.pending else ():
                self._answered(active[answer.slot], answer)
            if self.cancelled():
                self._cancel(active.values())
                waiting.clear()
            for slot in [slot for slot, attempt in active.items() if attempt.over]:
                attempt = active.pop(slot)
                done[attempt.start.number] = attempt.trajectory
                free.append(slot)
        return done

    def _cancel(self, attempts: Iterable[Attempt]) -> None:
        self._answers.drop()
        for attempt in attempts:
            if not attempt.over:
                self._stop(attempt, Stop.CANCELLED)

    def _launch(self, start: Start, slot: int) -> Attempt:
        trajectory = Trajectory(start.group, start.number, task=start.task.id, seed=start.env_seed)
        self._answers.reset(slot, start.task, start.env_seed)
        return Attempt(start, slot, trajectory)

    def _observed(self, attempt: Attempt, result: Result) -> None:
        """The environment has answered: record the turn that led here, then ask for the next one or stop."""
        if result.transition is None:
            return self._fault(attempt, result)
        transition, trajectory = result.transition, attempt.trajectory
        if attempt.turn is None:
            trajectory.goal = stated_goal(attempt.start.task, transition.observation)[:LONGEST_GOAL]
            self.policy.begin(attempt.slot, attempt.start, transition.observation)
        else:
            try:
                self._record(attempt, transition)
            except BadReward as error:  # a mistake of one term at one turn costs this attempt and no other
                return self._fault(attempt, Result(attempt.slot, None, Fault.ERROR, str(error), "", error.lines))
        attempt.observation = transition.observation
        if transition.done:
            trajectory.success = bool(transition.success)
            return self._stop(attempt, Stop.DONE)
        if len(trajectory.turns) >= self.max_turns:
            return self._stop(attempt, Stop.STEP_LIMIT)
        if self._cannot_be_parsed(trajectory):
            return self._stop(attempt, Stop.PARSE_FAILURES, f"{self.max_invalid} responses in a row could not be parsed")
        return self.policy.ask(attempt.slot)

    def _cannot_be_parsed(self, trajectory: Trajectory) -> bool:
        limit = self.max_invalid or len(trajectory.turns) + 1
        return len(trajectory.turns) >= limit and not any(turn.valid for turn in trajectory.turns[-limit:])

    def _record(self, attempt: Attempt, transition: Transition) -> None:
        turn, trajectory = attempt.turn, attempt.trajectory
        if turn is None or attempt.observation is None:
            return
        turn.reward, parts = self.rewards(turn, transition, trajectory)
        more = {"rewards": parts, "env": dict(transition.info)}
        turn.info = {**turn.info, **{name: value for name, value in more.items() if value}}
        trajectory.turns.append(turn)
        trajectory.final_anchor = transition.observation.key
        self.policy.observe(attempt.slot, turn, transition)
        attempt.turn = None
        self.on_turn(trajectory)

    def _answered(self, attempt: Attempt, answer: Answer) -> None:
        if attempt.over:  # cancelled while the policy was thinking
            return None
        if answer.turn is None:
            return self._stop(attempt, answer.stop or Stop.ENGINE_FAULT, answer.detail)
        turn = answer.turn
        if attempt.observation is not None:
            turn.anchor, turn.observation = attempt.observation.key, attempt.observation.text
        attempt.turn = turn
        return self._answers.step(attempt.slot, turn.action)

    def _fault(self, attempt: Attempt, result: Result) -> None:
        self._stop(attempt, Stop.ENVIRONMENT_TIMEOUT if result.fault is Fault.TIMEOUT else Stop.ENVIRONMENT_FAULT, result.message)
        self.on_fault(attempt.trajectory, result)

    def _stop(self, attempt: Attempt, stop: Stop, detail: str = "") -> None:
        attempt.trajectory.stop, attempt.trajectory.stop_detail = stop, detail
        attempt.over = True
        self.policy.end(attempt.slot)
        self.on_end(attempt.trajectory)


def summarise(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Counts that every collection reports: success, reward, length, validity, stop reasons."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    n = max(len(trajectories), 1)
    return {
        "trajectories": len(trajectories),
        "turns": len(turns),
        "success": sum(t.success for t in trajectories) / n,
        "reward": sum(t.reward for t in trajectories) / n,
        "length": len(turns) / n,
        "invalid": sum(not turn.valid for turn in turns) / max(len(turns), 1),
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
        "response_tokens": sum(len(turn.response_ids) for turn in turns),
        "rewards": _parts(turns, n),
    } | {f"stop/{stop.value}": sum(t.stop is stop for t in trajectories) / n for stop in Stop if any(t.stop is stop for t in trajectories)}


def _parts(turns: Sequence[Turn], trajectories: int) -> dict[str, float]:
    """The parts of the reward by name, an attempt; empty where the environment's is the only one."""
    sums: dict[str, float] = {}
    for turn in turns:
        for name, value in turn.info.get("rewards", {}).items():
            sums[name] = sums.get(name, 0.0) + value
    return {name: value / trajectories for name, value in sums.items()}
