"""Environments: the protocol, the registry, the pool, and one folder an environment."""

from turnwise.envs.base import Env, EpisodeOver, Observation, Transition

__all__ = ["Env", "EpisodeOver", "Observation", "Transition"]
