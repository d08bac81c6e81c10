"""Whether a recipe fits into a GPU's memory, and the settings that make it fit. No weights are loaded.

`turnwise fit` shows it, and a run on a small GPU chooses by it before it starts (`small_gpu.py`). The formulas are in `memory.py`, the
order of choices in `choose.py`; here are the recipe's settings that they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from turnwise.engines.prefill import ON_A_SMALL_GPU, default_prefill
from turnwise.engines.registry import declared
from turnwise.engines.settings import Engine
from turnwise.learn.activations import NOTHING, Kept, logit_chunk
from turnwise.learn.sections import Lora
from turnwise.learn.shapes import SHAPES, ModelShape, shape_of
from turnwise.planner.choose import MARGIN, Fit, Freedom, as_it_is, choose, free_for_cache
from turnwise.planner.memory import COLLECT, CONTEXT, FUSED, TARGETS, AuxiliaryModel, Demand
from turnwise.recipe.schema import Config
from turnwise.setup.early import models_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.hub import at_hand, downloaded

GB = 10**9
VLLM_PART = 0.4  # of the GPU, if the recipe does not say
WORDS = 2000  # of a tiny model, whose vocabulary is made when a run starts
SIZE = re.compile(r".*?qwen2\.5(-vl)?(?!-omni).*?-(\d+(?:\.\d+)?b)\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Found:
    """A recipe on a GPU with so many bytes: what its memory depends on, what may be chosen, and what follows from both. `engine` will serve
    the model; `host`: bytes of the host's memory that may be used instead."""

    config: Config
    shape: ModelShape
    engine: str
    demand: Demand
    free: Freedom
    memory: int
    host: int | None = None

    @cached_property
    def plain(self) -> Fit:
        """The settings as they are."""
        return as_it_is(self.demand, self.memory, self.free)

    @cached_property
    def fit(self) -> Fit:
        """Settings that fit, or the smallest ones."""
        fit = choose(self.demand, self.memory, self.free, self.host)
        if declared(self.engine).cache_kind == "grows":  # its rows fill what the chosen settings leave
            return replace(fit, demand=with_growing_cache(replace(fit.demand, cache=0), self.memory))
        return fit

    @property
    def settings(self) -> dict[str, Any]:
        """The settings to change, by their keys."""
        return settings(self.fit)


def find(config: Config, memory: int, shape: ModelShape | None = None, lora: bool = False, host: int | None = None) -> Found:
    """What a recipe needs on a GPU with so many bytes, and what would make it fit. `lora`: adapters may be chosen."""
    shape = shape or shape_for(config)
    engine = engine_for(config.engine, shape)
    return Found(config, shape, engine, demand_of(config, shape, memory), freedom(config, lora, engine), memory, host)


def check_options(config: Config) -> None:
    """Say what is wrong with the options of an engine that is known here. An engine of the user's own is not imported for this."""
    if config.engine.options:
        from turnwise.engines.registry import checked, engines

        if engines.known(config.engine.name) is not None:
            checked(config.engine.name, config.engine.options)


def check_models(config: Config, given: str | None = None) -> None:
    """Say that a model cannot be trained here, whatever the memory. `given` replaces the recipe's. What is wrong with its file is said when
    its shape is read."""
    from turnwise.learn.models import config_of, unfit

    chosen = {} if given is None else {"model.path": None if given.lower() in SHAPES else given}
    for path, sampled in models_of(with_settings(config, chosen)):
        if at_hand(path) is None:
            continue
        try:
            found = config_of(path)
        except TurnwiseError:
            continue
        if reason := unfit(found, sampled):
            raise TurnwiseError(f"model {path}: {reason}")


def shape_for(config: Config) -> ModelShape:
    """The shape of the recipe's model: of its folder, of a downloaded copy, or by its name."""
    path, tiny = config.model.path, config.model.tiny
    if path is None:
        middle = -(-tiny.hidden * 8 // 3 // 32) * 32
        size = tiny.hidden // tiny.heads
        return ModelShape("tiny", tiny.hidden, middle, tiny.layers, tiny.heads, tiny.heads, WORDS, size, tied=True, family="llama")
    return shape_named(path, "model", f"`turnwise fit --model` takes a size ({', '.join(SHAPES)}) or a config.json")


def shape_given(model: str) -> ModelShape:
    """The shape of a model that is given instead of the recipe's, in the same words as there, or by its size."""
    advice = f"Give a size ({', '.join(SHAPES)}), a folder or a config.json"
    return shape_named(model, "--model", advice) if "/" in model else shape_of(model)


def shape_named(path: str, key: str, advice: str) -> ModelShape:
    """The shape of a model that a recipe names: of a folder, of a downloaded copy, or of a size in the name."""
    try:
        return shape_of(path)
    except TurnwiseError as error:
        if (size := SIZE.match(path)) and size[2].lower() in SHAPES:
            shape = SHAPES[size[2].lower()]
            return replace(shape, family="qwen2_5_vl", vision=True) if size[1] else shape
        if (copy := downloaded(path)) is not None:
            return shape_of(copy)
        if Path(path).expanduser().exists():
            raise TurnwiseError(f"{key} {path}: {error}") from None
        raise TurnwiseError(f"{key} {path}: no such folder, no downloaded copy, and no name of a known size. {advice}") from None


def engine_for(section: Engine, shape: ModelShape) -> str:
    """The engine that a run uses: families that the native one does not take are served by its fallback. A file without a family is taken
    for a known one."""
    fallback = section.declared.fallback
    return fallback if fallback and shape.family and shape.family not in FUSED else section.name


def demand_of(config: Config, shape: ModelShape, memory: int) -> Demand:
    """The recipe's settings as far as memory depends on them."""
    learner, engine, lora = config.learner, config.engine, config.model.lora
    cache_kind = declared(engine_for(engine, shape)).cache_kind
    width = 2 if config.model.dtype == "bfloat16" else 4
    longest = config.agent.max_prompt_tokens + engine.max_tokens
    # the native engine decides by what torch can have of the GPU
    usual_prefill = default_prefill(memory - CONTEXT) if cache_kind == "sized" else ON_A_SMALL_GPU
    demand = Demand(
        shape,
        width=width,
        rank=lora.rank if lora is not None else 0,
        targets=tuple(lora.targets) if lora is not None and lora.targets is not None else TARGETS,
        four_bit=lora is not None and lora.base == "4bit",
        reference=_reference(config, shape, memory),
        place=learner.optimiser_place,
        slots=engine.max_batch,
        longest=longest,
        prefill=int(engine.option("prefill_tokens") or usual_prefill),
        graphs=bool(engine.options.get("graphs", True)) and cache_kind == "sized",
        sleeps=engine.sleep,
        tokens=learner.tokens_per_batch or Demand.tokens,
        logits=logit_chunk(learner.tokens_per_batch),
        sequence=longest,
        kept=NOTHING if learner.gradient_checkpointing is True else Kept(),
        fused=width == 2 and shape.family in FUSED,
        responses=sampled_share(config),
        auxiliary=auxiliary_models(config, shape, width),
    )
    if cache_kind == "sized":
        return with_sized_cache(demand, engine, config.model.dtype, memory)
    if cache_kind == "reserved":
        part = float(engine.options.get("memory", VLLM_PART)) * memory
        return replace(demand, cache=max(0, int(part - width * shape.parameters)), shares=False, slots=0, prefill=0, graphs=False)
    return with_growing_cache(replace(demand, sleeps=True, graphs=False), memory)


def with_sized_cache(demand: Demand, engine: Engine, dtype: str, memory: int) -> Demand:
    """With the cache of the native engine, and whether it has a copy of the weights."""
    demand = replace(demand, cache_8bit=engine.option("cache_dtype") == "8bit")
    size = float(engine.option("cache_memory") or 0.0)
    if 0 < size <= 1:
        size *= free_for_cache(demand, memory)
    return replace(demand, cache=min(int(size), demand.wanted_cache), shares=engine.option("dtype") in (None, dtype))


def with_growing_cache(demand: Demand, memory: int) -> Demand:
    """With the cache of the transformers engine. It takes fewer rows if its memory runs out, so its cache is at most what is left."""
    row = demand.longest * 2 * demand.width * demand.shape.layers * demand.shape.keys
    left = int((1 - MARGIN) * memory) - demand.totals[COLLECT]
    return replace(demand, cache=max(row, min(demand.slots * row, left)))


def sampled_share(config: Config) -> float:
    """The share of sampled tokens in the longest sequence: one response, or those of a dialogue that grows. 0 if the learner never keeps
    slopes of log-probs: they do not give the gradient of an entropy, and processes that share a model do not keep them."""
    if config.objective.entropy_coef > 0 or several_learners(config):
        return 0.0
    response, turns = config.engine.max_tokens, config.env.max_turns if config.agent.context == "full" else 1
    longest = config.agent.max_prompt_tokens + response
    return min(1.0, turns * response / longest) if turns is not None else 1.0


def auxiliary_models(config: Config, shape: ModelShape, width: int) -> tuple[AuxiliaryModel, ...]:
    """The recipe's further models and critic, as far as they are on the policy's GPU."""
    models = [AuxiliaryModel("critic", shape.hidden + 1, 4, trained=True)] if config.learner.value is not None else []
    for name, model in config.models.items():
        if model.reads is not None or model.device not in (None, "cuda", "cuda:0"):
            continue
        advice = f"Give a folder, or a size ({', '.join(SHAPES)})"
        size = shape if model.path is None else shape_named(model.path, f"models.{name}.path", advice)
        wide, trained = width if model.trained else 2, model.trained and model.lora is None
        models.append(AuxiliaryModel(name, size.parameters if model.tiny is None else 10**6, wide, trained))
    return tuple(models)


def _reference(config: Config, shape: ModelShape, memory: int) -> Any:
    """Where the frozen copy of the policy is; none with adapters, whose base model it is, and if nothing reads it."""
    needs_copy = config.objective.kl != "off" or config.needs & {"token.ref_logprob", "token.ref_logprob?", "model.reference"}
    if config.model.lora is not None or not needs_copy:
        return None
    place = config.learner.reference_place
    if place != "auto":
        return place
    needed_per_weight = 20  # the weight, its master, the copy, the gradient and the moments
    return "host" if memory - CONTEXT - needed_per_weight * shape.parameters < memory / 4 else "device"


def freedom(config: Config, lora: bool = False, serving: str | None = None) -> Freedom:
    """What the recipe leaves open. `serving`: the engine, if it is another one than the recipe names."""
    own, engine, lora_base = config.learner, config.engine, config.model.lora
    sized, alone = declared(serving or engine.name).cache_kind == "sized", not several_learners(config)

    def unset(section: Any, name: str) -> bool:
        return name not in section.model_fields_set

    return Freedom(
        prefill=sized and not engine.option("prefill_tokens"),
        cache=sized and engine.option("cache_memory") is None,
        sleep=sized and config.cluster is None and unset(engine, "sleep"),
        tokens=own.tokens_per_batch == 0,
        recompute=own.gradient_checkpointing is None,
        reference=alone and unset(own, "reference_place"),
        place=alone and unset(own, "optimiser_place"),
        lora=lora,
        four_bit=lora and alone and (lora_base is None or unset(lora_base, "base")),
    )


def several_learners(config: Config) -> bool:
    """Whether several processes share the learner's memory. They take neither host memory nor rounded weights."""
    return config.cluster is not None and config.cluster.learners > 1


def settings(fit: Fit) -> dict[str, Any]:
    """The settings of a recipe that a fit has changed, by their keys. What the learner decides as it runs is not among them."""
    demand = fit.demand
    known: dict[str, tuple[str, Any]] = {
        "prefill": ("engine.options.prefill_tokens", demand.prefill),
        "cache": ("engine.options.cache_memory", demand.cache),
        "tokens": ("learner.tokens_per_batch", demand.tokens),
        "sleep": ("engine.sleep", True),
        "reference": ("learner.reference_place", demand.reference),
        "place": ("learner.optimiser_place", demand.place),
        "lora": ("model.lora.rank", demand.rank),
        "four_bit": ("model.lora.base", "4bit"),
    }
    if not demand.fused and demand.recomputes:
        known["recompute"] = ("learner.gradient_checkpointing", True)
    return dict(known[name] for name in fit.changed if name in known)


def with_settings(config: Config, changes: Mapping[str, Any]) -> Config:
    """The recipe with these settings."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    for section, own in sections.items():
        before: Any = getattr(config, section)
        options = {name.removeprefix("options."): own.pop(name) for name in list(own) if name.startswith("options.")}
        if options:
            own["options"] = {**before.options, **options}
        lora = {name.removeprefix("lora."): own.pop(name) for name in list(own) if name.startswith("lora.")}
        if lora:
            own["lora"] = before.lora.model_copy(update=lora) if before.lora is not None else Lora(**lora)
        config = config.model_copy(update={section: before.model_copy(update=own)})
    return config
