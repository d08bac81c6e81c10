"""What a trained agent is compared with: a model that is only prompted, and players without a model.

    plain        the task and the bare action
    react        a thought before every action, in a form worked out in the prompt; the dialogue keeps earlier thoughts

Both go through the same collector as a trained agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from turnwise.collect.collector import Collector
from turnwise.collect.faults import FaultWatch
from turnwise.collect.hooks import Hooks
from turnwise.collect.panel import Evaluation, run_panel
from turnwise.collect.players import PlayerPolicy, advised, player
from turnwise.envs.pool import Pool
from turnwise.envs.registry import portable
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter
from turnwise.setup.arguments import Asked, Given
from turnwise.setup.environment import build_rewards, panel_of, step_limit
from turnwise.setup.evaluated import measure, report_faults, says_how, settings_of, source_config

AGENTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"agent.prompt": "plain"},
    "react": {"agent.prompt": "react", "agent.context": "full"},
}


def evaluate(
    agent: str,
    source: str | Path | None = None,
    *,
    env: str | None = None,
    split: str | None = None,
    n: int | Literal["all"] | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    repeats: int | None = None,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Evaluation:
    """Play a panel with a model that is only prompted. `source` and the rest are as in `turnwise.evaluate`; the agent's prompts replace
    those of the recipe."""
    given, asked = Given(env), Asked(split, n, seed, temperature, repeats)
    config, folder = source_config(source, given, {**AGENTS[agent], **overrides}, trust)
    result = measure(config, folder, asked, says_how(source, given, overrides), overrides, reporter or Reporter())
    result.settings |= {"player": agent, "model": str(source or config.engine.model)}
    return result


def evaluate_player(agent: str, config: Config, asked: Asked, reporter: Reporter) -> Evaluation:
    """A random, scripted or expert agent on a panel: the first thing to try on a new environment."""
    config.trusted()
    policy = PlayerPolicy(player(agent, config.env.name, dict(config.env.options)))
    split, seed = asked.split or config.eval.split, asked.seed or 0
    panel = panel_of(config.env, split, None if asked.n == "all" else asked.n, seed)
    max_turns, faults = step_limit(config.env), FaultWatch(lambda text: None, config.env.name)
    factory = portable(config.env.name, config.env.options)
    limits: dict[str, Any] = {"workers": config.env.workers, "timeout": config.env.timeout, "memory_mb": config.env.memory_mb}
    with Pool(advised(factory, policy.player), 32, **limits) as pool:
        collector = Collector(pool, policy, max_turns, build_rewards(config), Hooks(on_fault=faults.on_fault), ordered=False)
        result = run_panel(collector, panel, seed, asked.repeats or 1)
    report_faults(result, reporter.note, faults)
    result.settings = settings_of(config, split, seed, max_turns) | {"player": agent, "temperature": None}
    return result
