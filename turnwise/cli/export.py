"""`turnwise export`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Trust
from turnwise.util.terminal import say


def export(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str, typer.Argument(help="The folder to write: a Hugging Face model.")],
    adapters: Annotated[bool, typer.Option("--adapters", help="Write only the LoRA adapters instead of merging them.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Use the best checkpoint by evaluation instead of the last one.")] = False,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Write the model [models.NAME] instead of the policy.")] = None,
    trust: Trust = False,
) -> None:
    """Write a run's weights as a model folder that transformers can load."""
    from turnwise.runs.folder import Run

    Run.open(run)  # before torch is imported
    from turnwise.api import export as write

    say(f"written: {write(run, out, merged=not adapters, best=best, model=model)}")
