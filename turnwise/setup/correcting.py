"""Recipes whose engine samples from a policy that is not quite the learner's: their loss is corrected with importance weights.

The weights compare old log-probs with the engine's, so old log-probs are the learner's. If they are the engine's, every weight is 1.
An exception is a plan whose old log-probs have to be the engine's (`Plan.old_logprobs`). Its ratio is already that to the policy which has
sampled, however old or compressed it was, and nothing is left to correct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnwise.methods.registry import plans
from turnwise.recipe.schema import Config
from turnwise.util.errors import TurnwiseError

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
