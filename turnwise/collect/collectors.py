"""Makes the collectors of a run, for attempts that are learned from and for evaluations. Also services for plans: the expert's attempts at
a task, how attempts begin, and responses of the current policy to a text of the plan's own.

A run on one process has `LocalCollectors`; on a cluster `RemoteCollectors` (cluster/collecting.py) has the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from turnwise.agent import Agent
from turnwise.agent.text import goal_of, well_formed
from turnwise.collect.collector import Collector
from turnwise.collect.hooks import Hooks
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.programs import ProgramCollector
from turnwise.collect.rewards import Rewards
from turnwise.collect.source import Collects
from turnwise.collect.warmstart import expert_trajectories
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.engines.base import Engine, Request, Response, Sampling
from turnwise.envs.pool import Pool
from turnwise.envs.program.env import ProgramEnv
from turnwise.envs.scripts import Limits
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive
from turnwise.util.terminal import Once

FIRST_SEQUENCE = 1 << 40  # of these responses: no attempt has such a number


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
        """The policy's responses to these messages as turns, with what the engine reports about their tokens: the message is the
        observation. A turn without tokens: the message was too long, or the engine failed."""
        engine, chat, sampling = self.engine(), self.agent.chat, replace(self.sampled(temperature), report=self.reports)
        prompts = [self.agent.maker.prompt(chat.control.mark(text)) for text in texts]
        requests = [
            Request(k, prompt.ids, sampling, derive(seed, "answer", k), FIRST_SEQUENCE + k, prompt.messages or None)
            for k, prompt in enumerate(prompts)
            if prompt.fits
        ]
        engine.submit(requests)
        responses: dict[int, Response] = {}
        while engine.pending:
            responses |= {response.key: response for response in engine.poll()}
        for request in requests:
            engine.release(request.sequence)
        return [_turn(text, prompts[k].ids, responses.get(k, Response(k)), chat.decode) for k, text in enumerate(texts)]

    def openings(self, starts: Sequence[Start]) -> list[str]:
        """What the agent is told first in these attempts: the goal, if the first observation does not state it, and that observation."""
        pool, texts = self.pool, list[str]()
        for first in range(0, len(starts), pool.size):
            some = starts[first : first + pool.size]
            results = pool.reset_all((slot, start.task, start.env_seed) for slot, start in enumerate(some))
            for start, result in zip(some, results, strict=True):
                if result.transition is None:
                    texts.append("")
                    continue
                goal, text = goal_of(start.task, result.observation), well_formed(result.observation.text.strip())
                texts.append(text if goal in text else f"{goal}\n{text}")
        return texts


def demonstrations(
    env: str, options: Mapping[str, Any], tasks: Sequence[Task], agent: Agent, max_turns: int, limits: Limits
) -> list[Trajectory]:
    """The expert's attempts, one per task, as attempts of this agent. Their turns are not learned from, and have log-probs of 0."""
    trajectories = expert_trajectories(env, dict(options), tasks, agent, max_turns=max_turns, limits=limits)
    for trajectory in trajectories:
        trajectory.turns = [replace(turn, logprobs=[0.0] * len(turn.response_ids), learned=False) for turn in trajectory.turns]
    return trajectories


def _turn(text: str, prompt_ids: Sequence[int], response: Response, decode: Callable[[Sequence[int]], str]) -> Turn:
    generated = response.text if response.text is not None else decode(response.token_ids)
    return Turn(
        text,
        observation=text,
        action=generated.strip(),
        response=generated,
        prompt_ids=prompt_ids,
        response_ids=response.token_ids,
        logprobs=response.logprobs,
        version=response.version,
        reports=response.reports,
    )
