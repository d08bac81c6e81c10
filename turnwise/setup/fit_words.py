"""What is said about a recipe and a GPU's memory: what was chosen and why, and what each choice costs."""

from __future__ import annotations

from dataclasses import replace

from turnwise.cluster.service_times import Machine
from turnwise.learn.fitting import Fit
from turnwise.learn.footprint import LEARN, Demand, host_bytes, slope_bytes
from turnwise.setup.fit import GB, Found, settings
from turnwise.setup.fit_costs import COSTS, Cost

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
    return " ".join(f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in one.items())


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
    largest = sorted(fit.terms, key=lambda term: -term.bytes.get(LEARN, 0))[:3]
    named = ", ".join(f"{term.name} {term.bytes.get(LEARN, 0) / GB:.1f}" for term in largest)
    fixed = fixed_settings(found)
    return (
        f"this GPU has {memory / GB:.1f} GB, and the run needs at least {fit.peak / GB:.1f} GB ({named} GB, …)"
        + (
            f" with {', '.join(fixed)}, which the recipe sets and which are not changed"
            if fixed
            else " with every setting that saves memory"
        )
        + ". `turnwise fit RECIPE` shows all of it. "
        + (f"Leave them open ({', '.join(opened(fixed))}), " if fixed else "Use adapters (model.lora.rank=16), ")
        + "a smaller model, shorter prompts (agent.max_prompt_tokens) or a larger GPU"
    )


def fixed_settings(found: Found) -> list[str]:
    """The settings of a recipe that decide about memory and are not left open."""
    own, engine = found.config.learner, found.config.engine
    known = []
    if own.tokens_per_batch:
        known.append(f"learner.tokens_per_batch={own.tokens_per_batch}")
    if own.gradient_checkpointing is False:
        known.append("learner.gradient_checkpointing=false")
    if "cache_memory" in engine.options:
        known.append(f"engine.options.cache_memory={engine.options['cache_memory']:g}")
    return known


def opened(fixed: list[str]) -> list[str]:
    """What to type so that these settings are left open; a setting without such a value has to be removed from the recipe."""
    values = {"learner.tokens_per_batch": "0", "learner.gradient_checkpointing": "none"}
    return [f"{key}={values[key]}" for text in fixed if (key := text.partition("=")[0]) in values] or ["remove them"]


def optional_bytes(demand: Demand) -> int:
    """What the learner takes because there is room, and would do without."""
    return slope_bytes(demand.shape, demand.sampled, demand.width) if demand.slopes else 0
