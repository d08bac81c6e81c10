"""Credit: pure functions from rollouts to advantages. One file is one algorithm; `registry.py` runs them by name."""

from turnwise.credit.diagnose import diagnose, explain, sizes
from turnwise.credit.registry import algorithms, compute, register

__all__ = ["algorithms", "compute", "diagnose", "explain", "register", "sizes"]
