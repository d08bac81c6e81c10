"""Whether a recipe fits into a GPU's memory, and the settings that make it fit. No weights are loaded.

`turnwise fit` shows it, and a run on a small GPU chooses by it before it starts (`small_gpu.py`). The formulas are in
`learn/footprint.py`, the order of choices in `learn/fitting.py`; here are the recipe's settings that they stand for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.config.schema import Config
from turnwise.config.sections import Lora
from turnwise.engines.prefill import ON_A_SMALL_GPU, default_prefill
from turnwise.engines.registry import declared
from turnwise.learn.fitting import MARGIN, Fit, Freedom, as_it_is, choose, free_for_cache
from turnwise.learn.footprint import COLLECT, CONTEXT, EVERY, FUSED, TARGETS, Beside, Demand, piece_of, terms, totals, wanted_cache
from turnwise.learn.shapes import SHAPES, ModelShape, shape_of
from turnwise.setup.early import models_of
from turnwise.setup.fit_costs import seconds
from turnwise.setup.names import needed
from turnwise.util.errors import TurnwiseError
from turnwise.util.hub import at_hand, downloaded

GB = 10**9
VLLM_PART = 0.4  # of the GPU, if the recipe does not say
WORDS = 2000  # of a tiny model, whose vocabulary is made when a run starts
SIZE = re.compile(r"qwen2\.5(-vl)?(?!-omni).*?-(\d+(?:\.\d+)?b)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """A recipe with its settings as they are, and as they fit."""

    config: Config
    shape: ModelShape
    plain: Fit
    fit: Fit

    @property
    def settings(self) -> dict[str, Any]:
        """The settings to change, by their keys."""
        return settings(self.fit)

    @property
    def engine(self) -> str:
        """The engine that will serve the model."""
        return engine_for(self.config, self.shape)


def find(config: Config, memory: int, shape: ModelShape | None = None, lora: bool = False, host: int | None = None) -> Found:
    """What a recipe needs on a GPU with so many bytes, and what would make it fit. `lora`: adapters may be chosen. `host`: bytes of the
    host's memory that may be used instead."""
    known = shape or shape_for(config)
    demand, free = demand_of(config, known, memory), freedom(config, lora, engine_for(config, known))
    fit = choose(demand, memory, free, host, seconds)
    if declared(engine_for(config, known)).cache_kind == "grows":  # its rows fill what the chosen settings leave
        fit = replace(fit, demand=with_engine(replace(fit.demand, cache=0), config, memory))
    return Found(config, known, as_it_is(demand, memory, free), fit)


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
        if (named := SIZE.search(path)) and named[2].lower() in SHAPES:
            known = SHAPES[named[2].lower()]
            return replace(known, family="qwen2_5_vl", vision=True) if named[1] else known
        if (copy := downloaded(path)) is not None:
            return shape_of(copy)
        if Path(path).expanduser().exists():
            raise TurnwiseError(f"{key} {path}: {error}") from None
        raise TurnwiseError(f"{key} {path}: no such folder, no downloaded copy, and no name of a known size. {advice}") from None


def engine_for(config: Config, shape: ModelShape) -> str:
    """The engine that a run uses: families that the native one does not take are served by its fallback. A file without a family is taken
    for a known one."""
    fallback = declared(config.engine.name).fallback
    return fallback if fallback and shape.family and shape.family not in FUSED else config.engine.name


def demand_of(config: Config, shape: ModelShape, memory: int) -> Demand:
    """The recipe's settings as far as memory depends on them."""
    own, engine, lora, name = config.learner, config.engine, config.model.lora, engine_for(config, shape)
    width = 2 if config.model.dtype == "bfloat16" else 4
    keep = EVERY if own.gradient_checkpointing is not True else 0
    longest = config.agent.max_prompt_tokens + engine.max_tokens
    demand = Demand(
        shape,
        width=width,
        rank=lora.rank if lora is not None else 0,
        targets=tuple(lora.targets) if lora is not None and lora.targets is not None else TARGETS,
        four_bit=lora is not None and lora.base == "4bit",
        reference=_reference(config, shape, memory),
        moments=own.moments,
        place=own.optimiser_place,
        slots=engine.max_batch,
        longest=longest,
        prefill=_prefill(engine.option("prefill_tokens"), name, memory),
        graphs=bool(engine.options.get("graphs", True)) and declared(name).cache_kind == "sized",
        sleeps=engine.sleep,
        tokens=own.tokens_per_batch or Demand.tokens,
        piece=piece_of(own.tokens_per_batch),
        sequence=longest,
        attention=keep,
        mlp=keep,
        fused=width == 2 and shape.family in FUSED and not (lora is not None and lora.dropout),
        responses=sampled_share(config),
        beside=beside(config, shape, width),
    )
    return with_engine(demand, config, memory)


def _prefill(given: int | None, engine: str, memory: int) -> int:
    """Prompt tokens per forward pass. The native engine decides by what torch can have of the GPU."""
    return int(given or (default_prefill(memory - CONTEXT) if declared(engine).cache_kind == "sized" else ON_A_SMALL_GPU))


def sampled_share(config: Config) -> float:
    """The share of sampled tokens in the longest sequence: one response, or those of a dialogue that grows. 0 if the learner never keeps
    slopes of log-probs: they do not give the gradient of an entropy, and processes that share a model do not keep them."""
    if config.objective.entropy_coef > 0 or several_learners(config):
        return 0.0
    response, turns = config.engine.max_tokens, config.env.max_turns if config.agent.context == "full" else 1
    longest = config.agent.max_prompt_tokens + response
    return min(1.0, turns * response / longest) if turns is not None else 1.0


def with_engine(demand: Demand, config: Config, memory: int) -> Demand:
    """The cache of the engine that the recipe names, and whether it has a copy of the weights. The transformers engine takes fewer rows if
    its memory runs out, so its cache is at most what is left."""
    engine, shape = config.engine, demand.shape
    kind = declared(engine_for(config, shape)).cache_kind
    if kind == "sized":
        demand = replace(demand, cache_8bit=engine.option("cache_dtype") == "8bit")
        given = engine.option("cache_memory")
        copies = engine.option("dtype") not in (None, config.model.dtype)
        size = float(given or 0.0)
        if 0 < size <= 1:
            size *= free_for_cache(demand, memory)
        return replace(demand, cache=min(int(size), wanted_cache(demand)), shares=not copies)
    if kind == "reserved":
        part = float(engine.options.get("memory", VLLM_PART)) * memory
        return replace(demand, cache=max(0, int(part - demand.width * shape.parameters)), shares=False, slots=0, prefill=0, graphs=False)
    demand = replace(demand, sleeps=True, graphs=False)
    row = demand.longest * 2 * demand.width * shape.layers * shape.keys
    left = int((1 - MARGIN) * memory) - totals(terms(demand))[COLLECT]
    return replace(demand, cache=max(row, min(demand.slots * row, left)))


def beside(config: Config, shape: ModelShape, width: int) -> tuple[Beside, ...]:
    """The recipe's further models and critic, as far as they are on the policy's GPU."""
    found = [Beside("critic", shape.hidden + 1, 4, trained=True)] if config.learner.value is not None else []
    for name, own in config.models.items():
        if own.reads is not None or own.device not in (None, "cuda", "cuda:0"):
            continue
        known = (
            shape_named(own.path, f"models.{name}.path", f"Give a folder, or a size ({', '.join(SHAPES)})")
            if own.path is not None
            else shape
        )
        wide = {"float32": 4, "bfloat16": 2, None: width if own.trained else 2}[own.dtype]
        trained = own.trained and own.lora is None
        found.append(Beside(name, known.parameters if own.tiny is None else 10**6, wide, trained))
    return tuple(found)


def _reference(config: Config, shape: ModelShape, memory: int) -> Any:
    """Where the frozen copy of the policy is; none with adapters, whose base model it is, and if nothing reads it."""
    reads = {"token.ref_logprob", "token.ref_logprob?", "model.reference"} & set(needed(config))
    if config.model.lora is not None or not (config.objective.kl != "off" or reads):
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
        moments=alone and unset(own, "moments"),
        place=alone and unset(own, "optimiser_place"),
        lora=lora,
        four_bit=lora and alone and (lora_base is None or unset(lora_base, "base")),
    )


def several_learners(config: Config) -> bool:
    """Whether several processes share the learner's memory. They take neither host memory nor rounded weights and moments."""
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
        "moments": ("learner.moments", demand.moments),
        "place": ("learner.optimiser_place", demand.place),
        "lora": ("model.lora.rank", demand.rank),
        "four_bit": ("model.lora.base", "4bit"),
    }
    if not demand.fused and demand.mlp == 0:
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
