"""`turnwise lab`."""

from __future__ import annotations

from typing import Annotated

import typer


def lab(
    algos: Annotated[
        str | None, typer.Option(help="Credit algorithms, for example gigpo,grpo,gigpo:once=true,oracle. Default: all.")
    ] = None,
    problems: Annotated[str | None, typer.Option(help="Problems, for example grid,corridor:length=8. Default: all.")] = None,
    group_sizes: Annotated[str | None, typer.Option(help="Group sizes to measure, for example 2,8,32.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Batches per measurement; learning curves use a quarter of them.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same results file.")] = None,
    skill: Annotated[float | None, typer.Option(help="Skill of the measured policy: 0 is random, 1 is optimal. Default: 0.2.")] = None,
    load: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A Python file that registers your own credit algorithm or problem.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="The folder for results and figures.")] = "lab-results",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, group sizes and iterations.")] = False,
    train: Annotated[bool, typer.Option("--train/--no-train", help="Also train with each credit algorithm.")] = True,
) -> None:
    """Measure the accuracy of each credit algorithm on problems whose true advantages are known."""
    from turnwise.lab.command import lab as run_lab

    run_lab(algos, problems, group_sizes, load or [], out, quick=quick, train=train, seeds=seeds, seed=seed, skill=skill)
