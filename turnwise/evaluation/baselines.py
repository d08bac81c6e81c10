"""Baselines by prompting: what a model does without training, prompted in one of two ways.

plain        the task and the bare action
react        a thought before every action, in a form worked out in the prompt; the dialogue keeps earlier thoughts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from turnwise.collect.panel import Evaluation
from turnwise.collect.players import ASK_EXPERT, Advised
from turnwise.collect.warmstart import has_expert
from turnwise.data.tasks import Task
from turnwise.envs import registry
from turnwise.envs.registry import portable
from turnwise.envs.scripts import Play, Reset, play_all
from turnwise.recipe.schema import Config
from turnwise.runs.reporter import Reporter
from turnwise.setup.arguments import Asked, Given
from turnwise.setup.build import agent_settings
from turnwise.setup.environment import build_tasks, limits_of, step_limit
from turnwise.setup.evaluated import measure, says_how, source_config
from turnwise.util.errors import TurnwiseError

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
    examples: int = 0,
    reporter: Reporter | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Evaluation:
    """Play a panel with a model that is only prompted. `source` and the rest are as in `turnwise.evaluate`; the agent's prompts replace
    those of the recipe. `examples`: this many training tasks, solved by the environment's expert, are shown."""
    given, asked = Given(env), Asked(split, n, seed, temperature, repeats)
    config, folder = source_config(source, given, {**AGENTS[agent], **overrides}, trust)
    config = with_examples(config, examples) if examples else config
    result = measure(config, folder, asked, says_how(source, given, overrides), overrides, reporter or Reporter())
    result.settings |= {"player": agent, "examples": examples, "model": str(source or config.engine.model)}
    return result


# -- examples -------------------------------------------------------------------------------------------------------------------------


def with_examples(config: Config, count: int) -> Config:
    """The config with solved training tasks in the agent's instructions."""
    factory = registry.spec(config.env.name).load()
    settings = agent_settings(config, factory)
    form = "<action>{}</action>" if settings.style == "tags" else "{}"
    shown = [example_text(steps, form) for steps in solved(config, count)]
    text = "\n\n".join(filter(None, [settings.instructions, *shown]))
    return config.model_copy(update={"agent": config.agent.model_copy(update={"instructions": text})})


def solved(config: Config, count: int) -> Iterable[list[tuple[str, str]]]:
    """Observations and the expert's actions on the first training tasks that it solves."""
    config.trusted()
    if not has_expert(config.env.name, dict(config.env.options)):
        raise TurnwiseError(f"--examples {count}: environment {config.env.name!r} has no expert (expert(task) or expert_action())")
    factory, solved_tasks = Advised(portable(config.env.name, config.env.options)), 0
    tasks, max_turns = build_tasks(config.env), step_limit(config.env)
    with limits_of(config.env).pool(factory, len(tasks)) as pool:
        for steps in play_all(pool, (expert_steps(task, max_turns) for task in tasks)):
            if steps:
                yield steps
                solved_tasks += 1
            if solved_tasks == count:
                return
    raise TurnwiseError(
        f"--examples {count}: the expert of {config.env.name} solves only {solved_tasks} of its training tasks within the step limit"
    )


def expert_steps(task: Task, max_turns: int) -> Play[list[tuple[str, str]]]:
    """What the expert saw and did; empty if it does not solve the task."""
    result, steps = (yield Reset(task)), []
    for _ in range(max_turns):
        if result.over:
            break
        seen = result.observation.text.strip()
        result = yield ASK_EXPERT
        if result.transition is not None:
            steps.append((seen, str(result.transition.info["action"])))
    return steps if result.transition is not None and result.transition.done and result.transition.success else []


def example_text(steps: Sequence[tuple[str, str]], form: str) -> str:
    """A solved task as the agent would have seen it; `form` says how an action is written."""
    lines = [f"{seen}\n{form.format(action)}" for seen, action in steps]
    return "\n".join(["Another task, solved (the thoughts are left out):", *lines, "(the task is done)"])
