"""The few names of bitsandbytes that are used here, in plain torch, for machines on which it is not installed: the same codes (NF4), one
float32 scale per block of 64 weights."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

BLOCK = 64
LOW = [-1.0, -0.69619, -0.52507, -0.39492, -0.28444, -0.18477, -0.09105, 0.0]
LEVELS = torch.tensor([*LOW, 0.07958, 0.16093, 0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1.0])


@dataclass
class State:
    absmax: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype


class Params4bit(nn.Parameter):
    quant_state: State | None = None

    def __new__(cls, data: Tensor, requires_grad: bool = False, **ignored: Any) -> Params4bit:
        return nn.Parameter.__new__(cls, data, requires_grad)  # type: ignore[no-any-return]

    def __init__(self, *ignored: Any, **more: Any) -> None:
        super().__init__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Params4bit:
        other = Params4bit(self.data.clone())
        other.quant_state = deepcopy(self.quant_state, memo)
        return other

    def to(self, *where: Any, **more: Any) -> Any:
        if self.quant_state is None and self.device.type != "meta":
            blocks = self.data.float().reshape(-1, BLOCK)
            absmax = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12)
            codes = (blocks / absmax).unsqueeze(-1).sub(LEVELS).abs().argmin(-1).flatten().to(torch.uint8)
            self.quant_state = State(absmax, tuple(self.shape), self.dtype)
            self.data = (codes[::2] * 16 + codes[1::2])[:, None]
        return self


class Linear4bit(nn.Linear):
    def __init__(self, inputs: int, outputs: int, bias: bool, device: str = "meta", **ignored: Any):
        super().__init__(inputs, outputs, bias, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, dequantize_4bit(self.weight.data, self.weight.quant_state), self.bias)


def dequantize_4bit(codes: Tensor, state: State, out: Tensor | None = None) -> Tensor:
    pairs = torch.stack([codes[:, 0] // 16, codes[:, 0] % 16], 1).long()
    found = (LEVELS[pairs].view(-1, BLOCK) * state.absmax).view(state.shape).to(state.dtype)
    return found if out is None else out.copy_(found)


def matmul_4bit(x: Tensor, codes: Tensor, quant_state: State) -> Tensor:
    return nn.functional.linear(x, dequantize_4bit(codes.t(), quant_state))


DOUBLE = SimpleNamespace(
    nn=SimpleNamespace(Linear4bit=Linear4bit, Params4bit=Params4bit),
    functional=SimpleNamespace(dequantize_4bit=dequantize_4bit),
    matmul_4bit=matmul_4bit,
)


@pytest.fixture
def fourbit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """bitsandbytes itself if it is installed; otherwise its double."""
    if find_spec("bitsandbytes") is None:
        for module in ("turnwise.engines.fourbit", "turnwise.learn.lora"):
            monkeypatch.setattr(f"{module}.library", lambda: DOUBLE)
    yield
