"""A cluster on a simulated clock. The scheduler is the one that a real cluster uses; only its engines, learner and network are simulated.

An engine computes in rounds: in one round every trajectory that it has makes a turn (new tokens are read, then a response is decoded, one
token per step for all). Trajectories that are done leave it, and new groups join, between rounds. The learner waits until a batch is
complete, learns from it, and sends its weights, for which all engines pause. Their caches were computed with the old weights and are then
computed again, unless they are kept. `Work` draws the lengths of trajectories, the same for every layout that is compared.

    result = Simulation(work, layout, shape_of("7b"), staleness=1).run()
    result.trajectories_per_s, result.learner_idle, result.engine_idle, result.ages
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np

from turnwise.cluster.scheduler import Action, Cancel, Dispatch, Ended, Group, Lease, Scheduler
from turnwise.learn.shapes import ModelShape
from turnwise.planner.times import EngineTimes, LearnerTimes, Machine, OldPass, Sequences
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

MOST_FAILURES = 100  # per GPU, until it is said that a plan leads nowhere


@dataclass(frozen=True)
class Work:
    """An iteration. Lengths are those of an environment like ALFWorld: a solved attempt ends after a log-normal number of turns, any other
    at the limit, and tasks differ in how often they are solved. Without `success` every attempt takes all turns."""

    groups: int = 128
    group_size: int = 8
    turns: int = 50  # the limit
    context: str = "full"
    opening: int = 500  # tokens of the first prompt, full context
    prompt: int = 700  # tokens of every prompt, window context
    shared: int = 150  # of either, the tokens that are the same in a group
    observation: int = 60
    response: int = 100
    steps: int = 4  # optimiser steps
    old_logprobs: str | None = None  # whose are the old ones: engine or learner; None: as a run on GPUs chooses
    success: float | None = 0.6
    solved_turns: float = 14.0  # mean of the solved
    spread: float = 0.6  # standard deviation of the logarithm
    host_turn: float = 0.220e-3  # seconds per turn for environment, prompts and tokens: benchmarks/host-x86.json
    env_seconds: float = 0.0  # how long a step of the environment takes, while the engine may do something else
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "turns", "response", "steps"):
            if getattr(self, name) < 1:
                raise TurnwiseError(f"plan: {name} is {getattr(self, name)}; it must be at least 1")
        for name in ("observation", "env_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise TurnwiseError(f"plan: {name} is {getattr(self, name)}; give 0 or a positive number")
        if self.context not in ("full", "window"):
            raise TurnwiseError(f"plan: unknown context {self.context!r}; known: full, window")
        if self.old_logprobs not in (None, "engine", "learner"):
            raise TurnwiseError(f"plan: unknown old_logprobs {self.old_logprobs!r}; known: engine, learner")
        if self.success is not None and not 0 < self.success < 1:
            raise TurnwiseError(f"plan: success is {self.success}; give a share between 0 and 1")

    @cached_property
    def window(self) -> bool:
        return self.context == "window"

    @cached_property
    def growth(self) -> int:
        """Tokens by which the dialogue grows per turn."""
        return 0 if self.window else self.observation + self.response

    @cached_property
    def first(self) -> int:
        """Tokens of a trajectory's first prompt."""
        return self.prompt if self.window else self.opening

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its response."""
        return self.first + (self.turns - 1) * self.growth + self.response

    def old_pass(self, staleness: int) -> OldPass:
        """What the learner scores for old log-probs, as learner.old_logprobs and cluster.staleness decide in a run. Left open, the engine's
        are taken after a look at one micro-batch. Batches that may be older than the weights are scored by the learner; and in a single
        step its own log-probs are the old ones."""
        if staleness > 0 and self.old_logprobs != "engine":
            return "all"
        if self.steps == 1 and self.old_logprobs != "engine":
            return "none"
        return "all" if self.old_logprobs == "learner" else "sample"

    def lengths(self, group: int) -> tuple[int, ...]:
        """Turns of the trajectories of a group, by its id."""
        if self.success is None:
            return (self.turns,) * self.group_size
        return _drawn(self.seed, group, self.group_size, self.turns, self.success, self.solved_turns, self.spread)

    def sequences(self, groups: Iterable[int]) -> Sequences:
        """What the learner computes for these groups."""
        turns = np.array([length for group in groups for length in self.lengths(group)], np.int64)
        prompts = int((turns * self.first + self.growth * turns * (turns - 1) // 2).sum())
        if self.window:
            number = int(turns.sum())
            return Sequences(np.full(number, self.prompt + self.response), np.full(number, self.response), prompts)
        return Sequences(self.opening + (turns - 1) * self.growth + self.response, turns * self.response, prompts)


@lru_cache(maxsize=200_000)
def _drawn(seed: int, group: int, size: int, turns: int, success: float, solved_turns: float, spread: float) -> tuple[int, ...]:
    chance = np.random.default_rng(derive(seed, "lengths", group))
    solves = chance.beta(2 * success, 2 * (1 - success))
    found = np.ceil(chance.lognormal(np.log(solved_turns) - spread**2 / 2, spread, size)).clip(1, turns)
    return tuple(np.where(chance.random(size) < solves, found, turns).astype(int).tolist())


@dataclass(frozen=True)
class Layout:
    """What the GPUs do. `capacity` is how many groups an engine runs at once. Colocated: the learner's GPUs are the engines'."""

    learners: int
    engines: int
    tensor_parallel: int = 1
    capacity: int = 16
    colocated: bool = False

    @property
    def gpus(self) -> int:
        return self.learners if self.colocated else self.learners + self.engines * self.tensor_parallel


@dataclass(frozen=True)
class Result:
    """What was simulated, after the first iterations. Idle shares are of time; `ages` are shares of accepted groups by their age."""

    layout: Layout
    staleness: int
    iterations: int
    seconds: float
    trajectories_per_s: float
    iterations_per_h: float
    learner_idle: float
    engine_idle: float
    lanes: float  # mean number of trajectories on an engine that computes
    ages: dict[int, float]
    dropped: float
    failures: int
    parts: dict[str, float]  # mean seconds of an iteration: waiting for groups, packing on the host, learning, sending weights


@dataclass
class Engine:
    """One engine. `ends` says in which round which trajectories end."""

    name: str
    times: EngineTimes
    work: Work
    up: bool = True
    computing: bool = False
    pausing: bool = False
    waiting: list[Lease] = field(default_factory=list)
    ends: dict[int, list[tuple[Lease, int]]] = field(default_factory=dict)
    left: dict[Lease, int] = field(default_factory=dict)
    dues: list[int] = field(default_factory=list)  # the rounds of `ends`, as a heap
    round: int = 0
    rounds: int = 0  # that are under way
    block: int = 0  # their number, so that an end that was moved is recognised
    began: float = 0.0
    each: float = 0.0  # seconds per round
    lanes: int = 0
    taken: int = 0  # turns that its trajectories have made so far
    delay: float = 0.0
    busy: float = 0.0
    lane_seconds: float = 0.0

    def begin(self, now: float) -> float:
        """Start the waiting groups. Returns the end of the next round in which a trajectory ends. Rounds before it are computed as one:
        their times grow evenly with the context."""
        fresh = groups = 0
        for lease in self.waiting:
            lengths = self.work.lengths(lease.group)
            for length in lengths:
                due = self.round + length
                if due not in self.ends:
                    heapq.heappush(self.dues, due)
                self.ends.setdefault(due, []).append((lease, length))
            self.left[lease] = len(lengths)
            fresh, groups = fresh + len(lengths), groups + 1
        self.lanes += fresh
        self.waiting = []
        self.rounds = 1 if fresh or self.work.env_seconds else max(self.dues[0] - self.round, 1)
        seconds = self._compute(fresh, groups)
        if self.work.env_seconds:
            seconds = max(seconds, self._alone() + self.work.env_seconds)
        self.began, self.each, self.block = now, seconds, self.block + 1
        return now + seconds * self.rounds

    def hurry(self, now: float) -> float | None:
        """A group waits: end with the current round instead of the last one. Returns the new end, or None if it does not change."""
        rounds = min(int((now - self.began) / self.each) + 1, self.rounds)
        if rounds == self.rounds:
            return None
        self.rounds, self.block = rounds, self.block + 1
        return max(self.began + rounds * self.each, now)

    def end(self) -> list[Lease]:
        """The rounds have ended. Returns the groups that are finished."""
        self.round += self.rounds
        self.taken += self.lanes * self.rounds
        self.busy += self.each * self.rounds
        self.lane_seconds += self.each * self.rounds * self.lanes
        done = []
        while self.dues and self.dues[0] <= self.round:
            for lease, length in self.ends.pop(heapq.heappop(self.dues)):
                if lease not in self.left:
                    continue  # cancelled
                self.lanes, self.taken, self.left[lease] = self.lanes - 1, self.taken - length, self.left[lease] - 1
                if not self.left[lease]:
                    del self.left[lease]
                    done.append(lease)
        return done

    def pause(self, seconds: float, keep_cache: bool, now: float) -> None:
        """New weights: nothing is computed for this long, and the cache is recomputed."""
        if self.computing:
            passed = min(int((now - self.began) / self.each), self.rounds) if self.each else 0
            tokens = self._context() + passed * self.lanes * self.work.growth
            again = 0.0 if keep_cache else self.times.prefill(tokens, tokens / max(self.lanes, 1) / 2)
            self.delay += seconds + again
            self.busy += again

    def drop(self, lease: Lease) -> None:
        """Stop a group."""
        if lease in self.waiting:
            self.waiting.remove(lease)
        elif lease in self.left:
            mine = [(due, length) for due, ends in self.ends.items() for one, length in ends if one == lease and due > self.round]
            self.lanes -= len(mine)
            self.taken -= sum(length - (due - self.round) for due, length in mine)
            del self.left[lease]

    def clear(self) -> None:
        """Everything is lost."""
        self.up = self.computing = self.pausing = False
        self.lanes, self.taken, self.delay = 0, 0, 0.0
        self.waiting, self.ends, self.left, self.dues, self.block = [], {}, {}, [], self.block + 1

    def _context(self) -> float:
        """Tokens of all prompts."""
        return self.lanes * self.work.first + self.taken * self.work.growth

    def _compute(self, fresh: int, groups: int) -> float:
        """Seconds per round, at the mean context of the rounds."""
        work, lanes, times = self.work, max(self.lanes, 1), self.times
        later = work.growth * (self.rounds - 1) / 2
        context = self._context() / lanes + later
        if work.window:
            once = work.shared * (1 - len(self.left) / lanes)
            read = times.prefill(lanes * (work.prompt - once), work.prompt - (work.prompt - once) / 2)
        else:
            read = times.prefill(fresh * work.opening - work.shared * (fresh - groups), work.opening / 2)
            if lanes > fresh:
                new, past = work.observation + 1, (self._context() - fresh * work.opening) / (lanes - fresh) + later
                read += times.prefill((lanes - fresh) * new, past - new / 2)
        return read + (work.response - 1) * times.decode(lanes, context + work.response / 2) + lanes * work.host_turn

    def _alone(self) -> float:
        """Seconds of a turn if the engine had nothing else to do: no turn is shorter."""
        context = self._context() / max(self.lanes, 1)
        return (self.work.response - 1) * self.times.decode(1, context)


class Simulation:
    """Engines, a learner and the scheduler, event by event. GPUs fail every `mtbf_hours` on average; None: never."""

    def __init__(
        self,
        work: Work,
        layout: Layout,
        model: ModelShape,
        machine: Machine | None = None,
        staleness: int = 0,
        iterations: int = 12,
        warmup: int = 4,
        mtbf_hours: float | None = None,
        keep_cache: bool = False,
    ):
        if layout.colocated and staleness:
            raise TurnwiseError(f"plan: staleness {staleness}: colocated parts take turns, so nobody runs ahead; use 0")
        machine = machine or Machine()
        self.work, self.layout, self.machine = work, layout, machine
        self.iterations, self.warmup, self.mtbf, self.keep_cache = iterations, min(warmup, iterations - 1), mtbf_hours, keep_cache
        self.scheduler = Scheduler(work.groups, staleness, layout.capacity, retries=10)
        self.learner = LearnerTimes(model, machine, layout.learners)
        times = EngineTimes(model, machine, layout.tensor_parallel)
        self.engines = {f"E{place}": Engine(f"E{place}", times, work) for place in range(layout.engines)}
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order = count()
        self.now = 0.0
        self.version = 0
        self.learning = False
        self.held: Counter[int] = Counter()
        self.batch_of: dict[int, int] = {}
        self.ages: Counter[int] = Counter()
        self.learned = self.dropped = self.failures = 0
        self.spent = dict.fromkeys(("pack", "learn", "transfer"), 0.0)
        self.began = self._sums()  # clock and sums when the measurement begins
        self.chance = np.random.default_rng(derive(work.seed, "failures"))

    def run(self) -> Result:
        """Simulate until this many batches have been learned from."""
        for engine in self.engines.values():
            self._act(self.scheduler.engine_up(engine.name, 0))
            self._doom(engine)
        self._supply()
        while self.version < self.iterations:
            if not self.events:
                raise TurnwiseError(f"plan: nothing happens any more after {self.now:.0f} s ({self.version} iterations): please report it")
            self.now, _, event, about = heapq.heappop(self.events)
            event(*about)
        return self._result()

    # -- the driver --------------------------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, event: Callable[..., None], *about: Any) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), event, about))

    def _supply(self) -> None:
        for batch in self.scheduler.admitted():
            if batch < self.iterations + self.scheduler.staleness:
                for _ in range(self.scheduler.missing(batch)):
                    self.batch_of[self.scheduler.next_id] = batch
                    self._act(self.scheduler.submit(Group(self.scheduler.next_id, batch, self.work.group_size)))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Ended):
                self._ended(action)
                continue
            engine = self.engines[action.engine]
            if isinstance(action, Cancel):
                engine.drop(action.lease)
            elif isinstance(action, Dispatch):
                engine.waiting.append(action.lease)
                if not engine.computing:
                    engine.computing, engine.block = True, engine.block + 1
                    self._later(0.0, self._round, engine, engine.block)
                elif engine.each and not engine.pausing and (end := engine.hurry(self.now)) is not None:
                    self._later(end - self.now, self._round_over, engine, engine.block)

    def _ended(self, end: Ended) -> None:
        if self.version < self.warmup:
            return
        if end.how == "accepted" and end.oldest_version is not None:
            self.ages[end.batch - end.oldest_version] += 1
        else:
            self.dropped += 1

    # -- engines -----------------------------------------------------------------------------------------------------------------------

    def _round(self, engine: Engine, block: int) -> None:
        if block == engine.block:
            self._later(engine.begin(self.now) - self.now, self._round_over, engine, engine.block)

    def _round_over(self, engine: Engine, block: int) -> None:
        if block != engine.block:
            return
        if engine.delay:
            engine.pausing, seconds, engine.delay = True, engine.delay, 0.0
            self._later(seconds, self._round_over, engine, block)
            return
        engine.pausing = False
        for lease in engine.end():
            self.held[self.batch_of[lease.group]] += 1
            self._act(self.scheduler.finished(lease, lease.version))
        if engine.lanes or engine.waiting:
            self._round(engine, engine.block)
        else:
            engine.computing = False
        self._form()

    def _doom(self, engine: Engine) -> None:
        """When an engine is lost. It comes back with current weights, and may be lost again."""
        if self.mtbf is not None:
            self._later(float(self.chance.exponential(self.mtbf * 3600 / self.layout.tensor_parallel)), self._lose, engine)

    def _lose(self, engine: Engine) -> None:
        self.failures += 1
        if self.failures > MOST_FAILURES * self.layout.gpus:
            raise TurnwiseError(f"plan: if a GPU fails every {self.mtbf:g} hours, engines fail before their groups are finished")
        engine.clear()
        self._act(self.scheduler.engine_down(engine.name))
        self._supply()
        self._later(self.machine.restart, self._return, engine)

    def _return(self, engine: Engine) -> None:
        engine.up = True
        self._act(self.scheduler.engine_up(engine.name, self.version))
        self._doom(engine)

    # -- the learner -------------------------------------------------------------------------------------------------------------------

    def _form(self) -> None:
        number = self.scheduler.next_batch
        if self.learning or self.held[number] < self.work.groups:
            return
        self.learning = True
        actions = self.scheduler.formed(number)
        self._act(actions)
        accepted = [one.group.id for one in actions if isinstance(one, Ended) and one.how == "accepted"]
        if self.version >= self.warmup:
            self.learned += len(accepted) * self.work.group_size
        batch = self.work.sequences(accepted)
        old = self.work.old_pass(self.scheduler.staleness)
        pack, learn = self.learner.pack(batch), self.learner.learn(batch, self.work.steps, old)
        self.spent["pack"] += pack
        self.spent["learn"] += learn
        seconds = pack + learn
        self._later(seconds + self._rank_lost(seconds), self._send)

    def _rank_lost(self, seconds: float) -> float:
        """Seconds lost with a rank: all ranks restart, and repeat the current update."""
        if self.mtbf is None or self.chance.exponential(self.mtbf * 3600 / self.layout.learners) > seconds:
            return 0.0
        self.failures += 1
        return self.machine.restart + seconds * float(self.chance.random())

    def _send(self) -> None:
        seconds = self.learner.transfer(shared=self.layout.colocated and self.layout.learners == 1)
        self.spent["transfer"] += seconds
        for engine in self.engines.values():
            engine.pause(seconds, self.keep_cache, self.now)
        self._later(seconds, self._publish)

    def _publish(self) -> None:
        self.version += 1
        self.learning = False
        if self.version == self.warmup:
            self.began = self._sums()
        if self.version == self.iterations:
            return
        self._act(self.scheduler.published(self.version))
        for engine in self.engines.values():
            self._act(self.scheduler.engine_published(engine.name, self.version))
        self._supply()
        self._form()

    # -- the result --------------------------------------------------------------------------------------------------------------------

    def _sums(self) -> dict[str, float]:
        return self.spent | {"clock": self.now, "engines": sum(engine.busy for engine in self.engines.values())}

    def _result(self) -> Result:
        passed = {name: end - self.began[name] for name, end in self._sums().items()}
        seconds, spent = passed["clock"], {name: passed[name] for name in self.spent}
        number, accepted = self.iterations - self.warmup, sum(self.ages.values())
        wait = max(seconds - sum(spent.values()), 0.0)
        learner_idle, engine_idle = wait / seconds, 1 - passed["engines"] / (seconds * self.layout.engines)
        if self.layout.colocated:  # the same GPUs
            learner_idle = engine_idle = learner_idle + engine_idle - 1
        total = sum(engine.busy for engine in self.engines.values())
        return Result(
            layout=self.layout,
            staleness=self.scheduler.staleness,
            iterations=number,
            seconds=seconds,
            trajectories_per_s=self.learned / seconds,
            iterations_per_h=3600 * number / seconds,
            learner_idle=max(learner_idle, 0.0),
            engine_idle=max(engine_idle, 0.0),
            lanes=sum(engine.lane_seconds for engine in self.engines.values()) / total if total else 0.0,
            ages={age: number / accepted for age, number in sorted(self.ages.items())} if accepted else {},
            dropped=self.dropped / max(accepted + self.dropped, 1),
            failures=self.failures,
            parts={name: value / number for name, value in ({"wait": wait} | spent).items()},
        )
