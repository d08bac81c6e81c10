"""The parts of a run, put together from its config: tasks, environments, agent, model, engine, learner.

Only this file knows both the recipe's sections and the parts' constructors; the loop in train.py knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from turnwise import credit
from turnwise.agent import Agent
from turnwise.agent.vision import Vision
from turnwise.collect.collector import Collector
from turnwise.collect.faults import FaultWatch
from turnwise.collect.model_policy import ModelPolicy
from turnwise.collect.panel import Evaluation, check_disjoint, run_panel
from turnwise.collect.programs import ProgramCollector
from turnwise.collect.rewards import Rewards, find_term
from turnwise.collect.source import LocalSource
from turnwise.collect.warmstart import has_expert
from turnwise.config.references import is_reference
from turnwise.config.schema import Config
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.masks import with_shared_prefix, without_inserted
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.data.tasks import TaskSet
from turnwise.engines.base import Engine, Sampling
from turnwise.envs import registry
from turnwise.envs.advice import Advising
from turnwise.envs.blame import EnvironmentFault
from turnwise.envs.pool import Pool
from turnwise.envs.scripts import Limits
from turnwise.envs.smoke_test import smoke_test
from turnwise.learn import models as loading
from turnwise.learn.further.models import Models
from turnwise.learn.learner import Learner
from turnwise.learn.sft import SftSettings, warm_start
from turnwise.learn.values import targets_of
from turnwise.methods.planning import Dynamic, Places, Plain, Plan
from turnwise.methods.registry import plans, signals
from turnwise.setup.build import agent_settings, build_engine, build_learner, build_server, check_served, engine_options
from turnwise.setup.early import check_families
from turnwise.setup.examples import check_taught, examples_of
from turnwise.setup.favours import answers, demonstrations, evaluation, openings, said
from turnwise.setup.further import build_models
from turnwise.setup.imitation import imitate
from turnwise.setup.keeping import keep_weights, restored_weights
from turnwise.setup.names import know, needed
from turnwise.setup.needs import check_needs, reports
from turnwise.setup.programs import for_learning, is_program, program_collector
from turnwise.util.beside import Pause
from turnwise.util.errors import TurnwiseError
from turnwise.util.notice import Once, told_after

DEFAULT_MAX_TURNS = 50
PANEL = 128  # tasks of an evaluation, if a recipe gives no number
MOST_AHEAD = 64  # tasks for which an environment loads something before they are played
PATIENCE = 15.0  # seconds before a start that seems to hang is explained


@dataclass
class System:
    """Everything that a run works with. `say` takes one-line notices; `cancelled` is asked between turns."""

    config: Config
    model_folder: Path | None = None
    say: Callable[[str], None] = lambda text: None
    cancelled: Callable[[], bool] = lambda: False
    on_start: Callable[[int], None] = lambda count: None  # called with the number of additional attempts that will be made
    on_phase: Callable[[str], None] = lambda name: None  # called when something begins that may take long
    on_end: Callable[[Trajectory], None] = lambda trajectory: None  # called when one of them is over
    words: Path | None = None  # a folder with the tiny model's tokenizer, if its environment should not be played for it
    plays: bool = True  # whether the environment may be made; otherwise no user code is imported
    broken: EnvironmentFault | None = None  # nearly all attempts were spoilt: the loop ends as if interrupted, and this is the reason

    def __post_init__(self) -> None:
        if self.plays:
            self.config.trusted()

    def check(self) -> None:
        """Look at all that a recipe can get wrong before any time is spent on it: tasks and panel, environment, reward terms, signals,
        prompts, model, device, the engine's options."""
        know(self.config)
        environment = registry.spec(self.config.env.name).load()
        check_needs(self.config, models=self.config.models, task=self.tasks[0] if len(self.tasks) else None, environment=environment)
        for part in ("panel", "max_turns", "rewards", "made_signals"):
            getattr(self, part)
        self.check_engine()
        self.faults.tasks = len(self.tasks)
        self.look(self.tasks)
        check_taught(self)
        for part in ("agent", "learner", "models"):  # before the engine, whose cache takes a share of the memory that is left
            getattr(self, part)

    def check_engine(self) -> None:
        """The engine's options, whether what it needs is here, and whether it takes a model of this family; before one is loaded."""
        if self.config.engine.name != "openai":
            engine_options(self.config)
        check_families(self.config, self.model_folder)

    def look(self, tasks: TaskSet) -> None:
        """Play a few turns of two tasks: an environment that cannot be played raises an error here, with the lines of its file."""
        if is_program(self.config):
            return  # it plays by itself, and needs the model for that
        self.on_phase(f"playing a few turns of environment {self.config.env.name!r}")
        with self.patience("still waiting for"):
            smoke_test(self.pool, self.config.env.name, tasks, self.say, self.cancelled)

    def patience(self, doing: str) -> AbstractContextManager[None]:
        """Inside, code of the user's own is asked about if it takes long: it may never return."""
        if not is_reference(self.config.env.name):
            return nullcontext()
        words = f"{doing} environment {self.config.env.name!r}; if this does not end, does its reset or step return?"
        return told_after(PATIENCE, self.say, words)

    @cached_property
    def once(self) -> Once:
        """Takes notices that would come up again and again."""
        return Once(self.say)

    @cached_property
    def faults(self) -> FaultWatch:
        """Is told of every attempt that a fault has ended."""
        return FaultWatch(self.say, self.config.env.name)

    @cached_property
    def tasks(self) -> TaskSet:
        """The training tasks."""
        env = self.config.env
        return registry.tasks(env.name, env.split, n=env.tasks, **env.options)

    @cached_property
    def panel(self) -> TaskSet:
        """The evaluation's tasks: none of them is a training task, which is checked."""
        panel = self.own_panel
        check_disjoint(self.tasks, panel, warn=self.say)
        return panel

    @cached_property
    def own_panel(self) -> TaskSet:
        """The tasks that the recipe evaluates on."""
        own = self.config.eval
        return self.panel_of(own.split, own.n, own.seed, most=PANEL)

    def panel_of(self, split: str, n: int | None, seed: int, most: int | None = None) -> TaskSet:
        """`n` tasks of a split, the same ones on every machine. None: all of it, or `most` of them."""
        env = self.config.env
        found = registry.tasks(env.name, split, n=None, **env.options)
        if n is not None and n > len(found):
            raise TurnwiseError(
                f"{env.name} has {len(found)} tasks in its split {split!r}, not {n}: ask for fewer (eval.n, or --n of eval)"
            )
        if n is None and most is not None:
            n = min(most, len(found.distinct()))
        return found.distinct() if n is None else found.panel(n, seed)

    @cached_property
    def max_turns(self) -> int:
        """The step limit: the recipe's, otherwise the environment's."""
        if self.config.env.max_turns is not None:
            return self.config.env.max_turns
        env = registry.make(self.config.env.name, **self.config.env.options)
        own = getattr(env, "max_turns", None) or registry.spec(self.config.env.name).max_turns
        registry.close(env)
        return int(own or DEFAULT_MAX_TURNS)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """Model and tokenizer; torch computes with as many threads as that model can use."""
        loaded = self._load()
        loading.use_threads(loaded[0], self.config.threads)
        check_served(self.config, loaded[0])
        return loaded

    def _load(self) -> tuple[Any, Any]:
        if self.model_folder is not None or self.config.model.path is not None:
            self.on_phase("loading the model")
            return loading.load(self.config, self.model_folder)
        if self.words is not None:
            return loading.load_tiny(self.config, self.words)
        self.on_phase(f"playing environment {self.config.env.name!r} for the vocabulary of the tiny model (model.tiny.vocabulary_tasks)")
        with self.patience("still playing"):
            return loading.load(self.config, limits=self.limits)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer; for a served model, whose tokenizer is on the server, one that counts the tokens of prompts."""
        served = self.config.engine.name == "openai"
        return loading.load_tokenizer(self.config, self.model_folder, self.limits) if served else self._loaded[1]

    @cached_property
    def vision(self) -> Vision | None:
        """The processor of a vision-language model; None for other models and for a server."""
        return None if self.config.engine.name == "openai" else loading.load_vision(self.model_folder or self.config.model.path)

    @property
    def preprocessor(self) -> Any:
        """What belongs next to the weights in a model's folder: the tokenizer, or the processor that holds it."""
        return self.tokenizer if self.vision is None else self.vision.processor

    @cached_property
    def agent(self) -> Agent:
        factory = registry.spec(self.config.env.name).load()
        return Agent(self.tokenizer, agent_settings(self.config, factory), self.vision, self.say)

    @cached_property
    def learner(self) -> Learner:
        return build_learner(self.config, self._loaded[0], self.vision)

    @cached_property
    def models(self) -> Models:
        """The policy, the reference and the recipe's further models."""
        return build_models(self.config, self.learner, self.tokenizer, needed(self.config))

    @cached_property
    def engine(self) -> Engine:
        """The engine on the learner's weights, or a server with separate weights."""
        if self.config.engine.name == "openai":
            return build_server(self.config, self.tokenizer, self.agent)
        return build_engine(self.config, self.learner.model, self.tokenizer, self.agent.stop_ids, self.say, self.vision)

    @property
    def limits(self) -> Limits:
        """How the environment is played outside the collector: with the recipe's workers and limits, until cancelled."""
        env = self.config.env
        return Limits(env.workers, env.timeout, env.memory_mb, self.cancelled)

    @cached_property
    def pool(self) -> Pool:
        env, size = self.config.env, self.config.collect.groups * self.config.collect.group_size
        known: dict[str, Any] = {"workers": env.workers, "timeout": env.timeout, "memory_mb": env.memory_mb}
        if "env.expert_action" in needed(self.config):
            return Pool(Advising(registry.portable(env.name, env.options)), max(size, 1), **known)
        return Pool(env.name, max(size, 1), options=env.options, **known)

    @cached_property
    def rewards(self) -> Rewards:
        """The environment's reward, scaled, and the user's terms."""
        terms = [find_term(term.name, term.function, term.weight, term.options) for term in self.config.reward]
        return Rewards(self.config.env.reward_scale, terms)

    def sampling(self, temperature: float | None = None) -> Sampling:
        """How tokens are drawn: as in training, or at another temperature."""
        own = self.config.engine
        return Sampling(
            temperature=own.temperature if temperature is None else temperature,
            top_p=own.top_p,
            top_k=own.top_k,
            min_p=own.min_p,
            max_tokens=own.max_tokens,
            stop=tuple(own.stop),
        )

    def policy(self, temperature: float | None = None) -> ModelPolicy:
        return ModelPolicy(self.engine, self.agent.context, self.agent.read, self.sampling(temperature), self.agent.read_text)

    def collector(self, temperature: float | None = None) -> Collector | ProgramCollector:
        """A collector for attempts whose tokens and log-probs depend on the weights and on these attempts alone: the engine forgets what
        it kept of others (of an evaluation, for example), because a resumed run has not played those."""
        getattr(self.engine, "forget", self.engine.refresh)()
        if is_program(self.config):
            return program_collector(self, temperature)
        return Collector(
            self.pool,
            self.policy(temperature),
            self.max_turns,
            self.rewards,
            self.config.agent.max_invalid,
            cancelled=self.cancelled,
            on_start=self.on_start,
            on_end=self.on_end,
            on_fault=self.faults.hear,
            ordered=self.config.env.in_order and self.config.engine.name != "openai",  # the batches of a server cannot be controlled
        )

    @cached_property
    def places(self) -> Places:
        """The attempts of the run, in its order."""
        own = self.config.collect
        return Places(
            self.tasks,
            self.config.seed,
            own.group_size,
            own.shuffle,
            self.config.env.own_seeds,
            max_turns=self.max_turns,
            expert=lambda tasks: demonstrations(self, tasks),
            ask=lambda texts, seed: answers(self, texts, seed),
            say=self.said,
            look=self.openings,
        )

    def said(self, texts: Sequence[str], seed: int, temperature: float | None = None) -> list[Turn]:
        """What the current policy answers to texts, as turns."""
        return said(self, texts, seed, temperature)

    def openings(self, starts: Sequence[Start]) -> list[str]:
        """What the agent is told first in these attempts."""
        return openings(self, starts)

    @cached_property
    def plan(self) -> Plan:
        """The recipe's plan; without one, what `collect.strategy` says."""
        own, collect = self.config.plan, self.config.collect
        if own is not None:
            return cast("Plan", plans[own.name].make(own.options, plans.kind))
        return Dynamic(refills=collect.refills) if collect.strategy == "dynamic" else Plain()

    @cached_property
    def source(self) -> LocalSource:
        """Where batches come from: collected in this process."""
        self.places.vocabulary = len(self.tokenizer)
        groups = self.config.collect.groups
        return LocalSource(self.places, groups, self.training_collector, self.engine, self._heard, self.say, self.over)

    def over(self) -> bool:
        """Whether the run ends early: the user stopped it, or its environment is broken."""
        return self.cancelled() or self.broken is not None

    def training_collector(self) -> Collector | ProgramCollector:
        """A collector for attempts that are learned from: the engine reports what the stages of the recipe need, and states are kept for
        a plan that restores them."""
        collector = self.collector()
        if isinstance(collector, ProgramCollector):
            return for_learning(collector, self.config)
        collector.snapshots = bool({"env.snapshot", "env.snapshot?"} & needed(self.config))
        if isinstance(policy := collector.policy, ModelPolicy):
            policy.drawing, policy.encode = getattr(self.plan, "drawing", None), self.agent.chat.encode
            rule = None if policy.drawing is None else policy.drawing.rule
            policy.sampling = replace(policy.sampling, report=reports(self.config), rule=rule)
        return collector

    def _heard(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        """The trajectories as they are; if nearly all attempts were spoilt, the run is over."""
        try:
            self.faults.look(trajectories)
        except EnvironmentFault as fault:
            self.broken = fault
        return trajectories

    def load_ahead(self, pause: Pause = lambda: None) -> None:
        """Let the environment load what the next tasks need, if it plays in this process. This has no effect on any result."""
        if "pool" in self.__dict__:
            for task in self.places.coming(min(self.config.collect.groups, MOST_AHEAD)):
                self.pool.load_ahead(task)
                pause()

    def annotate(self, batch: Batch) -> Batch:
        """The batch with what only the learner knows, if the recipe needs it: values, a KL penalty in the reward."""
        if not self.annotates:
            return batch
        self._rest_engine()
        return self.learner.annotate(batch)

    @property
    def annotates(self) -> bool:
        """Whether credit needs something that only the learner knows."""
        return self.config.learner.value is not None or self.config.objective.kl == "reward"

    @cached_property
    def made_signals(self) -> list[Callable[..., Mapping[str, Any]]]:
        """The recipe's signals, in their order."""
        return [signals[own.name].make(own.options, signals.kind) for own in self.config.signal]

    def signal(self, batch: Batch, progress: float = 0.0) -> Batch:
        """The batch with the columns of the recipe's signals, in their order; each sees those of the ones before. `progress` is the share
        of the run that is done, for the learning rates of models that a signal updates."""
        self.models.at(progress)
        for own, signal in zip(self.config.signal, self.made_signals, strict=True):
            self._rest_engine()
            columns = signal(batch, self.models)
            if not isinstance(columns, Mapping):
                raise TurnwiseError(f"signal {own.name!r} returned {type(columns).__name__}; a dictionary of columns is needed")
            batch = batch.with_columns(columns)
        return batch

    def give_credit(self, batch: Batch) -> Batch:
        """The batch with its advantages by the recipe's credit function, and with the targets of the recipe's critic."""
        own, value = self.config.credit, self.config.learner.value
        batch = with_shared_prefix(without_inserted(batch), self.config.collect.shared_prefix)
        batch = credit.give(batch, own.name, **own.options)
        given = credit.credit_of(batch.rollouts)
        if value is None or given is None:
            return batch
        return batch.with_columns({f"{value.level}.target": self._value_targets(batch.rollouts, given)})

    def diagnose(self, batch: Batch) -> dict[str, Any]:
        """The metrics about a batch's credit."""
        own, given = self.config.credit, credit.credit_of(batch.rollouts)
        return credit.observe(own.name, own.options, batch.rollouts, () if given is None else given.values)

    def _rest_engine(self) -> None:
        """Free the engine's cache on a GPU, if the recipe asks for it; the next generation takes the memory again."""
        sleep = getattr(self.engine, "sleep", None)
        if self.config.engine.sleep and sleep is not None and self.learner.device.type == "cuda":
            sleep()

    def update(self, batch: Batch, seed: int, progress: float) -> dict[str, float]:
        """One update of the weights. The engine is told when the source publishes the version."""
        self._rest_engine()
        return self.learn(batch, seed, progress)

    def train_models(self, batch: Batch, progress: float) -> dict[str, float]:
        """One update of every further model that has a loss, from a batch with its credit."""
        self.models.at(progress)
        return self.models.update(batch)

    def learn(self, batch: Batch, seed: int, progress: float) -> dict[str, float]:
        """The learner's part of an update, which needs no engine."""
        return self.learner.update(batch, seed, progress=progress)

    def _value_targets(self, rollouts: Rollouts, given: credit.Credit) -> Any:
        """What the critic should learn: the targets of the credit function itself."""
        if self.config.learner.value is None:
            return None
        entry = credit.algorithms[self.config.credit.name]
        options = entry.bind(self.config.credit.options, credit.algorithms.kind)
        return targets_of(given, rollouts, entry, options, self.config.learner.value.level)

    def warm_start(self, on_task: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Learn from the expert's attempts at the first tasks of the plan's order."""
        own = self.config.sft
        if own is None:
            return {}
        measured = own.until is not None or own.at_least is not None
        if measured and own.file is None and not has_expert(self.config.env.name, dict(self.config.env.options)):
            own = own.model_copy(update={"until": None, "at_least": None})  # random play teaches the form of actions, not how to win
        examples = examples_of(self, own, on_task)
        if examples is None or self.cancelled():
            return {}
        longest, limit = max(len(turn.response_ids) for example in examples for turn in example.turns), self.config.engine.max_tokens
        if longest > limit:
            self.say(f"warning: a response of the warm start has {longest} tokens, and engine.max_tokens={limit} cuts it off: raise that")
        self.on_phase(f"warm start: learning from {len(examples)} attempts")
        metrics = imitate(self, own, examples)
        if self.config.model.lora is not None and self.config.objective.kl != "off":
            self.say("KL is measured against the model without its adapters, as it was before the warm start")
        self.settle()
        self.engine.refresh()
        return metrics | {"turns": float(sum(len(example.turns) for example in examples))}

    def teach(
        self, examples: Sequence[Trajectory], settings: SftSettings, order: int, look: Callable[[], float] | None = None
    ) -> dict[str, float]:
        """Imitate the examples; `look` measures the model from time to time."""
        return warm_start(self.learner, examples, settings, order, look, self.cancelled)

    def settle(self) -> None:
        """After a warm start: the reference and models that started as copies of the policy are copied again."""
        if self.config.model.lora is None:
            self.learner.reset_reference()
        self.models.follow_policy()

    def keep(self, folder: Path, step: int, state: Mapping[str, Any], score: float | None, keep: int) -> None:
        """Write a checkpoint of all weights and of this state."""
        keep_weights(self.learner, self.models, folder, step, state, score, keep)

    def restored(self, path: Path) -> dict[str, Any]:
        """Load the weights of an intact checkpoint. Returns its state."""
        return restored_weights(self.learner, self.models, path)

    def evaluate(self) -> Evaluation:
        """The recipe's evaluation with the weights as they are."""
        own = self.config.eval
        result = run_panel(self.collector(own.temperature), self.panel, own.seed, own.repeats, lambda starts: evaluation(self, starts))
        self._heard(result.trajectories)
        return result

    @property
    def evaluation_settings(self) -> dict[str, Any]:
        """What an evaluation's result depends on in addition to the weights and the panel."""
        own = self.config.eval
        return {"split": own.split, "seed": own.seed, "temperature": own.temperature, "max_turns": self.max_turns}

    def close(self) -> None:
        """Close what was opened."""
        for part in ("pool", "engine"):
            if part in self.__dict__:
                self.__dict__[part].close()
