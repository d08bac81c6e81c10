"""The agent, the learner and the engine that a recipe describes. The rooms know nothing about recipes; here a recipe's settings become
theirs."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from turnwise.agent import Agent, AgentSettings
from turnwise.agent.vision import Vision
from turnwise.config.learning import Optimiser
from turnwise.config.schema import Config
from turnwise.config.section import Section
from turnwise.engines.base import Engine, Sampling
from turnwise.engines.registry import checked, engine_class, engines
from turnwise.engines.registry import make as make_engine
from turnwise.envs.registry import as_given
from turnwise.learn.learner import Learner
from turnwise.learn.models import choose_device, warn_of_slow_dtype
from turnwise.learn.ranks.group import Ranks
from turnwise.learn.settings import LearnerSettings, OptimiserSettings, ValueSettings
from turnwise.objectives import Loss
from turnwise.util.control_strings import neutral_deep
from turnwise.util.errors import TurnwiseError, unknown_name

S = TypeVar("S")
KEY_VARIABLE = "OPENAI_API_KEY"
PRECISIONS = ("float32", "bfloat16", "float16")


def agent_settings(config: Config, environment: Any) -> AgentSettings:
    """The agent's settings from the recipe; `environment` is the class that may bring its own instructions and tools."""
    own = config.agent
    instructions = getattr(environment, "instructions", "") or "" if own.instructions is None else own.instructions
    tools = _environment_tools(config, environment) if own.tools is None else own.tools
    return settings_from(own, AgentSettings, hide_actions=tuple(own.hide_actions), instructions=str(instructions), tools=read_tools(tools))


def _environment_tools(config: Config, environment: Any) -> Any:
    """The tools that an environment declares, or knows once it has its options. These are asked for only where prompts show them."""
    if config.agent.prompt == "tool" and callable(offered := getattr(environment, "offered_tools", None)):
        return offered(**as_given(environment, config.env.options))
    return getattr(environment, "tools", None) or ()


def read_tools(tools: str | Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Schemas of tools, given or in a JSON file; each has a name."""
    source = "agent.tools"
    if isinstance(tools, str):
        source = tools
        try:
            tools = json.loads(Path(tools).expanduser().read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TurnwiseError(f"agent.tools: {source} cannot be read as JSON: {error}") from None
    named = isinstance(tools, (list, tuple)) and all(
        isinstance(tool, Mapping) and isinstance(tool.get("function", tool), Mapping) and tool.get("function", tool).get("name")
        for tool in tools
    )
    if not named:
        raise TurnwiseError(
            f"{source}: tools are a list of JSON schemas, each with a name: {{type, function: {{name, description, parameters}}}}"
        )
    return tuple(dict(tool) for tool in tools if isinstance(tool, Mapping))


def with_adapters(config: Config, model: Any) -> Any:
    """The model, with adapters if the recipe asks for them."""
    if config.model.lora is None:
        return model
    from turnwise.learn.lora import add_lora

    lora = config.model.lora
    if lora.base == "4bit":
        from turnwise.learn.fourbit import pack_base

        model = pack_base(model, choose_device(config.device), getattr(torch, config.model.dtype))
    return add_lora(model, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, targets=lora.targets, seed=config.seed)


def build_learner(config: Config, model: Any, vision: Vision | None = None, ranks: Ranks | None = None) -> Learner:
    """The learner of a run, on the recipe's device, with adapters if the recipe asks for them. `ranks`: one process of several."""
    model = with_adapters(config, model)
    device = choose_device(config.device)
    warn_of_slow_dtype(config.model.dtype, device)
    return Learner(model, learner_settings(config), device, vision=vision, ranks=ranks)


def learner_settings(config: Config) -> LearnerSettings:
    """The learner's settings from the recipe."""
    own, objective, value = config.learner, config.objective, config.learner.value
    in_loss, in_reward = objective.kl == "loss", objective.kl == "reward"
    loss = Loss(
        objective.name,
        objective.options,
        kl=objective.kl_kind or "k3",
        kl_coef=objective.kl_coef if in_loss else 0.0,
        entropy_coef=objective.entropy_coef,
        importance=objective.importance,
        importance_options=objective.importance_options,
    )
    return settings_from(
        own,
        LearnerSettings,
        without=Optimiser,
        loss=loss,
        schedule=config.schedule.name,
        schedule_options=config.schedule.options,
        aggregation=objective.aggregation,
        constant=objective.constant,
        optimiser=settings_from(own, OptimiserSettings),
        dtype=config.model.dtype,
        temperature=config.engine.temperature,
        kl_reward_coef=objective.kl_coef if in_reward else 0.0,
        kl_reward=(objective.kl_kind or "k1") if in_reward else "k1",
        value=settings_from(value, ValueSettings) if value is not None else None,
    )


def settings_from(section: Section, kind: type[S], without: type[Section] = Section, **more: Any) -> S:
    """The settings of a part of a run, from the section of the recipe that describes it: all fields that both have by name, and `more`.
    Keys of the section class `without` are meant for another part."""
    known = inspect.signature(kind).parameters
    names = [name for name in type(section).model_fields if name in known and name not in without.model_fields]
    return kind(**{name: getattr(section, name) for name in names} | more)


def build_server(config: Config, tokenizer: Any, agent: Agent) -> Engine:
    """A server as the recipe names it. Its key comes from the environment and is sent only to the server."""
    from turnwise.engines.openai import OpenAIEngine, Server

    own = config.engine
    options = {"key_variable": KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else "", **own.options}
    if agent.chat.native_tools:  # the prompt then leaves describing the tools to the server's chat template
        options["extra"] = {"tools": neutral_deep(agent.settings.offered_tools), **options.get("extra", {})}
    if "omit" in options:
        options["omit"] = tuple(options["omit"])
    try:
        server = Server(own.url or "", own.model or "", **options)
    except TypeError as error:
        known = ", ".join(name for name in Server.__dataclass_fields__ if name not in ("url", "model"))
        raise TurnwiseError(f"engine.options: {error}. A server takes: {known}") from None
    if server.form != "ids":
        agent.chat.control.for_text()
    return OpenAIEngine(server, tokenizer)


def engine_options(config: Config) -> dict[str, Any]:
    """The recipe's further options of an engine in this process, checked by its signature; names of precisions become torch dtypes."""
    options = checked(config.engine.name, config.engine.options)
    for name in ("dtype", "autocast"):
        if (value := config.engine.option(name)) is not None:
            if value not in PRECISIONS:
                raise unknown_name(f"precision (engine.options.{name}):", str(value), PRECISIONS)
            options[name] = getattr(torch, value)
    section = config.engine
    sampling = Sampling(section.temperature, section.top_p, section.top_k, section.min_p, section.max_tokens)
    engine_class(engines[section.name]).check_options(sampling, options)
    return options


def check_served(config: Config, model: Any) -> None:
    """Have the engine that will serve a model try it as it was loaded: before anything is learned or played."""
    kind = engine_class(engines[config.engine.name])
    if kind.fallback and kind.unsupported(model) is not None:
        kind = engine_class(engines[kind.fallback])
    kind.check_model(model)


def build_engine(
    config: Config, model: Any, tokenizer: Any, stop_ids: Sequence[int], say: Callable[[str], None], vision: Vision | None = None
) -> Engine:
    """The engine that the recipe names; a model that it does not take is served by its fallback, with a notice."""
    section, entry = config.engine, engines[config.engine.name]
    options = engine_options(config)
    fallback = engine_class(entry).fallback
    if fallback and (reason := engine_class(entry).unsupported(model)) is not None:
        unused = f", without engine.options ({', '.join(section.options)})" if section.options else ""
        say(f"the {section.name} engine does not take this model ({reason}): the {fallback} engine serves it{unused}")
        entry, options = engines[fallback], {}  # options of one engine do not apply to another
    longest = config.agent.max_prompt_tokens + section.max_tokens
    given = {"stop_token_ids": stop_ids} | ({"vision": vision} if engine_class(entry).images else {})
    return make_engine(entry, model, tokenizer, section.max_batch, longest, given=given, options=options)
