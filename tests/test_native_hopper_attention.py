"""Attention of large decode steps on Hopper GPUs: the source and the dispatch on any machine, the results on such a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from math import e, log2
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import cuda_on_cpu
import native_doubles
import numpy as np
import pytest
import torch
from native_doubles import paged_runner
from native_models import drain, make
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import NativeEngine, hopper_attention, hopper_driver, product_table
from turnwise.engines.native import engine as native_engine
from turnwise.engines.native.block_memory import multiprocessors
from turnwise.engines.native.hopper_attention import ALWAYS, BLOCKS, LEAST, PAGE, SIZES, available, fits, memory_of, pays, source_of
from turnwise.engines.native.product_table import Blocks
from turnwise.engines.native.switches import Switches

MEMORY, RESERVED = 228 << 10, 1 << 10  # of a Hopper's multiprocessor, and what each block on it costs besides its own
on_hopper = pytest.mark.skipif(not available(torch.device("cuda", 0)) if torch.cuda.is_available() else True, reason="no Hopper")


def defined(source: str) -> Callable[[str], int]:
    """The numbers that a source defines."""
    lines = dict(re.findall(r"^#define (\w+) (.+?)(?:  //.*)?$", source, re.MULTILINE))

    def number(name: str) -> int:
        whole = re.sub(r"[A-Z]\w*", lambda found: str(number(found[0])), lines[name]).replace("/", "//")
        return int(eval(whole, {"__builtins__": {}}))

    return number


@pytest.mark.parametrize("size", SIZES)
def test_the_blocks_that_share_a_multiprocessor_fit_into_it_and_the_host_knows_how_much_they_take(size: int) -> None:
    number = defined(source_of(size, 14, 2, 0))
    assert number("SIDES") + 2 * number("TEAM") * 8 * 4 == memory_of(size)
    assert number("COMING") + 2 * 4 <= number("QUERIES") + number("WIDE") * 2 and number("COMING") % 4 == 0
    assert number("BLOCKS") * (memory_of(size) + RESERVED) <= MEMORY
    assert (number("BLOCKS") + 1) * (memory_of(size) + RESERVED) > MEMORY


@pytest.mark.skipif(find_spec("cuda") is None, reason="needs cuda-bindings and NVRTC, but no GPU")
@pytest.mark.parametrize(("size", "heads", "kv", "norm"), [(128, 12, 2, 0), (128, 32, 8, 1), (64, 14, 2, 0), (64, 16, 16, 2)])
def test_the_source_compiles_for_a_hopper_gpu(size: int, heads: int, kv: int, norm: int) -> None:
    image = hopper_driver.compiled(source_of(size, heads, kv, norm))
    assert image.startswith(b"\x7fELF") and hopper_attention.NAME.encode() in image


def weights(**changes: Any) -> Any:
    settings = {"head_dim": 128, "group": 6, "dtype": torch.bfloat16, "window": 0, "shift": None} | changes
    layers = [SimpleNamespace(window=0, shift=None), SimpleNamespace(window=settings["window"], shift=settings["shift"])]
    return SimpleNamespace(
        shape=SimpleNamespace(head_dim=settings["head_dim"], group=settings["group"]), dtype=settings["dtype"], layers=layers
    )


def test_only_layers_that_see_all_of_a_plain_cache_are_taken() -> None:
    assert fits(weights(), 64, torch.bfloat16) and fits(weights(head_dim=64, group=8), 64, torch.bfloat16)
    assert not fits(weights(window=512), 64, torch.bfloat16) and not fits(weights(shift=torch.zeros(1)), 64, torch.bfloat16)
    assert not fits(weights(head_dim=256), 64, torch.bfloat16) and not fits(weights(group=9), 64, torch.bfloat16)
    assert not fits(weights(dtype=torch.float16), 64, torch.float16) and not fits(weights(), 64, torch.int8)
    assert not fits(weights(), 16, torch.bfloat16)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("lanes", "more", "used"), [(3, 60, False), (4, 0, False), (4, 60, True), (9, 0, True), (9, 60, True)])
def test_large_or_uneven_steps_go_to_the_kernel_if_it_is_wanted_and_queries_are_whole(
    monkeypatch: pytest.MonkeyPatch, stream: bool, parts: int, lanes: int, more: int, used: bool
) -> None:
    """The dispatch, with a stand-in for the kernel."""
    module, model = paged_runner(monkeypatch, "recorded"), make("qwen2").to(torch.bfloat16)
    asked: list[int] = []

    def kernel(qkv: torch.Tensor, *given: Any) -> torch.Tensor:
        asked.append(len(qkv))
        assert qkv.dim() == 2
        return native_doubles.attend_singles(qkv, *given)

    monkeypatch.setattr(module, "attend_rows", kernel)
    monkeypatch.setattr(module, "available", lambda device: True)
    monkeypatch.setattr(module, "fits", lambda *_: True)
    monkeypatch.setattr(hopper_attention, "LEAST", 4 * 2)
    monkeypatch.setattr(hopper_attention, "ALWAYS", 9 * 2)
    monkeypatch.setattr(product_table, "MEASURED", native_doubles.Everything(qkv=Blocks(64, 64, 64, parts, 4, 3)))
    monkeypatch.setattr(
        native_engine,
        "make_runner",
        lambda weights, slots, longest, memory, graphs, chosen, kind: module.RecordedRunner(
            weights, slots, longest, 40, PAGE, False, chosen, kind=kind
        ),
    )
    engine = NativeEngine(model, switches={"stream": stream}, max_batch=lanes, max_length=128)
    runner: Any = engine._runner
    assert runner.weights.shape.kv_heads == 2
    requests = [Request(n, [5, 6, 7 + n, *[8] * (more if n == 0 else 5)], Sampling(max_tokens=3), seed=n) for n in range(lanes)]
    engine.submit(requests)
    assert all(len(response.token_ids) == 3 for response in drain(engine).values())
    assert set(asked) == ({runner._lanes(lanes)} if stream and used and parts == 1 else set())


def test_it_pays_for_many_rows_and_for_fewer_uneven_ones() -> None:
    even = np.array([100, 120, 110] * 200)
    assert pays(even, 2) and not pays(even[: ALWAYS // 2 - 1], 2) and pays(even[: ALWAYS // 8], 8)
    assert pays(np.append(even, 2 * even.max()), 2) and pays(np.zeros(ALWAYS, dtype=int), 1) and not pays(np.zeros(LEAST, dtype=int), 1)
    uneven = np.where(np.arange(ALWAYS) % 2, 100, 200)
    assert pays(uneven[:LEAST], 1) and not pays(uneven[: LEAST - 1], 1) and not pays(uneven[: LEAST // 2 - 1], 2)


def test_the_switch_is_on_and_can_be_turned_off() -> None:
    assert Switches().stream and not Switches.of({"stream": False}).stream


LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192, 193, 200, 4095, 4096, 4097]
LONG = 4300  # tokens: more than 32 pages for each warp


class Problem:
    """Random rows in the order of lanes, the longest one's pages last in the table; `padding`: as many lanes more on a slot behind it.
    Places of the table that no row reaches name no page."""

    def __init__(self, size: int, heads: int, kv: int, norm: int, lengths: list[int], padding: int = 0):
        generator = torch.Generator().manual_seed(size + heads + norm)
        counts, self.rows = [-(-length // PAGE) for length in lengths], len(lengths)
        used, slot_count, longest = sum(counts), self.rows + 3, int(np.argmax(lengths))
        order, self.pages = torch.randperm(used + 5, generator=generator).int(), torch.full((slot_count, max(counts)), 1 << 29)
        slots = torch.randperm(slot_count - 1, generator=generator)[: self.rows]
        slots[longest] = slot_count - 1
        for slot, pages in zip(slots.tolist(), order[:used].split(counts), strict=True):
            self.pages[slot, : len(pages)] = pages
        if padding:
            self.pages = torch.cat([self.pages, torch.full((1, max(counts)), used + 5)])
        self.pages = self.pages.int()
        self.slots = torch.cat([slots, torch.full((padding,), slot_count)]).int()
        self.positions = torch.tensor([*lengths, *[1] * padding], dtype=torch.int32) - 1
        angle = torch.arange(max(lengths))[:, None] * torch.rand(size // 2, generator=generator).repeat(2)
        sign = torch.cat([-torch.ones(size // 2), torch.ones(size // 2)])
        self.cos, self.sin = angle.cos().bfloat16(), (angle.sin() * sign).bfloat16()
        weight = 0.5 + torch.rand(size, generator=generator)
        self.weight = None if not norm else weight.bfloat16() if norm == 1 else weight
        self.shape = SimpleNamespace(heads=heads, kv_heads=kv, head_dim=size, group=heads // kv, scale=size**-0.5, eps=1e-6)
        self.qkv = torch.randn(len(self.slots), (heads + 2 * kv) * size, generator=generator).bfloat16()
        self.cache = torch.randn(2, used + 6, kv, PAGE, size, generator=generator).bfloat16()  # the last page is for padding

    def layer(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        weight = None if self.weight is None else change(self.weight)
        return SimpleNamespace(q_norm=weight, k_norm=weight, rotation=0, window=0, shift=None)

    def tables(self, change: Callable[[torch.Tensor], torch.Tensor], pages: torch.Tensor) -> Any:
        return SimpleNamespace(pages=pages, cos=[change(self.cos)], sin=[change(self.sin)])

    def check(self, found: torch.Tensor, kept: torch.Tensor, rows: Sequence[int]) -> None:
        """Results of these lanes and the whole cache, against float64."""
        layer, tables = self.layer(torch.Tensor.double), self.tables(torch.Tensor.double, self.pages)
        qkv, cache, queries = self.qkv.double(), self.cache.double(), self.shape.heads * self.shape.head_dim
        real = slice(0, self.rows)
        native_doubles.rotate(qkv[real], cache, layer, tables, self.slots[real], self.positions[real], self.shape)
        assert ((kept - cache)[:, :-1].abs() < 0.02 + 0.01 * cache[:, :-1].abs()).all()  # keys are rounded up to three times
        changed = (kept != self.cache)[:, :-1].any(-1)  # by head and token
        assert int(changed.sum()) <= 2 * self.shape.kv_heads * self.rows
        for row in rows:
            one, slot, position = slice(row, row + 1), self.slots[row], int(self.positions[row])
            if row >= self.rows:  # every padding lane sees its own token, whoever has written last
                native_doubles.rotate(qkv[one], cache, layer, tables, self.slots[one], self.positions[one], self.shape)
            expected = native_doubles._attend(qkv[one, :queries], cache, layer, self.pages[slot], position, self.shape)
            assert (found[row].double() - expected[0]).abs().max() < (0.05 if position < 1000 else 0.01), (row, position)


@pytest.mark.skipif(which("g++") is None or sys.platform != "linux", reason="needs a compiler for C++, but no GPU")
@pytest.mark.parametrize(("size", "heads", "kv", "norm"), [(128, 12, 2, 0), (64, 9, 3, 1), (128, 5, 1, 2), (64, 8, 1, 0), (64, 4, 4, 2)])
def test_the_source_attends_as_in_float64_in_whatever_order_its_threads_run(
    tmp_path: Path, size: int, heads: int, kv: int, norm: int
) -> None:
    """Without a GPU: see `cuda_on_cpu.h`. Rows of every kind one after another in few blocks, long ones between short ones."""
    program = cuda_on_cpu.build(source_of(size, heads, kv, norm), tmp_path)
    for lengths, padding, blocks, launches in (
        ([1, 200, 65, LONG, 129, 16, 64, 15, 193, 17], 0, 3, 2),
        ([65, 1, 128, 127, 63, 2, 192, 64, 129, 300, 1], 3, 4, 3),
        ([70, 1, 130], 0, 3 * kv, 2),
    ):
        case = Problem(size, heads, kv, norm, lengths, padding)
        weight, shape = torch.zeros(1) if case.weight is None else case.weight, case.shape
        out, counters = torch.empty(len(case.qkv), heads * size, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32)
        places = case.qkv, case.cache, case.pages, case.slots, case.positions, case.cos, case.sin, weight, weight, out, counters
        strides = case.qkv.stride(0), case.cache.stride(0) * case.cache.element_size(), case.pages.stride(0)
        numbers = *strides, len(out) * kv, shape.scale * log2(e), shape.eps
        (kept, found, _), *more = results = cuda_on_cpu.run(program, places, blocks, memory_of(size), launches, numbers)
        case.check(found, kept, range(len(out)))
        assert all(torch.equal(again, found) for _, again, _ in more) and not any(zeros.any() for _, _, zeros in results)


@on_hopper
@pytest.mark.parametrize(("size", "heads", "kv", "norm"), [
    (128, 12, 2, 0), (128, 8, 1, 0), (128, 32, 8, 1), (64, 14, 2, 0), (64, 16, 16, 2), (128, 4, 4, 2),
])  # fmt: skip
@pytest.mark.parametrize("many", [False, True])
def test_rows_attend_as_in_float64_and_their_keys_are_kept(size: int, heads: int, kv: int, norm: int, many: bool) -> None:
    """`many`: more rows than run at once, most of them short, and some without a page for every warp."""
    device, lengths = torch.device("cuda", 0), LENGTHS
    if many:
        room = BLOCKS[size] * multiprocessors(device) // kv
        lengths = torch.randint(1, 400, (3 * room,), generator=torch.Generator().manual_seed(0)).tolist()
        lengths[::49] = [LONG] * len(lengths[::49])
    case = Problem(size, heads, kv, norm, lengths, padding=3)
    lanes, kept = len(case.qkv), case.cache.cuda()
    arrivals = torch.zeros(lanes * kv, dtype=torch.int32, device=device)
    own, tables = case.layer(torch.Tensor.cuda), case.tables(torch.Tensor.cuda, case.pages.cuda())
    given = tables, case.slots.cuda(), case.positions.cuda(), case.shape, arrivals
    found = hopper_attention.attend_rows(case.qkv.cuda(), kept, own, *given)
    again = hopper_attention.attend_rows(case.qkv.cuda(), kept, own, *given)
    case.check(found.cpu(), kept.cpu(), range(0, lanes, 7 if many else 1))
    assert torch.equal(found, again) and not arrivals.any()


@on_hopper
def test_an_engine_samples_with_it_as_with_triton() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to(torch.bfloat16).cuda().eval()
    sampling = Sampling(temperature=0.0, max_tokens=24)
    requests = [Request(n, [1 + n * k % 500 for k in range(1, 100 + n % 20)], sampling, seed=n) for n in range(400)]
    found = {}
    for stream in (True, False):
        engine = NativeEngine(model, max_batch=400, max_length=256, cache_memory=2e9, switches={"stream": stream})
        runner: Any = engine._runner
        assert runner._streams
        engine.submit(requests)
        found[stream] = drain(engine)
        assert ("stream" in {key[-1] for key in runner._graphs_of if key[0] == "decode"}) == stream
        engine.close()
    same = [n for n in range(400) if found[True][n].token_ids[:2] == found[False][n].token_ids[:2]]
    gaps = [abs(found[True][n].logprobs[1] - found[False][n].logprobs[1]) for n in same]
    assert len(same) > 360 and sum(gaps) / len(gaps) < 0.01
