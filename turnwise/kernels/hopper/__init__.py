"""Kernels for GPUs of the Hopper generation, in CUDA: compiled at first use (`driver.py`)."""
