"""Makes the collectors of a run: for attempts that are learned from, and for evaluations.

A run on one process has `LocalCollectors`; on a cluster `RemoteCollectors` (cluster/collecting.py) has the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnwise.agent import Agent
from turnwise.collect import services
from turnwise.collect.collector import Collector
from turnwise.collect.hooks import Hooks
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.programs import ProgramCollector
from turnwise.collect.rewards import Rewards
from turnwise.collect.source import Collects
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Turn
from turnwise.engines.base import Engine, Sampling
from turnwise.envs.pool import Pool
from turnwise.envs.program.env import ProgramEnv
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import Once


class Collectors(Protocol):
    """What a run collects with. `generate` and `openings` are services for plans."""

    def evaluation(self, temperature: float | None = None) -> Collects: ...

    def training(self, drawing: Any = None) -> Collects: ...

    def generate(self, texts: Sequence[str], seed: int, temperature: float | None = None) -> list[Turn]: ...

    def openings(self, starts: Sequence[Start]) -> list[str]: ...


@dataclass(frozen=True)
class LocalCollectors:
    """Collects in this process. `played` is the pool of environments, or a program that plays by itself and calls the model. `reports`:
    what the engine reports about the tokens of attempts that are learned from; `snapshots`: states are kept for a plan that restores
    them. `engine` is called when something is played for the first time."""

    played: Pool | ProgramEnv
    agent: Agent
    engine: Callable[[], Engine]
    sampling: Sampling
    max_turns: int
    rewards: Rewards = field(default_factory=Rewards)
    ordered: bool = True
    reports: tuple[str, ...] = ()
    snapshots: bool = False
    hooks: Hooks = field(default_factory=Hooks)
    say_once: Once = field(default_factory=lambda: Once(lambda text: None))

    @property
    def pool(self) -> Pool:
        if not isinstance(self.played, Pool):
            raise TurnwiseError("a program plays by itself: it has no environments that could be reset from here")
        return self.played

    def sampled(self, temperature: float | None = None) -> Sampling:
        """How tokens are sampled: as in training, or at another temperature."""
        return self.sampling if temperature is None else replace(self.sampling, temperature=temperature)

    def policy(self, temperature: float | None = None) -> ModelPolicy:
        agent = self.agent
        return ModelPolicy(self.engine(), agent.context, agent.read, self.sampled(temperature), agent.read_text)

    def evaluation(self, temperature: float | None = None) -> Collector | ProgramCollector:
        """A collector for attempts whose tokens and log-probs depend on the weights and on these attempts alone: the engine forgets what
        it kept of others (of an evaluation, for example), because a resumed run has not played those."""
        engine = self.engine()
        engine.forget()
        if isinstance(self.played, ProgramEnv):
            chat, sampling = self.agent.chat, self.sampled(temperature)
            return ProgramCollector(
                self.played, engine, chat, sampling, self.max_turns, self.rewards, self.hooks, whole=True, say=self.say_once
            )
        return Collector(self.played, self.policy(temperature), self.max_turns, self.rewards, self.hooks, self.ordered)

    def training(self, drawing: Any = None) -> Collector | ProgramCollector:
        """A collector for attempts that are learned from. `drawing` is the plan's say in how turns are sampled. Of a program, every line
        of conversation is one trajectory."""
        collector = self.evaluation()
        sampling = replace(self.sampling, report=self.reports)
        if isinstance(collector, ProgramCollector):
            return replace(collector, whole=False, sampling=sampling)
        policy = collector.policy
        assert isinstance(policy, ModelPolicy)
        rule = None if drawing is None else drawing.rule
        policy.drawing, policy.encode, policy.sampling = drawing, self.agent.chat.encode, replace(sampling, rule=rule)
        collector.snapshots = self.snapshots
        return collector

    def generate(self, texts: Sequence[str], seed: int, temperature: float | None = None) -> list[Turn]:
        """The policy's responses to these messages, as turns."""
        sampling = replace(self.sampled(temperature), report=self.reports)
        return services.generate(self.engine(), self.agent, sampling, texts, seed)

    def openings(self, starts: Sequence[Start]) -> list[str]:
        """What the agent is told first in these attempts."""
        return services.openings(self.pool, starts)
