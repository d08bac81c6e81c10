"""What is said about a recipe and a GPU's memory: what was chosen and why, and what each choice costs."""

from __future__ import annotations

from dataclasses import replace

from turnwise.cluster.service_times import Machine
from turnwise.engines.prefill import ON_A_SMALL_GPU
from turnwise.learn.fitting import CACHE_PARTS, Fit, least_cache
from turnwise.learn.footprint import FEWEST_TOKENS, Demand, host_bytes, peak, slope_bytes
from turnwise.setup.fit import GB, Found, freedom, settings, several_learners
from turnwise.setup.fit_costs import COSTS, Cost

NEARLY = 1.05  # an estimate may be off by this much: a run is refused only beyond it
ESTIMATE = "Costs are estimates from operations and bytes at the rates of an H200; see docs/performance.md"


def cost(name: str, found: Found, machine: Machine | None = None) -> Cost:
    """What a choice costs."""
    return COSTS[name](found.plain.demand, found.fit.demand, machine or Machine())


def words(name: str, found: Found) -> str:
    """A choice in a few words."""
    after, layers = found.fit.demand, found.shape.layers
    again = layers - min(after.mlp, layers)
    texts = {
        "prefill": f"{after.prefill:,} prompt tokens at once",
        "cache": f"a cache of {after.cache / GB:.2f} GB: {after.rows} of {after.slots} rows of the longest length at the same time",
        "tokens": f"{after.tokens:,} tokens at once",
        "recompute": f"activations of {again} of {layers} layers are computed again",
        "sleep": "the cache is released during an update",
        "reference": "the reference in host memory",
        "moments": "the optimiser's moments in 8 bits, which rounds them",
        "place": f"the optimiser's state in host memory, which then holds {host_bytes(after) / GB:.1f} GB",
        "lora": f"adapters of rank {after.rank} instead of all weights, which changes what is learned",
        "four_bit": "the weights below the adapters in 4 bits, which rounds them",
    }
    return texts[name]


def keys(name: str, found: Found) -> str:
    """The setting of a choice as it is typed; empty if the learner decides as it runs."""
    one = settings(_only(found, name))
    return " ".join(f"{key}={_typed(value)}" for key, value in one.items())


def _only(found: Found, name: str) -> Fit:
    return replace(found.fit, changed=(name,))


def lines(found: Found) -> list[str]:
    """One line per choice: what, its setting, and its cost."""
    return [
        f"{words(name, found)} ({keys(name, found) or 'decided as it runs'}; estimated cost: {cost(name, found).words})"
        for name in found.fit.changed
    ]


def refusal(found: Found) -> str:
    """Why a run is not started, and what to do."""
    fit, memory = found.fit, found.fit.memory
    phase = peak(fit.terms)[0]
    largest = sorted(fit.terms, key=lambda term: -term.bytes.get(phase, 0))[:3]
    named = ", ".join(f"{term.name} {term.bytes.get(phase, 0) / GB:.1f}" for term in largest)
    fixed = fixed_settings(found)
    return (
        f"this GPU has {memory / GB:.1f} GB, and the run needs at least {fit.peak / GB:.1f} GB ({named} GB, …)"
        + (
            f" with the recipe's {', '.join(fixed)}, and what a recipe sets is not changed"
            if fixed
            else " with every setting that saves memory"
        )
        + ". `turnwise fit RECIPE` shows all of it. "
        + (f"Leave that open ({', '.join(opened(fixed))}), or use " if fixed else "Use ")
        + instead(found)
    )


def instead(found: Found) -> str:
    """What else would help if no setting that may be chosen is enough."""
    demand = found.fit.demand
    less = [] if demand.four_bit else ["a base in 4 bits (model.lora.base=4bit)" if demand.rank else "adapters (model.lora.rank=16)"]
    return ", ".join([*less, "a smaller model", "shorter prompts (agent.max_prompt_tokens)"]) + " or a larger GPU"


def is_near(fit: Fit) -> bool:
    """Whether a run is tried although its predicted peak is beyond the memory."""
    return fit.memory < fit.peak <= NEARLY * fit.memory


def fixed_settings(found: Found) -> list[str]:
    """The settings that the recipe makes, that keep memory from being saved, and that are never changed."""
    own, engine, free = found.config.learner, found.config.engine, freedom(found.config, serving=found.engine)
    native, several = found.engine == "native", several_learners(found.config)
    size, prefill = engine.option("cache_memory"), engine.option("prefill_tokens") or 0
    demand = found.fit.demand
    small = demand.cache <= least_cache(demand, demand.slots // CACHE_PARTS[-1])  # no less would be chosen
    known = {
        "learner.tokens_per_batch": own.tokens_per_batch if own.tokens_per_batch > FEWEST_TOKENS else None,
        "learner.gradient_checkpointing": False if own.gradient_checkpointing is False else None,
        "engine.options.cache_memory": size if native and not free.cache and not small else None,
        "engine.options.prefill_tokens": prefill if native and prefill > ON_A_SMALL_GPU else None,
        "engine.sleep": False if native and found.config.cluster is None and not free.sleep and not engine.sleep else None,
        "learner.optimiser_place": "device" if not (free.place or several) and own.optimiser_place == "device" else None,
        "learner.moments": "float32" if not (free.moments or several) and own.moments == "float32" else None,
        "learner.reference_place": "device" if found.plain.demand.reference == "device" and not (free.reference or several) else None,
    }
    return [f"{key}={_typed(value)}" for key, value in known.items() if value is not None]


def _typed(value: object) -> str:
    """A value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}" if isinstance(value, float) else str(value)


def opened(fixed: list[str]) -> list[str]:
    """What leaves these settings open: what to type, or to remove those that have no such value."""
    values = {"learner.tokens_per_batch": "0", "learner.gradient_checkpointing": "none", "learner.reference_place": "auto"}
    keys = [text.partition("=")[0] for text in fixed]
    removed = [key for key in keys if key not in values]
    return [f"{key}={values[key]}" for key in keys if key in values] + ([f"remove {', '.join(removed)}"] if removed else [])


def optional_bytes(demand: Demand) -> int:
    """What the learner takes because there is room, and would do without."""
    return slope_bytes(demand.shape, demand.sampled, demand.width) if demand.slopes else 0
