"""What a warm start learns from: the expert's attempts, recorded ones, or listed actions played at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.collect.faults import spoilt
from turnwise.collect.warmstart import demonstrated, expert_trajectories, has_expert, lists_actions, random_trajectories
from turnwise.config.learning import Sft
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Trajectory
from turnwise.envs.smoke_test import SMOKE_TASKS
from turnwise.methods.planning import Places
from turnwise.runs.exchange import read_trajectories
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.setup.system import System


def examples_of(system: System, own: Sft, on_task: Callable[[], None]) -> list[Trajectory] | None:
    """What the warm start learns from: the expert's attempts, or recorded ones; none if there is no expert and none is required."""
    env = system.config.env
    if own.file is not None:
        recorded = [trajectory for trajectory in read_trajectories(own.file) if trajectory.success]
        examples = _sound(
            system,
            demonstrated(
                env.name,
                dict(env.options),
                system.tasks,
                recorded[: own.tasks],
                system.agent,
                limits=system.limits,
                on_fault=system.faults.hear,
            ),
        )
        examples = [example for example in examples if example.success]
        if not examples:
            raise TurnwiseError(f"sft.file: {own.file} holds no trajectory that succeeds when its actions are played again")
        return examples
    places = Places(system.tasks, derive(system.config.seed, "warm start"), 1, system.config.collect.shuffle)
    starts = places.groups(own.tasks)
    if not has_expert(env.name, dict(env.options)):
        if not own.required:
            return _by_chance(system, own, starts, on_task)
        raise TurnwiseError(
            f"environment {env.name!r} has no expert for the recipe's warm start to learn from (expert(task) or expert_action()). "
            "Leave the warm start out with sft=none, learn from recorded attempts with sft.file, or, if it lists its actions, from "
            "random play with sft.required=false"
        )
    return _play(system, expert_trajectories, starts, "warm start noise", on_task, noise=own.noise, learn_all=own.imitate == "all")


def check_taught(system: System) -> None:
    """A model that starts from nothing says what its warm start shows. A signal that reads a text out of responses has it as `says`: an
    example must have it too, and this is known before anything is learned."""
    config = system.config
    wanted = {says: own.name for own, made in zip(config.signal, system.made_signals, strict=True) if (says := getattr(made, "says", ""))}
    if not wanted or config.model.path is not None or (config.sft is not None and config.sft.file is not None):
        return
    texts = [] if config.sft is None else _first_texts(system)
    for says, name in wanted.items():
        if not any(says in text for text in texts):
            why = "it has no warm start (sft)" if config.sft is None else "no example of its warm start has that"
            raise TurnwiseError(
                f"signal {name!r} reads {says} out of responses. A tiny model says what its warm start shows, and {why}. Use an "
                "environment whose expert says it, recorded attempts that have it (sft.file), or a pretrained model (model.path) with a "
                "prompt that asks for it (agent.prompt)"
            )


def _first_texts(system: System) -> list[str]:
    """The responses of the first examples, as text."""
    env, tasks = system.config.env, [system.tasks[k] for k in range(min(SMOKE_TASKS, len(system.tasks)))]
    play = expert_trajectories if has_expert(env.name, dict(env.options)) else random_trajectories
    found = play(env.name, dict(env.options), tasks, system.agent, max_turns=system.max_turns, limits=system.limits)
    return [system.agent.chat.decode(turn.response_ids) for trajectory in found for turn in trajectory.turns]


def _by_chance(system: System, own: Sft, starts: Sequence[Start], on_task: Callable[[], None]) -> list[Trajectory] | None:
    """What a model that starts from nothing learns if there is no expert: to say the listed actions, played at random."""
    env = system.config.env
    if system.config.model.path is not None:
        system.say(f"environment {env.name!r} has no expert: no warm start")
        return None
    if not lists_actions(system.pool, [start.task for start in starts[:SMOKE_TASKS]]):
        raise TurnwiseError(
            f"environment {env.name!r} has no expert and lists no actions: a model that starts from nothing would say random bytes "
            "and never be rewarded. What helps: expert_action() or expert(task) in its class; Observation(text, actions=…) with what "
            "can be done; recorded attempts (sft.file=FILE); a pretrained model (model.path=FOLDER). To try it anyway: sft=none"
        )
    system.say(f"environment {env.name!r} has no expert: the warm start teaches its listed actions, played at random")
    return _play(system, random_trajectories, starts, "warm start chance", on_task, tries=own.tries)


def _play(
    system: System, play: Callable[..., list[Trajectory]], starts: Sequence[Start], chance: str, on_task: Callable[[], None], **more: Any
) -> list[Trajectory]:
    """Examples for the tasks of these starts, played within the recipe's limits; `chance` names the purpose of their seed."""
    env, tasks = system.config.env, [start.task for start in starts]
    shared: dict[str, Any] = {"max_turns": system.max_turns, "seed": derive(system.config.seed, chance), "on_task": on_task}
    return _sound(
        system, play(env.name, dict(env.options), tasks, system.agent, limits=system.limits, on_fault=system.faults.hear, **shared, **more)
    )


def _sound(system: System, played: list[Trajectory]) -> list[Trajectory]:
    """Without the attempts that a fault has ended, which are reported; raises an error if nearly all are like that."""
    system.faults.look(played)
    return [trajectory for trajectory in played if not spoilt(trajectory)]
