"""The work of a cluster in a plan: groups of trajectories of random lengths, the same for every split that is compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from turnwise.cluster.service_times import OldPass, Sequences
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
    host_turn: float = 0.220e-3  # seconds per turn for environment, prompts and tokens, measured
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
