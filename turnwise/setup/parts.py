"""The parts of a run: `Training` is what the loop uses, and plain functions make its parts from the recipe.

Only this room knows both the recipe's sections and the parts' constructors. Every part is a plain object that could have been made by hand;
none knows the others, the recipe as a whole, or this module. `training.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.agent import Agent
from turnwise.collect.collectors import Collectors, LocalCollectors, demonstrations
from turnwise.collect.faults import FaultWatch
from turnwise.collect.hooks import Hooks
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.panel import Evaluation, run_panel
from turnwise.collect.rewards import Rewards
from turnwise.collect.settings import Eval
from turnwise.collect.source import Source, sources
from turnwise.credit.columns import CreditStep
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.data.tasks import TaskSet
from turnwise.engines.base import Engine, WeightReceiver
from turnwise.envs import registry
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.pool import Pool
from turnwise.envs.program.env import ProgramEnv
from turnwise.learn.local import Learning, Signal
from turnwise.methods.planning import Plain, Plan, TaskSlots
from turnwise.methods.registry import plans
from turnwise.recipe.names import know
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter
from turnwise.setup.build import (
    build_agent,
    build_engine,
    build_policy,
    build_sampling,
    build_server,
    build_signals,
    engine_options,
    load_model,
)
from turnwise.setup.early import check_families
from turnwise.setup.environment import (
    build_panel,
    build_pool,
    build_program,
    build_rewards,
    build_tasks,
    is_program,
    limits_of,
    smoke_test,
    step_limit,
)
from turnwise.setup.needs import check_needs, reports
from turnwise.setup.warmstart import Examples, WarmStart
from turnwise.util.terminal import Once


@dataclass(frozen=True)
class Evaluator:
    """The recipe's evaluation: plays the panel with the weights as they are."""

    panel: TaskSet
    settings: Eval
    collectors: Collectors
    plan: Plan
    slots: TaskSlots
    max_turns: int
    check: Callable[[list[Trajectory]], list[Trajectory]]

    def __call__(self) -> Evaluation:
        settings = self.settings
        result = run_panel(self.collectors.evaluation(settings.temperature), self.panel, settings.seed, settings.repeats, self._planned)
        self.check(result.trajectories)
        return result

    def _planned(self, starts: Sequence[Start]) -> Sequence[Start]:
        """The attempts as the run's plan makes them, which may ask the policy at the evaluation's temperature."""
        slots = replace(self.slots, say=partial(self.collectors.generate, temperature=self.settings.temperature))
        return list(self.plan.evaluation(slots, starts))

    @property
    def record(self) -> dict[str, Any]:
        """What the result depends on in addition to the weights and the panel."""
        settings = self.settings
        return {"split": settings.split, "seed": settings.seed, "temperature": settings.temperature, "max_turns": self.max_turns}


@dataclass(frozen=True)
class Training:
    """What the loop uses; nothing in it knows that this class exists. `over` says whether the run ends early: the user stopped it, or its
    environment is broken (`faults.broken`). `shows`: how the environment wants its attempts to be shown."""

    config: Config
    source: Source
    plan: Plan
    slots: TaskSlots
    learner: Learning
    credit: Callable[[Batch], tuple[Batch, dict[str, float]]]
    evaluate: Evaluator
    warm_start: Callable[[Callable[[], None]], dict[str, float]]
    faults: FaultWatch
    over: Callable[[], bool] = lambda: False
    tokenizer: Any = None
    shows: str = ""
    resources: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Close what was opened."""
        self.resources.close()


def hooks_of(reporter: Reporter, cancelled: Callable[[], bool] = lambda: False) -> Hooks:
    """How a run tells this reporter what it does."""
    advance = reporter.advance
    return Hooks(reporter.note, cancelled, reporter.phase, lambda unit: advance(1, unit), reporter.expect, on_end=lambda _: advance())


# -- what is known before a model is loaded ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """The parts of a recipe that need no model, all of them checked."""

    tasks: TaskSet
    panel: TaskSet
    max_turns: int
    rewards: Rewards
    signals: Sequence[tuple[str, Signal]]
    faults: FaultWatch
    shows: str


def check_training(config: Config, hooks: Hooks) -> Checked:
    """Look at all that a recipe can get wrong before any time is spent on it: names, needs, tasks and panel, reward terms, signals, the
    engine's options. Code that the recipe names is imported."""
    config.trusted()
    know(config)
    tasks = build_tasks(config.env)
    environment = registry.spec(config.env.name).load()
    check_needs(config, models=config.models, task=tasks[0] if len(tasks) else None, environment=environment)
    panel = build_panel(config, tasks, hooks.say)
    checked = Checked(
        tasks,
        panel,
        step_limit(config.env),
        build_rewards(config),
        build_signals(config),
        FaultWatch(hooks.say, config.env.name, len(tasks)),
        Capabilities(environment).shows,
    )
    check_engine(config)
    return checked


def check_engine(config: Config, folder: Path | None = None) -> None:
    """The engine's options, whether what it needs is here, and whether it takes a model of this family; before one is loaded."""
    if config.engine.declared.in_process:
        engine_options(config)
    check_families(config, folder)


# -- parts ------------------------------------------------------------------------------------------------------------------------


def build_collectors(
    config: Config,
    played: Pool | ProgramEnv,
    agent: Agent,
    engine: Callable[[], Engine],
    max_turns: int,
    hooks: Hooks,
    rewards: Rewards | None = None,
) -> LocalCollectors:
    """What makes the collectors of a run in this process."""
    return LocalCollectors(
        played,
        agent,
        engine,
        build_sampling(config.engine),
        max_turns,
        rewards or build_rewards(config),
        ordered=config.env.in_order and config.engine.declared.in_process,  # the batches of a server cannot be controlled
        reports=reports(config),
        snapshots=bool({"env.snapshot", "env.snapshot?"} & config.needs),
        hooks=hooks,
        say_once=Once(hooks.say),
    )


def build_played(config: Config, tasks: TaskSet, hooks: Hooks, stack: ExitStack) -> Pool | ProgramEnv:
    """The environments, after a smoke test on these tasks, or the program that plays by itself. `stack` closes them."""
    if is_program(config.env):
        return build_program(config)
    pool = build_pool(config)
    stack.callback(pool.close)
    smoke_test(config.env, pool, tasks, hooks)
    return pool


def build_player(config: Config, folder: Path | None, tasks: TaskSet, hooks: Hooks, stack: ExitStack) -> LocalCollectors:
    """What plays an evaluation outside a run: the recipe's model, or the one in `folder`, on these tasks. `stack` closes it."""
    config.trusted()
    played = build_played(config, tasks, hooks, stack)
    agent, engine = _with_engine(config, folder, hooks, stack)
    return build_collectors(config, played, agent, lambda: engine, step_limit(config.env), hooks)


def build_model_policy(config: Config, folder: Path | None, temperature: float, stack: ExitStack) -> ModelPolicy:
    """The recipe's model, or the one in `folder`, as a policy that chooses actions. `stack` closes its engine."""
    agent, engine = _with_engine(config, folder, Hooks(), stack)
    sampling = replace(build_sampling(config.engine), temperature=temperature)
    return ModelPolicy(engine, agent.context, agent.read, sampling, agent.read_text)


def _with_engine(config: Config, folder: Path | None, hooks: Hooks, stack: ExitStack) -> tuple[Agent, Engine]:
    loaded = load_model(config, folder, hooks=hooks)
    agent = build_agent(config, loaded, hooks.say)
    if loaded.model is None:
        engine = build_server(config, loaded.tokenizer, agent)
    else:
        engine = build_engine(config, build_policy(config, loaded).model, loaded.tokenizer, agent.stop_ids, hooks.say, loaded.vision)
    stack.callback(engine.close)
    return agent, engine


def build_plan(config: Config) -> Plan:
    """The recipe's plan; without one, every task is attempted as it comes."""
    section = config.plan
    if section is None:
        return Plain()
    plan: Any = plans[section.name].make(section.options, plans.kind)
    return plan if isinstance(plan, Plan) else OtherPlan(plan)


class OtherPlan(Plan):
    """A plan of a class that does not derive from `Plan`: whatever it lacks is as in `Plan`."""

    def __init__(self, plan: Any):
        members = ("gather", "evaluated", "evaluation", "state", "load_state", "drawing", "overlaps")
        vars(self).update({name: getattr(plan, name) for name in members if hasattr(plan, name)})


def build_slots(config: Config, checked: Checked, agent: Agent, collectors: Collectors, hooks: Hooks) -> TaskSlots:
    """The attempts of the run, in its order, with the services for its plan."""
    env, max_turns = config.env, checked.max_turns
    limits = limits_of(env, hooks.cancelled)
    return TaskSlots(
        checked.tasks,
        config.seed,
        config.collect.group_size,
        config.collect.shuffle,
        env.own_seeds,
        max_turns=max_turns,
        expert=lambda tasks: demonstrations(env.name, env.options, tasks, agent, max_turns, limits),
        say=collectors.generate,
        look=collectors.openings,
        vocabulary=len(agent.chat.tokenizer),
    )


def build_credit(config: Config) -> CreditStep:
    """The recipe's credit function, and the targets of its critic."""
    level = None if config.learner.value is None else config.learner.value.level
    return CreditStep(config.credit.name, config.credit.options, config.collect.shared_prefix, level)


def put_together(
    config: Config,
    checked: Checked,
    agent: Agent,
    learner: Learning,
    collectors: Collectors,
    engine: Callable[[], WeightReceiver],
    hooks: Hooks,
    make_source: Callable[[Plan, TaskSlots], Source],
) -> Training:
    """A run of these parts, on this process or on a cluster. `make_source` makes the run's own source."""
    examples = Examples(config, checked.tasks, agent, checked.max_turns, checked.faults, hooks)
    plan = build_plan(config)
    slots = build_slots(config, checked, agent, collectors, hooks)
    source = make_source(plan, slots)
    if config.source is not None:  # the recipe puts one in front of it
        entry = sources[config.source.name]
        source = entry.function(source, **entry.bind(config.source.options, sources.kind))
    return Training(
        config,
        source,
        plan,
        slots,
        learner,
        build_credit(config),
        Evaluator(checked.panel, config.eval, collectors, plan, slots, checked.max_turns, checked.faults.check),
        WarmStart(config, examples, learner, collectors, engine, hooks),
        checked.faults,
        run_over(hooks, checked.faults),
        agent.chat.tokenizer,
        checked.shows,
    )


def run_over(hooks: Hooks, faults: FaultWatch) -> Callable[[], bool]:
    """Whether a run ends early: the user stopped it, or its environment is broken."""
    return lambda: hooks.cancelled() or faults.broken is not None
