"""What a run keeps in a GPU's memory, term by term, as functions of a model's shape: no torch, no GPU, no weights.

    demand = Demand(SHAPES["1.5b"], tokens=8192, cache=4 * 10**9)
    demand.terms, demand.totals, demand.peak        # bytes by term and phase, by phase, and the most

docs/measurements/2026-11-memory.md lists the formulas. What a backward pass keeps is decided by the learner's own functions
(`learn/activations.py`); `choose.py` chooses settings. Bytes are those that torch allocates, except for the CUDA context, captured graphs
and the allocator's gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from turnwise.engines.prefill import ON_A_SMALL_GPU
from turnwise.learn.activations import (
    LOGITS,
    PAGES,
    USABLE,
    Kept,
    backward_bytes,
    joined_bytes,
    kept_bytes,
    logit_gradient_bytes,
    routing_bytes,
)
from turnwise.learn.shapes import KNOWN, ModelShape

COLLECT, LEARN, STEP = PHASES = ("collect", "learn", "step")
PAGE = 64  # tokens of a page of the engine's cache
SCALE = 4  # bytes, for every token and head of a cache in 8 bits
CONTEXT = int(0.9e9)  # CUDA itself, its libraries and the kernels
GRAPH = int(5e6)  # of a captured decode step, outside torch; with CONTEXT, 0.88 to 0.92 GB were measured
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # sizes of captured decode steps
PROMPTS = (*range(32, 129, 32), *range(192, 513, 64), *range(640, 1025, 128), *range(1280, 2049, 256), *range(2560, 4097, 512))
PROMPT_WORK = 2e12  # tokens × weights: steps with longer prompts are not captured
FUSED = KNOWN  # families whose layers the learner runs itself
FOUR_BIT = 0.52  # bytes per weight: half a byte, and a scale for every 64 weights, itself in 8 bits
MOMENTS = 8  # bytes per weight: two moments in float32
CHUNK = 2**22  # weights that a step in chunks updates at once
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

Place = Literal["device", "host"]


@dataclass(frozen=True)
class AuxiliaryModel:
    """Another model on the same GPU."""

    name: str
    parameters: int
    width: int = 2
    trained: bool = False


@dataclass(frozen=True)
class Term:
    """A named part of the memory, in bytes by phase."""

    name: str
    bytes: dict[str, int]


@dataclass(frozen=True)
class Demand:
    """What memory depends on.

    width             bytes of a number that is computed with
    rank, targets     of adapters; 0: all weights are trained
    four_bit          the weights below the adapters have 4 bits
    reference         a frozen copy: none, on the device, or in the host's memory (and on the device while it scores)
    place             of the optimiser's moments: on the device or, with the float32 masters, in the host's memory
    shares            the engine computes with the learner's weights
    cache             bytes of keys and values; `sleeps`: they are released during an update. `cache_8bit`: they have 8 bits each
    slots, longest    rows of the engine, and tokens of the longest of them; `prefill` prompt tokens go through it at once
    tokens            of a micro-batch; a sequence of `sequence` tokens is never cut
    kept              what a micro-batch keeps for its backward pass
    logits            numbers of logits that exist at once
    responses         the share of a micro-batch's tokens that are sampled; 0 if their logit gradients are never cached
    fused             the learner's own layers, which take adapters too; otherwise those of transformers, which keep all or nothing
    """

    shape: ModelShape
    width: int = 2
    rank: int = 0
    targets: tuple[str, ...] = TARGETS
    four_bit: bool = False
    reference: Place | None = "device"
    place: Place = "device"
    shares: bool = True
    graphs: bool = True
    cache: int = 0
    sleeps: bool = False
    cache_8bit: bool = False
    slots: int = 128
    longest: int = 2560
    prefill: int = ON_A_SMALL_GPU
    tokens: int = 32768
    sequence: int = 0
    kept: Kept = field(default_factory=Kept)
    logits: int = LOGITS
    responses: float = 0.0
    fused: bool = True
    auxiliary: tuple[AuxiliaryModel, ...] = ()

    @property
    def trained(self) -> int:
        """Trained parameters; of low-rank adapters: rank × (inputs + outputs) of every linear layer that has one. Mixtures have them on
        attention."""
        shape = self.shape
        if not self.rank:
            return shape.parameters
        keys, queries, gate = shape.hidden + shape.keys, shape.hidden + shape.queries, 0 if shape.experts else shape.hidden + shape.mlp
        sizes = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries}
        sizes |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), gate)
        return shape.layers * self.rank * sum(sizes.get(name, 0) for name in self.targets)

    @property
    def separate_head_gradient(self) -> bool:
        """Whether the output layer's gradient is made apart from where it is added up: products add up those of weights in 16 bits."""
        return not self.rank and self.width >= 4

    @property
    def recomputes(self) -> bool:
        """Whether layers of transformers keep nothing."""
        return min(self.kept.attention, self.kept.mlp) <= 0

    @property
    def read(self) -> int:
        """Tokens of the largest micro-batch: a long sequence makes it larger than `tokens`."""
        return max(self.tokens, self.sequence)

    @property
    def sampled(self) -> int:
        """Sampled tokens of the largest micro-batch."""
        return int(self.responses * self.read)

    @property
    def page(self) -> int:
        """Bytes of a page of the engine's cache: keys and values of its tokens in all layers; in 8 bits, with a scale for every head."""
        shape = self.shape
        return PAGE * 2 * shape.layers * (shape.keys + SCALE * shape.key_heads if self.cache_8bit else self.width * shape.keys)

    @property
    def rows(self) -> int:
        """Rows of the longest length that the cache holds at the same time."""
        return min(self.slots, self.cache // self.page // pages_of(self.longest))

    @property
    def wanted_cache(self) -> int:
        """The most that the engine takes: twice the longest length for every row, so that finished rows can stay."""
        return (2 * self.slots * pages_of(self.longest) + 1) * self.page

    @property
    def graph_count(self) -> int:
        """Steps that the engine captures: decode steps by the size of their batch, and short prompts."""
        if not self.graphs:
            return 0
        return sum(size <= min(self.slots, BATCHES[-1]) for size in BATCHES) + len(captured_prompts(self.shape))

    @property
    def host_bytes(self) -> int:
        """Bytes of the host's memory that stand for those of the device."""
        masters = 4 if self.width < 4 and not self.rank else 0
        state = (masters + MOMENTS) * self.trained if self.place == "host" else 0
        return state + (self.width * self.shape.parameters if self.reference == "host" else 0)

    @cached_property
    def terms(self) -> list[Term]:
        """All parts of the GPU's memory; those that are empty are left out."""
        found = [*_weights(self), *_optimiser(self), *_engine(self), *_activations(self)]
        for model in self.auxiliary:
            found += [_always(f"model {model.name}", model.parameters * model.width)]
            found += [_always(f"optimiser of {model.name}", 16 * model.parameters)] if model.trained else []
        varying = {phase: sum(term.bytes.get(phase, 0) for term in found if term.name in VARYING) for phase in PHASES}
        gaps = {phase: PAGES + int((1 / USABLE - 1) * size) for phase, size in varying.items()}
        found += [Term("allocator's gaps", gaps), _always("CUDA context", CONTEXT)]
        return [term for term in found if any(term.bytes.values())]

    @property
    def totals(self) -> dict[str, int]:
        """The sum of all terms in each phase."""
        return totals(self.terms)

    @property
    def peak(self) -> int:
        return max(self.totals.values())


def totals(found: Sequence[Term]) -> dict[str, int]:
    """The sum of all terms in each phase."""
    return {phase: sum(term.bytes.get(phase, 0) for term in found) for phase in PHASES}


def _always(name: str, size: float) -> Term:
    return Term(name, dict.fromkeys(PHASES, int(size)))


def _during(name: str, size: float, *phases: str) -> Term:
    return Term(name, dict.fromkeys(phases, int(size)))


# -- weights ----------------------------------------------------------------------------------------------------------------------


def _weights(demand: Demand) -> list[Term]:
    shape, width, trained = demand.shape, demand.width, demand.trained
    packed = shape.linears if demand.four_bit else 0  # experts are not packed
    masters = width < 4 and not demand.rank and demand.place == "device"
    # captured steps have memory of their own, and unpack each weight alone
    alone = width * shape.hidden * max(shape.plain[1], shape.queries) if demand.graphs else 0
    unpacked = {COLLECT: joined_bytes(shape, width) + alone, LEARN: joined_bytes(shape, width)}
    return [
        _always("weights", int(packed * FOUR_BIT) + width * (shape.parameters - packed)),
        _always("adapters", (4 + (width if demand.shares else 0)) * trained if demand.rank else 0),
        _always("float32 masters", 4 * trained if masters else 0),
        _always("reference", width * shape.parameters if demand.reference == "device" and not demand.rank else 0),
        _always("the engine's copy of the weights", 0 if demand.shares else width * shape.parameters),
        Term("a layer in 16 bits", unpacked if demand.four_bit else {}),
    ]


def _optimiser(demand: Demand) -> list[Term]:
    trained, away = demand.trained, demand.place == "host"
    chunk = 2 * CHUNK * (4 + MOMENTS) if away else 0
    return [
        _during("gradients", 4 * trained, LEARN, STEP),
        _always("optimiser state", 0 if away else MOMENTS * trained),
        _during("a chunk of the optimiser", chunk, STEP),
    ]


# -- the engine -------------------------------------------------------------------------------------------------------------------


def pages_of(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE)


def captured_prompts(shape: ModelShape) -> tuple[int, ...]:
    """The numbers of tokens for which the engine captures steps with prompts: those that a host would issue too slowly."""
    return tuple(size for size in PROMPTS if size * shape.used <= PROMPT_WORK or size == PROMPTS[0])


def _engine(demand: Demand) -> list[Term]:
    shape, width = demand.shape, demand.width
    held = (COLLECT,) if demand.sleeps else PHASES
    prompts = captured_prompts(shape) if demand.graphs and demand.slots else ()
    per_token = width * (4 * shape.hidden + shape.queries + 2 * shape.keys + 3 * shape.middle)
    logits = demand.slots * 4 * shape.words
    step = logits + max((demand.slots, *prompts)) * per_token  # all share one pool of memory
    prompt = demand.prefill * width * (3 * shape.middle + 3 * shape.hidden + 2 * shape.queries + 2 * shape.keys)
    return [
        _during("engine's cache", demand.cache, *held),
        _during("decode steps", step, *held),
        _during("captured CUDA graphs", demand.graph_count * GRAPH, *held),
        _during("engine's prompts", prompt + logits, COLLECT),
    ]


# -- the learner ------------------------------------------------------------------------------------------------------------------

VARYING = ("activations", "logit gradients", "a layer's work", "logits", "engine's prompts")


def layer_bytes(demand: Demand, number: int) -> int:
    """Bytes per token that one layer of transformers keeps. Adapters on all linear layers read a float32 copy of each input; experts read
    and write a row for each of their tokens."""
    shape, rank, width = demand.shape, demand.rank, demand.width
    norms, scales, middle = 2 * (width + 4), 8, shape.middles[number]
    heads = 2 * width * shape.keys + 4 * shape.heads + (width + 4) * (shape.queries + shape.keys) * shape.head_norms
    experts = 2 * width * shape.active * shape.hidden + routing_bytes(shape, width) if shape.mixed(number) else 0
    if rank:
        inner = (norms + 4 + 12) * shape.hidden + 4 * width * shape.queries + (3 * width + 4) * middle
        return inner + heads + experts + 28 * rank + scales
    return (norms + 3 * width) * shape.hidden + 2 * width * shape.queries + 4 * width * middle + heads + experts + scales


def forward_bytes(demand: Demand) -> int:
    """Bytes per token that a forward pass keeps for its backward pass."""
    shape = demand.shape
    if demand.fused:
        return kept_bytes(shape, demand.kept, demand.width)
    if demand.recomputes:
        return shape.layers * demand.width * shape.hidden
    return sum(layer_bytes(demand, number) for number in range(shape.layers))


def work_bytes(demand: Demand) -> int:
    """Bytes per token of the backward pass of one layer; if nothing is kept of it, it is computed again first."""
    shape, width = demand.shape, demand.width
    if demand.fused:
        return backward_bytes(shape) * width // 2 + 12 * width * demand.rank  # what lies between an adapter's factors
    again = max(layer_bytes(demand, number) for number in range(shape.layers)) if demand.recomputes else 0
    return again + width * (5 * shape.middle + 8 * shape.hidden)


def logits_bytes(demand: Demand, size: int) -> int:
    """A chunk of so many logits with its gradient, or, with cached logit gradients, two chunks in the forward pass; and the output layer's
    gradient in float32 if it is made apart, twice while a chunk is added."""
    head = demand.shape.head if demand.separate_head_gradient else 0
    return max(8 * size, 6 * head) if demand.kept.logit_gradients else 8 * size + 8 * head


def _activations(demand: Demand) -> list[Term]:
    """Most is needed in the output layer, or in the first layer that the backward pass goes through; logit gradients are gone by then."""
    shape, tokens = demand.shape, demand.read
    gradients = logit_gradient_bytes(shape, demand.sampled, demand.width) if demand.kept.logit_gradients else 0
    logits = logits_bytes(demand, min(demand.logits, tokens * shape.words))
    embedding = not demand.rank and shape.tied and (demand.separate_head_gradient or not demand.fused)
    work = tokens * work_bytes(demand) + (demand.width * shape.head if embedding else 0)
    most = {"logit gradients": gradients, "logits": logits} if gradients + logits > work else {"a layer's work": work}
    return [_during("activations", tokens * forward_bytes(demand), LEARN), *(_during(name, size, LEARN) for name, size in most.items())]
