"""Engines: what turns prompts into responses."""

from turnwise.engines.base import Engine, Finish, Request, Response, Sampler, Sampling, WeightReceiver

__all__ = ["Engine", "Finish", "Request", "Response", "Sampler", "Sampling", "WeightReceiver"]
