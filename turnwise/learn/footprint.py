"""What a run keeps in a GPU's memory, term by term, as functions of a model's shape: no torch, no GPU, no weights.

    found = terms(Demand(SHAPES["1.5b"], tokens=8192, cache=4 * 10**9))
    peak(found)                                     # the phase that needs most, and its bytes

Every term has a formula, and docs/performance.md lists them. The learner decides with the same functions what a backward pass keeps
(`memory.py`); `fitting.py` chooses settings with them. Bytes are those that torch allocates, except for the terms in `OUTSIDE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from turnwise.engines.prefill import ON_A_SMALL_GPU
from turnwise.learn.shapes import BIASED, KNOWN, ModelShape

START, COLLECT, LEARN, STEP, PUBLISH = PHASES = ("start", "collect", "learn", "step", "publish")
EVERY = 10**6  # layers: all of them
USABLE = 0.92  # of what is left for activations: an allocator cannot fill every gap
PAGES = int(0.15e9)  # of the allocator's pages that are in use in part
PLENTY = 0.6  # of what is left for activations: more is not taken for what saves little
MOST_TOKENS = 32768  # of a micro-batch: larger products are not faster
SIZES = (MOST_TOKENS, 24576, 16384, 8192, 4096, 2048)
FEWEST_TOKENS = 1024
FEW_TOKENS = 4096  # up to so many at once, logits are made in smaller pieces
LOGITS, FEW_LOGITS = 2**28, 2**26  # numbers of a piece of logits on a GPU
PAGE = 64  # tokens of a page of the engine's cache
SCALE = 4  # bytes, for every token and head of a cache in 8 bits
CONTEXT = int(0.9e9)  # CUDA itself, its libraries and the kernels
GRAPH = int(5e6)  # of a recorded decode step, outside torch; with CONTEXT, 0.88 to 0.92 GB were measured
LANES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # sizes of recorded decode steps
PROMPTS = (*range(32, 129, 32), *range(192, 513, 64), *range(640, 1025, 128), *range(1280, 2049, 256), *range(2560, 4097, 512))
PROMPT_WORK = 2e12  # tokens × weights: prompts beyond this are not recorded
FUSED = KNOWN  # families whose layers the learner runs itself
FOUR_BIT = 0.52  # bytes per weight: half a byte, and a scale for every 64 weights, itself in 8 bits
EIGHT_BIT = 2 * (1 + 4 / 128)  # bytes per weight: two moments of one byte, and a scale for every 128 of them
EXACT = 8  # bytes per weight: two moments in float32
CHUNK = 2**22  # weights that a step in chunks updates at once
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
OUTSIDE = ("CUDA context", "recorded steps", "allocator's gaps")

Place = Literal["device", "host"]


@dataclass(frozen=True)
class Beside:
    """A further model on the same GPU."""

    name: str
    parameters: int
    width: int = 2
    trained: bool = False


@dataclass(frozen=True)
class Demand:
    """What memory depends on.

    width             bytes of a number that is computed with
    rank, targets     of adapters; 0: all weights are trained
    four_bit          the weights below the adapters have 4 bits
    reference         a frozen copy: none, on the device, or in the host's memory (and on the device while it scores)
    moments, place    the optimiser's moments: float32 or 8bit, on the device or, with the float32 masters, in the host's memory
    shares            the engine computes with the learner's weights
    cache             bytes of keys and values; `sleeps`: they are released during an update. `cache_8bit`: they have 8 bits each
    slots, longest    rows of the engine, and tokens of the longest of them; `prefill` prompt tokens go through it at once
    tokens            of a micro-batch; a sequence of `sequence` tokens is never cut
    attention, mlp    layers, counted from the last, that keep what they computed for the backward pass
    inputs            layers, counted from the last, that keep the inputs of their products too, if there is far more room than needed
    piece             numbers of logits that exist at once
    responses         the share of a micro-batch's tokens that are sampled; 0 if the slopes of their log-probs are never kept
    slopes            these slopes are kept for the backward pass, which the learner does if there is room (`automatic_slopes`)
    fused             the learner's own layers, which take adapters too; otherwise those of transformers, which keep all or nothing
    """

    shape: ModelShape
    width: int = 2
    rank: int = 0
    targets: tuple[str, ...] = TARGETS
    four_bit: bool = False
    reference: Place | None = "device"
    moments: Literal["float32", "8bit"] = "float32"
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
    attention: int = EVERY
    mlp: int = EVERY
    inputs: int = 0
    piece: int = LOGITS
    responses: float = 0.0
    slopes: bool = False
    fused: bool = True
    beside: tuple[Beside, ...] = field(default=())

    @property
    def trained(self) -> int:
        """Trained parameters."""
        return adapter_parameters(self.shape, self.rank, self.targets) if self.rank else self.shape.parameters

    @property
    def apart(self) -> bool:
        """Whether the output layer's gradient is made apart from where it is added up: products add up those of weights in 16 bits."""
        return not self.rank and self.width >= 4

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
        """Bytes of a page of the engine's cache."""
        return page_bytes(self.shape, self.width, self.cache_8bit)

    @property
    def rows(self) -> int:
        """Rows of the longest length that the cache holds at the same time."""
        return min(self.slots, self.cache // self.page // pages_of(self.longest))


@dataclass(frozen=True)
class Term:
    """A named part of the memory, in bytes by phase."""

    name: str
    bytes: dict[str, int]

    @property
    def most(self) -> int:
        return max(self.bytes.values(), default=0)


def terms(demand: Demand) -> list[Term]:
    """All parts of the memory; those that are empty are left out."""
    found = [*_weights(demand), *_optimiser(demand), *_engine(demand), *_activations(demand)]
    found += [_always(f"model {own.name}", own.parameters * own.width) for own in demand.beside]
    found += [_always(f"optimiser of {own.name}", 16 * own.parameters) for own in demand.beside if own.trained]
    varying = {phase: sum(term.bytes.get(phase, 0) for term in found if term.name in VARYING) for phase in PHASES}
    gaps = {phase: PAGES + int((1 / USABLE - 1) * size) for phase, size in varying.items()}
    found += [Term("allocator's gaps", gaps), _always("CUDA context", CONTEXT)]
    return [term for term in found if term.most]


def totals(found: Sequence[Term]) -> dict[str, int]:
    """The sum of all terms in each phase."""
    return {phase: sum(term.bytes.get(phase, 0) for term in found) for phase in PHASES}


def peak(found: Sequence[Term]) -> tuple[str, int]:
    """The phase that needs most, and its bytes."""
    sums = totals(found)
    phase = max(PHASES, key=lambda name: sums[name])
    return phase, sums[phase]


def in_use(found: Sequence[Term]) -> int:
    """The peak of what torch counts as allocated."""
    return peak([term for term in found if term.name not in OUTSIDE])[1]


def _always(name: str, size: float) -> Term:
    return Term(name, dict.fromkeys(PHASES, int(size)))


def _during(name: str, size: float, *phases: str) -> Term:
    return Term(name, dict.fromkeys(phases, int(size)))


# -- weights ----------------------------------------------------------------------------------------------------------------------


def adapter_parameters(shape: ModelShape, rank: int, targets: Sequence[str] = TARGETS) -> int:
    """Parameters of low-rank adapters: rank × (inputs + outputs) of every layer that has one."""
    return shape.layers * rank * sum(sum(sizes[name]) for sizes in _joined_sizes(shape) for name in targets if name in sizes)


def engine_factors(shape: ModelShape, rank: int, targets: Sequence[str] = TARGETS) -> int:
    """Numbers of the engine's copy of adapters: those of layers that run as one are stacked, as blocks on a diagonal."""
    count = 0
    for sizes in _joined_sizes(shape):
        ranks = rank * sum(name in sizes for name in targets)
        count += ranks * (next(iter(sizes.values()))[0] + sum(outputs for _, outputs in sizes.values()))
    return shape.layers * count


def _joined_sizes(shape: ModelShape) -> list[dict[str, tuple[int, int]]]:
    """Inputs and outputs of the linear layers of a layer; those that read the same input together. Mixtures have adapters on attention
    only."""
    keys, gate = (shape.hidden, shape.keys), (shape.hidden, shape.mlp)
    attention = [{"q_proj": (shape.hidden, shape.queries), "k_proj": keys, "v_proj": keys}, {"o_proj": (shape.queries, shape.hidden)}]
    return attention if shape.experts else [*attention, {"gate_proj": gate, "up_proj": gate}, {"down_proj": (shape.mlp, shape.hidden)}]


def weight_bytes(demand: Demand) -> int:
    """The weights that a forward pass reads, without adapters. Experts are not packed."""
    shape = demand.shape
    packed = shape.linears if demand.four_bit else 0
    return int(packed * FOUR_BIT) + demand.width * (shape.parameters - packed)


def _weights(demand: Demand) -> list[Term]:
    shape, trained = demand.shape, demand.trained
    half = demand.width < 4
    copied = engine_factors(shape, demand.rank, demand.targets)
    copy = demand.width * shape.parameters if demand.reference is not None and not demand.rank else 0
    loaded = 4 * shape.head if demand.place == "device" else (4 - demand.width) * shape.parameters
    reference = _always("reference", copy) if demand.reference == "device" else Term("reference", {})
    found = [
        _always("weights", weight_bytes(demand)),
        _always("adapters", 4 * trained + (demand.width * copied if demand.shares else 0) if demand.rank else 0),
        _always("float32 masters", 4 * trained if half and not demand.rank and demand.place == "device" else 0),
        _during("weights as loaded", loaded if half and not demand.rank else 0, START),
        reference,
        _always("the engine's copy of the weights", 0 if demand.shares else demand.width * shape.parameters),
    ]
    return [*found, Term("a layer in 16 bits", unpacked_bytes(demand) if demand.four_bit else {})]


def unpacked_bytes(demand: Demand) -> dict[str, int]:
    """What is unpacked of weights of 4 bits at the same time; recorded steps have their own memory, and unpack each weight alone."""
    shape, joined = demand.shape, joined_bytes(demand.shape, demand.width)
    alone = demand.width * shape.hidden * max(shape.plain[1], shape.queries) if demand.graphs else 0
    return {COLLECT: joined + alone, LEARN: joined}


def joined_bytes(shape: ModelShape, width: int = 2) -> int:
    """The largest weight that is one product: gate and up, or query, key and value. Experts are not packed."""
    return width * shape.hidden * max(2 * shape.plain[1], shape.queries + 2 * shape.keys)


def _optimiser(demand: Demand) -> list[Term]:
    trained, packed, away = demand.trained, demand.moments == "8bit", demand.place == "host"
    per_weight = EIGHT_BIT if packed else EXACT
    chunk = (2 * CHUNK * (4 + per_weight) if away else 0) + (CHUNK * 40 if packed else 0)
    return [
        _during("gradients", 4 * trained, LEARN, STEP),
        _during("optimiser state", 0 if away else per_weight * trained, COLLECT, LEARN, STEP, PUBLISH),
        _during("a chunk of the optimiser", chunk, STEP),
    ]


def host_bytes(demand: Demand) -> int:
    """Bytes of the host's memory that stand for those of the device."""
    masters = 4 if demand.width < 4 and not demand.rank else 0
    state = (masters + (EIGHT_BIT if demand.moments == "8bit" else EXACT)) * demand.trained if demand.place == "host" else 0
    return int(state) + (demand.width * demand.shape.parameters if demand.reference == "host" else 0)


# -- the engine -------------------------------------------------------------------------------------------------------------------


def pages_of(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE)


def page_bytes(shape: ModelShape, width: int = 2, packed: bool = False) -> int:
    """Bytes of a page: keys and values of its tokens in all layers. `packed`: in 8 bits, with a scale for every head."""
    return PAGE * 2 * shape.layers * (shape.keys + SCALE * shape.key_heads if packed else width * shape.keys)


def wanted_cache(demand: Demand) -> int:
    """The most that the engine takes: twice the longest length for every row, so that finished rows can stay."""
    return (2 * demand.slots * pages_of(demand.longest) + 1) * demand.page


def recorded_prompts(shape: ModelShape) -> tuple[int, ...]:
    """The numbers of tokens for which the engine records steps with prompts: those that a host would issue too slowly."""
    return tuple(size for size in PROMPTS if size * shape.used <= PROMPT_WORK or size == PROMPTS[0])


def _engine(demand: Demand) -> list[Term]:
    shape, width = demand.shape, demand.width
    held = (COLLECT,) if demand.sleeps else (COLLECT, LEARN, STEP, PUBLISH)
    lanes = min(demand.slots, LANES[-1])
    prompts = recorded_prompts(shape) if demand.graphs and demand.slots else ()
    per_token = width * (4 * shape.hidden + shape.queries + 2 * shape.keys + 3 * shape.middle)
    step = demand.slots * 4 * shape.words + max((demand.slots, *prompts)) * per_token  # all share one pool of memory
    recorded = sum(size <= lanes for size in LANES) + len(prompts) if demand.graphs else 0
    prompt = demand.prefill * width * (3 * shape.middle + 3 * shape.hidden + 2 * shape.queries + 2 * shape.keys)
    drawn = demand.slots * 4 * shape.words
    biases = width * shape.layers * shape.keys * pages_of(demand.longest) * PAGE
    return [
        _during("rotated biases of keys", biases if demand.cache_8bit and shape.family in BIASED else 0, COLLECT, LEARN, STEP, PUBLISH),
        _during("engine's cache", demand.cache, *held),
        _during("decode steps", step, *held),
        _during("recorded steps", recorded * GRAPH, *held),
        _during("engine's prompts", prompt + drawn, COLLECT),
    ]


# -- the learner ------------------------------------------------------------------------------------------------------------------

VARYING = ("activations", "slopes of log-probs", "a layer's work", "logits", "engine's prompts")


def fused_bytes(shape: ModelShape, attention: int = EVERY, mlp: int = EVERY, inputs: int = 0, width: int = 2) -> int:
    """Bytes per token that the learner's own layers keep: the residual before each half, the scale of its norm, and what was asked for."""
    read = width * (2 * shape.queries + 2 * shape.keys) + 4 * shape.heads
    if shape.head_norms:  # heads are kept before their norms too
        read += width * (shape.queries + 2 * shape.keys)
    inside = min(attention, shape.layers) * read + 2 * width * sum(last(shape.middles, mlp))
    again = width * sum(last(_inputs(shape), inputs)) if inputs else 0
    residuals = shape.layers * (4 if shape.wrapped else 2) * (width * shape.hidden + 4)
    return residuals + shape.mixtures * _routing(shape, width) + inside + again


def _routing(shape: ModelShape, width: int) -> int:
    """Bytes per token of the chances of all experts, and of the chosen ones, with their places in the order of experts."""
    return 4 * shape.experts + (16 + width) * shape.active


def _inputs(shape: ModelShape) -> list[int]:
    """Numbers that are the inputs of a layer's products, for each layer. Of experts, none are kept."""
    return [shape.hidden if shape.mixed(number) else 2 * shape.hidden + middle for number, middle in enumerate(shape.middles)]


def last(values: Sequence[int], count: int) -> Sequence[int]:
    """The last so many of them, or all if there are fewer."""
    return values[max(0, len(values) - count) :]


def fused_work(shape: ModelShape) -> int:
    """Bytes per token of the backward pass of one half of a layer, in 16 bits."""
    return 8 * shape.middle + 16 * shape.hidden


def layer_bytes(shape: ModelShape, number: int = 0, rank: int = 0, width: int = 2) -> int:
    """Bytes per token that one layer of transformers keeps. Adapters on all linear layers read a float32 copy of each input; experts read
    and write a row for each of their tokens."""
    norms, scales, middle = 2 * (width + 4), 8, shape.middles[number]
    heads = 2 * width * shape.keys + 4 * shape.heads + (width + 4) * (shape.queries + shape.keys) * shape.head_norms
    experts = 2 * width * shape.active * shape.hidden + _routing(shape, width) if shape.mixed(number) else 0
    if rank:
        inner = (norms + 4 + 12) * shape.hidden + 4 * width * shape.queries + (3 * width + 4) * middle
        return inner + heads + experts + 28 * rank + scales
    return (norms + 3 * width) * shape.hidden + 2 * width * shape.queries + 4 * width * middle + heads + experts + scales


def kept_bytes(demand: Demand) -> int:
    """Bytes per token that a forward pass keeps for its backward pass."""
    shape = demand.shape
    if demand.fused:
        return fused_bytes(shape, demand.attention, demand.mlp, demand.inputs, demand.width)
    if min(demand.attention, demand.mlp) > 0:
        return sum(_layers(demand))
    return shape.layers * demand.width * shape.hidden


def work_bytes(demand: Demand) -> int:
    """Bytes per token of the backward pass of one layer; if nothing is kept of it, it is computed again first."""
    if demand.fused:
        return fused_work(demand.shape) * demand.width // 2 + 12 * demand.width * demand.rank  # what lies between an adapter's factors
    shape = demand.shape
    again = max(_layers(demand)) if min(demand.attention, demand.mlp) <= 0 else 0
    return again + demand.width * (5 * shape.middle + 8 * shape.hidden)


def _layers(demand: Demand) -> list[int]:
    return [layer_bytes(demand.shape, number, demand.rank, demand.width) for number in range(demand.shape.layers)]


def automatic_tokens(shape: ModelShape, room: float, keep: bool | None) -> int:
    """Tokens of a micro-batch: as many as are useful and fit with everything kept; if those are few, more with less kept."""
    largest = next((size for size in SIZES if fused_peak(shape, size) <= room), FEWEST_TOKENS)
    again = next((size for size in SIZES if fused_peak(shape, size, 0, 0) <= room), FEWEST_TOKENS)
    return largest if keep is True else again if keep is False else max(largest, min(again, MOST_TOKENS // 2))


def automatic_layers(shape: ModelShape, tokens: int, room: float) -> tuple[int, int]:
    """Layers that keep attention and MLP of so many tokens: first attention, which is small, then the MLPs of as many layers as fit."""
    layers = shape.layers
    for kept in (*((layers, number) for number in range(layers, -1, -1)), (0, 0)):
        if fused_peak(shape, tokens, *kept) <= room:
            break
    return kept


def automatic_inputs(shape: ModelShape, tokens: int, room: float, attention: int, mlp: int) -> int:
    """Layers that keep the inputs of their products too: normed states, and what the activation gave. It saves a pass over them each, far
    less than what else is kept, so only a part of the memory is taken for it, and only if everything else is kept."""
    if min(attention, mlp) < shape.layers:
        return 0
    return next((number for number in range(shape.layers, 0, -1) if fused_peak(shape, tokens, inputs=number) <= PLENTY * room), 0)


def automatic_slopes(shape: ModelShape, tokens: int, sampled: int, room: float, keep: bool | None) -> tuple[int, int] | None:
    """Layers that keep attention and MLP beside the slopes of so many log-probs; None if slopes are not kept. They come after attention and
    before MLPs; if everything is to be kept (`keep`), slopes are only if there is room for both."""
    if not sampled or keep is False:
        return None
    attention, mlp = automatic_layers(shape, tokens, room - slope_bytes(shape, sampled))
    return (attention, mlp) if attention and (keep is None or mlp == shape.layers) else None


def fused_peak(shape: ModelShape, tokens: int, attention: int = EVERY, mlp: int = EVERY, inputs: int = 0) -> int:
    """The peak of a micro-batch in the learner's own layers, in 16 bits."""
    return tokens * (fused_work(shape) + fused_bytes(shape, attention, mlp, inputs))


def recomputes(shape: ModelShape, tokens: int, room: float) -> bool:
    """Whether layers of transformers keep nothing of a micro-batch. A safe estimate: some families keep several float32 copies of a norm's
    input."""
    return tokens * (36 * shape.layers * shape.hidden + 10 * sum(shape.middles)) > room


def piece_of(tokens: int) -> int:
    """Numbers of a piece of logits if a recipe asks for so many tokens at once; 0: as many as fit."""
    return FEW_LOGITS if 0 < tokens <= FEW_TOKENS else LOGITS


def logits_bytes(shape: ModelShape, piece: int, apart: bool, slopes: bool = False) -> int:
    """A piece of logits with its gradient, or, with kept slopes, two pieces in the forward pass; and the output layer's gradient in float32
    if it is made `apart`, twice while a piece is added."""
    if slopes:
        return max(8 * piece, 6 * shape.head if apart else 0)
    return 8 * piece + (8 * shape.head if apart else 0)


def slope_bytes(shape: ModelShape, sampled: int, width: int = 2) -> int:
    """One number for each logit of these tokens: what saves the backward pass computing logits again. It saves twice as much time per byte
    as keeping the MLP of a layer does: 2 · hidden · words operations, and reading and writing logits in float32, for each token."""
    return width * shape.words * sampled


def _activations(demand: Demand) -> list[Term]:
    """Most is needed in the output layer, or in the first layer that the backward pass goes through; slopes are gone by then."""
    shape, tokens, whole = demand.shape, demand.read, not demand.rank
    slopes = slope_bytes(shape, demand.sampled, demand.width) if demand.slopes else 0
    logits = logits_bytes(shape, min(demand.piece, tokens * shape.words), demand.apart, demand.slopes)
    dense = demand.width * shape.head if whole and shape.tied and (demand.apart or not demand.fused) else 0  # of the embedding
    work = tokens * work_bytes(demand) + dense
    output = slopes + logits > work
    found = {"slopes of log-probs": slopes, "logits": logits} if output else {"a layer's work": work}
    return [_during("activations", tokens * kept_bytes(demand), LEARN), *(_during(name, size, LEARN) for name, size in found.items())]
