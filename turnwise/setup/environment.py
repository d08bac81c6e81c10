"""What a run plays: its tasks and its panel, the step limit, the pool of environments, the reward; and a smoke test of all that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from turnwise.collect.hooks import Hooks
from turnwise.collect.panel import check_disjoint
from turnwise.collect.rewards import Rewards, find_term
from turnwise.config.references import is_reference
from turnwise.data.tasks import TaskSet
from turnwise.envs import check as checker
from turnwise.envs import registry
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.pool import Pool
from turnwise.envs.program.env import ProgramEnv
from turnwise.envs.scripts import Limits
from turnwise.envs.settings import Env
from turnwise.envs.wrapping import meeting
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import told_after

DEFAULT_MAX_TURNS = 50
PANEL = 128  # tasks of an evaluation, if a recipe gives no number
PATIENCE = 15.0  # seconds before a start that seems to hang is explained


def is_program(env: Env) -> bool:
    """Whether the environment plays by itself and calls the model through an endpoint."""
    return Capabilities(registry.spec(env.name).load()).plays_itself


def build_tasks(env: Env) -> TaskSet:
    """The training tasks."""
    return registry.tasks(env.name, env.split, n=env.tasks, **env.options)


def build_panel(config: Config, tasks: TaskSet, say: Callable[[str], None]) -> TaskSet:
    """The evaluation's tasks: none of them is a training task, which is checked."""
    panel = recipe_panel(config)
    check_disjoint(tasks, panel, warn=say)
    return panel


def recipe_panel(config: Config) -> TaskSet:
    """The tasks that the recipe evaluates on."""
    return panel_of(config.env, config.eval.split, config.eval.n, config.eval.seed, most=PANEL)


def panel_of(env: Env, split: str, n: int | None, seed: int, most: int | None = None) -> TaskSet:
    """`n` tasks of a split, the same ones on every machine. None: all of it, or `most` of them."""
    tasks = registry.tasks(env.name, split, n=None, **env.options)
    if n is not None and n > len(tasks):
        raise TurnwiseError(f"{env.name} has {len(tasks)} tasks in its split {split!r}, not {n}: ask for fewer (eval.n, or --n of eval)")
    if n is None and most is not None:
        n = min(most, len(tasks.distinct()))
    return tasks.distinct() if n is None else tasks.panel(n, seed)


def step_limit(env: Env) -> int:
    """The largest number of turns of an attempt: the recipe's, otherwise the environment's."""
    if env.max_turns is not None:
        return env.max_turns
    environment = registry.make(env.name, **env.options)
    limit = getattr(environment, "max_turns", None) or registry.spec(env.name).max_turns
    registry.close(environment)
    return int(limit or DEFAULT_MAX_TURNS)


def build_rewards(config: Config) -> Rewards:
    """The environment's reward, scaled, and the user's terms."""
    terms = [find_term(term.name, term.function, term.weight, term.options) for term in config.reward]
    return Rewards(config.env.reward_scale, terms)


def limits_of(env: Env, cancelled: Callable[[], bool] = lambda: False) -> Limits:
    """How the environment is played outside a collector: with the recipe's workers and limits, until cancelled."""
    return Limits(env.workers, env.timeout, env.memory_mb, cancelled)


def build_pool(config: Config) -> Pool:
    """Environments for all attempts of a batch."""
    env, size = config.env, max(config.collect.groups * config.collect.group_size, 1)
    limits: dict[str, Any] = {"workers": env.workers, "timeout": env.timeout, "memory_mb": env.memory_mb}
    if (wrap := meeting(config.needs)) is not None:
        return Pool(wrap(registry.portable(env.name, env.options)), size, **limits)
    return Pool(env.name, size, options=env.options, **limits)


def build_program(config: Config) -> ProgramEnv:
    """An environment that plays by itself."""
    env = registry.make(config.env.name, **config.env.options)
    if not isinstance(env, ProgramEnv):
        raise TurnwiseError(f"environment {config.env.name!r} plays by itself, and is not a ProgramEnv: subclass that")
    if not config.engine.declared.in_process:
        raise TurnwiseError("a program is served by an engine of this process: use engine.name=native or transformers")
    return env


def smoke_test(env: Env, pool: Pool, tasks: TaskSet, hooks: Hooks) -> None:
    """Play a few turns of two tasks: an environment that cannot be played raises an error here, with the lines of its file."""
    hooks.on_phase(f"playing a few turns of environment {env.name!r}")
    with patience(env, "still waiting for", hooks.say):
        checker.smoke_test(pool, env.name, tasks, hooks.say, hooks.cancelled)


def patience(env: Env, doing: str, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Inside, code of the user's own is asked about if it takes long: it may never return."""
    if not is_reference(env.name):
        return nullcontext()
    words = f"{doing} environment {env.name!r}; if this does not end, does its reset or step return?"
    return told_after(PATIENCE, say, words)


def settings_of(config: Config, split: str, seed: int, max_turns: int) -> dict[str, Any]:
    """What an evaluation's result depends on in addition to the panel, with the recipe that it belongs to."""
    recipe = config.model_dump(mode="json", exclude={"out", "run"})
    hashed = {"config": recipe, "config_hash": content_hash(config)}
    return {"environment": config.env.name, "split": split, "seed": seed, "max_turns": max_turns} | hashed
