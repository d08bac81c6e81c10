"""Triton's interpreter, in which tests run the kernels of a GPU on a CPU."""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch


def need_interpreter() -> None:
    """Skip a module that cannot use it here; otherwise kernels that are defined from now on are interpreted."""
    if find_spec("triton") is None:
        pytest.skip("needs triton, which only a machine with a GPU has by itself: pip install triton", allow_module_level=True)
    if torch.cuda.is_available():
        pytest.skip("on a GPU the kernels are compiled: its own tests run them", allow_module_level=True)
    try:
        int(np.ones(1))
    except TypeError:
        pytest.skip("triton's interpreter needs a numpy below 2.4, where an array of one number is a number", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
