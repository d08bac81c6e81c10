"""`turnwise doctor`."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.util.errors import install_command, lacks_training
from turnwise.util.terminal import say

if TYPE_CHECKING:
    from turnwise.setup.doctor import Finding

SECONDS = 20.0  # what the self-test may take where nothing has to be compiled
GAP = 1e-3  # between the engine's and the learner's log-probs, in float32 on one machine


def doctor(
    report: Annotated[bool, typer.Option("--report", help="Print Markdown to paste into an issue: no secrets, no user names.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    test: Annotated[bool, typer.Option(help="Train a tiny model for one iteration, about 20 seconds.")] = True,
) -> None:
    """Show what this machine has and what is missing for what, and test whether training works here."""
    from rich.text import Text

    from turnwise.setup.doctor import examine, healthy
    from turnwise.setup.doctor import report as as_markdown
    from turnwise.util.console import Console

    console = Console(stderr=report or as_json)

    def show(part: str, rows: list[Finding]) -> None:
        console.print(Text(part, style="bold"))
        for row in rows:
            mark, style = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("·", "dim")}[row.good]
            console.print(Text.assemble((f"  {mark} ", style), f"{row.what}: {row.value}"))
            if row.remedy and row.good is not True:
                console.print(Text(f"      {row.remedy}", style="yellow"), soft_wrap=True)

    def tell(part: str) -> None:
        status.update(Text(f"looking at: {part}"))
        if not console.is_terminal:
            say(f"looking at: {part} …", err=True)

    findings = {}
    with console.status("") as status:
        for part, rows in examine(trial if test else None, tell):
            findings[part] = rows
            if not (report or as_json):
                show(part, rows)
    if as_json:
        say(json.dumps({part: [asdict(row) for row in rows] for part, rows in findings.items()}, indent=2))
    elif report:
        say(as_markdown(findings))
    well = healthy(findings)
    if not (report or as_json):
        rest = f"All but training works here. To train: {install_command('train')}"
        tested = "Training works on this machine." if test else "Nothing that every run needs is missing. Training was not tested."
        fine = rest if lacks_training() else tested
        say(fine if well else "Something that every run needs is wrong: see ✗ above.")
    raise typer.Exit(0 if well else 1)


def trial() -> Iterator[Finding]:
    """Credit against numbers known by hand, then one iteration of a tiny model on every kind of device that is there: environments, engine,
    credit, learner and checkpoint, as in any run."""
    yield _credit()
    if lacks_training():
        return
    import torch

    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        yield from _iteration(device)


def _credit() -> Finding:
    import numpy as np

    from turnwise import credit
    from turnwise.data.rollouts import Rollouts
    from turnwise.setup.doctor import Finding

    # Two attempts share the hall: returns 1 and 0 have a mean of ½ and a deviation of √½ there, and as returns of the attempts.
    columns: dict[str, Any] = {"reward": [0.0, 1.0, 0.0, 0.0], "anchor": ["hall", "kitchen", "hall", "cellar"]}
    rollouts = Rollouts.from_columns(group=[0] * 4, trajectory=[0, 0, 1, 1], t=[0, 1, 0, 1], **columns)
    given = credit.compute("gigpo", rollouts, gamma=1.0, omega=1.0)
    right = np.allclose(given, np.array([2.0, 1.0, -2.0, -1.0]) * 0.5**0.5, atol=1e-4)
    return Finding("credit", "as computed by hand" if right else f"wrong: {given}", bool(right))


def _iteration(device: str) -> Iterator[Finding]:
    from turnwise import api
    from turnwise.setup.doctor import Finding

    recipe = {
        "extends": "numberline-tiny",
        "device": device,
        "iterations": 1,
        "sft": None,
        "collect.groups": 4,
        "eval.n": 6,
        "eval.repeats": 1,
        "model.tiny.layers": 1,
        "learner.old_logprobs": "learner",
        "run.checkpoint_every": 1,
        "run.keep_rollouts": 0,
    }
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="turnwise-doctor-") as folder:
        result = api.train({**recipe, "out": folder}, quiet=True)
    seconds = time.perf_counter() - started
    yield Finding(
        f"an iteration on {device}",
        f"{seconds:.0f} s",
        True if device != "cpu" or seconds < SECONDS else None,
        "slow: other programs use this machine, or it has few cores",
    )
    gap = result.metrics[-1].get("learner/engine_gap_max", float("nan"))
    yield Finding(f"engine and learner agree on {device}", f"log-probs differ by {gap:.1g} at most", gap < GAP, "please report this")
