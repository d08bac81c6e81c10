"""A run put together from its recipe: on this process here, on a cluster in setup/cluster.py, from the same parts with another source.

The loss of a recipe whose engine samples from a policy that is not quite the learner's is corrected with importance weights. These
compare old log-probs with the engine's, so old log-probs are the learner's. If they are the engine's, every weight is 1. An exception is
a plan whose old log-probs have to be the engine's (`Plan.old_logprobs`). Its ratio is already that to the policy which has sampled,
however old or compressed it was, and nothing is left to correct.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from turnwise.collect.hooks import Hooks
from turnwise.collect.source import LocalSource
from turnwise.envs.pool import Pool
from turnwise.learn.models import choose_device
from turnwise.methods.planning import Plan, TaskSlots
from turnwise.methods.registry import plans
from turnwise.recipe.schema import Config
from turnwise.setup.build import build_agent, build_engine, build_learner, load_model
from turnwise.setup.cluster import build_cluster_training
from turnwise.setup.parts import Training, build_collectors, build_played, check_training, put_together, run_over
from turnwise.util.errors import TurnwiseError
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


Say = Callable[[str], None]


def corrected(config: Config, reason: str, remedy: str = "", say: Say | None = None) -> Config:
    """The recipe with truncated importance weights, unless it names another correction, and old log-probs of the learner. `reason`: why;
    `remedy`: how to turn it off."""
    if plan_anchor(config) is not None:
        if say is not None:
            say(f"{reason}: this plan's ratio is that to the engine's log-probs, so the ratio itself corrects for it")
        return config
    objective: dict[str, Any] = {"importance": "truncate"} if config.objective.importance == "none" else {}
    changed = config.model_copy(
        update={
            "objective": config.objective.model_copy(update=objective),
            "learner": config.learner.model_copy(update={"old_logprobs": "learner"}),
        }
    )
    if changed != config and say is not None:
        was = config.learner.old_logprobs
        instead = f" instead of {was}" if was not in (None, "learner") else ""
        say(
            f"{reason}: the loss has importance weights (objective.importance={changed.objective.importance}, "
            f"learner.old_logprobs=learner{instead}){remedy}"
        )
    return changed


def with_8bit_cache(config: Config, say: Say | None = None) -> Config:
    """The recipe as it runs with its engine: corrected, if that has an option which approximates, as keys and values in 8 bits do."""
    option = config.engine.declared.approximates(config.engine.options)
    if not option:
        return config
    return corrected(config, f"{option}, so that the engine samples from a slightly different policy", say=say)


def with_staleness(config: Config, say: Say | None = None) -> Config:
    """The recipe as it runs on its cluster: corrected, if its data may be older than the weights."""
    cluster = config.cluster
    if cluster is None or cluster.staleness < 1 or not cluster.correct:
        return config
    return corrected(config, f"staleness {cluster.staleness}", "; cluster.correct=false turns it off", say)


def check_old_logprobs(config: Config) -> None:
    """Raises an error if the recipe's old log-probs are not those that its plan or its importance correction needs."""
    needed, given = plan_anchor(config), config.learner.old_logprobs
    if needed is not None and given != needed:
        raise TurnwiseError(
            f"this plan learns from other prompts than those that were sampled with, so the ratio has to be that to the {needed}'s "
            f'log-probs, not learner.old_logprobs = "{given}": set learner.old_logprobs = "{needed}"'
        )
    if given == "engine" and config.objective.importance != "none":
        raise TurnwiseError(
            f"objective.importance = {config.objective.importance!r} compares old log-probs with the engine's, and "
            'learner.old_logprobs = "engine" makes them the same, so every weight would be 1: '
            + ('set objective.importance = "none"' if needed else 'set learner.old_logprobs = "learner"')
        )


def plan_anchor(config: Config) -> str | None:
    """Whose old log-probs the recipe's plan, or the one that it goes around, needs; None: any."""
    if (plan := config.plan) is None:
        return None
    names = [plan.name, *(base for base in [plan.options.get("base")] if isinstance(base, str))]
    return next((whose for name in names if (whose := getattr(plans[name].function, "old_logprobs", None)) is not None), None)
