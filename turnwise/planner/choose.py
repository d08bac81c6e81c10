"""Which settings make a run fit into a GPU's memory, and what they cost in time.

    fit = choose(demand, memory=24 * 10**9, free=Freedom())
    fit.fits, fit.changed                           # whether, and what had to change, in the order of `LEVERS`

Among the settings that give the same results (another cache, fewer tokens at once, activations that are computed again, the optimiser in
host memory), those that fit and take the least time are chosen. Adapters change what is trained, so they are a choice only if they are
asked for. Settings that the user has made are never changed.

Costs are estimates: the operations and bytes that a choice adds, at the rates that were measured on one H200. On another GPU the seconds
differ, and the shares less so. What was not measured is marked as an assumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from turnwise.engines.prefill import ON_A_LARGE_GPU, ON_A_SMALL_GPU
from turnwise.learn.activations import (
    FEWEST_TOKENS,
    MOST_TOKENS,
    NOTHING,
    PAGES,
    SIZES,
    USABLE,
    Kept,
    last,
    logit_chunk,
    micro_batch_tokens,
    transformers_layers_recompute,
    what_to_keep,
)
from turnwise.planner.memory import (
    COLLECT,
    LEARN,
    MOMENTS,
    PHASES,
    Demand,
    logits_bytes,
    pages_of,
    totals,
)
from turnwise.planner.times import EngineTimes, Machine

LEVERS = ("prefill", "cache", "tokens", "recompute", "sleep", "place", "reference", "lora", "four_bit")
CACHE_PARTS = (1, 2, 4, 16)  # of the rows, for which the cache has room if all are of the longest length
GPU_PART = 0.5  # of the free memory: what the engine's cache takes by itself
MARGIN = 0.03  # of the memory that a choice leaves free
RANK = 16


@dataclass(frozen=True)
class Freedom:
    """What may be chosen: settings that the user has not made. `tokens` and `recompute` are otherwise decided by the learner as it runs."""

    prefill: bool = True
    cache: bool = True
    sleep: bool = True
    tokens: bool = True
    recompute: bool = True
    reference: bool = True
    place: bool = True
    lora: bool = False
    four_bit: bool = False


@dataclass(frozen=True)
class Fit:
    """Settings, what they need, and which of them had to change so that it fits."""

    demand: Demand
    memory: int
    changed: tuple[str, ...] = ()

    @property
    def peak(self) -> int:
        return self.demand.peak

    @property
    def fits(self) -> bool:
        return self.peak <= self.memory


# -- what a run does without a choice -----------------------------------------------------------------------------------------------


def as_it_is(demand: Demand, memory: int, free: Freedom) -> Fit:
    """What would happen without a choice: the engine takes half of what is free, and the learner decides by what is left."""
    if free.cache:
        demand = replace(demand, cache=min(demand.wanted_cache, int(GPU_PART * free_for_cache(demand, memory))))
    if free.tokens:
        room = USABLE * left_for_activations(demand, memory)
        demand = replace(demand, tokens=micro_batch_tokens(demand.shape, room, _keep(demand, free)))
    return Fit(as_it_runs(demand, memory, free), memory)


def as_it_runs(demand: Demand, memory: int, free: Freedom) -> Demand:
    """What the learner keeps for a backward pass of the memory that it finds free."""
    demand = replace(demand, kept=replace(demand.kept, logit_gradients=False))
    return replace(demand, kept=_kept(demand, USABLE * left_for_activations(demand, memory), _keep(demand, free)))


def _kept(demand: Demand, room: float, keep: bool | None) -> Kept:
    """What the learner's own layers keep, or those of transformers, which keep all or nothing."""
    if demand.fused:
        return what_to_keep(demand.shape, demand.read, demand.sampled, room, keep)
    if keep is None:
        keep = not transformers_layers_recompute(demand.shape, demand.read, room)
    return Kept() if keep else NOTHING


def _keep(demand: Demand, free: Freedom) -> bool | None:
    """What the recipe says of activations: to keep all of them, none, or nothing."""
    return None if free.recompute else demand.kept.mlp > 0


def free_for_cache(demand: Demand, memory: int) -> int:
    """Bytes that are free when the engine is made: the optimiser has no state yet, and nothing was computed."""
    later = ("optimiser state", "engine's cache", "decode steps", "engine's prompts", "captured CUDA graphs")
    return max(0, memory - totals([term for term in demand.terms if term.name not in later])[COLLECT])


def left_for_activations(demand: Demand, memory: int) -> int:
    """Bytes that the learner finds free for the activations of a micro-batch, as it counts them: next to a whole chunk of logits."""
    varying = ("activations", "a layer's work", "allocator's gaps", "logits", "logit gradients")
    held = sum(term.bytes.get(LEARN, 0) for term in demand.terms if term.name not in varying)
    return memory - held - PAGES - logits_bytes(replace(demand, kept=Kept()), demand.logits)


# -- the choice ---------------------------------------------------------------------------------------------------------------------


def choose(demand: Demand, memory: int, free: Freedom, host: int | None = None) -> Fit:
    """The settings as they are if they fit; otherwise those that fit and take the least time, the first of equals; or the smallest ones if
    none fit. `host`: bytes of the host's memory that may stand for those of the GPU; None: as many as are needed."""
    plain = as_it_is(demand, memory, free)
    if plain.fits:
        return plain
    usable, smallest = int(memory * (1 - MARGIN)), plain
    for tier in tiers(demand, free):
        fitting = list[Demand]()
        for variant in tier:
            if host is not None and variant.host_bytes > max(host, demand.host_bytes):
                continue
            for candidate in candidates(variant, free):
                tried = Fit(_with_room(candidate, usable, free), memory)
                if tried.peak <= usable:
                    fitting.append(as_it_runs(tried.demand, memory, free))
                else:
                    smallest = min(smallest, tried, key=lambda fit: (fit.peak, sum(fit.demand.totals.values())))
        if fitting:
            smallest = Fit(min(fitting, key=seconds), memory)
            break
    return replace(smallest, changed=changes(demand, plain, smallest.demand, free)) if smallest is not plain else plain


def tiers(demand: Demand, free: Freedom) -> Iterator[list[Demand]]:
    """Where the optimiser and the reference are kept, which changes no result; then what is trained. A tier is tried if nothing of the one
    before fits."""
    places = [demand]
    if free.place and demand.place == "device":
        places.append(replace(demand, place="host"))
    yield places
    if free.reference and demand.reference == "device":
        yield [replace(places[-1], reference="host")]
    if free.lora and not demand.rank:
        places = [replace(one, rank=RANK, reference=None) for one in places]
        yield places
    if free.four_bit and places[0].rank:
        yield [replace(one, four_bit=True) for one in places]


def candidates(demand: Demand, free: Freedom) -> Iterator[Demand]:
    """Rows of the cache, tokens and prompt tokens at once, with a cache that stays during updates, or is released. Of equals, more rows and
    tokens come first."""
    sizes = [size for size in (*SIZES, FEWEST_TOKENS) if size <= demand.tokens] if free.tokens else [demand.tokens]
    steps = sorted({demand.prefill, min(demand.prefill, ON_A_SMALL_GPU)}, reverse=True) if free.prefill else [demand.prefill]
    if free.recompute:
        demand = replace(demand, kept=NOTHING)  # what is kept depends on the room
    for rows in sorted({max(1, demand.slots // part) for part in CACHE_PARTS}, reverse=True) if free.cache else (demand.slots,):
        for asleep in (False, True) if free.sleep and not demand.sleeps else (demand.sleeps,):
            for size, prefill in product(sizes, steps):
                one = replace(demand, tokens=size, logits=logit_chunk(size), prefill=prefill, sleeps=asleep)
                yield replace(one, cache=least_cache(demand, rows)) if free.cache else one


def least_cache(demand: Demand, rows: int) -> int:
    """Bytes of a cache for so many rows of the longest length."""
    return min(demand.wanted_cache, (max(1, rows) * pages_of(demand.longest) + 1) * demand.page)


def _with_room(demand: Demand, memory: int, free: Freedom) -> Demand:
    """What is left goes to activations that are kept, then to the cache."""
    if free.recompute and (left := left_for_activations(demand, memory)) > 0:
        demand = replace(demand, kept=_kept(replace(demand, responses=0.0), USABLE * left, None))
    if not free.cache:
        return demand
    sums = demand.totals
    spare = memory - max(sums[phase] for phase in ((COLLECT,) if demand.sleeps else PHASES))
    return replace(demand, cache=min(demand.wanted_cache, demand.cache + max(0, spare) // demand.page * demand.page))


def changes(given: Demand, without: Fit, chosen: Demand, free: Freedom) -> tuple[str, ...]:
    """The names of what differs from what would happen without a choice, in the order of `LEVERS`; and whether anything is computed
    again. Tokens at once are among them, too, if they would differ with the other settings alone."""
    plain, kept = without.demand, chosen.kept
    differs = {
        "prefill": chosen.prefill != given.prefill,
        "cache": chosen.cache != plain.cache,
        "tokens": free.tokens and (chosen.tokens != plain.tokens or not decides_alike(chosen, given, without.memory, free)),
        "recompute": min(kept.mlp, kept.attention) < min(chosen.shape.layers, given.kept.mlp, given.kept.attention),
        "sleep": chosen.sleeps != given.sleeps,
        "reference": chosen.reference != given.reference and not chosen.rank,
        "place": chosen.place != given.place,
        "lora": chosen.rank != given.rank,
        "four_bit": chosen.four_bit != given.four_bit,
    }
    return tuple(name for name in LEVERS if differs[name])


def decides_alike(chosen: Demand, given: Demand, memory: int, free: Freedom) -> bool:
    """Whether a run with these settings would choose as many tokens at once by itself, and chunks of logits as large."""
    free = replace(free, cache=False, recompute=free.recompute and (chosen.fused or chosen.kept.mlp > 0))
    alone = as_it_is(replace(chosen, logits=given.logits), memory, free).demand
    return (alone.tokens, alone.logits) == (chosen.tokens, chosen.logits)


# -- what it costs ------------------------------------------------------------------------------------------------------------------

HOST_BYTES_PER_S = 2.5e10  # assumption: what a PCIe 4.0 slot carries in one direction
CAPTURING = 0.02  # seconds to capture a step; 20 of a 1.5B model took 0.23 s
STEP_TOKENS = 131072  # of an optimiser step that shares refer to
SAMPLED = 1 / 8  # of these tokens
STEPS = 8  # of an iteration
MOVED = 16.0  # bytes per weight that a micro-batch moves for its gradients: written, read, added, and the weights read again
H200 = Machine()


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


def _update_seconds(demand: Demand) -> float:
    """Seconds of the matrix products of one optimiser step."""
    return 6.0 * (demand.shape.used + demand.shape.head / 8) * STEP_TOKENS / H200.flop_per_s


def _decode_seconds(demand: Demand, rows: int) -> float:
    """Seconds of decoding per token, with a cache for so many rows of the longest length: twice as many of half of it."""
    rows = max(1, min(demand.slots, 2 * rows))
    return EngineTimes(demand.shape, H200).decode(rows, demand.longest / 2) / rows


def _prompt_seconds(demand: Demand) -> float:
    """Seconds of reading what is not sampled of an optimiser step's tokens, in the native engine."""
    if not (demand.slots and demand.prefill):
        return 0.0
    return 2.0 * demand.shape.used * (1 - SAMPLED) * STEP_TOKENS / H200.flop_per_s * (1 + _prefill(demand).share)


def _prefill(demand: Demand) -> Cost:
    """Every forward pass over prompts reads the weights again."""
    read, computed = demand.width * demand.shape.matrices / H200.copy_bytes_per_s, 2.0 * demand.shape.used / H200.flop_per_s
    return Cost((1 / max(1, demand.prefill) - 1 / ON_A_LARGE_GPU) * read / computed, "reading prompts")


def _cache(demand: Demand) -> Cost:
    """Fewer rows at the same time read the weights more often."""
    return Cost(max(0.0, _decode_seconds(demand, demand.rows) / _decode_seconds(demand, demand.slots) - 1), "decoding")


def _tokens(demand: Demand) -> Cost:
    """Every micro-batch adds its gradients to those of all weights."""
    more = STEP_TOKENS / max(1, demand.read) - STEP_TOKENS / MOST_TOKENS
    return Cost(more * MOVED * demand.trained / H200.copy_bytes_per_s / _update_seconds(demand))


def _recompute(demand: Demand) -> Cost:
    """A forward pass is a third of an update; of each layer, the halves that keep nothing are computed again."""
    shape, kept = demand.shape, demand.kept
    per_middle, missing = 3 * shape.hidden / shape.used, 1 - min(kept.attention, shape.layers) / shape.layers
    attention = (1 - per_middle * sum(shape.middles)) * missing
    return Cost((attention + per_middle * (sum(shape.middles) - sum(last(shape.middles, kept.mlp)))) / 3)


def _sleep(demand: Demand) -> Cost:
    return Cost(seconds=demand.graph_count * CAPTURING, each="iteration")


def _reference(demand: Demand) -> Cost:
    """Its pass brings the weights to the device."""
    return Cost(seconds=demand.width * demand.shape.parameters / HOST_BYTES_PER_S, each="iteration")


def _place(demand: Demand) -> Cost:
    """The state goes to the device and back, both ways at the same time."""
    masters = 0 if demand.rank or demand.width == 4 else 4
    moved = (masters + MOMENTS) * demand.trained / HOST_BYTES_PER_S
    return Cost(moved / _update_seconds(demand), seconds=moved, each="optimiser step")


def _four_bit(demand: Demand) -> Cost:
    """Every micro-batch unpacks the weights twice."""
    unpacked = 2 * 2.5 * demand.shape.matrices / H200.copy_bytes_per_s
    return Cost(STEP_TOKENS / max(1, demand.read) * unpacked / _update_seconds(demand))


COSTS: dict[str, Callable[[Demand], Cost]] = {
    "prefill": _prefill,
    "cache": _cache,
    "tokens": _tokens,
    "recompute": _recompute,
    "sleep": _sleep,
    "reference": _reference,
    "place": _place,
    "lora": lambda demand: Cost(),
    "four_bit": _four_bit,
}


def seconds(demand: Demand) -> float:
    """Seconds of an optimiser step with these settings, of the prompts and the decoding that belong to it, and of its part of what happens
    once in an iteration. It serves to compare settings with each other."""
    taken = ["tokens", "recompute"]
    taken += ["place"] if demand.place == "host" else []
    taken += ["four_bit"] if demand.four_bit else []
    shares = sum(COSTS[name](demand).share for name in taken)
    once = _sleep(demand).seconds if demand.sleeps else 0.0
    once += _reference(demand).seconds if demand.reference == "host" else 0.0
    decoding = SAMPLED * STEP_TOKENS * _decode_seconds(demand, demand.rows) if demand.slots else 0.0
    return _update_seconds(demand) * (1 + shares) + _prompt_seconds(demand) + decoding + once / STEPS
