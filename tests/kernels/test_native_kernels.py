"""The GPU kernels in Triton's interpreter, at small sizes: each does what its plain definition does. On a GPU,
tests/gpu/test_native_gpu.py and benchmarks/engine.py run them for real."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from interpreted import need_interpreter
from native_doubles import _attend, random, rotate
from native_doubles import note as plain_note

from turnwise.engines.base import Sampling
from turnwise.kernels.cache_8bit import views
from turnwise.kernels.sample import Columns, sample

need_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy's about padding rows, whose results are not kept

ROWS, WIDTH, WORDS = 8, 32, 197


@dataclass
class Tables:
    cos: Any
    sin: Any
    pages: torch.Tensor
    last: torch.Tensor
    floats: torch.Tensor
    integers: torch.Tensor


@dataclass
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    eps: float = 1e-6
    group: int = 2
    scale: float = 0.25


@dataclass
class Layer:
    q_norm: Any = None
    k_norm: Any = None
    rotation: int = 0
    window: int = 0
    shift: Any = None


def drawing(samplings: list[Sampling], seeds: list[int], place: torch.Tensor, words: int = WORDS) -> Any:
    from turnwise.kernels.sample_tiles import Drawing

    rows = len(samplings)
    floats = torch.tensor([[s.temperature or 1.0, s.top_p, s.min_p] for s in samplings])
    integers = torch.tensor([[s.temperature == 0, s.top_k or words, seed] for s, seed in zip(samplings, seeds, strict=True)])
    tokens, last = (torch.full((rows,), -1) for _ in range(2))
    return Drawing(torch.arange(rows, dtype=torch.int32), place.int(), floats, integers, last, tokens, torch.full((rows,), 9.0))


def assert_same_draw(to: Any, expected: Any) -> None:
    assert to.tokens.tolist() == expected.tokens.tolist() == to.last.tolist()
    assert (to.logprobs - expected.logprobs).abs().max() < 1e-5


def test_drawing_by_tiles_draws_what_the_draw_over_whole_rows_draws() -> None:
    from turnwise.kernels.sample_tiles import draw_tiles

    logits = torch.nn.functional.linear(random(ROWS, WIDTH), random(WORDS, WIDTH, seed=1) * 0.4)
    samplings = [Sampling(temperature=(1.0, 0.0, 0.7, 1.5)[n % 4]) for n in range(ROWS)]
    seeds, place = [n * 7919 - 3 for n in range(ROWS)], torch.arange(ROWS) % 7
    expected, to = sample(logits, Columns.of(samplings, seeds, "cpu"), place), drawing(samplings, seeds, place)
    draw_tiles(logits, to, tile=64)
    assert_same_draw(to, expected)


class Plain(NamedTuple):
    """What `hopper_tiles.cu` says about tiles of an output layer: largest, sum, place of the largest; the weights; and the logits."""

    tops: torch.Tensor
    totals: torch.Tensor
    wheres: torch.Tensor
    weights: torch.Tensor
    logits: torch.Tensor

    @classmethod
    def of(cls, hidden: torch.Tensor, head: torch.Tensor, to: Any, wide: int) -> Plain:
        tiles = -(-len(head) // wide)
        logits = torch.nn.functional.pad(hidden @ head.t(), (0, tiles * wide - len(head)), value=-torch.inf).view(len(hidden), tiles, wide)
        tops, wheres = logits.max(-1)
        weights = ((logits - tops[..., None]) / to.floats[to.slots.long(), :1, None]).exp()
        return cls(tops, weights.sum(-1), (wheres + torch.arange(tiles) * wide).int(), weights, logits)


def test_drawing_by_parts_of_tiles_draws_what_the_draw_over_whole_rows_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnwise.kernels.hopper import sample as head_tiles
    from turnwise.kernels.hopper.tiles import PIECE, Tile

    def launch(kernel: Any, x: Any, weight: Any, tile: Tile, across: int, memory: int, overlap: bool, places: Any, size: int) -> None:
        assert (across, memory, size) == (3, tile.memory(1), 500)
        plain = Plain.of(x, weight, to, 2 * tile.columns)
        for place, found in zip([places[0], *places[4:]], [plain.weights.unflatten(-1, (-1, PIECE)).sum(-1), *plain[:3]], strict=True):
            place.copy_(found)

    monkeypatch.setattr(head_tiles, "launch", launch)
    monkeypatch.setattr(head_tiles, "kernel_of", lambda *given: None)
    hidden, head = random(40, WIDTH), random(500, WIDTH, seed=1) * 0.4
    samplings = [Sampling(temperature=(1.0, 0.0, 0.7, 1.5)[n % 4]) for n in range(40)]
    seeds, place = [n * 7919 - 3 for n in range(40)], torch.arange(40) % 7
    expected, to = sample(hidden @ head.t(), Columns.of(samplings, seeds, "cpu"), place), drawing(samplings, seeds, place, 500)
    head_tiles.draw_product(hidden, head, to, Tile(96, 5, 1, 2))
    assert_same_draw(to, expected)


TRUNCATED = [
    Sampling(top_p=0.95), Sampling(top_p=0.9, temperature=0.7), Sampling(), Sampling(temperature=0.0), Sampling(top_p=0.5),
    Sampling(min_p=0.05), Sampling(top_p=0.8, min_p=0.01), Sampling(top_k=50, top_p=0.9), Sampling(top_k=2),
]  # fmt: skip


@pytest.mark.parametrize("way", ["rows", "nucleus"])
@pytest.mark.parametrize(("spread", "rounded"), [(0.5, False), (3.0, False), (3.0, True), (8.0, False)])
def test_the_draws_of_truncated_rows_draw_what_the_draw_with_a_sort_draws(
    monkeypatch: pytest.MonkeyPatch, spread: float, rounded: bool, way: str
) -> None:
    """And the draw by many programs leaves rows with top-k alone to the draw over whole rows."""
    from turnwise.kernels import sample_rows, sample_top_p

    words, whole_rows, slow = 1501, sample_top_p._draw, []
    monkeypatch.setattr(sample_top_p, "_draw", lambda *given: (slow.append(1), whole_rows(*given)))
    samplings, rows = TRUNCATED * 3, 3 * len(TRUNCATED)
    seeds, place = [n * 7919 - 3 for n in range(rows)], torch.arange(rows) % 7
    logits = random(rows, words) * spread
    if rounded:
        logits = (logits * 4).round() / 4  # many tokens tie
    expected, to = sample(logits, Columns.of(samplings, seeds, "cpu"), place), drawing(samplings, seeds, place, words)
    if way == "rows":
        sample_rows.draw_tokens(logits, *to)
    else:
        sample_top_p.draw_nucleus(logits, to, tile=256)
        assert len(slow) == 6
    assert_same_draw(to, expected)


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_tiles_that_a_product_sums_up_draw_what_the_draw_with_a_sort_draws(monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    """Tiles are not a power of two wide, and the last one is not full."""
    from turnwise.kernels import sample_rows, sample_top_p
    from turnwise.kernels.hopper import sample as head_tiles
    from turnwise.kernels.hopper.tiles import Tile

    def launch(*given: Any) -> None:
        x, weight, tile, across, memory, overlap, (levels, above, _, _, _, *places), size, logits = given[1:]
        assert (across, memory, size, overlap) == (8, tile.memory(2), 1504, False)
        plain = Plain.of(x, weight, to, 2 * tile.columns)
        logits.copy_(plain.logits.flatten(1)[:, :size])
        above.copy_(torch.stack([(plain.weights * (plain.logits >= levels[:, n, None, None])).sum(-1) for n in range(2)]))
        for place, found in zip(places, plain[:3], strict=True):
            place.copy_(found)
        picked.extend((levels[:, 0].isfinite() & (levels[:, 0] >= levels[:, 1]) & (levels[:, 1] > logits.min(1).values)).tolist())

    picked: list[bool] = []
    monkeypatch.setattr(sample_top_p, "_draw", sample_rows._draw)
    monkeypatch.setattr(head_tiles, "launch", launch)
    monkeypatch.setattr(head_tiles, "kernel_of", lambda *given: None)
    monkeypatch.setattr(head_tiles, "_logits", lambda x, weight: x @ weight.t())
    samplings, rows = TRUNCATED * 3, 3 * len(TRUNCATED)
    seeds, place = [n * 7919 - 3 for n in range(rows)], torch.arange(rows) % 7
    hidden, head = random(rows, WIDTH), random(1504, WIDTH, seed=1) * spread
    expected, to = sample(hidden @ head.t(), Columns.of(samplings, seeds, "cpu"), place), drawing(samplings, seeds, place, 1504)
    head_tiles.draw_truncated(hidden, head, to, Tile(96, 5, 1, 2))
    assert_same_draw(to, expected)
    assert picked == [s.top_p < 1 and s.temperature > 0 for s in samplings]


@pytest.mark.parametrize("way", ["rows", "nucleus"])
def test_a_row_whose_attempts_are_all_excluded_draws_from_the_tokens_that_are_left(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    from turnwise.kernels import sample_rows, sample_top_p

    monkeypatch.setattr(sample_top_p, "_draw", sample_rows._draw)
    samplings, seeds, place = [Sampling(top_p=0.03), Sampling(min_p=0.97), Sampling(top_k=3)] * 4, list(range(12)), torch.arange(12)
    logits = random(12, WORDS) * 0.1
    expected, to = sample(logits, Columns.of(samplings, seeds, "cpu"), place), drawing(samplings, seeds, place)
    first = sample(logits, Columns.of([Sampling()] * 12, seeds, "cpu"), place)
    sample_rows.draw_tokens(logits, *to) if way == "rows" else sample_top_p.draw_nucleus(logits, to, tile=64)
    assert to.tokens.tolist() == expected.tokens.tolist() != first.tokens.tolist()


@pytest.mark.parametrize("wrong", ["above all", "below all", "one", "not a number"])
@pytest.mark.parametrize("spread", [0.7, 4.0])
def test_levels_that_are_not_near_the_cut_cost_time_and_change_nothing(monkeypatch: pytest.MonkeyPatch, wrong: str, spread: float) -> None:
    from turnwise.kernels import sample_top_p

    samplings, seeds, place = [Sampling(top_p=0.9), Sampling(top_p=0.6)] * 6, list(range(12)), torch.arange(12)
    logits = random(12, WORDS) * spread
    expected, scan, passes = sample(logits, Columns.of(samplings, seeds, "cpu"), place), sample_top_p._scan, []
    values = {"above all": 99.0, "below all": -99.0, "one": float(logits.mean()), "not a number": float("nan")}
    before = sample_top_p._before
    monkeypatch.setattr(sample_top_p, "_before", lambda *given: (passes.append(1), before(*given))[1])

    class Spoiled:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*given: Any, **settings: Any) -> None:
                given[3].fill_(values[wrong])
                scan[grid](*given, **settings)

            return launch

    good = drawing(samplings, seeds, place)
    sample_top_p.draw_nucleus(logits, good, tile=64)
    few = len(passes)
    monkeypatch.setattr(sample_top_p, "_scan", Spoiled())
    to = drawing(samplings, seeds, place)
    sample_top_p.draw_nucleus(logits, to, tile=64)
    assert good.tokens.tolist() == to.tokens.tolist() == expected.tokens.tolist()
    assert len(passes) - few > few


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter takes the maximum of nothing but NaN
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_logits_that_are_not_numbers_give_a_logprob_that_is_not_finite(top_p: float) -> None:
    from turnwise.kernels.sample_tiles import draw_tiles
    from turnwise.kernels.sample_top_p import draw_nucleus

    logits = random(3, WORDS)
    logits[1, 100], logits[2] = torch.nan, torch.nan
    settings = [Sampling(top_p=top_p), Sampling(top_p=top_p), Sampling(temperature=0.0)]
    to = drawing(settings, [1, 2, 3], torch.zeros(3))
    if top_p < 1:
        draw_nucleus(logits, to, tile=64)
    else:
        draw_tiles(logits, to, tile=64)
    assert to.logprobs.isfinite().tolist() == [True, False, False] and (to.tokens >= 0).all() and (to.tokens < WORDS).all()


def paged_case(splits_lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, Tables, torch.Tensor]:
    """Sequences with so many tokens in pages of 16: queries and new keys and values, the cache, the tables, positions."""
    seqs, shape, page = len(splits_lengths), Shape(), 16
    pages = -(-max(splits_lengths) // page)
    table = torch.randperm(seqs * pages, generator=torch.Generator().manual_seed(5)).view(seqs, pages).int()
    cache = random(2, seqs * pages, shape.kv_heads, page, shape.head_dim, seed=3)
    angles = torch.arange(max(splits_lengths) + 1)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003])
    cos, sin = (torch.cat([angles.cos()] * 2, -1),), (torch.cat([-angles.sin(), angles.sin()], -1),)
    tables = Tables(cos, sin, table, torch.zeros(seqs), torch.zeros(seqs, 3), torch.zeros(seqs, 3))
    qkv = random(seqs, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, seed=4)
    return qkv, cache, tables, torch.tensor(splits_lengths).int() - 1


def in_8_bits(cache: torch.Tensor) -> torch.Tensor:
    """One layer's cache as one in 8 bits, with what it holds."""
    two, pages, heads, tokens, size = cache.shape
    found = torch.zeros(two, pages, heads, tokens, size + 4, dtype=torch.int8)
    page, place = torch.arange(pages).repeat_interleave(tokens), torch.arange(tokens).repeat(pages)
    for packed, own in zip(views(found, cache.dtype), cache, strict=True):
        packed.put(page, place, own[page, :, place])
    return found


@pytest.mark.parametrize("kind", ["model", "8bit", "8bit, relative"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_split_sequences_attend_as_whole_ones(monkeypatch: pytest.MonkeyPatch, in_parts: bool, kind: str) -> None:
    from turnwise.kernels import attend

    monkeypatch.setattr(attend, "splits_for", lambda seqs, kv_heads: 4)
    qkv, cache, tables, positions = paged_case([1, 17, 60])
    slots = torch.arange(3).int()
    layer = Layer(shift=random(64, 2, 16, seed=8) * 3 if "relative" in kind else None)
    cache = cache if kind == "model" else in_8_bits(cache)
    other, turned = cache.clone(), qkv.clone()
    given = torch.stack([qkv - 1.0, qkv * 0.5, 1.0 - qkv * 0.5]) if in_parts else qkv  # as parts of a sum
    found = attend.attend_singles(given, cache, layer, tables, slots, positions, Shape())
    rotate(turned, other, layer, tables, slots, positions, Shape())
    expected = torch.cat([_attend(turned[n : n + 1, :64], other, layer, tables.pages[n], int(positions[n]), Shape()) for n in range(3)])
    assert (found - expected).abs().max() < 1e-5 and same(cache, other)


@pytest.mark.parametrize("kind", ["model", "8bit"])
@pytest.mark.parametrize("lot", [1, 4, 8])
def test_lots_after_a_rows_end_are_not_read(monkeypatch: pytest.MonkeyPatch, lot: int, kind: str) -> None:
    """Pages of 16 tokens. What is in lots that a row does not reach does not count, whatever it is."""
    from turnwise.kernels import attend

    lengths = [1, 16, 17, 60, 31, 24]
    qkv, cache, tables, positions = paged_case(lengths)
    cache = cache if kind == "model" else in_8_bits(cache)
    slots, other, size = torch.arange(len(lengths)).int(), cache.clone(), Shape().head_dim
    for row, length in enumerate(lengths):
        last, used = int(tables.pages[row, (length - 1) // 16]), -(-((length - 1) % 16 + 1) // lot) * lot
        # a block begins with its tokens' numbers; scales, if there are any, follow
        other[:, last].flatten(2)[..., used * size : 16 * size] = 127 if kind == "8bit" else torch.nan
    monkeypatch.setattr(attend, "splits_for", lambda seqs, kv_heads: 2)
    expected = attend.attend_singles(qkv, cache, Layer(), tables, slots, positions, Shape())
    monkeypatch.setattr(attend, "LOT", lot)
    found = attend.attend_singles(qkv, other, Layer(), tables, slots, positions, Shape())
    assert torch.equal(found, expected)


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two caches hold the same. In 8 bits, a number may be on the border between two integers."""
    if first.dtype != torch.int8:
        return bool((first - second).abs().max() < 1e-5)
    ours, theirs = views(first, torch.float32), views(second, torch.float32)
    steps = [(a.numbers.int() - b.numbers.int()).abs() for a, b in zip(ours, theirs, strict=True)]
    scales = max(float((a.scales - b.scales).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return scales < 1e-6 and all(step.max() <= 1 and (step > 0).float().mean() < 0.01 for step in steps)


@pytest.mark.parametrize("kind", ["8bit", "8bit, relative"])
@pytest.mark.parametrize("window", [0, 20])
def test_prompts_write_and_read_a_cache_in_8_bits(monkeypatch: pytest.MonkeyPatch, kind: str, window: int) -> None:
    from turnwise.kernels import attend
    from turnwise.kernels import layer as layer_kernels

    _, cache, tables, _ = paged_case([30, 60])
    cache = in_8_bits(cache)
    layer = Layer(shift=random(64, 2, 16, seed=8) * 3 if "relative" in kind else None, window=window)
    counts, begun = [25, 20], [3, 40]
    slots = torch.tensor([0] * 25 + [1] * 20).int()
    positions = torch.cat([torch.arange(first, first + count) for first, count in zip(begun, counts, strict=True)]).int()
    blocks = torch.tensor([[0, 0, 3, 16], [0, 16, 19, 9], [1, 25, 40, 16], [1, 41, 56, 4]]).int()
    qkv = random(45, 8 * 16, seed=6)
    other, turned = cache.clone(), qkv.clone()
    layer_kernels.rotate(qkv, cache, layer, tables, slots, positions, Shape())
    rotate(turned, other, layer, tables, slots, positions, Shape())
    assert same(cache, other) and (qkv[:, :64] - turned[:, :64]).abs().max() < 1e-5
    found = attend.attend_prompts(qkv, cache, layer, tables.pages, blocks, 16, Shape())
    for rows in (8, 4):  # as on a GPU whose SMs have less memory: a program takes a half or a quarter of a block
        monkeypatch.setattr(attend, "rows_of", lambda *_, rows=rows: (rows, 2))
        pieces = attend.attend_prompts(qkv, cache, layer, tables.pages, blocks, 16, Shape())
        assert (found - pieces).abs().max() < 1e-6
    parts = [(0, 25, 0, 3), (25, 45, 1, 40)]
    expected = torch.cat([_attend(turned[a:b, :64], cache, layer, tables.pages[slot], first, Shape()) for a, b, slot, first in parts])
    assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("window", [0, 20])
def test_blocks_of_prompts_attend_as_their_tokens_do_alone(window: int) -> None:
    from turnwise.kernels.attend import attend_prompts

    _, cache, tables, _ = paged_case([90, 33])
    shape, layer = Shape(), Layer(window=window)
    blocks = [(0, 0, 0, 16), (0, 16, 16, 3), (1, 19, 17, 16), (0, 35, 74, 16), (1, 0, 0, 0)]  # slot, first token, its position, tokens
    qkv = random(51, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, seed=6)
    found = attend_prompts(qkv, cache, layer, tables.pages, torch.tensor(blocks).int(), 16, shape)
    for slot, token, first, count in blocks[:-1]:
        expected = _attend(qkv[token : token + count, :64], cache, layer, tables.pages[slot], first, shape)
        assert (found[token : token + count] - expected).abs().max() < 1e-5


def test_settings_of_new_rows_and_copied_pages_arrive_where_they_belong() -> None:
    from turnwise.kernels.tables import copy_pages, note

    records = torch.randint(-(2**31), 2**31, (3, 9 + 5), generator=torch.Generator().manual_seed(1)).int()
    records[:, 0], records[:, 6:9] = torch.tensor([4, 0, 2]), torch.tensor([0.7, 0.9, 0.1]).view(torch.int32)
    made = []
    for function in (note, plain_note):
        zeros = torch.zeros(6, dtype=torch.int64), torch.zeros(6, 3), torch.zeros(6, 3, dtype=torch.int64)
        tables = Tables(zeros[0], zeros[0], torch.zeros(6, 5, dtype=torch.int32), *zeros)
        function(records, tables)
        made.append(tables)
    for name in ("pages", "last", "floats", "integers"):
        assert torch.equal(getattr(made[0], name), getattr(made[1], name))
    cache = random(2, 2, 6, 2, 4, 8)
    expected = cache.clone()
    expected[:, :, [5, 2]] = expected[:, :, [0, 3]]
    copy_pages(cache, torch.tensor([[0, 5], [3, 2]]).int())
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("bulk", [False, True])
def test_parts_of_a_product_add_up_to_the_product_and_are_rounded_once(bulk: bool) -> None:
    from turnwise.kernels.layer import add_norm
    from turnwise.kernels.product import product
    from turnwise.kernels.product_table import Blocks

    x, weight, bias = random(21, 96), random(50, 96, seed=1), random(50, seed=2)
    expected = torch.nn.functional.linear(x, weight, bias)
    assert (product(x, weight, bias, Blocks(16, 32, 32, bulk=bulk)) - expected).abs().max() < 1e-4
    parts = product(x, weight, bias, Blocks(16, 32, 16, split=4, bulk=bulk))  # six steps among four: the last has none
    assert parts.shape == (4, 21, 50) and (parts.sum(0) - expected).abs().max() < 1e-4
    for kind in (torch.float32, torch.float16):
        residual, factor = random(21, 50, seed=3).to(kind), random(50, seed=4).to(kind)
        other = residual.clone()
        found = add_norm(residual, parts, factor, 1e-6)
        assert torch.equal(found, add_norm(other, parts.sum(0).to(kind), factor, 1e-6)) and torch.equal(residual, other)
