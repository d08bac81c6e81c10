"""Sampling on a GPU by one program per row: the rules of `kernels/sample.py`, without a sort. `sample_top_p.py` calls `_draw` for the rows
that it cannot decide from tiles; `draw_tokens` samples whole batches in this way and is what tests compare the other ways with.

One program per row passes over the logits, which stay in the GPU's cache, a few times: for the largest one, for the sum, for the cuts,
and for the token. A cut (top-k, top-p) is a distance from the largest logit; it is found by dividing the interval of possible distances
by eight in each pass until no number is left between its ends. The pass for the sum also tries some usual distances, and when few tokens
are left in the interval they are copied out, so that most passes are short. Tokens at exactly the cut are taken in the order of their
ids, as many as the rule allows. The uniform numbers are the same functions of seed and position as on a CPU, and the token is where the
cumulative sum in the order of ids passes the first of them that gives a token which is kept: the same as on a CPU except for rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.kernels import sample

BLOCK = 4096
WARPS = 16
STAGES = tl.constexpr(3)  # loads under way while a block is summed
WALKS = 12  # each leaves an eighth of the interval: 2^36 parts
FEW = 16384  # tokens that are copied and searched on their own
ATTEMPTS = tl.constexpr(sample.ATTEMPTS)
GOLDEN = tl.constexpr(sample.GOLDEN)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _first_number(seed, place):
    """The first number of the hash for a seed and a place, as an integer. `_next_number` gives those after it."""
    return _mix(_mix(seed.to(tl.uint64) + GOLDEN) + (place + 1).to(tl.uint64) * GOLDEN)


@triton.jit
def _next_number(mixed):
    return _mix(mixed + GOLDEN)


@triton.jit
def _share(mixed):
    """A number of the hash in [0, 1)."""
    return (mixed >> 12).to(tl.float64) * 2.220446049250313e-16  # 2^-52


@triton.jit
def _distance(row, column, size, inverse, top):
    """How far below the largest a logit is, at the row's temperature; exactly 0 for the largest itself, infinite outside the row."""
    value = tl.load(row + column, mask=column < size, other=float("-inf"))
    return (top - value) * inverse


@triton.jit
def _inner(row, size, inverse, top, cut, BLOCK: tl.constexpr):
    """The mass nearer than `cut`, and the number of tokens at exactly that distance."""
    column = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.float32)
    ties = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        d = _distance(row, start + column, size, inverse, top)
        mass += tl.where(d == cut, 0.0, tl.where(d > cut, 0.0, tl.exp(-d)))  # NaN stays NaN
        ties += tl.where(d == cut, 1.0, 0.0)
    return tl.sum(mass, 0), tl.sum(ties, 0)


@triton.jit
def _narrow(point, mass, target, low, high, within, enough):
    """The interval (low, high] with one more thing known: how much lies within `point`."""
    short = mass < target
    low, within = tl.where(short & (point > low), point, low), tl.where(short & (point > low), mass, within)
    better = (mass >= target) & (point < high)
    return low, tl.where(better, point, high), within, tl.where(better, mass, enough)


@triton.jit
def _masses(row, size, inverse, top, p1, p2, p3, p4, p5, p6, p7, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """One pass: how much mass (or how many tokens) lies within each of seven distances, and the whole of it."""
    column = tl.arange(0, BLOCK)
    nothing = tl.zeros([BLOCK], tl.float32)
    s1, s2, s3, s4 = nothing, nothing, nothing, nothing
    s5, s6, s7, whole = nothing, nothing, nothing, nothing
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        d = _distance(row, start + column, size, inverse, top)
        w = tl.where(d == d, 1.0, 0.0) if COUNT else tl.exp(-d)
        s1 += tl.where(d <= p1, w, 0.0)
        s2 += tl.where(d <= p2, w, 0.0)
        s3 += tl.where(d <= p3, w, 0.0)
        s4 += tl.where(d <= p4, w, 0.0)
        s5 += tl.where(d <= p5, w, 0.0)
        s6 += tl.where(d <= p6, w, 0.0)
        s7 += tl.where(d <= p7, w, 0.0)
        whole += w
    return (
        tl.sum(s1, 0), tl.sum(s2, 0), tl.sum(s3, 0), tl.sum(s4, 0), tl.sum(s5, 0), tl.sum(s6, 0), tl.sum(s7, 0), tl.sum(whole, 0)
    )  # fmt: skip


@triton.jit
def _divide(row, size, inverse, top, base, target, low, high, within, enough, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """An eighth of the interval, after one pass. `base` is the mass that is nearer than everything in the row of this pass."""
    step = (high - low) * 0.125
    p1, p2, p3, p4 = low + step, low + 2 * step, low + 3 * step, low + 4 * step
    p5, p6, p7 = low + 5 * step, low + 6 * step, low + 7 * step
    m1, m2, m3, m4, m5, m6, m7, _ = _masses(row, size, inverse, top, p1, p2, p3, p4, p5, p6, p7, COUNT, BLOCK)
    low, high, within, enough = _narrow(p1, base + m1, target, low, high, within, enough)
    low, high, within, enough = _narrow(p2, base + m2, target, low, high, within, enough)
    low, high, within, enough = _narrow(p3, base + m3, target, low, high, within, enough)
    low, high, within, enough = _narrow(p4, base + m4, target, low, high, within, enough)
    low, high, within, enough = _narrow(p5, base + m5, target, low, high, within, enough)
    low, high, within, enough = _narrow(p6, base + m6, target, low, high, within, enough)
    return _narrow(p7, base + m7, target, low, high, within, enough)


@triton.jit
def _open(walk, low, high, within, enough, COUNT: tl.constexpr, WALKS: tl.constexpr):
    """Whether the interval can be divided again: several tokens are left in it, and numbers between its ends."""
    middle = low + (high - low) * 0.5
    lightest = 1.0 if COUNT else tl.exp(-high)
    return (walk < WALKS) & (middle > low) & (middle < high) & (enough - within > 1.5 * lightest)


@triton.jit
def _many(high, within, enough, COUNT: tl.constexpr, FEW: tl.constexpr):
    """Whether there may be more tokens in the interval than are worth (and have room for) a copy."""
    return enough - within > 0.9 * FEW * (1.0 if COUNT else tl.exp(-high))


@triton.jit
def _gather(row, size, inverse, top, low, high, few, BLOCK: tl.constexpr, FEW: tl.constexpr):
    """Copy the distances inside the interval, negative, to `few`; returns how many they are."""
    column = tl.arange(0, BLOCK)
    count = size * 0
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        d = _distance(row, start + column, size, inverse, top)
        inside = ((d > low) & (d <= high)).to(tl.int32)
        place = count + tl.cumsum(inside, 0) - 1
        tl.store(few + place, -d, mask=(inside > 0) & (place < FEW))
        count += tl.sum(inside, 0)
    tl.debug_barrier()  # what one thread has written the others read
    return count


@triton.jit
def _cut(
    row, size, inverse, top, few, target, low, high, within, enough,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, WALKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """The smallest distance in (low, high] within which there is at least `target` of mass (or of tokens); how much lies nearer; and how
    much within it. `within` lies within `low`, `enough` within `high`. Done when a single token is left in the interval, or no number
    between its ends (tokens that tie). As soon as few tokens are left in it they are copied, and only the copies are searched."""
    walk = 0
    going = _open(walk, low, high, within, enough, COUNT, WALKS) & _many(high, within, enough, COUNT, FEW)
    while going:
        low, high, within, enough = _divide(row, size, inverse, top, within * 0.0, target, low, high, within, enough, COUNT, BLOCK)
        walk += 1
        going = _open(walk, low, high, within, enough, COUNT, WALKS) & _many(high, within, enough, COUNT, FEW)
    if _open(walk, low, high, within, enough, COUNT, WALKS):
        size = _gather(row, size, inverse, top, low, high, few, BLOCK, FEW)
        row, inverse, top = few, within * 0.0 + 1.0, within * 0.0
        base = within
        going = _open(walk, low, high, within, enough, COUNT, WALKS)
        while going:
            low, high, within, enough = _divide(row, size, inverse, top, base, target, low, high, within, enough, COUNT, BLOCK)
            walk += 1
            going = _open(walk, low, high, within, enough, COUNT, WALKS)
    if enough - within > 1.5 * (1.0 if COUNT else tl.exp(-high)):  # several: they tie, and `high` may be a hair beyond them
        column = tl.arange(0, BLOCK)
        farthest = tl.zeros([BLOCK], tl.float32)
        for start in tl.range(0, size, BLOCK, num_stages=STAGES):
            d = _distance(row, start + column, size, inverse, top)
            farthest = tl.maximum(farthest, tl.where(d <= high, d, 0.0))
        high = tl.max(farthest, 0)
    return high, within, enough


@triton.jit
def _first_guess(row, size, inverse, top, top_p, farthest, BLOCK: tl.constexpr):
    """The whole mass; and, from the same pass, the interval between the two of some usual distances where the cut of top-p lies."""
    m1, m2, m3, m4, m5, m6, m7, whole = _masses(row, size, inverse, top, 0.0, 0.7, 1.5, 2.5, 4.0, 6.0, 9.0, False, BLOCK)
    target = top_p * whole
    low, high = whole * 0.0 - 1.0, farthest
    within, enough = whole * 0.0, whole
    low, high, within, enough = _narrow(0.0, m1, target, low, high, within, enough)
    low, high, within, enough = _narrow(0.7, m2, target, low, high, within, enough)
    low, high, within, enough = _narrow(1.5, m3, target, low, high, within, enough)
    low, high, within, enough = _narrow(2.5, m4, target, low, high, within, enough)
    low, high, within, enough = _narrow(4.0, m5, target, low, high, within, enough)
    low, high, within, enough = _narrow(6.0, m6, target, low, high, within, enough)
    low, high, within, enough = _narrow(9.0, m7, target, low, high, within, enough)
    return whole, low, high, within, enough


@triton.jit
def _draw(
    logits, slots, places, floats, integers, last, tokens, logprobs, scratch, row_stride, size,
    BLOCK: tl.constexpr, WALKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    seq = tl.program_id(0)
    row = logits + seq.to(tl.int64) * row_stride
    few = scratch + seq.to(tl.int64) * FEW
    slot = tl.load(slots + seq).to(tl.int64)
    inverse = 1.0 / tl.load(floats + slot * 3)  # of the temperature
    top_p = tl.load(floats + slot * 3 + 1)
    min_p = tl.load(floats + slot * 3 + 2)
    greedy = tl.load(integers + slot * 3)
    top_k = tl.load(integers + slot * 3 + 1)
    column = tl.arange(0, BLOCK)

    best = tl.full([BLOCK], float("-inf"), tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        value = tl.load(row + start + column, mask=start + column < size, other=float("-inf"))
        where = tl.where(value > best, start + column, where)
        best = tl.maximum(best, value)
        least = tl.minimum(least, tl.where(value > float("-inf"), value, float("inf")))
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, where, size - 1), 0)
    cut = (top - tl.min(least, 0)) * inverse
    whole, low, high, within, enough = _first_guess(row, size, inverse, top, top_p, cut, BLOCK)

    if greedy == 0:
        ties = size.to(tl.float32)  # how many tokens at exactly that distance may be drawn
        kept = whole
        if top_k < size:
            zero = whole * 0.0
            wanted = top_k.to(tl.float32)
            cut, nearer, _ = _cut(row, size, inverse, top, few, wanted, zero - 1.0, cut, zero, zero + size, True, BLOCK, WALKS, FEW)
            inner, tied = _inner(row, size, inverse, top, cut, BLOCK)
            ties = wanted - nearer
            kept = inner + tl.minimum(ties, tied) * tl.exp(-cut)
            low, high, within, enough = zero - 1.0, cut, zero, zero + float("inf")
        if top_p < 1.0:
            target = top_p * kept
            bound = tl.maximum(-tl.log((1.0 - top_p) * kept / size) * 1.0001 + 1e-3, 0.0)  # all that lies farther is less than 1 - top_p
            enough = tl.where(bound < high, float("inf"), enough)
            high = tl.minimum(high, bound)
            nearest, within, enough = _cut(row, size, inverse, top, few, target, low, high, within, enough, False, BLOCK, WALKS, FEW)
            one = tl.exp(-nearest)
            allowed = tl.maximum(tl.ceil((target - within) / one), 1.0)
            several = tl.where(enough - within > 1.5 * one, tl.minimum(enough, within + allowed * one), enough)
            kept = tl.minimum(kept, several)
            ties = tl.where(nearest < cut, allowed, tl.minimum(ties, allowed))
            cut = tl.minimum(nearest, cut)
        likely = tl.where(min_p > 0, -tl.log(tl.maximum(min_p, 1e-38)), float("inf"))
        truncated = (top_k < size) | (top_p < 1.0) | (min_p > 0)
        if min_p > 0:
            kept = _total(row, size, inverse, top, cut, ties, likely, BLOCK)
        mixed = _first_number(tl.load(integers + slot * 3 + 2), tl.load(places + seq))
        attempt = size * 0
        going = greedy == 0
        while going:
            only = truncated & (attempt == ATTEMPTS)  # of the tokens that are left
            chosen = _pick(
                row, size, inverse, top, cut, ties, likely, only, _share(mixed) * tl.where(only, kept, whole).to(tl.float64), BLOCK
            )  # fmt: skip
            d = (top - tl.load(row + chosen)) * inverse
            going = truncated & (attempt < ATTEMPTS) & ((d > cut) | (d > likely) | ~(d == d))
            if truncated & (d == cut):
                going = going | ((attempt < ATTEMPTS) & (_ties_before(row, size, inverse, top, cut, chosen, BLOCK) >= ties))
            attempt += 1
            mixed = _next_number(mixed)

    tl.store(tokens + seq, chosen.to(tl.int64))
    tl.store(last + slot, chosen.to(tl.int64))
    tl.store(logprobs + seq, (tl.load(row + chosen) - top) * inverse - tl.log(whole))


@triton.jit
def _total(row, size, inverse, top, cut, ties, likely, BLOCK: tl.constexpr):
    """The mass of all tokens that may be drawn."""
    column = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.float32)
    tied = tl.full([], 0.0, tl.float32)
    for start in range(0, size, BLOCK):
        weight, tied = _kept(row, start + column, size, inverse, top, cut, ties, likely, True, tied)
        mass += weight
    return tl.sum(mass, 0)


@triton.jit
def _ties_before(row, size, inverse, top, cut, chosen, BLOCK: tl.constexpr):
    """How many tokens with a smaller id than this one are at exactly the cut."""
    column = tl.arange(0, BLOCK)
    tied = tl.zeros([BLOCK], tl.float32)
    for start in range(0, chosen, BLOCK):
        d = _distance(row, start + column, size, inverse, top)
        tied += ((d == cut) & (start + column < chosen)).to(tl.float32)
    return tl.sum(tied, 0)


@triton.jit
def _pick(row, size, inverse, top, cut, ties, likely, truncated, threshold, BLOCK: tl.constexpr):
    """The token at which the sum over those that may be drawn passes the threshold."""
    column = tl.arange(0, BLOCK)
    before = tl.full([], 0.0, tl.float64)
    tied = tl.full([], 0.0, tl.float32)
    chosen = size
    latest = size * 0
    start = size * 0
    while (chosen == size) & (start < size):
        weight, tied = _kept(row, start + column, size, inverse, top, cut, ties, likely, truncated, tied)
        whole = before + tl.sum(weight, 0).to(tl.float64)
        if whole > threshold:
            passed = (before + tl.cumsum(weight, 0).to(tl.float64) > threshold) & (weight > 0)
            chosen = tl.min(tl.where(passed, start + column, size), 0)
        latest = tl.maximum(latest, tl.max(tl.where(weight > 0, start + column, 0), 0))
        before = whole
        start += BLOCK
    return tl.where(chosen == size, latest, chosen)  # rounding can leave the threshold a hair above the last sum


@triton.jit
def _kept(row, column, size, inverse, top, cut, ties, likely, truncated, tied):
    """The weights of a block's tokens, 0 where a rule excludes them; and the number of tokens at the cut up to here."""
    d = _distance(row, column, size, inverse, top)
    weight = tl.exp(-d)
    if truncated:
        at_cut = (d == cut).to(tl.float32)
        rank = tied + tl.cumsum(at_cut, 0) - at_cut
        keep = ((d < cut) | ((at_cut > 0) & (rank < ties))) & (d <= likely)
        weight = tl.where(keep, weight, 0.0)
        tied += tl.sum(at_cut, 0)
    return weight, tied


def draw_tokens(
    logits: Tensor, slots: Tensor, places: Tensor, floats: Tensor, integers: Tensor, last: Tensor, tokens: Tensor, logprobs: Tensor
) -> None:
    """One token and its log-prob for every row of `logits` (float32). The settings are columns by slot: `floats` temperature, top-p,
    min-p; `integers` greedy, top-k (the vocabulary's size for none), seed. The token is also noted as the slot's last one."""
    rows, size = logits.shape
    scratch = torch.empty(rows, FEW, dtype=torch.float32, device=logits.device)
    _draw[(rows,)](
        logits, slots, places, floats, integers, last, tokens, logprobs, scratch, logits.stride(0), size,
        BLOCK=min(BLOCK, triton.next_power_of_2(size)), WALKS=WALKS, FEW=FEW, num_warps=WARPS,
    )  # fmt: skip
