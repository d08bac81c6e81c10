"""Evaluating players without a model: random, scripted and expert, through the same collector as models."""

from __future__ import annotations

from typing import Any

from turnwise.collect.collector import Collector
from turnwise.collect.panel import Evaluation, run_panel
from turnwise.collect.player_policy import PlayerPolicy, advised, player
from turnwise.envs.pool import Pool
from turnwise.envs.registry import portable
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter
from turnwise.setup.measure import report_faults, settings_of
from turnwise.setup.system import System


def evaluate_player(
    agent: str, config: Config, split: str | None, n: int | None, seed: int, repeats: int, reporter: Reporter
) -> Evaluation:
    """A random, scripted or expert agent on a panel: the first thing to try on a new environment."""
    system, policy = System(config), PlayerPolicy(player(agent, config.env.name, dict(config.env.options)))
    panel = system.panel_of(split or config.eval.split, n, seed)
    factory = portable(config.env.name, config.env.options)
    limits: dict[str, Any] = {"workers": config.env.workers, "timeout": config.env.timeout, "memory_mb": config.env.memory_mb}
    with Pool(advised(factory, policy.player), 32, **limits) as pool:
        collector = Collector(pool, policy, system.max_turns, system.rewards, ordered=False, on_fault=system.faults.hear)
        result = run_panel(collector, panel, seed, repeats)
    report_faults(result, reporter.note, system.faults)
    settings = settings_of(config, split or config.eval.split, seed, system.max_turns)
    result.settings = settings | {"player": agent, "temperature": None}
    return result
