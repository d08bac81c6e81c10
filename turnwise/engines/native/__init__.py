"""The native engine: generation in the learner's process, with the learner's own weights."""

from turnwise.engines.native.engine import NativeEngine
from turnwise.engines.native.families import supports

__all__ = ["NativeEngine", "supports"]
