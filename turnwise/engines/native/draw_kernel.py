"""The draw on a GPU: the rules of `turnwise.engines.sampling`, without a sort.

One program a row walks over the logits, which stay in the GPU's cache, a few times: for the largest one, for the sum, for the cuts, and
for the token. A cut (top-k, top-p) is a distance from the largest logit; it is found by dividing the interval of possible distances
by four in each walk until no number is left between its ends. Tokens at exactly that distance are taken in the order of their ids, as
many as the rule allows. The uniform number is the same function of seed and place as on a CPU, and the token is where the cumulative sum over
the kept tokens, in the order of their ids, passes it: the same tokens as on a CPU but for rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

BLOCK = 4096
WALKS = 16  # each leaves a quarter of the interval: 2^32 numbers


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
def _distance(row, column, size, temperature, top):
    """How far below the largest a logit is; infinite outside the row."""
    value = tl.load(row + column, mask=column < size, other=float("-inf"))
    return top - value / temperature


@triton.jit
def _cut(row, size, temperature, top, low, high, target, COUNT: tl.constexpr, BLOCK: tl.constexpr, WALKS: tl.constexpr):
    """The smallest distance within which there is at least `target` of mass (or of tokens), between `low` (too little within it, or -1)
    and `high` (enough within it); and how much lies strictly within it."""
    column = tl.arange(0, BLOCK)
    within = 0.0
    going = True
    walk = 0
    while going:
        step = (high - low) * 0.25
        p1, p2, p3 = low + step, low + 2 * step, low + 3 * step
        s1 = tl.zeros([BLOCK], tl.float32)
        s2 = tl.zeros([BLOCK], tl.float32)
        s3 = tl.zeros([BLOCK], tl.float32)
        for start in range(0, size, BLOCK):
            d = _distance(row, start + column, size, temperature, top)
            w = tl.where(d == d, 1.0, 0.0) if COUNT else tl.exp(-d)
            s1 += tl.where(d <= p1, w, 0.0)
            s2 += tl.where(d <= p2, w, 0.0)
            s3 += tl.where(d <= p3, w, 0.0)
        m1, m2, m3 = tl.sum(s1, 0), tl.sum(s2, 0), tl.sum(s3, 0)
        if m1 >= target:
            high = p1
        elif m2 >= target:
            low, high, within = p1, p2, m1
        elif m3 >= target:
            low, high, within = p2, p3, m2
        else:
            low, within = p3, m3
        walk += 1
        middle = low + (high - low) * 0.5
        going = (walk < WALKS) & (middle > low) & (middle < high)
    return high, within


@triton.jit
def _draw(
    logits, seats, places, floats, integers, last, tokens, logprobs, row_stride, size,
    BLOCK: tl.constexpr, WALKS: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0)
    row = logits + lane.to(tl.int64) * row_stride
    seat = tl.load(seats + lane).to(tl.int64)
    temperature = tl.load(floats + seat * 3)
    top_p = tl.load(floats + seat * 3 + 1)
    min_p = tl.load(floats + seat * 3 + 2)
    greedy = tl.load(integers + seat * 3)
    top_k = tl.load(integers + seat * 3 + 1)
    column = tl.arange(0, BLOCK)

    best = tl.full([BLOCK], float("-inf"), tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    where = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        inside = start + column < size
        value = tl.load(row + start + column, mask=inside, other=float("-inf")) / temperature
        where = tl.where(value > best, start + column, where)
        best = tl.maximum(best, value)
        least = tl.minimum(least, tl.where(inside, value, float("inf")))
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, where, size - 1), 0)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        mass += tl.exp(-_distance(row, start + column, size, temperature, top))
    whole = tl.sum(mass, 0)

    if greedy == 0:
        farthest = top - tl.min(least, 0)
        cut = farthest
        ties = size.to(tl.float32)  # how many tokens at exactly that distance
        kept = whole
        if top_k < size:
            cut, within = _cut(row, size, temperature, top, -1.0, cut, top_k.to(tl.float32), True, BLOCK, WALKS)
            ties = top_k.to(tl.float32) - within
            inner = tl.zeros([BLOCK], tl.float32)
            for start in range(0, size, BLOCK):
                d = _distance(row, start + column, size, temperature, top)
                inner += tl.where(d < cut, tl.exp(-d), 0.0)
            kept = tl.sum(inner, 0) + ties * tl.exp(-cut)
        if top_p < 1.0:
            target = top_p * kept
            bound = tl.minimum(cut, -tl.log((1.0 - top_p) * kept / size) * 1.0001 + 1e-3)
            nearer, within = _cut(row, size, temperature, top, -1.0, tl.maximum(bound, 0.0), target, False, BLOCK, WALKS)
            allowed = tl.maximum(tl.ceil((target - within) / tl.exp(-nearer)), 1.0)
            ties = tl.where(nearer < cut, allowed, tl.minimum(ties, allowed))
            cut = tl.minimum(nearer, cut)
        likely = tl.where(min_p > 0, -tl.log(tl.maximum(min_p, 1e-38)), float("inf"))
        truncated = (top_k < size) | (top_p < 1.0) | (min_p > 0)
        seed = tl.load(integers + seat * 3 + 2)
        chosen = _pick(row, size, temperature, top, cut, ties, likely, truncated, _uniform(seed, tl.load(places + lane)), BLOCK)

    value = tl.load(row + chosen) / temperature
    tl.store(tokens + lane, chosen.to(tl.int64))
    tl.store(last + seat, chosen.to(tl.int64))
    tl.store(logprobs + lane, value - top - tl.log(whole))


@triton.jit
def _pick(row, size, temperature, top, cut, ties, likely, truncated, uniform, BLOCK: tl.constexpr):
    """The token at which the sum over kept tokens passes `uniform` times their whole sum. Two walks: the sum, then the place."""
    column = tl.arange(0, BLOCK)
    total = tl.full([], 0.0, tl.float64)
    tied = tl.full([], 0.0, tl.float32)
    for start in range(0, size, BLOCK):
        weight, tied = _kept(row, start + column, size, temperature, top, cut, ties, likely, truncated, tied)
        total += tl.sum(weight, 0).to(tl.float64)
    threshold = uniform * total
    before = tl.full([], 0.0, tl.float64)
    tied = tl.full([], 0.0, tl.float32)
    chosen = size
    latest = size * 0
    start = size * 0
    while (chosen == size) & (start < size):
        weight, tied = _kept(row, start + column, size, temperature, top, cut, ties, likely, truncated, tied)
        passed = (before + tl.cumsum(weight, 0).to(tl.float64) > threshold) & (weight > 0)
        chosen = tl.min(tl.where(passed, start + column, size), 0)
        latest = tl.maximum(latest, tl.max(tl.where(weight > 0, start + column, 0), 0))
        before += tl.sum(weight, 0).to(tl.float64)
        start += BLOCK
    return tl.where(chosen == size, latest, chosen)  # rounding can leave the threshold a hair above the last sum


@triton.jit
def _kept(row, column, size, temperature, top, cut, ties, likely, truncated, tied):
    """The weights of a block's tokens, 0 where a rule excludes them; and the number of tokens at the cut up to here."""
    d = _distance(row, column, size, temperature, top)
    weight = tl.exp(-d)
    if truncated:
        at_cut = (d == cut).to(tl.float32)
        rank = tied + tl.cumsum(at_cut, 0) - at_cut
        keep = ((d < cut) | ((at_cut > 0) & (rank < ties))) & (d <= likely) | (d == 0.0)
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
