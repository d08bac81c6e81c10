"""Watch an agent play: task, observation, thought, action and reward as text, as it happens.

The agent uses the same collector, context, engine and parser as in training and evaluation. Text from a model or an environment is shown
as plain text: neither markup nor terminal sequences take effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from turnwise.collect.collector import Collector, Start
from turnwise.collect.faults import FaultWatch, faulted
from turnwise.collect.hooks import Hooks
from turnwise.collect.players import PLAYERS, PlayerPolicy, advised, player
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.data.tasks import Task
from turnwise.envs.play import find_task, task_at
from turnwise.envs.registry import portable
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG
from turnwise.setup.arguments import Given
from turnwise.setup.environment import build_rewards, limits_of, step_limit
from turnwise.util.console import Console
from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import printable
from turnwise.util.seeds import derive

SEEN, THOUGHT, ACTION, REWARD = "", "dim", "bold cyan", "green"  # how each is shown on a terminal


def watch(
    agent: str,
    env: str | None = None,
    *,
    task: str | None = None,
    split: str | None = None,
    n: int = 1,
    seed: int = 0,
    temperature: float | None = None,
    max_turns: int | None = None,
    options: Mapping[str, Any] | None = None,
    console: Console | None = None,
    trust: bool = False,
) -> list[Trajectory]:
    """Let `agent` (a run, a model folder, `random`, `scripted` or `expert`) play, and show it on the console. A run provides its
    environment with its options, and the split that it is evaluated on. Without a task, play `n` tasks of the split, starting at index
    `seed`; with one, make `n` attempts at it."""
    changes: dict[str, Any] = {f"env.options.{key}": value for key, value in (options or {}).items()}
    changes |= {"env.max_turns": max_turns} if max_turns is not None else {}
    config, folder = _config(agent, env, changes, trust)
    own, faults = config.env, FaultWatch(lambda text: None, config.env.name)
    split = split or (config.eval.split if (Path(agent) / CONFIG).is_file() else own.split)
    teller = Teller(console or Console())
    factory = portable(own.name, own.options)
    trajectories = []
    with ExitStack() as stack:
        policy: Any = None
        if agent in PLAYERS:
            policy = PlayerPolicy(player(agent, own.name, dict(own.options)))
            factory = advised(factory, policy.player)
        else:
            from turnwise.setup.parts import build_model_policy

            policy = build_model_policy(config, folder, config.eval.temperature if temperature is None else temperature, stack)
        pool = stack.enter_context(limits_of(own).pool(factory, 1))
        hooks = Hooks(on_turn=teller.turn, on_fault=faults.on_fault)
        collector = Collector(pool, policy, step_limit(own), build_rewards(config), hooks)
        for number, chosen in enumerate(_tasks(own.name, task, split, n, seed, dict(own.options))):
            chance = seed if number == 0 else derive(seed, "watch", number)
            teller.say(f"{own.name}, task {chosen.id} ({chosen.split}), seed {seed}, played by {agent}", "bold")
            [trajectory] = collector.run([Start(chosen, number, number, chance, derive(chance, "watch policy"))])
            teller.end(trajectory)
            trajectories.append(trajectory)
    if trajectories and all(map(faulted, trajectories)):
        raise faults.verdict(trajectories, len(trajectories))
    return trajectories


def _config(agent: str, env: str | None, changes: dict[str, Any], trust: bool = False) -> tuple[Config, Path | None]:
    """The recipe that is played, and the folder of its model."""
    if agent not in PLAYERS:
        from turnwise.setup.evaluated import source_config
        from turnwise.setup.parts import check_engine

        config, folder = source_config(agent, Given(env), changes, trust)
        check_engine(config.trusted(), folder)
        return config, folder
    if env is None:
        raise TurnwiseError(f"the {agent} agent needs an environment: turnwise play ENV --agent {agent}")
    return Config.load(None, {**changes, "env.name": env}).trusted(), None


def _tasks(env: str, task: str | None, split: str, n: int, seed: int, options: dict[str, Any]) -> list[Task]:
    if task is not None:
        return [find_task(env, task, split, **options)] * n
    return [task_at(env, split, seed + place, **options) for place in range(n)]


@dataclass
class Teller:
    """Prints what happens, in lines that read the same with and without colours."""

    console: Console

    def say(self, text: str, style: str = "", indent: str = "") -> None:
        encoding = self.console.encoding
        shown = printable(text).encode(encoding, "replace").decode(encoding)
        for line in shown.split("\n"):
            self.console.print(Text(f"{indent}{line}".rstrip(), style=style), soft_wrap=True)

    def turn(self, trajectory: Trajectory) -> None:
        turn = trajectory.turns[-1]
        self.say(f"\n{turn.observation.strip() or '(nothing to see)'}\n", SEEN)
        if turn.thought:
            self.say(turn.thought.strip(), THOUGHT, "  (thinks) ")
        problem = "" if turn.valid else f"   ({turn.info.get('problem') or 'not valid'})"
        self.say(f"> {turn.action or turn.response.strip()}{problem}", ACTION)
        if turn.reward:
            self.say(f"  reward {turn.reward:g}", REWARD)

    def end(self, trajectory: Trajectory) -> None:
        why = "it ended unsolved" if trajectory.stop is Stop.DONE else trajectory.stop.value
        detail = f": {trajectory.stop_detail}" if trajectory.stop_detail else ""
        word = "Done." if trajectory.success else f"Not done ({why}{detail})."
        self.say(f"\n{word} Turns: {len(trajectory.turns)}, reward: {trajectory.reward:g}.\n", "bold")
