"""`turnwise cluster`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.cli.shared import Overrides, Recipe, recipe_and_overrides
from turnwise.util.errors import need_training

cluster = typer.Typer(name="cluster", no_args_is_help=True, rich_markup_mode=None, add_completion=False)
SHORT = "Check a cluster, and plan a run on many GPUs"


@cluster.callback()
def _cluster() -> None:
    """Check a cluster, and plan a run on many GPUs."""


@cluster.command(short_help="Show what each node has and what would be placed where")
def check(recipe: Recipe = None, overrides: Overrides = None) -> None:
    """Show what each node of a cluster has, and where each part of a recipe would be placed. Nothing is trained and no model is loaded. The
    exit code is 1 if the recipe cannot be placed. A recipe without a [cluster] section is checked with one engine."""
    need_training("turnwise cluster check")
    from turnwise.recipe.reading import shipped_recipe
    from turnwise.recipe.schema import Config
    from turnwise.report.cluster_check import check_command

    recipe, changes = recipe_and_overrides(recipe, overrides)
    raise typer.Exit(check_command(Config.load(recipe or shipped_recipe("quickstart"), changes)))


@cluster.command(short_help="Simulate a run on up to 1,024 GPUs and compare splits")
def plan(
    model: Annotated[str, typer.Option(help="Size of the model (0.5b, 1.5b, 3b, 7b, 14b, 32b, 72b), or a folder with its config.json.")],
    gpus: Annotated[int, typer.Option(min=1, max=1024, help="GPUs in all.")],
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of a node. No engine is larger.")] = 8,
    groups: Annotated[int, typer.Option(min=1, help="Groups per iteration.")] = 128,
    group_size: Annotated[int, typer.Option(min=1, max=512, help="Trajectories per group.")] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Limit of turns per trajectory.")] = 50,
    staleness: Annotated[int, typer.Option(min=0, max=8, help="Updates that a group may be behind. Colocated splits always have 0.")] = 1,
    tensor_parallel: Annotated[int | None, typer.Option(help="GPUs per engine. Default: the best of several.")] = None,
    context: Annotated[str, typer.Option(help="full or window.")] = "full",
    response: Annotated[int, typer.Option(min=1, help="Sampled tokens per turn.")] = 100,
    observation: Annotated[int, typer.Option(min=0, help="Tokens of an observation.")] = 60,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps per iteration.")] = 4,
    old_logprobs: Annotated[
        str | None, typer.Option(help="Old log-probs: engine or learner. Default: as in a run, the engine's at staleness 0.")
    ] = None,
    success: Annotated[float, typer.Option(min=0.01, max=0.99, help="Share of attempts that end before the limit.")] = 0.6,
    env_seconds: Annotated[float, typer.Option(min=0, help="Seconds that a step of the environment takes.")] = 0.0,
    memory: Annotated[float, typer.Option(min=1, help="Gigabytes of a GPU. Its speed stays that of an H200.")] = 141.0,
    network: Annotated[float, typer.Option(min=0.1, help="Gigabytes per second and GPU that collectives between nodes reach.")] = 300.0,
    iterations: Annotated[int, typer.Option(min=2, help="Iterations to simulate.")] = 12,
    seed: Annotated[int, typer.Option(help="The same seed gives the same plan.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Simulate a run on up to 1,024 GPUs and compare splits into learners and engines. Nothing is run on a GPU: the
    service times are those measured on one H200, scaled by the model and the number of GPUs."""
    from turnwise.planner.cluster import Question, make_plan
    from turnwise.planner.simulate import Work
    from turnwise.planner.tables import plan_as_data, split_table, summary
    from turnwise.planner.times import Machine
    from turnwise.util.console import Console
    from turnwise.util.terminal import say

    work = Work(
        groups=groups,
        group_size=group_size,
        turns=turns,
        context=context,
        response=response,
        observation=observation,
        steps=steps,
        old_logprobs=old_logprobs,
        success=success,
        env_seconds=env_seconds,
        seed=seed,
    )
    machine = Machine(memory=memory * 1e9, node_gpus=gpus_per_node, network_bytes_per_s=network * 1e9)
    question = Question(model, gpus, work, staleness, tensor_parallel, machine, iterations)
    console = Console(stderr=True)
    with console.status("simulating") as status:
        made = make_plan(question, lambda what: status.update(f"simulating {what}"))
    if as_json:
        say(json.dumps(plan_as_data(made), indent=1))
    else:
        Console(wide=140).print(split_table(made))
        say(summary(made))
