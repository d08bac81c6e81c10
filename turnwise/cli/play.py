"""`turnwise play`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Options, Trust, parse_options
from turnwise.util.errors import TurnwiseError, need_training


def play(
    env: Annotated[
        str | None, typer.Argument(help="A name from `turnwise envs`, or path/to/my_env.py:MyEnv. Not needed for a run.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="RUN", help="The player: a run, a model folder, random, scripted or expert. Default: you.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task's id, or its index in the split.")] = None,
    split: Annotated[
        str | None, typer.Option(help="The split of the task. Default: train, or the split that a run is evaluated on.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="With --agent: number of tasks, or of attempts at the one --task.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Random seed; without --task it also selects the task.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="With a run or a model: sampling temperature; 0 is greedy. Default: the recipe's.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Turn limit. Default: the environment's.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Let the expert play.")] = False,
    option: Options = None,
    trust: Trust = False,
) -> None:
    """Play an environment yourself, with hints from its expert, or watch an agent play."""
    from turnwise.envs.play import play as play_game

    if agent is not None:
        from turnwise.collect.players import PLAYERS
        from turnwise.setup.early import look_at_player

        if agent not in PLAYERS:
            need_training("turnwise play with a model")
        options = parse_options(option)
        look_at_player(agent, env, options)  # before torch is imported
        from turnwise.cli.watch import watch as watch_agent

        watch_agent(agent, env, task=task, split=split, n=n, seed=seed, temperature=temperature, max_turns=max_turns, options=options)
        return
    if env is None:
        raise TurnwiseError(
            "nothing to play: give an environment, turnwise play ENV (`turnwise envs` lists them), or a run, turnwise play --agent RUN"
        )
    play_game(env, task=task, split=split or "train", seed=seed, max_turns=max_turns, watch=watch, **parse_options(option))
