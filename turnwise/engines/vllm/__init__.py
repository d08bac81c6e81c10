"""The vLLM engine: vLLM does the sampling, in this process; weights reach it through its own transfer interface."""

from turnwise.engines.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
