"""Calls for long sequences, without a GPU: which of them are one call, and that padding changes nothing, with plain attention as a double
of cuDNN's kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fused_cases import run
from gradient_cases import assert_same
from learn_cases import trajectories
from native_models import make
from torch.nn.functional import scaled_dot_product_attention

from turnwise.learn import pack
from turnwise.learn.activations import Kept
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused import attention, eager
from turnwise.learn.fused.attention import CudnnCall, FlashCall, Frame, PaddedRows, _long, _long_backward, attend, attend_backward, runs_of

HEADS, KV_HEADS, SIZE = 4, 2, 8


def frame_of(lengths: list[int]) -> Frame:
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return Frame(lengths, offsets, torch.empty(0), (), (), HEADS, KV_HEADS, SIZE, 1e-6)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of equal lengths by torch, in the layout that cuDNN's kernel gives; long means 40 tokens, rounded up to 16."""

    def forward(rows: Any, scale: float) -> Any:
        out = scaled_dot_product_attention(*rows, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(1, 2).contiguous().transpose(1, 2), *(torch.zeros(1),) * 3

    def backward(slope: Any, rows: Any, out: Any, state: Any, scale: float) -> Any:
        leaves = [x.detach().requires_grad_() for x in rows]
        with torch.enable_grad():
            found = forward(leaves, scale)[0]
        torch.testing.assert_close(out, found)
        return torch.autograd.grad(found, leaves, slope)

    monkeypatch.setattr(attention, "cudnn", forward)
    monkeypatch.setattr(attention, "cudnn_backward", backward)
    monkeypatch.setattr(attention, "GRAIN", 16)
    monkeypatch.setattr("turnwise.learn.fused.attention.LONG", 33)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("lengths", [[40, 40, 40], [40, 47, 33, 90], [5, 41, 43, 7, 3, 44], [64], [48, 90, 91, 40, 39, 48, 47]])
def test_attention_of_padded_groups_is_that_of_each_sequence(plain: None, lengths: list[int], together: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, frame = sum(lengths), frame_of(lengths)
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * SIZE, generator=generator, dtype=torch.float64)
    grad = torch.randn(tokens, HEADS * SIZE, generator=generator, dtype=torch.float64)
    wanted, known = attend(qkv, frame)
    slopes = attend_backward(grad, qkv, wanted, known, frame)
    runs = runs_of(frame, True, together)
    wide = PaddedRows.of(runs, lengths, qkv.device)
    assert wide is not None
    rows, padded = qkv[wide.tokens], eager.widen(grad, wide.tokens, wide.rows).view(-1, HEADS, SIZE)
    places = torch.arange(tokens).split(lengths)
    for call in runs:
        own, part = slice(call.start, call.end), torch.cat([places[number] for number in call.sequences])
        inside = wide.rows[part] - call.start
        if isinstance(call, FlashCall):
            assert torch.equal(rows[own], qkv[part]) and torch.equal(padded[own].flatten(1), grad[part])
            continue
        out, *state = _long(rows, call, frame)
        torch.testing.assert_close(out[inside].flatten(1), wanted[part])
        found = _long_backward(padded[own], rows, out, state, call, frame)
        for one, other in zip(found, slopes, strict=True):
            torch.testing.assert_close(one[inside], other[part])
    assert sorted(number for call in runs for number in call.sequences) == list(range(len(lengths)))


@pytest.mark.parametrize("kept", [Kept(), Kept(0, 0)])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "smollm3"])
@pytest.mark.parametrize("narrow", [False, True])
def test_layers_with_unused_rows_have_the_gradients_of_layers_without(
    plain: None, name: str, kept: Kept, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(trajectories(3, context="full"))
    assert len(set(packed.lengths.tolist())) > 1
    own, fused = PackedModel(make(name), fused=False), PackedModel(make(name), fused=True)
    assert fused.fused is not None
    fused.fused.kept = kept
    wanted, slopes = run(own, packed, packed.source if narrow else None)
    seen = []

    def runs(frame: Frame) -> Any:
        seen.append(runs_of(frame, True, True))
        return seen[-1]

    monkeypatch.setattr("turnwise.learn.fused.attention.LONG", 1)
    monkeypatch.setattr("turnwise.learn.fused.attention._runs", runs)
    found, found_slopes = run(fused, packed, packed.source if narrow else None)
    assert seen and seen[0][-1].end > len(packed.ids)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert_same(found_slopes, slopes, 1e-4)


def test_sequences_of_nearly_the_same_length_are_one_call_wherever_they_are() -> None:
    def calls(lengths: list[int], together: bool = True) -> list[tuple[int, ...]]:
        return [run.lengths if isinstance(run, CudnnCall) else () for run in runs_of(frame_of(lengths), True, together)]

    assert calls([8440] * 3) == [(8440,) * 3]
    assert calls([8440] * 3, together=False) == [(8440,)] * 3
    assert calls([8440] * 6) == [(8440,) * 4, (8440,) * 2]  # there is a plan for each number
    assert calls([8300, 8500, 8600]) == [(8600, 8500, 8300)]
    assert calls([8500, 2100, 8600]) == [(8600, 8500), (2100,)]
    assert calls([8500, 100, 200, 8600]) == [(), (8600, 8500)]
