"""Experts by script, one function per kind of task or per few of them. They read the page and keep nothing: any state is a beginning."""

from __future__ import annotations

from importlib import import_module

from turnwise_envs.miniwob.experts.base import EXPERTS
from turnwise_envs.miniwob.view import Look

FILES = ("buttons", "fields", "lists", "mail", "moves", "pages", "widgets")


def known() -> frozenset[str]:
    """The kinds that have an expert."""
    for name in FILES:
        import_module(f"turnwise_envs.miniwob.experts.{name}")
    return frozenset(EXPERTS)


def advise(kind: str, look: Look) -> str | None:
    """The expert's action now; None if there is no expert, or if it does not know what to do."""
    return EXPERTS[kind](look) if kind in known() else None
