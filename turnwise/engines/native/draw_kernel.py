"""The draw on a GPU: the rules of `turnwise.engines.sampling`, without a sort.

One program a row walks over the logits, which stay in the GPU's cache, a few times: for the largest one, for the sum, for the cuts, and
for the token. A cut (top-k, top-p) is a distance from the largest logit; it is found by dividing the interval of possible distances
by eight in each walk until no number is left between its ends. Tokens at exactly that distance are taken in the order of their ids, as
many as the rule allows. The uniform number is the same function of seed and place as on a CPU, and the token is where the cumulative
sum over the kept tokens, in the order of their ids, passes it: the same tokens as on a CPU but for rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

BLOCK = 4096
STAGES = tl.constexpr(3)  # loads under way while a block is summed
WALKS = 11  # each leaves an eighth of the interval: 2^32 numbers


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(seed, place):
    golden = 0x9E3779B97F4A7C15
    mixed = _mix(_mix(seed.to(tl.uint64) + golden) + (place + 1).to(tl.uint64) * golden)
    return (mixed >> 12).to(tl.float64) * 2.220446049250313e-16  # 2^-52


@triton.jit
def _distance(row, column, size, inverse, top):
    """How far below the largest a logit is; infinite outside the row."""
    value = tl.load(row + column, mask=column < size, other=float("-inf"))
    return top - value * inverse


@triton.jit
def _inner(row, size, inverse, top, cut, BLOCK: tl.constexpr):
    """The mass nearer than `cut`, and the number of tokens at exactly that distance."""
    column = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], tl.float32)
    ties = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        d = _distance(row, start + column, size, inverse, top)
        mass += tl.where(d == cut, 0.0, tl.where(d > cut, 0.0, tl.exp(-d)))  # what is not a number stays one
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
def _cut(row, size, inverse, top, high, target, COUNT: tl.constexpr, BLOCK: tl.constexpr, WALKS: tl.constexpr):
    """The smallest distance within which there is at least `target` of mass (or of tokens); how much lies nearer; and how much within it.
    Within `high` there is enough. Done when a single token is left in the interval, or no number between its ends (tokens that tie)."""
    column = tl.arange(0, BLOCK)
    low = high * 0.0 - 1.0
    within = high * 0.0
    enough = within + float("inf")
    nothing = tl.zeros([BLOCK], tl.float32)
    walk = 0
    going = high > low
    while going:
        step = (high - low) * 0.125
        p1, p2, p3, p4 = low + step, low + 2 * step, low + 3 * step, low + 4 * step
        p5, p6, p7 = low + 5 * step, low + 6 * step, low + 7 * step
        s1, s2, s3, s4 = nothing, nothing, nothing, nothing
        s5, s6, s7 = nothing, nothing, nothing
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
        low, high, within, enough = _narrow(p1, tl.sum(s1, 0), target, low, high, within, enough)
        low, high, within, enough = _narrow(p2, tl.sum(s2, 0), target, low, high, within, enough)
        low, high, within, enough = _narrow(p3, tl.sum(s3, 0), target, low, high, within, enough)
        low, high, within, enough = _narrow(p4, tl.sum(s4, 0), target, low, high, within, enough)
        low, high, within, enough = _narrow(p5, tl.sum(s5, 0), target, low, high, within, enough)
        low, high, within, enough = _narrow(p6, tl.sum(s6, 0), target, low, high, within, enough)
        low, high, within, enough = _narrow(p7, tl.sum(s7, 0), target, low, high, within, enough)
        walk += 1
        middle = low + (high - low) * 0.5
        lightest = 1.0 if COUNT else tl.exp(-high)
        going = (walk < WALKS) & (middle > low) & (middle < high) & (enough - within > 1.5 * lightest)
    if enough - within > 1.5 * (1.0 if COUNT else tl.exp(-high)):  # several: they tie, and `high` may be a hair beyond them
        farthest = nothing
        for start in tl.range(0, size, BLOCK, num_stages=STAGES):
            d = _distance(row, start + column, size, inverse, top)
            farthest = tl.maximum(farthest, tl.where(d <= high, d, 0.0))
        high = tl.max(farthest, 0)
    return high, within, enough


@triton.jit
def _draw(
    logits, seats, places, floats, integers, last, tokens, logprobs, row_stride, size,
    BLOCK: tl.constexpr, WALKS: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0)
    row = logits + lane.to(tl.int64) * row_stride
    seat = tl.load(seats + lane).to(tl.int64)
    inverse = 1.0 / tl.load(floats + seat * 3)  # of the temperature
    top_p = tl.load(floats + seat * 3 + 1)
    min_p = tl.load(floats + seat * 3 + 2)
    greedy = tl.load(integers + seat * 3)
    top_k = tl.load(integers + seat * 3 + 1)
    column = tl.arange(0, BLOCK)

    best = tl.full([BLOCK], float("-inf"), tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        inside = start + column < size
        value = tl.load(row + start + column, mask=inside, other=float("-inf")) * inverse
        where = tl.where(value > best, start + column, where)
        best = tl.maximum(best, value)
        least = tl.minimum(least, tl.where(inside, value, float("inf")))
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, where, size - 1), 0)
    whole, _ = _inner(row, size, inverse, top, float("inf"), BLOCK)

    if greedy == 0:
        cut = top - tl.min(least, 0)
        ties = size.to(tl.float32)  # how many tokens at exactly that distance may be drawn
        kept = whole
        if top_k < size:
            cut, within, _ = _cut(row, size, inverse, top, cut, top_k.to(tl.float32), True, BLOCK, WALKS)
            inner, tied = _inner(row, size, inverse, top, cut, BLOCK)
            ties = top_k.to(tl.float32) - within
            kept = inner + tl.minimum(ties, tied) * tl.exp(-cut)
        if top_p < 1.0:
            target = top_p * kept
            bound = tl.minimum(cut, -tl.log((1.0 - top_p) * kept / size) * 1.0001 + 1e-3)
            nearer, within, enough = _cut(row, size, inverse, top, tl.maximum(bound, 0.0), target, False, BLOCK, WALKS)
            one = tl.exp(-nearer)
            allowed = tl.maximum(tl.ceil((target - within) / one), 1.0)
            several = tl.where(enough - within > 1.5 * one, tl.minimum(enough, within + allowed * one), enough)
            kept = tl.minimum(kept, several)
            ties = tl.where(nearer < cut, allowed, tl.minimum(ties, allowed))
            cut = tl.minimum(nearer, cut)
        likely = tl.where(min_p > 0, -tl.log(tl.maximum(min_p, 1e-38)), float("inf"))
        truncated = (top_k < size) | (top_p < 1.0) | (min_p > 0)
        if min_p > 0:
            kept = _total(row, size, inverse, top, cut, ties, likely, BLOCK)
        share = _uniform(tl.load(integers + seat * 3 + 2), tl.load(places + lane))
        chosen = _pick(row, size, inverse, top, cut, ties, likely, truncated, share * kept.to(tl.float64), BLOCK)

    value = tl.load(row + chosen) * inverse
    tl.store(tokens + lane, chosen.to(tl.int64))
    tl.store(last + seat, chosen.to(tl.int64))
    tl.store(logprobs + lane, value - top - tl.log(whole))


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
    logits: Tensor, seats: Tensor, places: Tensor, floats: Tensor, integers: Tensor, last: Tensor, tokens: Tensor, logprobs: Tensor
) -> None:
    """One token and its log-prob for every row of `logits` (float32). The settings are columns by seat: `floats` temperature, top-p,
    min-p; `integers` greedy, top-k (the vocabulary's size for none), seed. The token is also noted as the seat's last one."""
    rows, size = logits.shape
    _draw[(rows,)](
        logits, seats, places, floats, integers, last, tokens, logprobs, logits.stride(0), size,
        BLOCK=min(BLOCK, triton.next_power_of_2(size)), WALKS=WALKS, num_warps=16 if logits.is_cuda else 4,
    )  # fmt: skip
