"""A cluster on a simulated clock: its engines, its learner, and which groups may begin when, as turnwise/cluster/scheduler.py decides it.

An engine computes in rounds: in one round every trajectory that it has makes a turn (new tokens are read, then a response is decoded, one
token per step for all). Trajectories that are done leave it, and new groups join, between rounds. The learner waits until a batch is
complete, learns from it, and sends its weights, for which all engines pause. Their caches were computed with the old weights and are then
computed again. `Work` draws the lengths of trajectories, the same for every layout that is compared.

    result = Simulation(work, layout, shape_of("7b"), staleness=1).run()
    result.trajectories_per_s, result.learner_idle, result.engine_idle, result.ages
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count

import numpy as np

from turnwise.learn.shapes import ModelShape
from turnwise.planner.times import EngineTimes, LearnerTimes, Machine, OldPass, Sequences
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

LONGEST_BLOCK = 2  # rounds of an engine that are computed as one: groups that arrive meanwhile join it afterwards


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
        for name, choices in (("context", ("full", "window")), ("old_logprobs", (None, "engine", "learner"))):
            if getattr(self, name) not in choices:
                raise TurnwiseError(f"plan: unknown {name} {getattr(self, name)!r}; known: {', '.join(filter(None, choices))}")

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
    rng = np.random.default_rng(derive(seed, "lengths", group))
    solves = rng.beta(2 * success, 2 * (1 - success))
    solved = np.ceil(rng.lognormal(np.log(solved_turns) - spread**2 / 2, spread, size)).clip(1, turns)
    return tuple(np.where(rng.random(size) < solves, solved, turns).astype(int).tolist())


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
    """What was simulated, after the first iterations. Idle shares are of time; `ages` are shares of groups by the age of their weights."""

    layout: Layout
    staleness: int
    iterations: int
    seconds: float
    trajectories_per_s: float
    iterations_per_h: float
    learner_idle: float
    engine_idle: float
    sequences: float  # mean number of trajectories on an engine that computes
    ages: dict[int, float]
    parts: dict[str, float]  # mean seconds of an iteration: waiting for groups, packing on the host, learning, sending weights


@dataclass(eq=False)
class Engine:
    """One engine. It computes in blocks of rounds that end when a trajectory ends: until then, times grow evenly with the context."""

    times: EngineTimes
    work: Work
    computing: bool = False
    fresh: list[int] = field(default_factory=list)  # groups that begin with the next block
    ends: list[tuple[int, int, int]] = field(default_factory=list)  # a heap: the round in which a trajectory ends, its group, its turns
    left: dict[int, int] = field(default_factory=dict)  # trajectories of each group that have not ended
    round: int = 0
    rounds: int = 0  # of the current block
    seconds: float = 0.0  # of each of these rounds
    turns_made: int = 0  # by the trajectories that have not ended
    delay: float = 0.0
    busy: float = 0.0
    sequence_seconds: float = 0.0

    @property
    def groups(self) -> int:
        return len(self.left) + len(self.fresh)

    def begin(self) -> float:
        """Begin a block, with the fresh groups. Returns its seconds."""
        before, groups = len(self.ends), len(self.fresh)
        for group in self.fresh:
            lengths = self.work.lengths(group)
            self.left[group] = len(lengths)
            for length in lengths:
                heapq.heappush(self.ends, (self.round + length, group, length))
        self.fresh = []
        fresh = len(self.ends) - before
        self.rounds = 1 if fresh or self.work.env_seconds else min(self.ends[0][0] - self.round, LONGEST_BLOCK)
        self.seconds = self._round_seconds(fresh, groups)
        if self.work.env_seconds:  # no turn is shorter than that of a trajectory alone on the engine
            alone = (self.work.response - 1) * self.times.decode(1, self._context() / len(self.ends))
            self.seconds = max(self.seconds, alone + self.work.env_seconds)
        return self.seconds * self.rounds

    def end(self) -> list[int]:
        """The block has ended. Returns the groups that are finished."""
        sequences, seconds = len(self.ends), self.seconds * self.rounds
        self.round += self.rounds
        self.turns_made += sequences * self.rounds
        self.busy += seconds
        self.sequence_seconds += seconds * sequences
        finished = []
        while self.ends and self.ends[0][0] <= self.round:
            _, group, length = heapq.heappop(self.ends)
            self.turns_made -= length
            self.left[group] -= 1
            if not self.left[group]:
                del self.left[group]
                finished.append(group)
        return finished

    def receive_weights(self, seconds: float) -> None:
        """Nothing is computed for this long, and then the cache is computed again with the new weights."""
        if self.computing:
            tokens = self._context()
            again = self.times.prefill(tokens, tokens / max(len(self.ends), 1) / 2)
            self.delay += seconds + again
            self.busy += again

    def _context(self) -> float:
        """Tokens of all prompts."""
        return len(self.ends) * self.work.first + self.turns_made * self.work.growth

    def _round_seconds(self, fresh: int, groups: int) -> float:
        """Seconds per round, at the mean context of the rounds."""
        work, sequences, times = self.work, len(self.ends), self.times
        later = work.growth * (self.rounds - 1) / 2
        context = self._context() / sequences + later
        if work.window:
            once = work.shared * (1 - len(self.left) / sequences)
            read = times.prefill(sequences * (work.prompt - once), work.prompt - (work.prompt - once) / 2)
        else:
            read = times.prefill(fresh * work.opening - work.shared * (fresh - groups), work.opening / 2)
            if sequences > fresh:
                new, past = work.observation + 1, (self._context() - fresh * work.opening) / (sequences - fresh) + later
                read += times.prefill((sequences - fresh) * new, past - new / 2)
        return read + (work.response - 1) * times.decode(sequences, context + work.response / 2) + sequences * work.host_turn


class Simulation:
    """Engines and a learner, event by event. Group g belongs to batch g // work.groups, and batch b is learned from with version b."""

    def __init__(
        self,
        work: Work,
        layout: Layout,
        model: ModelShape,
        machine: Machine | None = None,
        staleness: int = 0,
        iterations: int = 12,
        warmup: int = 4,
    ):
        machine = machine or Machine()
        self.work, self.layout, self.staleness = work, layout, staleness
        self.iterations, self.warmup = iterations, min(warmup, iterations - 1)
        self.learner = LearnerTimes(model, machine, layout.learners)
        self.engines = [Engine(EngineTimes(model, machine, layout.tensor_parallel), work) for _ in range(layout.engines)]
        self.events: list[tuple[float, int, Engine | None]] = []  # the end of an engine's block; None: the learner's weights have arrived
        self.order = count()
        self.now = 0.0
        self.version = self.admitted = 0
        self.learning = False
        self.waiting: deque[int] = deque()
        self.finished: Counter[int] = Counter()  # groups by batch
        self.ages: Counter[int] = Counter()
        self.spent = dict.fromkeys(("pack", "learn", "transfer"), 0.0)
        self.began = self._sums()  # clock and sums when the measurement begins

    def run(self) -> Result:
        """Simulate until this many batches have been learned from."""
        self._admit()
        while self.version < self.iterations:
            self.now, _, engine = heapq.heappop(self.events)
            if engine is None:
                self._publish()
            elif engine.delay:
                self._later(engine.delay, engine)
                engine.delay = 0.0
            else:
                self._block_over(engine)
        return self._result()

    def _later(self, seconds: float, engine: Engine | None) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), engine))

    def _admit(self) -> None:
        """Groups of batch b may begin once version b − staleness is there. The engine with the fewest groups gets the next one."""
        while self.admitted <= self.version + self.staleness:
            self.waiting.extend(range(self.admitted * self.work.groups, (self.admitted + 1) * self.work.groups))
            self.admitted += 1
        loads = [(engine.groups, number) for number, engine in enumerate(self.engines)]
        heapq.heapify(loads)
        while self.waiting and loads[0][0] < self.layout.capacity:
            load, number = loads[0]
            self._assign(self.engines[number])
            heapq.heapreplace(loads, (load + 1, number))
        for engine in self.engines:
            if engine.fresh and not engine.computing:
                self._continue(engine)

    def _assign(self, engine: Engine) -> None:
        group = self.waiting.popleft()
        engine.fresh.append(group)
        if (batch := group // self.work.groups) >= self.warmup:
            self.ages[batch - self.version] += 1

    def _continue(self, engine: Engine) -> None:
        engine.computing = bool(engine.fresh or engine.ends)
        if engine.computing:
            self._later(engine.begin(), engine)

    def _block_over(self, engine: Engine) -> None:
        for group in engine.end():
            self.finished[group // self.work.groups] += 1
        while self.waiting and engine.groups < self.layout.capacity:
            self._assign(engine)
        self._continue(engine)
        self._learn()

    def _learn(self) -> None:
        """Learn from the next batch if it is complete."""
        if self.learning or self.finished[self.version] < self.work.groups:
            return
        self.learning = True
        batch = self.work.sequences(range(self.version * self.work.groups, (self.version + 1) * self.work.groups))
        seconds = {
            "pack": self.learner.pack(batch),
            "learn": self.learner.learn(batch, self.work.steps, self.work.old_pass(self.staleness)),
            "transfer": self._transfer(),
        }
        self.spent = {part: self.spent[part] + value for part, value in seconds.items()}
        self._later(sum(seconds.values()), None)

    def _transfer(self) -> float:
        return self.learner.transfer(shared=self.layout.colocated and self.layout.learners == 1)

    def _publish(self) -> None:
        self.version += 1
        self.learning = False
        if self.version == self.warmup:
            self.began = self._sums()
        if self.version == self.iterations:
            return
        for engine in self.engines:
            engine.receive_weights(self._transfer())
        self._admit()
        self._learn()

    def _sums(self) -> dict[str, float]:
        return self.spent | {"clock": self.now, "engines": sum(engine.busy for engine in self.engines)}

    def _result(self) -> Result:
        passed = {name: end - self.began[name] for name, end in self._sums().items()}
        seconds, spent = passed["clock"], {name: passed[name] for name in self.spent}
        number, groups, busy = self.iterations - self.warmup, sum(self.ages.values()), sum(engine.busy for engine in self.engines)
        wait = max(seconds - sum(spent.values()), 0.0)
        learner_idle, engine_idle = wait / seconds, 1 - passed["engines"] / (seconds * self.layout.engines)
        if self.layout.colocated:  # the same GPUs
            learner_idle = engine_idle = learner_idle + engine_idle - 1
        return Result(
            layout=self.layout,
            staleness=self.staleness,
            iterations=number,
            seconds=seconds,
            trajectories_per_s=number * self.work.groups * self.work.group_size / seconds,
            iterations_per_h=3600 * number / seconds,
            learner_idle=max(learner_idle, 0.0),
            engine_idle=max(engine_idle, 0.0),
            sequences=sum(engine.sequence_seconds for engine in self.engines) / busy,
            ages={age: share / groups for age, share in sorted(self.ages.items())},
            parts={name: value / number for name, value in ({"wait": wait} | spent).items()},
        )
