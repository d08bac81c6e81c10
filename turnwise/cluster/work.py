"""What driver and actors send each other: sessions and their calls, outcomes, and what an actor is made of."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnwise.collect.branching import begun
from turnwise.collect.collector import Collector
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.envs.pool import EnvResult, Fault
from turnwise.util.errors import TurnwiseError

WORKER_LOST = ("the worker process was killed by SIGKILL", "the worker process closed")  # messages of envs/workers.py


@dataclass(frozen=True)
class Spec:
    """What kind of attempts a session plays: at another temperature than that of the run, or for training. In training, the engine reports
    what stages need, states are kept, and the plan can influence the drawing."""

    temperature: float | None = None
    training: bool = False
    drawing: Any = None


@dataclass(frozen=True)
class Call:
    """One use of a session: `run` with starts, `generate` with texts, seed and temperature, `openings` with starts."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """All calls of a session so far. The result of the last one is returned."""

    session: str
    spec: Spec
    calls: tuple[Call, ...]


@dataclass
class Outcome:
    """The result of a call, what the session has counted so far, why its first branch was lost, and the faults that were reported."""

    value: Any
    counts: Counter[str] = field(default_factory=Counter)
    lost: str = ""
    faults: list[tuple[Trajectory, EnvResult]] = field(default_factory=list)
    faulted: bool = False  # an environment's process has died, which is not the policy's fault: try again
    environments: float = 0.0  # seconds that the actor's environments have played so far, per process


class Parts(Protocol):
    """What an actor plays with. A function that setup/cluster.py passes on makes them inside the actor."""

    @property
    def environments(self) -> float: ...  # seconds that they have played so far, per process

    def collector(self, spec: Spec) -> Collector: ...

    def generate(self, texts: Sequence[str], seed: int, temperature: float | None) -> list[Turn]: ...

    def openings(self, starts: Sequence[Start]) -> list[str]: ...

    def load_ahead(self, task: Task) -> None: ...

    def publish(self, version: int, weights: Any) -> None: ...

    def close(self) -> None: ...


def generated(trajectory: Trajectory) -> list[Any]:
    """What the policy generated in an attempt: enough to recognise it."""
    return [tuple(turn.response_ids) for turn in trajectory.turns]


def died(result: EnvResult) -> bool:
    """Whether an environment's fault is that its process died."""
    return result.fault is Fault.ERROR and result.message.startswith(WORKER_LOST)


def lost(start: Start) -> Trajectory:
    """An attempt that no engine could play."""
    trajectory = begun(start)
    trajectory.stop, trajectory.stop_detail = Stop.ENGINE_FAULT, "the engines that played it were lost too often"
    return trajectory


def portable(error: BaseException) -> BaseException:
    """An error that another process can read. A TurnwiseError stays one, others become a description."""
    if type(error) is TurnwiseError:
        return error
    if isinstance(error, TurnwiseError):
        return TurnwiseError(str(error))
    text = "".join(traceback.format_exception(error)[-3:])
    return RuntimeError(f"{type(error).__name__}: {error}\n{text}")
