"""Engines: what turns prompts into responses."""

from turnwise.engines.base import Engine, Finish, Request, Response, Sampling

__all__ = ["Engine", "Finish", "Request", "Response", "Sampling"]
