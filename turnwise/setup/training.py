"""A run put together from its recipe: on this process here, on a cluster in setup/cluster.py, from the same parts with another source."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from turnwise.collect.hooks import Hooks
from turnwise.collect.source import LocalSource
from turnwise.envs.pool import Pool
from turnwise.learn.models import choose_device
from turnwise.methods.planning import Plan, TaskSlots
from turnwise.recipe.schema import Config
from turnwise.setup.build import build_agent, build_engine, build_learner, load_model
from turnwise.setup.cluster import build_cluster_training
from turnwise.setup.correcting import check_old_logprobs, with_8bit_cache, with_staleness
from turnwise.setup.parts import Training, build_collectors, build_played, check_training, put_together, run_over
from turnwise.util.late import Late


def build_training(config: Config, hooks: Hooks | None = None) -> Training:
    """The run that a recipe describes: on this process, or with rollout workers and learner ranks on a cluster."""
    hooks = hooks or Hooks()
    config = with_staleness(with_8bit_cache(config, hooks.say), hooks.say)
    check_old_logprobs(config)
    with ExitStack() as stack:
        build = build_local_training if config.cluster is None else build_cluster_training
        return replace(build(config, hooks, stack), resources=stack.pop_all())


def build_local_training(config: Config, hooks: Hooks, stack: ExitStack) -> Training:
    """A run on this process. `stack` closes what it opens."""
    checked = check_training(config, hooks)
    played = build_played(config, checked.tasks, hooks, stack)
    loaded = load_model(config, hooks=hooks)
    agent = build_agent(config, loaded, hooks.say)
    learner = build_learner(config, loaded, checked.signals)
    model = learner.policy.model
    engine = Late(lambda: build_engine(config, model, loaded.tokenizer, agent.stop_ids, hooks.say, loaded.vision))
    stack.callback(engine.close)
    hooks = replace(hooks, on_fault=checked.faults.on_fault)
    collectors = build_collectors(config, played, agent, engine, checked.max_turns, hooks, checked.rewards)

    def make_source(plan: Plan, slots: TaskSlots) -> LocalSource:
        return LocalSource(
            slots,
            config.collect.groups,
            lambda: collectors.training(plan.drawing),
            engine,
            checked.faults.check,
            hooks.say,
            run_over(hooks, checked.faults),
            load=played.load_ahead if isinstance(played, Pool) else None,
            rests=config.engine.sleep and choose_device(config.device) == "cuda",
        )

    return put_together(config, checked, agent, learner, collectors, engine, hooks, make_source)
