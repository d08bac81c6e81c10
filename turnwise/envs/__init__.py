"""Environments: the protocol, the registry, the pool, and one folder per environment."""

from turnwise.envs.base import Env, EpisodeOver, Observation, Restorable, Transition
from turnwise.envs.registry import Need, describe, make, names, needs_package, needs_private, register, tasks
