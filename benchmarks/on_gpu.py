"""Imported by benchmarks of kernels: on a machine that cannot run kernels, they end with a sentence instead of a failed import."""

from __future__ import annotations

import importlib.util
import sys

NEEDS = "This benchmark measures kernels. It needs an NVIDIA GPU and triton, which the CUDA builds of torch install."

if importlib.util.find_spec("triton") is None:
    if "--help" in sys.argv[1:]:
        print(sys.modules["__main__"].__doc__)
    sys.exit(NEEDS)
