"""The size of a run, before anything is trained."""

from __future__ import annotations

from pathlib import Path

from turnwise.config.schema import Config


def forecast(config: Config) -> list[str]:
    """The size of a run: tasks, attempts, turns, tokens, memory."""
    from turnwise.setup.unread import unread

    per_turn = config.agent.max_prompt_tokens + config.engine.max_tokens
    lines = [f"not executed, only checked: {', '.join(code)}"] if (code := unread(config)) else []
    lines += what_is_played(config, known=not code)
    if config.sft is not None:
        much = f"{config.sft.steps} steps" if config.sft.steps is not None else f"{config.sft.epochs} passes"
        lines.insert(1, f"a warm start: {config.sft.tasks} attempts of {config.sft.file or 'the expert'}, learned in {much}")
    parameters = parameter_count(config)
    if parameters is None:
        return [*lines, "memory: unknown (the model folder does not exist here)"]
    known = "about " if config.model.path is None else ""  # the vocabulary size of the tiny model is not known yet
    trained = parameters if config.model.lora is None else parameters // 50
    width = 2 if config.model.dtype == "bfloat16" else 4
    weights = parameters * width + trained * (12 + (4 if width == 2 else 0)) + (parameters * width if config.objective.kl != "off" else 0)
    tokens = config.learner.tokens_per_batch
    at_once = f"{tokens:,} tokens" if tokens else "as many tokens at once as memory allows"
    return [
        *lines,
        f"model: {known}{parameters:,} parameters; about {weights / 1e9:.2f} GB for weights, gradients and optimiser, "
        f"and activations of {at_once} (a turn has at most {per_turn:,})",
    ]


def what_is_played(config: Config, known: bool) -> list[str]:
    """Tasks, attempts and turns. If the environment is user code, which is not executed for this, only what the recipe says."""
    from turnwise.setup.system import System

    own, env, system = config.collect, config.env, System(config, plays=known)
    held_out = f"{config.eval.n} held out ({config.eval.split})"
    tasks = f"tasks: {env.tasks or 'those'} for training ({env.name}, {env.split}), {held_out}; the exact number is known when it runs"
    if known:
        panel = f"{len(system.panel)} held out ({config.eval.split}; panel {system.panel.hash})"
        tasks = f"tasks: {len(system.tasks)} for training ({env.name}, {env.split}), {panel}"
    limit = system.max_turns if known else env.max_turns
    if limit is None:
        return [tasks, f"an iteration: {own.groups} tasks × {own.group_size} attempts × the environment's turn limit"]
    turns = own.groups * own.group_size * limit
    return [
        tasks,
        f"an iteration: {own.groups} tasks × {own.group_size} attempts × at most {limit} turns = {turns:,} turns",
        f"  at most {turns * config.engine.max_tokens:,} sampled tokens, in prompts of at most {config.agent.max_prompt_tokens:,}",
        f"{config.iterations} iterations: at most {turns * config.iterations:,} turns",
    ]


def parameter_count(config: Config) -> int | None:
    """The number of parameters of the model, without loading its weights; None if unknown."""
    import torch

    if config.model.path is None:
        tiny = config.model.tiny
        return tiny.layers * 12 * tiny.hidden**2 + 1000 * tiny.hidden
    if not (Path(config.model.path) / "config.json").is_file():
        return None
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config.model.path, trust_remote_code=False))
    return int(sum(parameter.numel() for parameter in model.parameters()))
