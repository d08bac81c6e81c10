"""An engine, a context and policies that speak words, for tests of collecting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from toy_env import Corridor

from turnwise import Task, TaskSet
from turnwise.agent.base import Parsed, Prompt
from turnwise.collect.collector import Collector, Start
from turnwise.collect.model_policy import ModelPolicy
from turnwise.data.rollouts import Trajectory, Turn, sound
from turnwise.engines.base import Engine, Finish, Request, Response, Sampling
from turnwise.envs.base import Observation
from turnwise.envs.pool import Pool
from turnwise.methods.planning import Gathered, Plan, TaskSlots

WORDS = ["left", "right", "wait", "<eos>"]


def numbered(n: int) -> TaskSet:
    return TaskSet((Task(str(i), data={"number": i}) for i in range(n)), "numbers")


class WordContext:
    """A prompt is the observation's length and the turn: enough to see what the policy was shown."""

    def __init__(self, limit: int = 10**9):
        self.limit = limit

    def start(self, task: Task, observation: Observation) -> None:
        self.ids = [len(observation.text)]

    def prompt(self) -> Prompt:
        return Prompt(tuple(self.ids), fits=len(self.ids) <= self.limit)

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        self.ids = [*self.ids, *response_ids, len(observation.text)]


class WordEngine(Engine):
    """Answers one request a poll, newest first, with a word drawn from the request's seed; counts what it was asked."""

    def __init__(self, bias: int = 60, fault_at: int | None = None):
        self.waiting: list[Request] = []
        self.asked: list[Request] = []
        self.released: list[int] = []
        self.bias, self.fault_at = bias, fault_at

    @property
    def pending(self) -> int:
        return len(self.waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        self.waiting += requests
        self.asked += requests

    def poll(self, wait: bool = True) -> list[Response]:
        request = self.waiting.pop()
        if self.fault_at is not None and len(request.prompt_ids) > self.fault_at:
            return [Response(request.key, finish=Finish.FAULT, message="out of ink")]
        word = 1 if request.seed % 100 < self.bias else (request.seed // 100) % 3
        return [Response(request.key, (word, 3), (-0.5, -0.1))]

    def release(self, sequence: int) -> None:
        self.released.append(sequence)

    def refresh(self) -> None: ...

    def close(self) -> None: ...


def policy(engine: WordEngine, limit: int = 10**9) -> ModelPolicy:
    def read(ids: Sequence[int], observation: Observation) -> tuple[str, Parsed]:
        text = WORDS[ids[0]]
        return text, Parsed(text, valid=text != "wait", problem="" if text != "wait" else "idle")

    return ModelPolicy(engine, partial(WordContext, limit), read, Sampling())


def play(engine: WordEngine, starts: Sequence[Start], size: int = 4, **settings: object) -> list:
    env = settings.pop("env", Corridor)
    workers = settings.pop("workers", 0)
    limit = settings.pop("limit", 10**9)
    with Pool(env, size, workers=workers, timeout=5.0) as pool:
        return Collector(pool, policy(engine, limit), **{"max_turns": 20, **settings}).run(starts)


def attempts(rewards: dict[int, list[float]]) -> object:
    def collect(starts: Sequence[Start]) -> list:
        found = []
        for start in starts:
            reward = rewards.get(start.group, [0.0, 1.0])[start.number % 2]
            found.append(Trajectory(start.group, start.number, turns=[Turn("a", reward)]))
        return found

    return collect


def gathered(plan: Plan, slots: TaskSlots, groups: int, collect: Callable[[Sequence[Start]], list[Trajectory]]) -> Gathered:
    """What a plan brings home where `collect` makes its attempts."""
    rounds = plan.gather(slots, groups)
    try:
        starts = next(rounds)
        while True:
            starts = rounds.send(sound(collect(starts)))
    except StopIteration as end:
        return end.value
