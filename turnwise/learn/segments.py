"""Memory of a GPU in segments that grow, for runs that nearly fill it.

torch's allocator usually asks for one piece of memory after another and never moves anything: a gap between two tensors serves what is
smaller alone. Segments that grow are ranges of addresses to which pages are added, and whose empty pages are given back: a gap of several
pages is no loss. Their tensors cannot be shared with other processes through CUDA's handles on every machine, so runs on a cluster and
engines of other libraries do without.
"""

from __future__ import annotations

import os
from typing import Any

import torch

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # in which a user sets up the allocator
DECIDED = ("expandable_segments", "backend")  # if the user has said anything about these, nothing is changed


def grow_segments() -> bool:
    """From now on, what is allocated is in segments that grow. Returns whether it is so: not if the user has set it up differently."""
    said = ",".join(os.environ.get(name, "") for name in VARIABLES)
    if any(word in said for word in DECIDED):
        return "expandable_segments:true" in said.lower()
    private: Any = torch._C
    change = getattr(private, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    change("expandable_segments:True")
    return True
