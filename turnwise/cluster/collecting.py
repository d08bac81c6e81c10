"""A collector whose attempts are played by the engines of a cluster. Its interface is that of a collector in this process.

The starts of a run are split into one share of whole groups per engine. A share is one session: one engine plays it from beginning to end,
with the cache and the snapshots that belong to it, so what an engine computes depends on its share alone. If the engine is lost, another
one repeats all calls of the share and gets the same results. So with a given number of engines the same seed always gives the same
weights, whatever is lost during the run; with one engine, they are those of a run without a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from turnwise.cluster.source import RemoteEngine
from turnwise.cluster.work import Call, Outcome, Spec, Work, lost
from turnwise.collect.games import in_order
from turnwise.collect.hooks import Hooks
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.util.errors import Stopped, TurnwiseError

_sessions = count()


@dataclass
class RemoteCollector:
    """`run` returns the trajectories of all starts, in order. `counts` are sums over all shares."""

    engine: RemoteEngine
    spec: Spec = field(default_factory=Spec)
    hooks: Hooks = field(default_factory=Hooks)

    def __post_init__(self) -> None:
        name = next(_sessions)
        self._workers = self.engine.workers
        self._names = [f"{name}.{k}" for k in range(self._workers.size)]
        self._calls: list[list[Call]] = [[] for _ in self._names]
        self._outcomes: list[Outcome] = [Outcome(None) for _ in self._names]
        self._share: dict[int | str, int] = {}  # of every group
        self.counts: Counter[str] = Counter()
        self.lost = ""

    def run(self, starts: Iterable[Start]) -> list[Trajectory]:
        planned = list(starts)
        self.hooks.on_start(len(planned))
        # new groups go to the shares in turn, and attempts of a known group to the share that has its others
        shares: dict[int, list[Start]] = {}
        for start in planned:
            home = start.group if start.branch is None else start.branch.trajectory.group
            share = self._share.setdefault(home, len(self._share) % self._workers.size)
            self._share.setdefault(start.group, share)
            shares.setdefault(share, []).append(start)
        trajectories: dict[int | str, Trajectory] = {}
        for k, outcome in self._do({k: Call("run", (share,)) for k, share in shares.items()}).items():
            if outcome is None and not self._workers.hooks.cancelled():
                trajectories |= {start.number: lost(start) for start in shares[k]}
            elif outcome is not None:
                trajectories |= {trajectory.id: trajectory for trajectory in outcome.value}
        return in_order(planned, trajectories)

    def ask(self, service: str, *arguments: Any) -> list[Any]:
        """What the engine of the first share answers to a plan: `generate` or `openings`."""
        outcome = self._do({0: Call(service, arguments)})[0]
        if outcome is None and self._workers.hooks.cancelled():
            raise Stopped("interrupted while the plan waited for an answer of the policy")
        if outcome is None:
            raise TurnwiseError("the engine was lost too often while it answered the plan: look at its memory")
        return list(outcome.value)

    def _do(self, calls: dict[int, Call]) -> dict[int, Outcome | None]:
        for k, call in calls.items():
            self._calls[k].append(call)
        works = [Work(self._names[k], self.spec, tuple(self._calls[k])) for k in calls]
        found = self.engine.do(lambda: self._workers.run(works, list(calls)))
        outcomes = dict(zip(calls, found, strict=True))
        for k, outcome in outcomes.items():
            if outcome is None:
                self._calls[k].pop()
                continue
            self._outcomes[k] = outcome
            for trajectory, result in outcome.faults:
                self.hooks.on_fault(trajectory, result)
            self.lost = self.lost or outcome.lost
        self.counts = Counter()
        for outcome in self._outcomes:
            self.counts.update(outcome.counts)
        return outcomes


@dataclass
class RemoteCollectors:
    """Makes the collectors of a run on a cluster. `engine` is called when something is played for the first time: by then the workers
    have weights. What a plan asks of the policy belongs to the session of the collector in use; while batches overlap there is none."""

    engine: Callable[[], RemoteEngine]
    overlapping: bool = False
    hooks: Hooks = field(default_factory=Hooks)
    _current: RemoteCollector | None = None

    def evaluation(self, temperature: float | None = None) -> RemoteCollector:
        return self._new(Spec(temperature))

    def training(self, drawing: Any = None) -> RemoteCollector:
        return self._new(Spec(training=True, drawing=drawing))

    def generate(self, texts: Sequence[str], seed: int, temperature: float | None = None) -> list[Turn]:
        return self._session.ask("generate", list(texts), seed, temperature)

    def openings(self, starts: Sequence[Start]) -> list[str]:
        return self._session.ask("openings", list(starts))

    def _new(self, spec: Spec) -> RemoteCollector:
        self._current = RemoteCollector(self.engine(), spec, self.hooks)
        return self._current

    @property
    def _session(self) -> RemoteCollector:
        return self.evaluation() if self._current is None or self.overlapping else self._current
