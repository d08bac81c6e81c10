"""A cluster in rounds: how long its engines and its learner take for some iterations.

An engine computes in rounds: in one round every trajectory that it has makes a turn (new tokens are read, then a response is decoded, one
token per step for all). Trajectories that are done leave it, and new groups join, between rounds. Groups of a batch are dealt to the
engines in turn. The learner waits until a batch is complete, learns from it, and sends its weights, for which all engines pause. Their
caches were computed with the old weights and are then computed again. With a staleness of k, the groups of a batch begin k updates early.
`Work` draws the lengths of trajectories, the same for every layout that is compared.

    result = simulate(work, layout, shape_of("7b"), Machine(), staleness=1)
    result.trajectories_per_s, result.learner_idle, result.engine_idle
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from turnwise.learn.shapes import ModelShape
from turnwise.planner.times import EngineTimes, LearnerTimes, Machine, OldPass, Sequences
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive


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
    """What was simulated, after the first iterations. Idle shares are of time."""

    layout: Layout
    staleness: int
    trajectories_per_s: float
    iterations_per_h: float
    learner_idle: float
    engine_idle: float
    parts: dict[str, float]  # mean seconds of an iteration: waiting for groups, packing on the host, learning, sending weights


@dataclass(eq=False)
class Engine:
    """One engine, round by round."""

    times: EngineTimes
    work: Work
    capacity: int  # groups at once
    clock: float = 0.0
    busy: float = 0.0
    round: int = 0
    waiting: deque[int] = field(default_factory=deque)  # groups
    ends: list[tuple[int, int, int]] = field(default_factory=list)  # a heap: the round in which a trajectory ends, its group, its turns
    left: dict[int, int] = field(default_factory=dict)  # trajectories of each group that have not ended
    turns_made: int = 0  # by the trajectories that have not ended
    batches: Counter[int] = field(default_factory=Counter)  # groups of each batch that have not ended
    complete: dict[int, float] = field(default_factory=dict)  # when they had

    def deal(self, batch: int, groups: Iterable[int]) -> None:
        """Groups that begin as soon as there is room."""
        before = len(self.waiting)
        self.waiting.extend(groups)
        self.batches[batch] = len(self.waiting) - before

    def finish(self, batch: int) -> float:
        """Play until no group of a batch is left. Returns when that was."""
        while self.batches[batch]:
            self.play()
        return self.complete.get(batch, 0.0)

    def play_until(self, time: float) -> None:
        while self.clock < time and (self.ends or self.waiting):
            self.play()
        self.clock = max(self.clock, time)

    def play(self) -> None:
        """One round."""
        before, groups = len(self.ends), len(self.left)
        while self.waiting and len(self.left) < self.capacity:
            group = self.waiting.popleft()
            lengths = self.work.lengths(group)
            self.left[group] = len(lengths)
            for length in lengths:
                heapq.heappush(self.ends, (self.round + length, group, length))
        seconds = self._round_seconds(len(self.ends) - before, len(self.left) - groups)
        if self.work.env_seconds:  # no turn is shorter than that of a trajectory alone on the engine
            alone = (self.work.response - 1) * self.times.decode(1, self._context() / len(self.ends))
            seconds = max(seconds, alone + self.work.env_seconds)
        self.round += 1
        self.turns_made += len(self.ends)
        self.clock += seconds
        self.busy += seconds
        while self.ends and self.ends[0][0] <= self.round:
            _, group, length = heapq.heappop(self.ends)
            self.turns_made -= length
            self.left[group] -= 1
            if not self.left[group]:
                del self.left[group]
                batch = group // self.work.groups
                self.batches[batch] -= 1
                self.complete[batch] = self.clock

    def receive_weights(self, seconds: float) -> None:
        """Nothing is computed for this long, and then the cache is computed again with the new weights."""
        if self.ends:
            tokens = self._context()
            again = self.times.prefill(tokens, tokens / len(self.ends) / 2)
            self.clock += seconds + again
            self.busy += again

    def _context(self) -> float:
        """Tokens of all prompts."""
        return len(self.ends) * self.work.first + self.turns_made * self.work.growth

    def _round_seconds(self, fresh: int, groups: int) -> float:
        """Seconds of a round in which so many trajectories, of so many groups, are new."""
        work, sequences, times = self.work, len(self.ends), self.times
        context = self._context() / sequences
        if work.window:
            once = work.shared * (1 - len(self.left) / sequences)
            read = times.prefill(sequences * (work.prompt - once), work.prompt - (work.prompt - once) / 2)
        else:
            read = times.prefill(fresh * work.opening - work.shared * (fresh - groups), work.opening / 2)
            if sequences > fresh:
                new, past = work.observation + 1, (self._context() - fresh * work.opening) / (sequences - fresh)
                read += times.prefill((sequences - fresh) * new, past - new / 2)
        return read + (work.response - 1) * times.decode(sequences, context + work.response / 2) + sequences * work.host_turn


def simulate(
    work: Work, layout: Layout, model: ModelShape, machine: Machine, staleness: int = 0, iterations: int = 12, warmup: int = 4
) -> Result:
    """So many iterations; those after the first ones are measured. Batch b is learned from with version b."""
    learner = LearnerTimes(model, machine, layout.learners)
    engines = [Engine(EngineTimes(model, machine, layout.tensor_parallel), work, layout.capacity) for _ in range(layout.engines)]
    transfer = learner.transfer(shared=layout.colocated and layout.learners == 1)
    published, began, busy = 0.0, 0.0, 0.0
    spent = dict.fromkeys(("wait", "pack", "learn", "transfer"), 0.0)

    def deal(batch: int) -> None:
        first, last = batch * work.groups, (batch + 1) * work.groups
        for number, engine in enumerate(engines):
            engine.deal(batch, range(first + (number - first) % len(engines), last, len(engines)))

    for early in range(staleness):
        deal(early)
    for version in range(iterations):
        if version == warmup:
            began, busy = published, sum(engine.busy for engine in engines)
            spent = dict.fromkeys(spent, 0.0)
        deal(version + staleness)
        wait = max(0.0, max(engine.finish(version) for engine in engines) - published)
        batch = work.sequences(range(version * work.groups, (version + 1) * work.groups))
        learn = learner.learn(batch, work.steps, work.old_pass(staleness))
        seconds = {"wait": wait, "pack": learner.pack(batch), "learn": learn, "transfer": transfer}
        spent = {part: spent[part] + value for part, value in seconds.items()}
        published += sum(seconds.values())
        for engine in engines:
            engine.play_until(published)
            engine.receive_weights(transfer)
    number, passed = iterations - warmup, published - began
    learner_idle = spent["wait"] / passed
    engine_idle = max(0.0, 1 - (sum(engine.busy for engine in engines) - busy) / (passed * layout.engines))
    if layout.colocated:  # the same GPUs
        learner_idle = engine_idle = max(0.0, learner_idle + engine_idle - 1)
    return Result(
        layout=layout,
        staleness=staleness,
        trajectories_per_s=number * work.groups * work.group_size / passed,
        iterations_per_h=3600 * number / passed,
        learner_idle=learner_idle,
        engine_idle=engine_idle,
        parts={name: value / number for name, value in spent.items()},
    )
