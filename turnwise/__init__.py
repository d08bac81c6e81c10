"""Turnwise: reinforcement learning for multi-turn LLM agents, with credit for every turn."""
