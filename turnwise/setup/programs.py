"""The collector of a run whose environment is a program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from turnwise.collect.programs import ProgramCollector
from turnwise.envs import registry
from turnwise.envs.program.env import ProgramEnv
from turnwise.setup.needs import reports
from turnwise.util.errors import TurnwiseError

if TYPE_CHECKING:
    from turnwise.config.schema import Config
    from turnwise.setup.system import System


def is_program(config: Config) -> bool:
    """Whether the environment plays by itself and calls the model through an endpoint."""
    return bool(getattr(registry.spec(config.env.name).load(), "plays_itself", False))


def program_collector(system: System, temperature: float | None = None) -> ProgramCollector:
    """A collector for the attempts of an evaluation: each of them is one trajectory."""
    config = system.config
    env = registry.make(config.env.name, **config.env.options)
    if not isinstance(env, ProgramEnv):
        raise TurnwiseError(f"environment {config.env.name!r} plays by itself, and is not a ProgramEnv: subclass that")
    if not system.engine.in_process:
        raise TurnwiseError("a program is served by an engine of this process: use engine.name=native or transformers")
    return ProgramCollector(
        env,
        system.engine,
        system.agent.chat,
        system.sampling(temperature),
        system.max_turns,
        system.rewards,
        cancelled=system.cancelled,
        on_start=system.on_start,
        on_end=system.on_end,
        on_fault=system.faults.hear,
        whole=True,
        say=system.once,
    )


def for_learning(collector: ProgramCollector, config: Config) -> ProgramCollector:
    """The same for attempts that are learned from: one trajectory per line of conversation, with the reports that the recipe needs."""
    return replace(collector, whole=False, sampling=replace(collector.sampling, report=reports(config)))
