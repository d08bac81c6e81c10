"""Players without a model: random, scripted and expert, through the same collector as models."""

from __future__ import annotations

from turnwise.collect.collector import Collector
from turnwise.collect.faults import FaultWatch, report_faults
from turnwise.collect.hooks import Hooks
from turnwise.collect.panel import Evaluation, run_panel
from turnwise.collect.players import PlayerPolicy, advised, player
from turnwise.envs.registry import portable
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter
from turnwise.setup.arguments import Asked
from turnwise.setup.environment import build_rewards, limits_of, panel_of, settings_of, step_limit


def evaluate_player(agent: str, config: Config, asked: Asked, reporter: Reporter) -> Evaluation:
    """A random, scripted or expert agent on a panel: the first thing to try on a new environment."""
    config.trusted()
    policy = PlayerPolicy(player(agent, config.env.name, dict(config.env.options)))
    split, seed = asked.split or config.eval.split, asked.seed or 0
    panel = panel_of(config.env, split, None if asked.n == "all" else asked.n, seed)
    max_turns, faults = step_limit(config.env), FaultWatch(lambda text: None, config.env.name)
    factory = portable(config.env.name, config.env.options)
    with limits_of(config.env).pool(advised(factory, policy.player), len(panel)) as pool:
        collector = Collector(pool, policy, max_turns, build_rewards(config), Hooks(on_fault=faults.on_fault), ordered=False)
        result = run_panel(collector, panel, seed, asked.repeats or 1)
    report_faults(result.trajectories, reporter.note, faults)
    result.settings = settings_of(config, split, seed, max_turns) | {"player": agent, "temperature": None}
    return result
