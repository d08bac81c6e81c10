"""Contexts and what an agent has seen."""

from __future__ import annotations

from typing import Any

from agent_tokenizers import QWEN, tokenizer

from turnwise.agent import Agent, AgentSettings
from turnwise.envs.base import Observation


def seen(number: int) -> Observation:
    return Observation(f"You arrive at place {number}.", actions=("look", f"go to desk {number}"))


def make(template: str | None = QWEN, **settings: Any) -> Agent:
    return Agent(tokenizer(template), AgentSettings(**settings))


def text(agent: Agent, prompt: Any) -> str:
    return str(agent.chat.tokenizer.decode(prompt.ids))
