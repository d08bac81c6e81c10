"""Which settings make a run fit into a GPU's memory.

    fit = choose(demand, memory=24 * 10**9, free=Freedom())
    fit.fits, fit.changed                           # whether, and what had to change, in the order of `LEVERS`

Among the settings that give the same results (another cache, fewer tokens at once, activations that are computed again, the optimiser in
host memory), those that fit and take the least time are chosen. Moments in 8 bits come after them. Adapters change what is trained, so they
are a choice only if they are asked for. Settings that the user has made are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from turnwise.engines.prefill import ON_A_SMALL_GPU
from turnwise.learn.footprint import (
    COLLECT,
    FEWEST_TOKENS,
    LEARN,
    PAGES,
    SIZES,
    STEP,
    USABLE,
    Demand,
    Term,
    automatic_inputs,
    automatic_layers,
    automatic_slopes,
    automatic_tokens,
    host_bytes,
    logits_bytes,
    pages_of,
    piece_of,
    recomputes,
    slope_bytes,
    terms,
    totals,
    wanted_cache,
)

LEVERS = ("prefill", "cache", "tokens", "recompute", "sleep", "moments", "place", "reference", "lora", "four_bit")
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
    moments: bool = True
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
    def terms(self) -> list[Term]:
        return terms(self.demand)

    @property
    def totals(self) -> dict[str, int]:
        return totals(self.terms)

    @property
    def peak(self) -> int:
        return max(self.totals.values())

    @property
    def fits(self) -> bool:
        return self.peak <= self.memory


def as_it_is(demand: Demand, memory: int, free: Freedom) -> Fit:
    """What would happen without a choice: the engine takes half of what is free, and the learner decides by what is left."""
    found = demand
    if free.cache:
        found = replace(demand, cache=min(wanted_cache(demand), int(GPU_PART * free_for_cache(demand, memory))))
    if free.tokens:
        room = USABLE * left_for_activations(found, memory)
        found = replace(found, tokens=automatic_tokens(demand.shape, room, _keep(demand, free)))
    return Fit(as_it_runs(found, memory, free), memory)


def as_it_runs(demand: Demand, memory: int, free: Freedom) -> Demand:
    """What the learner keeps for a backward pass of the memory that it finds free: layers as far as the recipe leaves them open, and the
    slopes of log-probs."""
    demand = replace(demand, slopes=False)
    room = USABLE * left_for_activations(demand, memory)
    beside = automatic_slopes(demand.shape, demand.read, demand.sampled, room, _keep(demand, free)) if demand.fused else None
    if free.recompute:
        demand = _kept(demand, room) if beside is None else replace(demand, attention=beside[0], mlp=beside[1])
        left = room - (0 if beside is None else slope_bytes(demand.shape, demand.sampled))
        inputs = automatic_inputs(demand.shape, demand.read, left, demand.attention, demand.mlp) if demand.fused else 0
        demand = replace(demand, inputs=inputs)
    return replace(demand, slopes=beside is not None)


def _keep(demand: Demand, free: Freedom) -> bool | None:
    """What the recipe says of activations: to keep all of them, none, or nothing."""
    return None if free.recompute else demand.mlp > 0


def free_for_cache(demand: Demand, memory: int) -> int:
    """Bytes that are free when the engine is made: the optimiser has no state yet, and nothing was computed."""
    later = ("optimiser state", "engine's cache", "decode steps", "engine's prompts", "recorded steps", "rotated biases of keys")
    return max(0, memory - totals([term for term in terms(demand) if term.name not in later])[COLLECT])


def choose(
    demand: Demand, memory: int, free: Freedom, host: int | None = None, seconds: Callable[[Demand], float] = lambda demand: 0.0
) -> Fit:
    """The settings as they are if they fit; otherwise those that fit and take the least time, the first of equals; or the smallest ones if
    none fit. `host`: bytes of the host's memory that may stand for those of the GPU; None: as many as are needed. `seconds`: an estimate of
    the time that settings take."""
    plain = as_it_is(demand, memory, free)
    if plain.fits:
        return plain
    usable, smallest = int(memory * (1 - MARGIN)), plain
    for tier in tiers(demand, free):
        fitting = list[Demand]()
        for variant in tier:
            if host is not None and host_bytes(variant) > max(host, host_bytes(demand)):
                continue
            for candidate in candidates(variant, free):
                found = _with_room(candidate, usable, free)
                if Fit(found, memory).peak <= usable:
                    fitting.append(as_it_runs(found, memory, free))
                else:
                    smallest = min(smallest, Fit(found, memory), key=_size)
        if fitting:
            smallest = Fit(min(fitting, key=seconds), memory)
            break
    return replace(smallest, changed=changes(demand, plain, smallest.demand, free)) if smallest is not plain else plain


def _size(fit: Fit) -> tuple[int, int]:
    """The peak, and of equals what all phases need."""
    return fit.peak, sum(fit.totals.values())


def tiers(demand: Demand, free: Freedom) -> Iterator[list[Demand]]:
    """What the optimiser and the reference keep, from the least change to the largest: where it is kept, which changes no result; then how
    exactly; then what is trained. A tier is tried if nothing of the one before fits."""
    exact = [demand]
    if free.place and demand.place == "device":
        exact.append(replace(demand, place="host"))
    if free.reference and demand.reference == "device":
        exact.append(replace(exact[-1], reference="host"))
    yield exact
    if free.moments and demand.moments == "float32":
        yield [replace(one, moments="8bit") for one in exact]
    if free.lora and not demand.rank:
        exact = list(dict.fromkeys(replace(one, rank=RANK, reference=None) for one in exact))
        yield exact
    if free.four_bit and exact[0].rank:
        yield [replace(one, four_bit=True) for one in exact]


def candidates(demand: Demand, free: Freedom) -> Iterator[Demand]:
    """Rows of the cache, tokens and prompt tokens at once, with a cache that stays during updates, or is released. Of equals, more rows and
    tokens come first."""
    sizes = [size for size in (*SIZES, FEWEST_TOKENS) if size <= demand.tokens] if free.tokens else [demand.tokens]
    own = replace(demand, attention=0, mlp=0) if free.recompute else demand  # what is kept depends on the room
    steps = sorted({own.prefill, min(own.prefill, ON_A_SMALL_GPU)}, reverse=True) if free.prefill else [own.prefill]
    for rows in sorted({max(1, demand.slots // part) for part in CACHE_PARTS}, reverse=True) if free.cache else (demand.slots,):
        for asleep in (False, True) if free.sleep and not demand.sleeps else (demand.sleeps,):
            for size, prefill in product(sizes, steps):
                found = replace(own, tokens=size, piece=piece_of(size), prefill=prefill, sleeps=asleep)
                yield replace(found, cache=least_cache(demand, rows)) if free.cache else found


def least_cache(demand: Demand, rows: int) -> int:
    """Bytes of a cache for so many rows of the longest length."""
    return min(wanted_cache(demand), (max(1, rows) * pages_of(demand.longest) + 1) * demand.page)


def _with_room(demand: Demand, memory: int, free: Freedom) -> Demand:
    """What is left goes to activations that are kept, then to the cache."""
    if free.recompute and demand.mlp == 0 and (left := left_for_activations(demand, memory)) > 0:
        demand = _kept(demand, USABLE * left)
    if not free.cache:
        return demand
    sums = totals(terms(demand))
    phases = (COLLECT,) if demand.sleeps else (COLLECT, LEARN, STEP)
    spare = memory - max(sums[phase] for phase in phases)
    return replace(demand, cache=min(wanted_cache(demand), demand.cache + max(0, spare) // demand.page * demand.page))


def left_for_activations(demand: Demand, memory: int) -> int:
    """Bytes that the learner finds free for the activations of a micro-batch, as it counts them: next to a whole piece of logits."""
    varying = ("activations", "a layer's work", "allocator's gaps", "logits")
    held = sum(term.bytes.get(LEARN, 0) for term in terms(demand) if term.name not in varying)
    return memory - held - PAGES - logits_bytes(demand.shape, demand.piece, demand.apart)


def _kept(demand: Demand, room: float) -> Demand:
    """The layers that keep what they computed, as the learner decides."""
    if demand.fused:
        attention, mlp = automatic_layers(demand.shape, demand.read, room)
    else:
        attention = mlp = 0 if recomputes(demand.shape, demand.read, room) else demand.shape.layers
    return replace(demand, attention=attention, mlp=mlp)


def decides_alike(found: Demand, given: Demand, memory: int, free: Freedom) -> bool:
    """Whether a run with these settings would choose as many tokens at once by itself, and pieces of logits as large."""
    open_ = replace(free, cache=False, recompute=free.recompute and (found.fused or found.mlp > 0))
    own = as_it_is(replace(found, piece=given.piece, slopes=False), memory, open_).demand
    return (own.tokens, own.piece) == (found.tokens, found.piece)


def changes(given: Demand, without: Fit, found: Demand, free: Freedom) -> tuple[str, ...]:
    """The names of what differs from what would happen without a choice, in the order of `LEVERS`; and whether anything is computed
    again. Tokens at once are among them, too, if they would differ with the other settings alone."""
    plain = without.demand
    differs = {
        "prefill": found.prefill != given.prefill,
        "cache": found.cache != plain.cache,
        "tokens": free.tokens and (found.tokens != plain.tokens or not decides_alike(found, given, without.memory, free)),
        "recompute": min(found.mlp, found.attention) < min(found.shape.layers, given.mlp, given.attention),
        "sleep": found.sleeps != given.sleeps,
        "reference": found.reference != given.reference and not found.rank,
        "moments": found.moments != given.moments,
        "place": found.place != given.place,
        "lora": found.rank != given.rank,
        "four_bit": found.four_bit != given.four_bit,
    }
    return tuple(name for name in LEVERS if differs[name])
