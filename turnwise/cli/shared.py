"""What several commands share: arguments with the same meaning, options of environments, and the question whether a folder is trusted."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from turnwise.util.terminal import say

INTERRUPTED = 130  # the exit code that a shell reports after Ctrl-C

Options = Annotated[list[str] | None, typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the environment; repeatable.")]
Prompts = Annotated[str | None, typer.Option(metavar="FILE.jsonl", help="Your own prompts instead of an environment; needs --reward.")]
RewardName = Annotated[
    str | None,
    typer.Option(
        metavar="FILE:FUNCTION", help="With --prompts: score(task, response). Otherwise a reward term: f(turn, transition, trajectory)."
    ),
]
Reply = Annotated[
    str | None,
    typer.Option(metavar="FILE:FUNCTION", help="With --prompts: reply(task, history) returns the next message, or None at the end."),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides of the recipe, for example credit.name=grpo.")]


Recipe = Annotated[
    str | None, typer.Argument(help="A recipe: a TOML file, or the name of one that comes with Turnwise. Default: the quickstart.")
]


def recipe_and_overrides(recipe: str | None, overrides: list[str] | None) -> tuple[str | None, dict[str, Any]]:
    """A recipe and its overrides by their keys. The first override may be in the position of the recipe."""
    from turnwise.recipe.reading import is_override, parse_override

    texts = list(overrides or [])
    if recipe is not None and is_override(recipe):
        texts, recipe = [recipe, *texts], None
    return recipe, dict(parse_override(text) for text in texts)


def ask_about(folder: Any, code: Any) -> bool:
    """Ask the user whether code of a run folder from elsewhere may run. Without a terminal the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(f"{folder} is not one of your runs (or was moved or changed since). Its recipe names code that would be run:", err=True)
    for text in code:
        say(f"  {text}", err=True)
    return typer.confirm("Do you trust its author?", default=False, err=True)


def _trust(said: bool) -> bool:
    from turnwise.config import trust

    trust.ask_with(trust.accept if said else ask_about)
    return said


Trust = Annotated[bool, typer.Option("--trust", callback=_trust, help="Run the code named by a run folder from elsewhere.")]


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """Options of an environment, read as overrides of a recipe are."""
    from turnwise.recipe.reading import parse_override

    return dict(parse_override(pair) for pair in pairs or ())
