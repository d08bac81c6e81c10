"""What is said about a recipe and a GPU's memory: what was chosen and why, and what each choice costs.

Costs are estimates. They come from the operations and bytes that a choice adds, at the rates that were measured on one H200; on another GPU
the seconds differ, and the shares less so. What was not measured is an assumption and is marked as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from turnwise.cluster.service_times import EngineTimes, Machine
from turnwise.learn.fitting import Fit
from turnwise.learn.footprint import EIGHT_BIT, EXACT, LANES, LEARN, MOST_TOKENS, Demand, host_bytes, recorded_prompts, slope_bytes
from turnwise.setup.fit import GB, Found, settings

HOST_BYTES_PER_S = 2.5e10  # assumption: what a PCIe 4.0 slot carries in one direction
RECORDING = 0.02  # seconds to record a step; 20 of a 1.5B model took 0.23 s (benchmarks/engine_steps.json)
STEP_TOKENS = 131072  # of an optimiser step that shares refer to
MOVED = 16.0  # bytes per weight that a micro-batch moves for its gradients: written, read, added, and the weights read again
ESTIMATE = "Costs are estimates from operations and bytes at the rates of an H200; see docs/performance.md"


@dataclass(frozen=True)
class Cost:
    """The extra time of a choice: as a share of a part of the iteration, or in seconds each time."""

    share: float = 0.0
    of: str = "an update"
    seconds: float = 0.0
    each: str = ""

    @property
    def words(self) -> str:
        if self.seconds:
            return f"+{self.seconds:.2g} s per {self.each}" + (f" (+{self.share:.0%} of {self.of})" if self.share else "")
        return f"+{self.share:.0%} of {self.of}" if self.share >= 0.005 else "nothing measurable"


def cost(name: str, found: Found, machine: Machine | None = None) -> Cost:
    """What a choice costs."""
    return COSTS[name](found.plain.demand, found.fit.demand, machine or Machine())


def _update_seconds(demand: Demand, machine: Machine) -> float:
    """Seconds of the matrix products of one optimiser step."""
    return 6.0 * (demand.shape.used + demand.shape.head / 8) * STEP_TOKENS / machine.flop_per_s


def _cache(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Fewer rows at the same time read the weights more often."""
    times, context = EngineTimes(after.shape, machine), after.longest / 2
    most = max(1, before.slots)
    now, then = (times.decode(lanes, context) / lanes for lanes in (max(1, min(most, 2 * after.rows)), most))  # rows of half the longest
    return Cost(max(0.0, now / then - 1), "decoding")


def _tokens(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Every micro-batch adds its gradients to those of all weights."""
    moved = MOVED * after.trained / machine.copy_bytes_per_s

    def batches(tokens: int) -> float:
        return STEP_TOKENS / max(1, tokens) * moved

    return Cost((batches(after.read) - batches(MOST_TOKENS)) / _update_seconds(after, machine))


def _recompute(before: Demand, after: Demand, machine: Machine) -> Cost:
    """A forward pass is a third of an update; of each layer, the halves that keep nothing are computed again."""
    shape = after.shape
    mlp = 3 * shape.hidden * shape.middle * shape.layers / shape.used
    missing = [1 - min(kept, shape.layers) / shape.layers for kept in (after.attention, after.mlp)]
    return Cost(((1 - mlp) * missing[0] + mlp * missing[1]) / 3)


def _sleep(before: Demand, after: Demand, machine: Machine) -> Cost:
    recorded = sum(size <= after.slots for size in LANES) + len(recorded_prompts(after.shape)) if after.graphs else 0
    return Cost(seconds=recorded * RECORDING, each="iteration")


def _reference(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Every micro-batch of its pass brings the layers to the device."""
    seconds = after.width * after.shape.matrices / HOST_BYTES_PER_S
    return Cost(STEP_TOKENS / max(1, after.read) * seconds / _update_seconds(after, machine))


def _moments(before: Demand, after: Demand, machine: Machine) -> Cost:
    return Cost(100.0 * after.trained / machine.copy_bytes_per_s / _update_seconds(after, machine))


def _place(before: Demand, after: Demand, machine: Machine) -> Cost:
    """The state goes to the device and back, both ways at the same time."""
    masters = 0 if after.rank or after.width == 4 else 4
    seconds = (masters + (EIGHT_BIT if after.moments == "8bit" else EXACT)) * after.trained / HOST_BYTES_PER_S
    return Cost(seconds / _update_seconds(after, machine), seconds=seconds, each="optimiser step")


def _lora(before: Demand, after: Demand, machine: Machine) -> Cost:
    return Cost()


def _four_bit(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Every micro-batch unpacks the weights twice."""
    moved = 2 * 2.5 * after.shape.matrices / machine.copy_bytes_per_s
    return Cost(STEP_TOKENS / max(1, after.read) * moved / _update_seconds(after, machine))


COSTS: dict[str, Callable[[Demand, Demand, Machine], Cost]] = {
    "cache": _cache,
    "tokens": _tokens,
    "recompute": _recompute,
    "sleep": _sleep,
    "reference": _reference,
    "moments": _moments,
    "place": _place,
    "lora": _lora,
    "four_bit": _four_bit,
}


def words(name: str, found: Found) -> str:
    """A choice in a few words."""
    after, layers = found.fit.demand, found.shape.layers
    again = layers - min(after.mlp, layers)
    texts = {
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
