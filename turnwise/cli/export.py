"""`turnwise export`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from turnwise.cli.shared import Trust
from turnwise.util.errors import TurnwiseError, need_training
from turnwise.util.terminal import say


def export(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str | None, typer.Argument(help="The folder to write: a Hugging Face model. Not needed with --push.")] = None,
    adapters: Annotated[bool, typer.Option("--adapters", help="Write only the LoRA adapters instead of merging them.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Use the best checkpoint by evaluation instead of the last one.")] = False,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Write the model [models.NAME] instead of the policy.")] = None,
    push: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Upload it to the Hugging Face hub, as a private model.")] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: everybody can see it.")] = False,
    trust: Trust = False,
) -> None:
    """Write a run's weights as a model folder that transformers can load, and push it to a hub."""
    need_training("turnwise export")
    from turnwise.runs.folder import Run
    from turnwise.util.hub import check_push, push_folder

    if out is None and push is None:
        raise TurnwiseError("say where to: turnwise export RUN FOLDER, or turnwise export RUN --push OWNER/NAME")
    if push is not None and model is not None:
        raise TurnwiseError("--push publishes the policy: write another model of the run to a folder, without --push")
    Run.open(run)  # before torch is imported
    if push is not None:
        check_push(push)
    say(f"reading the checkpoint of {run} …", err=True)
    from turnwise.api import export as write

    with TemporaryDirectory() as temporary:
        folder = write(run, out or Path(temporary) / "model", merged=not adapters, best=best, model=model, local=push is None)
        if out is not None:
            say(f"written: {folder}")
        if push is not None:
            say(f"pushing {push} …", err=True)
            say(f"pushed: {push_folder(folder, push, public)}")
