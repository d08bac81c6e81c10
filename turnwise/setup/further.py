"""The models of a run, `[models.NAME]`, built from its recipe along with the policy."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from turnwise.learn.further.loading import Beside, build
from turnwise.learn.further.models import POLICY, REFERENCE, Models
from turnwise.learn.learner import Learner
from turnwise.methods.registry import model_kinds
from turnwise.recipe.schema import Config
from turnwise.util.errors import unknown_name


def models_in(config: Config) -> list[str]:
    """The models that a stage of a run with this recipe may need: `model.policy`, `model.reference`, and every further model."""
    return [f"model.{name}" for name in (POLICY, REFERENCE, *config.models)]


def columns_read(config: Config) -> dict[str, tuple[str, ...]]:
    """The columns that trained models read in their own loss, by `models.NAME`: they must be available once credit is known."""
    found = {}
    for name, section in config.models.items():
        entry = model_kinds[section.kind]
        if section.trained and hasattr(entry.function, "loss"):
            made = entry.make(section.options, model_kinds.kind)
            found[f"models.{name}"] = tuple(getattr(made, "needs", ()))
    return found


def build_models(config: Config, learner: Learner, tokenizer: Any, needs: Container[str] = (), only: str | None = None) -> Models:
    """All models of the recipe, or only one of them. `needs` are those of the run's stages: a reference is kept if one of them reads
    it."""
    if only is not None and only not in config.models:
        raise unknown_name("model of this run:", only, config.models)
    beside = Beside(learner, tokenizer, config.seed)
    chosen = {name: section for name, section in config.models.items() if only in (None, name)}
    further = {name: build(name, section, beside) for name, section in chosen.items()}
    keep = f"model.{REFERENCE}" in needs and only is None
    return Models(learner, tokenizer, further, keep, config.engine.max_tokens)
