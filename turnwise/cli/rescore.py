"""`turnwise rescore`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from turnwise.cli.shared import Trust
from turnwise.util.terminal import say


def rescore(
    run: Annotated[str, typer.Argument(help="A run.")],
    iteration: Annotated[int | None, typer.Option(min=0, help="The iteration of the evaluation. Default: the last one.")] = None,
    reward: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="A function of (turn, transition, trajectory) that replaces the reward.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Play an evaluation's stored actions again in the current environment, and write the new scores next to the old ones."""
    from turnwise.runs.folder import Run

    Run.open(run)  # before torch is imported
    from turnwise.evaluation.rescore import rescore as score_again
    from turnwise.evaluation.rescore import rescored_lines

    found = score_again(run, iteration, reward)
    say(json.dumps(found, indent=2) if as_json else "\n".join(rescored_lines(found)))
