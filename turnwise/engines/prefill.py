"""How many prompt tokens a forward pass of the native engine takes if a recipe does not say. No torch: the model of memory asks too."""

from __future__ import annotations

ON_A_CPU, ON_A_SMALL_GPU, ON_A_LARGE_GPU = 1024, 16384, 32768
LARGE = 64 * 10**9  # bytes: from here on, the memory of longer steps is a small part of the GPU


def default_prefill(memory: int | None) -> int:
    """Tokens per forward pass for a process that can have so many bytes of a GPU; None: on a CPU."""
    if memory is None:
        return ON_A_CPU
    return ON_A_LARGE_GPU if memory >= LARGE else ON_A_SMALL_GPU
