"""The size of a run, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from turnwise.planner.fit import demand_of, shape_for
from turnwise.planner.memory import totals
from turnwise.recipe.schema import Config
from turnwise.setup.early import unread
from turnwise.setup.environment import build_panel, build_tasks, step_limit
from turnwise.util.errors import TurnwiseError
from turnwise.util.hub import folder_of

HELD = ("weights", "adapters", "float32 masters", "reference", "gradients", "optimiser state")  # on a device that is large enough


def forecast(config: Config, said: bool = False) -> Iterator[str]:
    """The size of a run: tasks, attempts, turns, tokens, memory. `said`: of its memory everything was said. If the tasks or the model
    are not here, the rest comes first, as far as the recipe itself says it, and then the error."""
    missing = list[str]()
    lines = [f"not executed, only checked: {', '.join(code)}"] if (code := unread(config)) else []
    try:
        lines += what_is_played(config, known=not code)
    except TurnwiseError as error:
        missing.append(str(error))
        lines += what_is_played(config, known=False)
    if config.sft is not None:
        much = f"{config.sft.steps} steps" if config.sft.steps is not None else f"{config.sft.epochs} passes"
        lines.insert(1, f"a warm start: {config.sft.tasks} attempts of {config.sft.file or 'the expert'}, learned in {much}")
    yield from (*lines, f"model: {model_words(config, said)}")
    try:
        if config.model.path is not None:
            folder_of(config.model.path)
    except TurnwiseError as error:
        missing.append(str(error))
    if missing:
        raise TurnwiseError(". Also: ".join(missing))


def model_words(config: Config, said: bool) -> str:
    """The parameters of the model and, if it was not `said` already, what stays in memory of it during an update."""
    counted = parameter_count(config)
    try:
        shape = shape_for(config)
    except TurnwiseError as error:
        return f"{counted:,} parameters; its memory is not known" if counted is not None else f"not known yet ({error})"
    size = f"{counted:,}" if counted is not None else f"about {shape.parameters:,}"
    if said:
        return f"{size} parameters"
    terms = [term for term in demand_of(config, shape, memory=10**15).terms if term.name in HELD]
    tokens, per_turn = config.learner.tokens_per_batch, config.agent.max_prompt_tokens + config.engine.max_tokens
    at_once = f"{tokens:,} tokens" if tokens else "as many tokens at once as memory allows"
    return (
        f"{size} parameters; about {max(totals(terms).values()) / 1e9:.2f} GB for weights, gradients and optimiser, "
        f"and activations of {at_once} (a turn has at most {per_turn:,})"
    )


def parameter_count(config: Config) -> int | None:
    """The number of parameters of a model in a folder, without loading its weights; None if it is not in one."""
    import torch

    if config.model.path is None or not (Path(config.model.path).expanduser() / "config.json").is_file():
        return None
    from turnwise.learn.models import class_of, config_of

    settings = config_of(config.model.path)
    with torch.device("meta"):
        model = class_of(settings).from_config(settings)
    return int(sum(parameter.numel() for parameter in model.parameters()))


def what_is_played(config: Config, known: bool) -> list[str]:
    """Tasks, attempts and turns. If the environment is user code, which is not executed for this, only what the recipe says."""
    collect, env = config.collect, config.env
    held_out = f"{config.eval.n or 'some'} held out ({config.eval.split})"
    tasks = f"tasks: {env.tasks or 'those'} for training ({env.name}, {env.split}), {held_out}; the exact number is known when it runs"
    if known:
        training = build_tasks(config.trusted().env)
        chosen = build_panel(config, training, lambda text: None)
        panel = f"{len(chosen)} held out ({config.eval.split}; panel {chosen.hash})"
        tasks = f"tasks: {len(training)} for training ({env.name}, {env.split}), {panel}"
    limit = step_limit(env) if known else env.max_turns
    if limit is None:
        return [tasks, f"an iteration: {collect.groups} tasks × {collect.group_size} attempts × the environment's turn limit"]
    turns = collect.groups * collect.group_size * limit
    return [
        tasks,
        f"an iteration: {collect.groups} tasks × {collect.group_size} attempts × at most {limit} turns = {turns:,} turns",
        f"  at most {turns * config.engine.max_tokens:,} sampled tokens, in prompts of at most {config.agent.max_prompt_tokens:,}",
        f"{config.iterations} iterations: at most {turns * config.iterations:,} turns",
    ]
