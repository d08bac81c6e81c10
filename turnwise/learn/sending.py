"""Arrays for a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sent(array: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """An array or tensor on the device. What goes to a GPU goes through pinned memory: otherwise the host would wait until the GPU has
    computed all that it was given before, and the GPU would then wait for the host."""
    found = torch.as_tensor(array, dtype=dtype)
    if device.type != "cuda" or found.is_cuda:
        return found.to(device)
    return found.pin_memory().to(device, non_blocking=True)
