"""The model, the agent, the learner and the engine that a recipe describes. The rooms know nothing about recipes; here a recipe's settings
become theirs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from turnwise.agent import Agent
from turnwise.agent.prompts import load_template
from turnwise.agent.vision import Vision
from turnwise.collect.hooks import Hooks
from turnwise.collect.vocabulary import environment_texts
from turnwise.config.section import Section
from turnwise.engines.base import Engine, Sampling
from turnwise.engines.registry import checked, engine_class, engines
from turnwise.engines.registry import make as make_engine
from turnwise.engines.settings import Engine as EngineSection
from turnwise.envs import registry
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.registry import as_given
from turnwise.learn import models as loading
from turnwise.learn import tiny as tiny_models
from turnwise.learn.auxiliary.models import REFERENCE, Models, build
from turnwise.learn.learner import Learner
from turnwise.learn.local import LocalLearner, Signal
from turnwise.learn.models import choose_device, warn_of_slow_dtype
from turnwise.learn.ranks.group import Ranks
from turnwise.learn.sections import Optimiser, OptimiserSettings, Update
from turnwise.learn.settings import LearnerSettings
from turnwise.methods.registry import signals
from turnwise.objectives import Loss
from turnwise.recipe.schema import Config
from turnwise.setup.environment import limits_of, patience
from turnwise.util.control_strings import neutral_deep
from turnwise.util.errors import TurnwiseError, unknown_name

KEY_VARIABLE = "OPENAI_API_KEY"
WORDS_FROM = 20  # tasks whose texts make the tokenizer that is only used for counting
PRECISIONS = ("float32", "bfloat16", "float16")


# -- the model --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedModel:
    """A model with what makes its inputs. `model` is None where another process has the weights: a server, or learner ranks. `vision` is
    the processor of a vision-language model."""

    tokenizer: Any
    model: Any = None
    vision: Vision | None = None

    @property
    def preprocessor(self) -> Any:
        """What belongs next to the weights in a model's folder: the tokenizer, or the processor that holds it."""
        return self.tokenizer if self.vision is None else self.vision.processor


def load_model(config: Config, folder: Path | None = None, words: Path | None = None, hooks: Hooks | None = None) -> LoadedModel:
    """The recipe's model, or the one in `folder`; torch computes with as many threads as it can use. `words`: a folder with the tiny
    model's tokenizer, if its environment should not be played for it. Of a model on a server, a tokenizer that counts its tokens."""
    hooks = hooks or Hooks()
    if not config.engine.declared.in_process:
        return LoadedModel(counting_tokenizer(config, folder, hooks))
    path = folder or config.model.path
    if path is not None:
        hooks.on_phase("loading the model")
        model, tokenizer = loading.load_folder(path)
    else:
        tokenizer = tiny_tokenizer(config, hooks) if words is None else loading.tokenizer_of(words)
        model = tiny_models.build_model(len(tokenizer), config.model.tiny, config.seed, tokenizer)
    loading.use_threads(model, config.threads)
    check_served(config, model)
    return LoadedModel(tokenizer, model, loading.load_vision(path))


def counting_tokenizer(config: Config, folder: Path | None, hooks: Hooks) -> Any:
    """The tokenizer of the recipe's model without its weights; if it names none, one made from the environment's words, about one token
    per word: good enough for counting."""
    path = folder or config.model.path
    if path is not None:
        return loading.tokenizer_of(path)
    texts = [*texts_of(config, WORDS_FROM, hooks), load_template(config.agent.prompt).source]
    return tiny_models.build_tokenizer(texts, names=config.model.tiny.names)


def tiny_tokenizer(config: Config, hooks: Hooks) -> Any:
    """The tiny model's tokenizer, which knows the words of its environment. It does not depend on the seed."""
    tiny = config.model.tiny
    with patience(config.env, "still playing", hooks.say):
        return tiny_models.build_tokenizer(texts_of(config, tiny.vocabulary_tasks, hooks), tiny.max_length, names=tiny.names)


def texts_of(config: Config, tasks: int, hooks: Hooks) -> list[str]:
    """What the model will read: texts of the environment from so many tasks, always the same ones, and the prompts' own."""
    limits = limits_of(config.env, hooks.cancelled)
    texts = environment_texts(config.env.name, n=tasks, options=config.env.options, limits=limits, hooks=hooks)
    return [*texts, config.agent.system, config.agent.instructions or ""]


def load_tokenizer(config: Config, hooks: Hooks) -> LoadedModel:
    """What a process needs that has no weights of its own. A tiny model's tokenizer is made with the model."""
    path = config.model.path
    if path is None:
        return LoadedModel(load_model(config, hooks=hooks).tokenizer)
    return LoadedModel(loading.tokenizer_of(str(path)), vision=loading.load_vision(path))


# -- the agent --------------------------------------------------------------------------------------------------------------------


def build_agent(config: Config, loaded: LoadedModel, say: Callable[[str], None] = lambda text: None) -> Agent:
    """The agent: how prompts are made and responses are read."""
    environment = registry.spec(config.env.name).load()
    section = config.agent  # the environment may bring instructions and tools of its own
    instructions = Capabilities(environment).instructions if section.instructions is None else section.instructions
    tools = _environment_tools(config, environment) if section.tools is None else section.tools
    settings = section.model_copy(update={"instructions": str(instructions), "tools": read_tools(tools)})
    return Agent(loaded.tokenizer, settings, loaded.vision, say)


def _environment_tools(config: Config, environment: Any) -> Any:
    """The tools that an environment declares, or knows once it has its options. These are asked for only where prompts show them."""
    can = Capabilities(environment)
    if config.agent.prompt == "tool" and can.offered_tools is not None:
        return can.offered_tools(**as_given(environment, config.env.options))
    return can.tools


def read_tools(tools: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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
    return [dict(tool) for tool in tools if isinstance(tool, Mapping)]


# -- the learner ------------------------------------------------------------------------------------------------------------------


def with_adapters(config: Config, model: Any) -> Any:
    """The model, with adapters if the recipe asks for them."""
    if config.model.lora is None:
        return model
    from turnwise.learn.lora import add_lora

    lora = config.model.lora
    if lora.base == "4bit":
        from turnwise.learn.lora import pack_base

        model = pack_base(model, choose_device(config.device), getattr(torch, config.model.dtype))
    return add_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=config.seed)


def build_policy(config: Config, loaded: LoadedModel, ranks: Ranks | None = None) -> Learner:
    """The learner of the policy, on the recipe's device, with adapters if the recipe asks for them. `ranks`: one process of several."""
    model = with_adapters(config, loaded.model)
    device = choose_device(config.device)
    warn_of_slow_dtype(config.model.dtype, device)
    return Learner(model, learner_settings(config), device, vision=loaded.vision, ranks=ranks)


def build_signals(config: Config) -> list[tuple[str, Signal]]:
    """The recipe's signals, in their order."""
    return [(section.name, signals[section.name].make(section.options, signals.kind)) for section in config.signal]


def build_learner(
    config: Config, loaded: LoadedModel, made_signals: Sequence[tuple[str, Signal]] = (), ranks: Ranks | None = None
) -> LocalLearner:
    """Everything of a run that needs weights."""
    policy = build_policy(config, loaded, ranks)
    models = build_models(config, policy, loaded.tokenizer, config.needs)
    return LocalLearner(policy, models, made_signals, annotates(config), config.model.lora is not None, loaded.preprocessor)


def annotates(config: Config) -> bool:
    """Whether batches get what only the learner knows: because credit needs it, or because they may be older than the weights. Then the
    log-probs of the weights as they are are what the learner's ratio and the metrics about age start from."""
    stale = config.cluster is not None and config.cluster.staleness > 0 and config.learner.old_logprobs in (None, "learner")
    return stale or config.learner.value is not None or config.objective.kl == "reward"


def build_models(config: Config, policy: Learner, tokenizer: Any, needs: Container[str] = (), only: str | None = None) -> Models:
    """All models of the recipe, or only one of them. `needs` are those of the run's stages: a reference is kept if one of them reads
    it."""
    if only is not None and only not in config.models:
        raise unknown_name("model of this run:", only, config.models)
    chosen = {name: section for name, section in config.models.items() if only in (None, name)}
    auxiliary = {name: build(name, section, policy, tokenizer, config.seed) for name, section in chosen.items()}
    keep = f"model.{REFERENCE}" in needs and only is None
    return Models(policy, tokenizer, auxiliary, keep, config.engine.max_tokens)


def learner_settings(config: Config) -> LearnerSettings:
    """The learner's settings from the recipe."""
    section, objective = config.learner, config.objective
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
    return LearnerSettings(
        **_fields(section, Update),
        loss=loss,
        schedule=config.schedule.name,
        schedule_options=config.schedule.options,
        aggregation=objective.aggregation,
        constant=objective.constant,
        optimiser=OptimiserSettings(**_fields(section, Optimiser)),
        dtype=config.model.dtype,
        temperature=config.engine.temperature,
        kl_reward_coef=objective.kl_coef if in_reward else 0.0,
        kl_reward=(objective.kl_kind or "k1") if in_reward else "k1",
    )


def _fields(section: Section, kind: type[Section]) -> dict[str, Any]:
    """The fields that a section has from one of its base classes."""
    return {name: getattr(section, name) for name in kind.model_fields}


# -- the engine -------------------------------------------------------------------------------------------------------------------


def build_sampling(engine: EngineSection) -> Sampling:
    """How tokens are sampled in training."""
    return Sampling(engine.temperature, engine.top_p, engine.top_k, max_tokens=engine.max_tokens, stop=tuple(engine.stop))


def build_server(config: Config, tokenizer: Any, agent: Agent) -> Engine:
    """A server as the recipe names it. Its key comes from the environment and is sent only to the server."""
    from turnwise.engines.openai import OpenAIEngine, Server

    section = config.engine
    options = {"key_variable": KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else "", **section.options}
    if agent.chat.native_tools:  # the prompt then leaves describing the tools to the server's chat template
        options["extra"] = {"tools": neutral_deep(agent.settings.offered_tools), **options.get("extra", {})}
    if "omit" in options:
        options["omit"] = tuple(options["omit"])
    try:
        server = Server(section.url or "", section.model or "", **options)
    except TypeError as error:
        names = ", ".join(name for name in Server.__dataclass_fields__ if name not in ("url", "model"))
        raise TurnwiseError(f"engine.options: {error}. A server takes: {names}") from None
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
    engine_class(engines[config.engine.name]).check_options(build_sampling(config.engine), options)
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
