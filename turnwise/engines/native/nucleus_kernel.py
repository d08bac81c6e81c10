"""The draw with top-p in tiles, by many programs per row.

`draw_kernel` has one program per row, which passes over its logits half a dozen times. Here every token is read twice. A first kernel sums
up tiles, as where nothing is truncated. A second one looks at a sample of each tile and guesses between which two distances from the
largest logit the cut of top-p lies. A third reads all logits again: it sums what is nearer than that interval and copies the distances
that are inside. A fourth one finds the cut among the copies, then the tile in which the cumulative sum passes the row's uniform number,
and looks at this tile alone.

The guess decides about time only. If the sums show that the cut lies elsewhere, if more tokens are in the interval than there is room for,
and for rows with top-k or min-p, a last kernel does what `draw_kernel` does. Token and log-prob are those of `draw_kernel` except for
rounding.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

from turnwise.engines.native.draw_kernel import BLOCK, FEW, WALKS, WARPS, _distance, _divide, _draw, _kept, _open, _uniform
from turnwise.engines.native.head_kernel import TILE, Drawing, _of_logits, _room

SAMPLED = 16  # one of so many tokens is in the sample
ROOM = 2  # one of so many tokens of a tile has room in the interval
JOINED, NARROW, FINDERS = 4096, 1024, 8  # where the cut is found: numbers that are joined and searched at once, and warps
SEARCHES = tl.constexpr(14)  # halvings of the interval in which a distance is guessed
DOUBT, MOST_DOUBT = tl.constexpr(4.0), tl.constexpr(0.7)  # standard errors of the mass beyond the cut, as the sample has it; the most of it
SOME = tl.constexpr(24.0)  # tokens of the sample that are within the farther end, so that no large one is beyond it unseen
ALL = tl.constexpr(1024.0)  # tokens; if no more are within the farther end, the interval begins with the largest


@triton.jit
def _tiles_of(tops, sums, lane, inverse, tiles, TILES: tl.constexpr):
    """The largest logit of a row, and the mass of each tile relative to it."""
    tile = tl.arange(0, TILES)
    highest = tl.load(tops + lane * tiles + tile, mask=tile < tiles, other=float("-inf"))
    top = tl.max(highest, 0)
    return highest, top, tl.load(sums + lane * tiles + tile, mask=tile < tiles, other=0.0) * tl.exp((highest - top) * inverse)


@triton.jit
def _halve(d, weight, mass, low, high):
    """Half of (low, high]: the smallest distance beyond which there is no more than so much mass lies in it."""
    middle = (low + high) * 0.5
    enough = tl.sum(tl.where(d > middle, weight, 0.0), 0) <= mass
    return tl.where(enough, low, middle), tl.where(enough, middle, high)


@triton.jit
def _guess(
    logits, slots, floats, integers, tops, sums, guesses, row_stride, size, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr, SAMPLE: tl.constexpr, ALL_SAMPLES: tl.constexpr,
):  # fmt: skip
    """Where the cut of a row lies: (low, high], as distances from its largest logit. Without top-p alone, high is below low."""
    lane = tl.program_id(0)
    slot = tl.load(slots + lane).to(tl.int64)
    inverse = 1.0 / tl.load(floats + slot * 3)
    top_p, min_p = tl.load(floats + slot * 3 + 1), tl.load(floats + slot * 3 + 2)
    greedy, top_k = tl.load(integers + slot * 3), tl.load(integers + slot * 3 + 1)
    _highest, top, mass = _tiles_of(tops, sums, lane, inverse, tiles, TILES)
    whole = tl.sum(mass, 0)
    low, high = whole * 0.0 - 1.0, whole * 0.0 - 2.0
    if (greedy == 0) & (top_p < 1.0) & (top_k >= size) & (min_p <= 0.0):
        index = tl.arange(0, ALL_SAMPLES)
        column = index // SAMPLE * TILE + index % SAMPLE
        d = _distance(logits + lane.to(tl.int64) * row_stride, column, size, inverse, top)
        weight = tl.exp(-d) * (TILE // SAMPLE)
        beyond = (1.0 - top_p) * whole
        bound = tl.maximum(-tl.log(beyond / size) * 1.0001 + 1e-3, 0.0)  # all that lies farther is less than 1 - top_p
        guess, guess_end, some, some_end = bound * 0.0, bound, bound * 0.0, bound
        for _search in range(SEARCHES):
            guess, guess_end = _halve(d, weight, beyond, guess, guess_end)
            middle = (some + some_end) * 0.5
            enough = tl.sum((d <= middle).to(tl.float32), 0) >= SOME
            some, some_end = tl.where(enough, some, middle), tl.where(enough, middle, some_end)
        rest = tl.where(d > guess_end, weight, 0.0)
        sampled = tl.sum(rest, 0)
        error = tl.sqrt(tl.sum(rest * rest, 0)) / tl.maximum(sampled, 1e-30)  # of the sampled mass beyond the guess, relative
        doubt = tl.where(sampled > 0.0, tl.minimum(DOUBT * error, MOST_DOUBT), MOST_DOUBT)
        near, near_end, far, far_end = bound * 0.0, bound, bound * 0.0, bound
        for _search in range(SEARCHES):
            near, near_end = _halve(d, weight, (1.0 + doubt) * beyond, near, near_end)
            far, far_end = _halve(d, weight, (1.0 - doubt) * beyond, far, far_end)
        high = tl.maximum(far_end, some_end)
        within = tl.sum((d <= high).to(tl.float32), 0) * (TILE // SAMPLE)
        low = tl.where(within <= ALL, low, near)
    tl.store(guesses + lane * 2, low)
    tl.store(guesses + lane * 2 + 1, high)


@triton.jit
def _collect(
    logits, slots, floats, tops, sums, guesses, nearer, counts, copies, row_stride, size, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Of one tile: the mass up to the interval, and the distances inside, negative, in the order of their ids."""
    tile, lane = tl.program_id(0), tl.program_id(1)
    low, high = tl.load(guesses + lane * 2), tl.load(guesses + lane * 2 + 1)
    if high > low:
        slot = tl.load(slots + lane).to(tl.int64)
        inverse = 1.0 / tl.load(floats + slot * 3)
        index = tl.arange(0, TILES)
        top = tl.max(tl.load(tops + lane * tiles + index, mask=index < tiles, other=float("-inf")), 0)
        d = _distance(logits + lane.to(tl.int64) * row_stride, tile * TILE + tl.arange(0, TILE), size, inverse, top)
        inside = ((d > low) & (d <= high)).to(tl.int32)
        place = tl.cumsum(inside, 0) - 1
        here = lane * tiles + tile
        tl.store(copies + here.to(tl.int64) * ROOM + place, -d, mask=(inside > 0) & (place < ROOM))
        tl.store(counts + here, tl.sum(inside, 0))
        tl.store(nearer + here, tl.sum(tl.where(d <= low, tl.exp(-d), 0.0), 0))


@triton.jit
def _join(counts, copies, few, lane, tiles, ROOM: tl.constexpr, GROUP: tl.constexpr, FEW: tl.constexpr):
    """Copy what was found in the tiles of a row to `few`, one after another; returns how many there are, and their mass."""
    index = tl.arange(0, GROUP * ROOM)
    total = tiles * 0
    mass = tl.zeros([GROUP * ROOM], tl.float32)
    for start in range(0, tiles, GROUP):
        tile = start + index // ROOM
        count = tl.load(counts + lane * tiles + tile, mask=tile < tiles, other=0)
        inside = (index % ROOM < count).to(tl.int32)
        value = tl.load(copies + (lane * tiles + tile).to(tl.int64) * ROOM + index % ROOM, mask=inside > 0, other=float("-inf"))
        place = total + tl.cumsum(inside, 0) - 1
        tl.store(few + place, value, mask=(inside > 0) & (place < FEW))
        mass += tl.exp(value)
        total += tl.sum(inside, 0)
    tl.debug_barrier()  # what one thread has written the others read
    return total, tl.sum(mass, 0)


@triton.jit
def _kept_of(counts, copies, kept, tied, lane, cut, tiles, ROOM: tl.constexpr, GROUP: tl.constexpr):
    """Of each tile: the mass of what was found nearer than the cut, and how many tokens are exactly there."""
    index, group = tl.arange(0, ROOM), tl.arange(0, GROUP)
    for start in range(0, tiles, GROUP):
        tile = start + group
        here = lane * tiles + tile
        count = tl.load(counts + here, mask=tile < tiles, other=0)
        value = tl.load(
            copies + here.to(tl.int64)[:, None] * ROOM + index[None, :], mask=index[None, :] < count[:, None], other=float("-inf")
        )  # fmt: skip
        tl.store(kept + here, tl.sum(tl.where(-value < cut, tl.exp(value), 0.0), 1), mask=tile < tiles)
        tl.store(tied + here, tl.sum((-value == cut).to(tl.float32), 1), mask=tile < tiles)
    tl.debug_barrier()


@triton.jit
def _finish(
    logits, slots, places, floats, integers, last, tokens, logprobs, scratch, tops, sums, wheres, guesses, nearer, counts, copies, kept,
    tied, undone, row_stride, size, tiles,
    TILES: tl.constexpr, TILE: tl.constexpr, ROOM: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, WALKS: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0)
    row = logits + lane.to(tl.int64) * row_stride
    slot = tl.load(slots + lane).to(tl.int64)
    inverse = 1.0 / tl.load(floats + slot * 3)
    top_p, min_p = tl.load(floats + slot * 3 + 1), tl.load(floats + slot * 3 + 2)
    greedy, top_k = tl.load(integers + slot * 3) != 0, tl.load(integers + slot * 3 + 1)
    highest, top, mass = _tiles_of(tops, sums, lane, inverse, tiles, TILES)
    whole = tl.sum(mass, 0)
    tile = tl.arange(0, TILES)
    real = tile < tiles
    low, high = tl.load(guesses + lane * 2), tl.load(guesses + lane * 2 + 1)
    ready = greedy | ((top_p >= 1.0) & (top_k >= size) & (min_p <= 0.0))
    cut, ties = whole * 0.0 + float("inf"), size.to(tl.float32)
    total_kept = whole
    tied_before = tl.zeros([TILES], tl.float32)
    if high > low:
        few = scratch + lane.to(tl.int64) * FEW
        most = tl.max(tl.load(counts + lane * tiles + tile, mask=real, other=0), 0)
        before = tl.load(nearer + lane * tiles + tile, mask=real, other=0.0)
        total, found = _join(counts, copies, few, lane, tiles, ROOM, GROUP, FEW)
        base, target = tl.sum(before, 0), top_p * whole
        if (most <= ROOM) & (total <= FEW) & (base < target) & (base + found >= target):
            within, enough, walk = base, base + found, total * 0
            going = _open(walk, low, high, within, enough, False, WALKS)
            while going:
                low, high, within, enough = _divide(
                    few, total, whole * 0.0 + 1.0, whole * 0.0, base, target, low, high, within, enough, False, BLOCK
                )  # fmt: skip
                walk += 1
                going = _open(walk, low, high, within, enough, False, WALKS)
            farthest = tl.zeros([BLOCK], tl.float32)
            for start in range(0, total, BLOCK):
                d = -tl.load(few + start + tl.arange(0, BLOCK), mask=start + tl.arange(0, BLOCK) < total, other=float("-inf"))
                farthest = tl.maximum(farthest, tl.where(d <= high, d, 0.0))
            cut = tl.max(farthest, 0)  # `high` may be a hair beyond it
            one = tl.exp(-cut)
            ties = tl.maximum(tl.ceil((target - within) / one), 1.0)
            several = tl.where(enough - within > 1.5 * one, tl.minimum(enough, within + ties * one), enough)
            total_kept = tl.minimum(whole, several)
            _kept_of(counts, copies, kept, tied, lane, cut, tiles, ROOM, GROUP)
            at_cut = tl.load(tied + lane * tiles + tile, mask=real, other=0.0)
            tied_before = tl.cumsum(at_cut, 0) - at_cut
            allowed = tl.minimum(tl.maximum(ties - tied_before, 0.0), at_cut)
            mass = before + tl.load(kept + lane * tiles + tile, mask=real, other=0.0) + allowed * one
            ready = low == low
    if ready:
        threshold = _uniform(tl.load(integers + slot * 3 + 2), tl.load(places + lane)) * total_kept.to(tl.float64)
        passed = (tl.cumsum(mass.to(tl.float64), 0) > threshold) & (mass > 0)
        found_tile = tl.min(tl.where(passed, tile, tiles), 0)
        found_tile = tl.where(found_tile == tiles, tl.max(tl.where(mass > 0, tile, 0), 0), found_tile)
        earlier = tl.sum(tl.where(tile < found_tile, mass.to(tl.float64), 0.0), 0)
        at = tl.sum(tl.where(tile == found_tile, tied_before, 0.0), 0)
        column = found_tile * TILE + tl.arange(0, TILE)
        weight, at = _kept(row, column, size, inverse, top, cut, ties, float("inf"), cut < float("inf"), at)
        passed = (earlier + tl.cumsum(weight, 0).to(tl.float64) > threshold) & (weight > 0)
        chosen = tl.min(tl.where(passed, column, size), 0)
        chosen = tl.where(chosen == size, tl.max(tl.where(weight > 0, column, 0), 0), chosen)  # rounding, as in the other draws
        best = tl.min(tl.where(highest == top, tile, tiles - 1), 0)
        chosen = tl.where(greedy, tl.load(wheres + lane * tiles + best), chosen)
        tl.store(tokens + lane, chosen.to(tl.int64))
        tl.store(last + slot, chosen.to(tl.int64))
        tl.store(logprobs + lane, (tl.load(row + chosen) - top) * inverse - tl.log(whole))
    tl.store(undone + lane, (~ready).to(tl.int32))


@triton.jit
def _rest(
    logits, slots, places, floats, integers, last, tokens, logprobs, scratch, undone, row_stride, size,
    BLOCK: tl.constexpr, WALKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Rows that are not done yet. A kernel of its own, since it needs many registers."""
    if tl.load(undone + tl.program_id(0)) != 0:
        _draw(logits, slots, places, floats, integers, last, tokens, logprobs, scratch, row_stride, size, BLOCK, WALKS, FEW)


def draw_nucleus(logits: Tensor, to: Drawing, tile: int = TILE, warps: int = FINDERS) -> None:
    """One token and its log-prob for every row of `logits` (float32), with any settings; fast where they are top-p alone, or none.
    `warps`: of the programs that find the cut."""
    rows, size = logits.shape
    tile = min(tile, triton.next_power_of_2(size))
    tiles, room, sample = triton.cdiv(size, tile), max(1, tile // ROOM), max(1, tile // SAMPLED)
    many, block = triton.next_power_of_2(tiles), min(BLOCK, triton.next_power_of_2(size))
    tops, sums, wheres = _room(rows, tiles, logits.device)
    nearer, kept, tied = torch.empty(3, rows, tiles, dtype=torch.float32, device=logits.device)
    counts, undone = (torch.empty(rows, width, dtype=torch.int32, device=logits.device) for width in (tiles, 1))
    copies = torch.empty(rows, tiles, room, dtype=torch.float32, device=logits.device)
    guesses = torch.empty(rows, 2, dtype=torch.float32, device=logits.device)
    scratch = torch.empty(rows, FEW, dtype=torch.float32, device=logits.device)
    read = logits.stride(0), size, tiles
    _of_logits[(tiles, rows)](logits, to.slots, to.floats, tops, sums, wheres, *read, TILE=tile, num_warps=4)
    _guess[(rows,)](
        logits, to.slots, to.floats, to.integers, tops, sums, guesses, *read,
        TILES=many, TILE=tile, SAMPLE=sample, ALL_SAMPLES=many * sample, num_warps=WARPS,
    )  # fmt: skip
    _collect[(tiles, rows)](
        logits, to.slots, to.floats, tops, sums, guesses, nearer, counts, copies, *read, TILES=many, TILE=tile, ROOM=room, num_warps=4
    )  # fmt: skip
    _finish[(rows,)](
        logits, *to, scratch, tops, sums, wheres, guesses, nearer, counts, copies, kept, tied, undone, *read,
        TILES=many, TILE=tile, ROOM=room, GROUP=max(1, min(many, JOINED // room)), BLOCK=min(NARROW, block), WALKS=WALKS, FEW=FEW,
        num_warps=warps,
    )  # fmt: skip
    _rest[(rows,)](logits, *to, scratch, undone, logits.stride(0), size, BLOCK=block, WALKS=WALKS, FEW=FEW, num_warps=WARPS)
