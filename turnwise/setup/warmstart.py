"""The warm start: what it learns from, and how long it lasts.

It learns from the expert's attempts, from recorded ones, or from listed actions that are played at random. A model that hardly ever wins
has nothing to reinforce, and some seeds learn to copy a name from their prompt much later than others. So a recipe may ask for a
measurement: `sft.until` ends the imitation early, `sft.at_least` extends it. Both play training tasks, always the same ones with the same
seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.agent import Agent
from turnwise.collect.collector import Start
from turnwise.collect.collectors import Collectors
from turnwise.collect.faults import FaultWatch, faulted
from turnwise.collect.hooks import Hooks
from turnwise.collect.players import offers
from turnwise.collect.warmstart import demonstrated, expert_trajectories, lists_actions, random_trajectories
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import TaskSet
from turnwise.engines.base import WeightReceiver
from turnwise.envs.check import SMOKE_TASKS
from turnwise.learn.local import Learning
from turnwise.learn.sections import SftSettings
from turnwise.methods.planning import TaskSlots
from turnwise.recipe.schema import Config
from turnwise.runs.exchange import read_trajectories
from turnwise.setup.environment import limits_of
from turnwise.setup.needs import EXPERT
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

TRIES = 32  # attempts per task at random, of which the best is learned from

MORE_ROUNDS = 4  # times that a warm start is extended by half of its steps


# -- examples -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examples:
    """Makes the examples of a recipe's warm start, as attempts of this agent."""

    config: Config
    tasks: TaskSet
    agent: Agent
    max_turns: int
    faults: FaultWatch
    hooks: Hooks

    @property
    def _env(self) -> tuple[str, dict[str, Any]]:
        return self.config.env.name, dict(self.config.env.options)

    def make(self, sft: SftSettings, on_task: Callable[[], None]) -> list[Trajectory] | None:
        """The expert's attempts, or recorded ones; none if there is no expert and none is required."""
        if sft.file is not None:
            return self._recorded(sft.file, sft.tasks)
        starts = TaskSlots(self.tasks, derive(self.config.seed, "warm start"), 1, self.config.collect.shuffle).groups(sft.tasks)
        if offers(*self._env, *EXPERT):
            noisy = {"noise": sft.noise, "learn_all": sft.imitate == "all"}
            return self._played(expert_trajectories, starts, "warm start noise", on_task, **noisy)
        if sft.required:
            raise TurnwiseError(
                f"environment {self.config.env.name!r} has no expert for the recipe's warm start to learn from (expert(task) or "
                "expert_action()). Leave the warm start out with sft=none, learn from recorded attempts with sft.file, or, if it lists its "
                "actions, from random play with sft.required=false"
            )
        return self._random(sft, starts, on_task)

    def _recorded(self, file: str, most: int) -> list[Trajectory]:
        """Recorded attempts that succeed when their actions are played again."""
        recorded = [trajectory for trajectory in read_trajectories(file) if trajectory.success][:most]
        limits = limits_of(self.config.env, self.hooks.cancelled)
        played = demonstrated(*self._env, self.tasks, recorded, self.agent, limits=limits, on_fault=self.faults.on_fault)
        examples = [example for example in self._sound(played) if example.success]
        if not examples:
            raise TurnwiseError(f"sft.file: {file} holds no trajectory that succeeds when its actions are played again")
        return examples

    def _random(self, sft: SftSettings, starts: Sequence[Start], on_task: Callable[[], None]) -> list[Trajectory] | None:
        """What a model that starts from nothing learns if there is no expert: to say the listed actions, played at random."""
        env = self.config.env
        if self.config.model.path is not None:
            self.hooks.say(f"environment {env.name!r} has no expert: no warm start")
            return None
        first = [start.task for start in starts[:SMOKE_TASKS]]
        with limits_of(env).pool(env.name, len(first), env.options) as pool:
            if not lists_actions(pool, first):
                raise TurnwiseError(
                    f"environment {env.name!r} has no expert and lists no actions: a model that starts from nothing would say random bytes "
                    "and never be rewarded. What helps: expert_action() or expert(task) in its class; Observation(text, actions=…) with "
                    "what can be done; recorded attempts (sft.file=FILE); a pretrained model (model.path=FOLDER). To try it anyway: "
                    "sft=none"
                )
        self.hooks.say(f"environment {env.name!r} has no expert: the warm start teaches its listed actions, played at random")
        return self._played(random_trajectories, starts, "warm start chance", on_task, tries=TRIES)

    def _played(
        self, play: Callable[..., list[Trajectory]], starts: Sequence[Start], purpose: str, on_task: Callable[[], None], **more: Any
    ) -> list[Trajectory]:
        """Examples for the tasks of these starts, played within the recipe's limits; `purpose` is that of their seed."""
        more |= {"max_turns": self.max_turns, "seed": derive(self.config.seed, purpose), "on_task": on_task}
        more |= {"limits": limits_of(self.config.env, self.hooks.cancelled), "on_fault": self.faults.on_fault}
        return self._sound(play(*self._env, [start.task for start in starts], self.agent, **more))

    def _sound(self, played: list[Trajectory]) -> list[Trajectory]:
        """Without the attempts that a fault has ended, which are reported; raises an error if nearly all are like that."""
        self.faults.require(played)
        return [trajectory for trajectory in played if not faulted(trajectory)]


# -- imitation ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarmStart:
    """Imitates the examples for as long as the recipe asks. `collectors` play the measurements, for which `engine` gets the weights."""

    config: Config
    examples: Examples
    learner: Learning
    collectors: Collectors
    engine: Callable[[], WeightReceiver]
    hooks: Hooks

    def __call__(self, on_task: Callable[[], None] = lambda: None) -> dict[str, float]:
        """The metrics of the imitation, and what was measured last; empty if there is nothing to imitate, or the run is cancelled."""
        sft, config, say = self.config.sft, self.config, self.hooks.say
        if sft is None:
            return {}
        measured = sft.until is not None or sft.at_least is not None
        if measured and sft.file is None and not offers(config.env.name, dict(config.env.options), *EXPERT):
            sft = sft.model_copy(update={"until": None, "at_least": None})  # random play teaches the form of actions, not how to win
        examples = self.examples.make(sft, on_task)
        if examples is None or self.hooks.cancelled():
            return {}
        longest = max((len(turn.response_ids) for example in examples for turn in example.turns), default=0)
        if longest == 0:
            width = config.agent.max_prompt_tokens
            raise TurnwiseError(f"the warm start has nothing to learn: no prompt fits into agent.max_prompt_tokens={width}. Raise that")
        limit = config.engine.max_tokens
        if longest > limit:
            say(f"warning: a response of the warm start has {longest} tokens, and engine.max_tokens={limit} cuts it off: raise that")
        metrics = self._imitate(sft, examples)
        if config.model.lora is not None and config.objective.kl != "off":
            say("KL is measured against the model without its adapters, as it was before the warm start")
        self.learner.follow_policy()
        self.engine().refresh()
        return metrics | {"turns": float(sum(len(example.turns) for example in examples))}

    def _learn(
        self, sft: SftSettings, examples: Sequence[Trajectory], seed: int, measure: Callable[[], float] | None = None
    ) -> dict[str, float]:
        def stepped() -> bool:
            self.hooks.on_step("steps")
            return self.hooks.cancelled()

        self.hooks.on_phase(f"warm start: learning from {len(examples)} attempts", sft.steps, "steps")
        return self.learner.imitate(examples, sft, seed, measure, stepped)

    def _imitate(self, sft: SftSettings, examples: Sequence[Trajectory]) -> dict[str, float]:
        seed = derive(self.config.seed, "warm start order")
        measure = self._measurement(sft)
        metrics = self._learn(sft, examples, seed, measure if sft.until is not None else None)
        if sft.at_least is not None:
            metrics = self._extend(sft, examples, seed, measure, metrics)
        wanted, won = max(sft.until or 0.0, sft.at_least or 0.0), metrics.get("success", 0.0)
        if won < wanted and not self.hooks.cancelled():
            self.hooks.say(
                f"warning: the warm start ended after {metrics['steps']:.0f} steps at {won:.0%} of {sft.look_tasks} training tasks, below "
                f"the {wanted:.0%} that the recipe asks for. Raise sft.steps (or sft.epochs), or look at sft.lr and sft.tasks"
            )
        return metrics

    def _extend(
        self, sft: SftSettings, examples: Sequence[Trajectory], seed: int, measure: Callable[[], float], metrics: dict[str, float]
    ) -> dict[str, float]:
        """While the model wins less than `at_least`: half as many steps again, a few times at most."""
        half = max(1, int(metrics["steps"]) // 2)
        shorter = sft.model_copy(update={"steps": half})
        for number in range(MORE_ROUNDS + 1):
            if self.hooks.cancelled():
                break
            self.hooks.on_phase("warm start: measuring")
            metrics = metrics | {"success": measure()}
            if metrics["success"] >= (sft.at_least or 0.0) or number == MORE_ROUNDS:
                break
            self.hooks.say(
                f"the warm start wins {metrics['success']:.0%} of {sft.look_tasks} training tasks, less than "
                f"sft.at_least={sft.at_least:g}: {half} more steps"
            )
            more = self._learn(shorter, examples, derive(seed, number))
            metrics = metrics | {"steps": metrics["steps"] + more["steps"], "loss_last": more["loss_last"]}
        return metrics

    def _measurement(self, sft: SftSettings) -> Callable[[], float]:
        """Measures the share of `look_tasks` training tasks that the model, as it is, wins. If a first part is far below what is wanted,
        it stands for the whole, so that the many measurements before a model can play cost little."""
        starts = TaskSlots(self.examples.tasks, derive(self.config.seed, "look"), 1).groups(sft.look_tasks)
        first, wanted = starts[: -(-len(starts) // 4)], sft.until or sft.at_least or 0.0

        def won(some: Sequence[Start]) -> int:
            return sum(trajectory.success for trajectory in self.collectors.evaluation().run(some))

        def measure() -> float:
            self.engine().refresh()
            part = won(first)
            return part / len(first) if part < wanted * len(first) / 2 else (part + won(starts[len(first) :])) / len(starts)

        return measure
