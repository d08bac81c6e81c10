"""`turnwise export`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from turnwise.cli.diagnose import Format, Outcome, Outcomes, Task, WonAt, read
from turnwise.cli.shared import Trust
from turnwise.util.errors import TurnwiseError, need_training
from turnwise.util.printable import counted
from turnwise.util.terminal import say


def export(
    run: Annotated[str, typer.Argument(help="A run; with --best-turns also logs: a file, a folder or a pattern.")],
    out: Annotated[str | None, typer.Argument(help="The folder to write: a Hugging Face model. Not needed with --push.")] = None,
    best_turns: Annotated[bool, typer.Option("--best-turns", help="Write pairs.jsonl and examples.jsonl to train on instead.")] = False,
    adapters: Annotated[bool, typer.Option("--adapters", help="Write only the LoRA adapters instead of merging them.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Use the best checkpoint by evaluation instead of the last one.")] = False,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Write the model [models.NAME] instead of the policy.")] = None,
    push: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="Upload it to the Hugging Face hub, as a private model.")] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: everybody can see it.")] = False,
    trust: Trust = False,
    format: Format = None,
    task: Task = None,
    outcome: Outcome = None,
    outcomes: Outcomes = None,
    won_at: WonAt = 1.0,
) -> None:
    """Write a run's weights as a model folder that transformers can load, and push it to a hub.

    With --best-turns: write preference pairs (TRL's DPO) and the turns of won attempts (its SFT) from logs or from a run; the options of
    logs are those of `turnwise diagnose`."""
    if best_turns:
        if out is None or push is not None or model is not None or adapters or best:
            raise TurnwiseError("--best-turns needs a folder and no option of weights: turnwise export LOGS FOLDER --best-turns")
        return export_best_turns(run, out, format=format, task=task, outcome=outcome, outcomes=outcomes, won_at=won_at)
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
    return None


def export_best_turns(logs: str, folder: str, **options: Any) -> None:
    """Write the best turns of logs."""
    from turnwise.logs.best_turns import write_best_turns

    result = read([logs], keep_attempts=True, **options)
    pairs, examples = write_best_turns(folder, result.trajectories, result.attempts)
    say(f"written: {Path(folder) / 'pairs.jsonl'} ({counted(pairs, 'pair')})")
    say(f"written: {Path(folder) / 'examples.jsonl'} ({counted(examples, 'example')})")
    if not pairs:
        say("no pairs: in no state did one action win surely more often than another; more attempts at each task would help", err=True)
