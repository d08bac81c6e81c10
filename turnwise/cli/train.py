"""`turnwise train`."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.shared import INTERRUPTED, Overrides, Prompts, Recipe, Reply, RewardName, Trust, recipe_and_overrides
from turnwise.util.errors import TurnwiseError, need_training
from turnwise.util.terminal import command, say
from turnwise.util.version import VERSION

if TYPE_CHECKING:
    from turnwise.recipe.schema import Config


def train(
    recipe: Recipe = None,
    overrides: Overrides = None,
    env: Annotated[str | None, typer.Option(help="Train on this environment; your own class: path/to/my_env.py:MyEnv.")] = None,
    prompts: Prompts = None,
    reward: RewardName = None,
    reply: Reply = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Resume a stopped run, or extend it: iterations=80.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the whole recipe and what would happen, then exit.")] = False,
    help_config: Annotated[bool, typer.Option("--help-config", help="Explain every key of a recipe, then exit.")] = False,
    memory: Annotated[
        float | None, typer.Option(help="Take at most so many gigabytes (10^9 bytes) of the GPU, as on a card of that size.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Train an agent with a recipe."""
    if help_config:
        from turnwise.recipe.writing import help_config as explain

        say(explain())
        return
    recipe, typed = recipe_and_overrides(recipe, overrides)
    raise typer.Exit(start(recipe, typed, resume, dry_run, memory, env=env, reward=reward, prompts=prompts, reply=reply))


def start(
    recipe: str | None,
    typed: dict[str, Any],
    resume: str | None = None,
    dry_run: bool = False,
    memory: float | None = None,
    **arguments: str | None,
) -> int:
    """`turnwise train`, with overrides by their keys (`typed`) and the `arguments` of `Given`. Returns the exit code: 0, or 130 if it was
    interrupted."""
    need_training("turnwise train")
    if not dry_run:
        say(f"turnwise {VERSION}")  # before anything that takes time
    from turnwise.recipe.merging import unread
    from turnwise.recipe.reading import shipped_recipe
    from turnwise.runs.folder import CONFIG, Run
    from turnwise.setup.arguments import Given, changes_of, read_config
    from turnwise.setup.early import look
    from turnwise.setup.resume import resumed_config
    from turnwise.util.lock import in_use, is_held

    given = Given(**arguments)
    if resume is not None and recipe:
        raise TurnwiseError(f"a resumed run keeps its recipe: give either --resume RUN or {recipe}, not both")
    source = None if resume else recipe or given.default_recipe or shipped_recipe("quickstart")
    with unread() if dry_run else nullcontext():  # mistakes are reported before torch is imported
        if resume:
            run = Run.open(resume)
            config = resumed_config(run, changes_of(run.folder / CONFIG, given, typed))
            if not dry_run and is_held(run.folder):
                raise TurnwiseError(in_use(run.folder))
        else:
            config = look(read_config(source, given, typed), hub=not dry_run)  # a run has its own environment
    if dry_run:
        return show(config, of_run=resume is not None, memory=memory)
    from rich.text import Text

    from turnwise.report.progress import LineReporter
    from turnwise.runs.reporter import heartbeat
    from turnwise.util.console import Console
    from turnwise.util.errors import Stopped

    console = Console()
    shown = LineReporter(console)
    shown.phase("loading torch")
    with heartbeat(shown):
        from turnwise import api
        from turnwise.report.closing import finish, success_words

    try:
        result = api.train_given(source, given, typed, resume, shown, memory=memory)
    except Stopped as error:
        console.print(Text(str(error)), soft_wrap=True)
        return INTERRUPTED
    run = Run.open(result.folder)
    if result.interrupted:
        console.print(Text(success_words(result.summary)), soft_wrap=True)
        console.print(
            Text(f"Stopped after iteration {result.summary['iterations']}. Resume with: {command('train', '--resume', str(run.folder))}"),
            soft_wrap=True,
        )
        return INTERRUPTED
    finish(console, run, result)
    return 0


def show(config: Config, of_run: bool, memory: float | None = None) -> int:
    """`--dry-run`: the whole recipe and the size of the run. No code that the recipe names is run."""
    from rich.text import Text

    from turnwise.config.references import is_reference
    from turnwise.learn.models import tokenizer_of
    from turnwise.planner.forecast import forecast
    from turnwise.recipe.writing import to_toml
    from turnwise.setup.early import check_trainable, look_at
    from turnwise.util.console import Console
    from turnwise.util.hub import at_hand

    check_trainable(config, runs=False)
    look_at(config)
    if config.model.path is not None and at_hand(config.model.path) is not None:
        tokenizer_of(config.model.path)
    if config.engine.declared.shares_weights:
        from turnwise.setup.build import engine_options

        engine_options(config)
    console = Console()
    own = config.method is not None and not of_run and is_reference(config.method.name)
    words = [f"The settings of {config.method.name} are not shown: a dry run runs no code of yours."] if own and config.method else []
    if memory is not None:
        from turnwise.planner.small_gpu import foreseen

        words += foreseen(config, memory)
    for text in chain((to_toml(config), *words), forecast(config, said=memory is not None)):
        console.print(Text(text), soft_wrap=True)
    return 0
