"""The learner and the engine that a recipe describes. Rooms know nothing of recipes; here their words are put into the rooms' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnwise.config import Config
from turnwise.engines.base import Engine
from turnwise.learn.learner import Learner
from turnwise.learn.settings import LearnerSettings, OptimiserSettings, ValueSettings
from turnwise.models import choose_device
from turnwise.objectives import Loss


def build_learner(config: Config, model: Any) -> Learner:
    """The learner of a run, on the recipe's device, with adapters where the recipe asks for them."""
    if config.model.lora is not None:
        from turnwise.learn.lora import add_lora

        lora = config.model.lora
        model = add_lora(model, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, targets=lora.targets, seed=config.seed)
    return Learner(model, learner_settings(config), choose_device(config.device))


def learner_settings(config: Config) -> LearnerSettings:
    """The recipe's words in the learner's."""
    own, objective, value = config.learner, config.objective, config.learner.value
    in_loss, in_reward = objective.kl == "loss", objective.kl == "reward"
    loss = Loss(
        objective.name,
        objective.options,
        kl=objective.kl_kind,
        kl_coef=objective.kl_coef if in_loss else 0.0,
        entropy_coef=objective.entropy_coef,
        importance=objective.importance,
        importance_options=objective.importance_options,
    )
    return LearnerSettings(
        loss=loss,
        aggregation=objective.aggregation,
        constant=objective.constant,
        optimiser=OptimiserSettings(own.lr, own.schedule, own.warmup, weight_decay=own.weight_decay, betas=own.betas, clip=own.clip),
        epochs=own.epochs,
        minibatches=own.minibatches,
        minibatch_size=own.minibatch_size,
        minibatch_unit=own.minibatch_unit,
        tokens_per_batch=own.tokens_per_batch,
        dtype=config.model.dtype,
        gradient_checkpointing=own.gradient_checkpointing,
        temperature=config.engine.temperature,
        old_logprobs=own.old_logprobs,
        kl_reward_coef=objective.kl_coef if in_reward else 0.0,
        kl_reward=objective.kl_kind if in_reward else "k1",
        kl_stop=own.kl_stop,
        value=ValueSettings(value.level, value.lr, value.coef, value.clip) if value is not None else None,
    )


def build_engine(config: Config, model: Any, tokenizer: Any, stop_ids: Sequence[int], say: Callable[[str], None]) -> Engine:
    """The engine that the recipe names; a model that the native engine does not know is served by transformers, with a notice."""
    own = config.engine
    longest = config.agent.max_prompt_tokens + own.max_tokens
    if own.name == "native":
        from turnwise.engines.native import NativeEngine, supports

        reason = supports(model)
        if reason is None:
            return NativeEngine(model, tokenizer, own.max_batch, longest, stop_token_ids=stop_ids, **own.options)
        say(f"the native engine does not take this model ({reason}): the transformers engine serves it")
    from turnwise.engines.transformers import TransformersEngine

    options = own.options if own.name == "transformers" else {}  # options of the native engine mean nothing to another
    return TransformersEngine(model, tokenizer, own.max_batch, longest, stop_token_ids=stop_ids, **options)
