"""Arrays on their way to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from turnwise.learn.sending import sent


def test_on_a_cpu_nothing_is_copied_unless_its_dtype_changes() -> None:
    numbers = np.arange(5)
    assert np.shares_memory(sent(numbers, torch.device("cpu")).numpy(), numbers)
    assert sent([0, 3], torch.device("cpu"), torch.int32).dtype == torch.int32


def test_to_a_gpu_arrays_go_through_pinned_memory_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *place, **how: asked.append((*place, how)) or self)
    sent(np.arange(3), torch.device("cuda"))
    assert asked == ["pinned", (torch.device("cuda"), {"non_blocking": True})]
