"""`turnwise lab`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from turnwise.util.errors import TurnwiseError

lab = typer.Typer(name="lab", rich_markup_mode=None, add_completion=False, invoke_without_command=True)
SHORT = "Measure how close each credit algorithm is to true advantages, and audit one"
Load = Annotated[list[str] | None, typer.Option(metavar="FILE", help="A Python file that registers your own credit algorithm or problem.")]


@lab.callback()
def compare(
    context: typer.Context,
    algos: Annotated[
        str | None, typer.Option(help="Credit algorithms, for example gigpo,grpo,gigpo:once=true,oracle. Default: all.")
    ] = None,
    problems: Annotated[str | None, typer.Option(help="Problems, for example grid,corridor:length=8. Default: all.")] = None,
    group_sizes: Annotated[str | None, typer.Option(help="Group sizes to measure, for example 2,8,32.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Batches per measurement; learning curves use a quarter of them.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same results file.")] = None,
    skill: Annotated[float | None, typer.Option(help="Skill of the measured policy: 0 is random, 1 is optimal. Default: 0.2.")] = None,
    load: Load = None,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="The folder for results and figures.")] = "lab-results",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, group sizes and iterations.")] = False,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Also train with each credit algorithm.")] = True,
) -> None:
    """Measure the accuracy of each credit algorithm on problems whose true advantages are known. `turnwise lab audit METHOD` looks at
    one of them closely."""
    if context.invoked_subcommand:
        return
    from turnwise.config.loading import load_file
    from turnwise.lab.experiment import QUICK, Settings, read_cases, run, write
    from turnwise.lab.lines import choose
    from turnwise.lab.tables import FULL_WIDTH, show
    from turnwise.util.console import Console

    for path in load or []:
        load_file(Path(path))
    changes: dict[str, Any] = dict(QUICK) if quick else {}
    changes |= {name: value for name, value in {"seeds": seeds, "seed": seed, "skill": skill}.items() if value is not None}
    if group_sizes is not None:
        changes["group_sizes"] = tuple(_whole(part) for part in _names(group_sizes) or [])
    if not train:
        changes["iterations"] = 0
    settings = replace(Settings(_names(problems), _names(algos)), **changes).check()
    console = Console(wide=FULL_WIDTH)
    cases, lines = read_cases(settings), choose(settings.algos)  # wrong names are rejected before anything is shown or made
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TurnwiseError(f"--out {out}: no folder can be made there ({error.strerror})") from None
    chosen = f"{len(lines)} credits on {len(cases)} problems whose true advantages are known, {settings.seeds} seeds"
    console.print(f"How good is each algorithm's credit? {chosen}.", soft_wrap=True)
    result = run(settings)
    show(result, console, *write(result, out))


@lab.command(short_help="Bias, noise and signs of one credit algorithm, beside placebos")
def audit(
    method: Annotated[list[str] | None, typer.Argument(metavar="METHOD", help="Credit algorithms, for example gigpo:gamma=1.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every algorithm that runs in the lab, one line each. Takes minutes.")] = False,
    problems: Annotated[str | None, typer.Option(help="Problems instead of the four sweeps, for example grid,chain.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 0,
    load: Load = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
) -> None:
    """Show what a credit algorithm does to true advantages: its bias with a p-value, its variance against GRPO's, its signs and its
    correlation, and how each changes as states repeat less, chance grows, tasks get longer and the policy decides when to stop.
    Placebos stand beside it."""
    from turnwise.config.loading import load_file
    from turnwise.lab import audit as measured
    from turnwise.lab import audit_tables as tables
    from turnwise.util.console import Console
    from turnwise.util.terminal import say

    for path in load or []:
        load_file(Path(path))
    if bool(method) == everything:
        raise TurnwiseError("name a credit algorithm, as in `turnwise lab audit gigpo`, or all of them with --all")
    result = measured.audit(method, measured.Settings(_names(problems), seed))
    if as_json:
        say(json.dumps(result, allow_nan=False))
        return
    console = Console(wide=80)
    for shown in [tables.many(result)] if everything else [tables.one(result, label) for label in result["methods"]]:
        console.print(shown)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TurnwiseError(f"--group-sizes takes integers separated by commas, as in 2,8,32, not {text!r}") from None


def _names(text: str | None) -> list[str] | None:
    """The parts of a comma-separated list, each once; None if nothing was given."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise TurnwiseError(f"{text!r} names nothing: write names separated by commas, as in gigpo,grpo")
    return list(dict.fromkeys(names))
