"""The iteration of iteration.py with real ALFWorld games: real prompts of real lengths, and attempts that end when the task is done.

A model with random weights never finishes a task, so what it says is sampled, recorded and learned from, but the action is the expert's,
or, three times in ten, a random one: attempts then end after a few turns (iteration-games-full.json says how many), all won. Prompts go
through the real agent with a tokenizer of words made from the games, which needs no download and gives shorter prompts than a model's
own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from iteration import Bench, Shape

from turnwise.agent import Agent, AgentSettings
from turnwise.agent.base import Parsed
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.players import ASK_EXPERT, Advised
from turnwise.data.tasks import TaskSet
from turnwise.engines.native import NativeEngine
from turnwise.envs import registry
from turnwise.envs.base import Observation
from turnwise.envs.pool import Pool
from turnwise.envs.registry import portable
from turnwise.learn.tiny import build_tiny_for

LONGEST_PROMPT = {"window": 2048, "full": 12288}
CHANCE = 0.3


class GamesBench(Bench):
    """`data` is the folder of the games."""

    def __init__(self, shape: Shape, data: Path):
        self.options = {"data": str(data)}
        _, tokenizer = build_tiny_for("alfworld", options=self.options, sample=40, layers=1, hidden=16, heads=1)
        self.agent = Agent(tokenizer, AgentSettings(context=shape.context, max_prompt_tokens=LONGEST_PROMPT[shape.context]))
        self.words = len(tokenizer)
        self.chance = random.Random(0)
        super().__init__(shape)

    def make_engine(self, rows: int) -> NativeEngine:
        longest = LONGEST_PROMPT[self.shape.context] + self.shape.response
        memory = None if self.device == "cuda" else 2e9
        return NativeEngine(self.learner.model, max_batch=rows, max_length=longest, cache_memory=memory, stop_token_ids=())

    def make_pool(self, rows: int) -> Pool:
        return Pool(Advised(portable("alfworld", self.options)), rows)

    @cached_property
    def tasks(self) -> TaskSet:
        return registry.tasks("alfworld", "train", **self.options)

    @cached_property
    def floors(self) -> dict[str, float]:
        """Lengths are the games' own: there is no floor to compare with."""
        return {}

    def policy(self) -> ModelPolicy:
        return ModelPolicy(self.engine, self.agent.context, self._read, self.sampling)

    def _read(self, ids: Sequence[int], observation: Observation) -> tuple[str, Parsed]:
        if observation.actions and self.chance.random() < CHANCE:
            return "", Parsed(self.chance.choice(observation.actions))
        return "", Parsed(ASK_EXPERT)
