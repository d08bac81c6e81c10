"""Calls for long sequences, without a GPU: which of them are one call, and that padding changes nothing, with plain attention as a double
of cuDNN's kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from turnwise.learn.fused import long
from turnwise.learn.fused.attention import Frame, Stretch, attend, attend_backward, runs_of

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
        own = slice(None), slice(None), slice(0, 33)
        torch.testing.assert_close(out[own], found[own])  # the rows that every sequence has
        return torch.autograd.grad(found, leaves, slope)

    monkeypatch.setattr(long, "cudnn", forward)
    monkeypatch.setattr(long, "cudnn_backward", backward)
    monkeypatch.setattr(long, "GRAIN", 16)
    monkeypatch.setattr("turnwise.learn.fused.attention.LONG", 33)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("lengths", [[40, 40, 40], [40, 47, 33, 90], [5, 41, 43, 7, 3, 44], [64], [48, 90, 91, 40, 39, 48, 47]])
def test_attention_of_padded_groups_is_that_of_each_sequence(plain: None, lengths: list[int], together: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, frame = sum(lengths), frame_of(lengths)
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * SIZE, generator=generator, dtype=torch.float64)
    grad = torch.randn(tokens, HEADS * SIZE, generator=generator, dtype=torch.float64)
    wanted, _ = attend(qkv, frame)
    slopes = [x.split(lengths) for x in attend_backward(grad, qkv, wanted, (), frame)]
    split = wanted.view(tokens, HEADS, SIZE).split(lengths)
    number = 0
    for run in runs_of(frame, True, together):
        if isinstance(run, Stretch):
            number += len(run.offsets) - 1
            continue
        rows, last = slice(run.start, run.end), number + len(run.lengths)
        out, *state = long.attend(qkv, run, frame)
        torch.testing.assert_close(out, torch.cat(split[number:last]))
        found = long.attend_backward(grad.view(tokens, HEADS, SIZE)[rows], qkv, out, state, run, frame)
        for one, other in zip(found, slopes, strict=True):
            torch.testing.assert_close(one, torch.cat(other[number:last]))
        number = last
    assert number == len(lengths)


def test_neighbours_of_nearly_the_same_length_are_one_call() -> None:
    def calls(lengths: list[int], together: bool = True) -> list[tuple[int, ...]]:
        return [run.lengths if isinstance(run, long.Group) else () for run in runs_of(frame_of(lengths), True, together)]

    assert calls([8440] * 3) == [(8440,) * 3]
    assert calls([8440] * 3, together=False) == [(8440,)] * 3
    assert calls([8440] * 6) == [(8440,) * 4, (8440,) * 2]  # there is a plan for each number
    assert calls([8300, 8500, 8600]) == [(8300, 8500, 8600)]
    assert calls([2100, 8500, 8600]) == [(2100,), (8500, 8600)]
    assert calls([8500, 100, 200, 8600]) == [(8500,), (), (8600,)]


def test_every_token_is_in_one_call_in_the_order_of_the_row() -> None:
    lengths = [3000, 10, 2500, 2600, 2047, 2048, 9000]
    for fast in (False, True):
        runs = runs_of(frame_of(lengths), fast, True)
        assert [run.start for run in runs] == [0, *(run.end for run in runs[:-1])] and runs[-1].end == sum(lengths)
    for run in runs:
        if isinstance(run, Stretch):
            assert run.offsets[0] == 0 and run.offsets[-1] == run.end - run.start
