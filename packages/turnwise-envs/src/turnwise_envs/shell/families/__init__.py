"""The families of shell tasks: importing this registers all of them."""

from __future__ import annotations

from turnwise_envs.shell.families import data, files, programs, steps, texts
from turnwise_envs.shell.scene import families as known_families
from turnwise_envs.shell.scene import scene

__all__ = ["data", "files", "known_families", "programs", "scene", "steps", "texts"]
