"""Sampling on a GPU by one program per row: the rules of `kernels/sample.py`, without a sort. `sample_top_p.py` calls `_draw` for the rows
that it cannot decide from tiles; `draw_tokens` samples whole batches in this way and is what tests compare the other ways with.

One program per row passes over the logits, which stay in the GPU's cache, many times: for the largest one, for the sum, for the cuts, and
for the token. A cut (top-k, top-p) is a distance from the largest logit; it is found by bisection, in 31 passes at most. Tokens at exactly
the cut are taken in the order of their ids, as many as the rule allows. The uniform numbers are the same functions of seed and position as
on a CPU, and the token is where the cumulative sum in the order of ids passes the first of them that gives a token which is kept: the same
as on a CPU except for rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.kernels import sample

BLOCK = 4096
WARPS = 16
STAGES = tl.constexpr(3)  # loads under way while a block is summed
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
def _within(row, size, inverse, top, point, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """How much mass (or how many tokens) lies within a distance."""
    column = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        d = _distance(row, start + column, size, inverse, top)
        found += tl.where(d > point, 0.0, 1.0 if COUNT else tl.exp(-d))  # NaN stays NaN
    return tl.sum(found, 0)


@triton.jit
def _cut(row, size, inverse, top, target, farthest, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest distance, at most `farthest`, within which there is at least `target` of mass (or of tokens); and how much lies nearer.
    Distances are not negative, so their bits, read as integers, have the same order: the interval of these is halved."""
    low, high = size * 0 - 1, farthest.to(tl.int32, bitcast=True)
    nearer = target * 0.0
    while high - low > 1:
        middle = low + (high - low) // 2
        found = _within(row, size, inverse, top, middle.to(tl.float32, bitcast=True), COUNT, BLOCK)
        enough = found >= target
        low, nearer = tl.where(enough, low, middle), tl.where(enough, nearer, found)
        high = tl.where(enough, middle, high)
    return high.to(tl.float32, bitcast=True), nearer


@triton.jit
def _draw(logits, slots, places, floats, integers, last, tokens, logprobs, row_stride, size, BLOCK: tl.constexpr):
    seq = tl.program_id(0)
    row = logits + seq.to(tl.int64) * row_stride
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
    whole = _within(row, size, inverse, top, float("inf"), False, BLOCK)

    if greedy == 0:
        ties = size.to(tl.float32)  # how many tokens at exactly that distance may be drawn
        likely = tl.where(min_p > 0, -tl.log(tl.maximum(min_p, 1e-38)), float("inf"))
        truncated = (top_k < size) | (top_p < 1.0) | (min_p > 0)
        kept = whole
        if top_k < size:
            wanted = top_k.to(tl.float32)
            cut, nearer = _cut(row, size, inverse, top, wanted, cut, True, BLOCK)
            ties = wanted - nearer
            kept = _total(row, size, inverse, top, cut, ties, float("inf"), BLOCK)
        if top_p < 1.0:
            nearest, nearer = _cut(row, size, inverse, top, top_p * kept, cut, False, BLOCK)
            allowed = tl.maximum(tl.ceil((top_p * kept - nearer) * tl.exp(nearest)), 1.0)
            ties = tl.where(nearest < cut, allowed, tl.minimum(ties, allowed))
            cut = nearest
        mixed = _first_number(tl.load(integers + slot * 3 + 2), tl.load(places + seq))
        attempt = size * 0
        going = greedy == 0
        while going:
            only = truncated & (attempt == ATTEMPTS)  # of the tokens that are left
            mass = whole
            if only:
                mass = _total(row, size, inverse, top, cut, ties, likely, BLOCK)
            chosen = _pick(row, size, inverse, top, cut, ties, likely, only, _share(mixed) * mass.to(tl.float64), BLOCK)
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
    _draw[(rows,)](
        logits, slots, places, floats, integers, last, tokens, logprobs, logits.stride(0), size,
        BLOCK=min(BLOCK, triton.next_power_of_2(size)), num_warps=WARPS,
    )  # fmt: skip
