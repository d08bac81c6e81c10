"""`turnwise trajectories`."""

from __future__ import annotations

from typing import Annotated

import typer

from turnwise.cli.shared import Trust
from turnwise.util.terminal import say


def trajectories(
    run: Annotated[str, typer.Argument(help="A run.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="The file to write: .jsonl, or .parquet (needs the extra parquet).")],
    iteration: Annotated[int | None, typer.Option(min=0, help="The iteration. Default: the last stored one.")] = None,
    evals: Annotated[bool, typer.Option("--evals", help="Write the attempts of the evaluation instead of those of training.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Include token ids and log-probs.")] = False,
    trust: Trust = False,
) -> None:
    """Write an iteration's trajectories as a table, one row per turn, for other tools.

    `tw.read_trajectories(FILE)` reads it back."""
    from turnwise.runs.exchange import export_trajectories

    path, count = export_trajectories(run, out, iteration, evals=evals, tokens=tokens, trust=trust)
    say(f"written: {path} ({count} trajectories)")
