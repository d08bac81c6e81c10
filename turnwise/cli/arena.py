"""`turnwise arena` and `turnwise card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnwise.util.errors import TurnwiseError, need_training

ARENA = "Compare methods fairly: the same tasks, seeds, budgets and tuning for all"
CARD = "Rollout cards: one file from which every number of a run can be computed again"
arena = typer.Typer(name="arena", help=f"{ARENA}.", no_args_is_help=True, rich_markup_mode=None, add_completion=False)
card = typer.Typer(name="card", help=f"{CARD}.", no_args_is_help=True, rich_markup_mode=None, add_completion=False)
File = Annotated[str, typer.Argument(metavar="FILE", help="The arena: a TOML file.")]
Out = Annotated[str | None, typer.Option(metavar="FOLDER", help="Where its runs and cards are. Default: arena-NAME.")]


def folder_of(file: str, out: str | None) -> Path:
    return Path(out or f"arena-{Path(file).stem}")


@arena.command("check")
def check(file: File, out: Out = None) -> None:
    """Read an arena file, and show its hash and how many runs it has."""
    from turnwise.arena.plan import Arena
    from turnwise.arena.run import cards_in, choose
    from turnwise.util.terminal import say

    read = Arena.load(file)
    folder = folder_of(file, out)
    cards = cards_in(folder)
    tuning, final = list(read.tuning_cells()), list(read.final_cells(choose(read, cards)))
    for cell in {(cell.environment, cell.method): cell for cell in final}.values():
        read.config(cell, folder / "runs")  # a mistake in any of them is found here
    settings = read.settings
    say(f"{file}: hash {read.hash}")
    say(f"{len(settings.environments)} environments, {len(settings.methods)} methods, {len(read.methods) - len(settings.methods)} controls")
    for name, cells in (("tuning", tuning), ("final", final)):
        say(f"{name}: {len(cells)} runs, {sum(cell.name in cards for cell in cells)} with a card in {folder}")


@arena.command("run")
def run(
    file: File,
    out: Out = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of concurrent runs.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads per run.")] = 1,
    part: Annotated[str, typer.Option(help="The cells of this machine: 2/4 is the second of four parts.")] = "1/1",
    only: Annotated[str | None, typer.Option(metavar="WORDS", help="Only runs whose name contains all of these words.")] = None,
) -> None:
    """Run what is missing; the same command continues. Ctrl-C saves."""
    need_training("turnwise arena run")
    from turnwise.arena.plan import Arena
    from turnwise.arena.run import Part
    from turnwise.arena.run import run as run_cells
    from turnwise.report.sweeping import line_of
    from turnwise.util.terminal import say

    folder = folder_of(file, out)
    done = run_cells(
        Arena.load(file),
        folder,
        at_once=jobs,
        threads=threads,
        part=Part.read(part),
        only=only,
        tell=lambda job: say(line_of(job)),
        say=say,
    )
    say(f"{done.finished} runs finished, {done.failed} failed, {len(done.left)} are missing. Report: turnwise arena report {file}")
    raise typer.Exit(done.exit_code)


@arena.command("again")
def again(
    file: File,
    cells: Annotated[list[str], typer.Argument(metavar="CELL", help="Runs by name: line-gigpo-final-seed1000.")],
    out: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where the new runs go. Default: arena-NAME-again.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Number of concurrent runs.")] = 1,
) -> None:
    """Repeat runs whose cards are in cards/NAME beside FILE: does the new success fall into the interval of the published one?"""
    need_training("turnwise arena again")
    from turnwise.arena.card import headline, read_all
    from turnwise.arena.plan import Arena
    from turnwise.arena.run import again as run_again
    from turnwise.report.sweeping import line_of
    from turnwise.report.tables import NONE, TextTable, between, percent, rendered
    from turnwise.util.console import Console
    from turnwise.util.terminal import say

    read, where = Arena.load(file), Path(file).parent / "cards" / Path(file).stem
    published = read_all([where]) if where.is_dir() else {}
    if missing := [name for name in cells if name not in published]:
        raise TurnwiseError(f"{where} has no card of {missing[0]}: `turnwise arena run {file}` makes cards; copy those to repeat there")
    chosen = {name: published[name] for name in cells}
    folder = Path(out or f"arena-{read.name}-again")
    repeated = run_again(read, chosen, folder, at_once=jobs, tell=lambda job: say(line_of(job)), say=say)
    rows = []
    for name, (old, new) in repeated.items():
        budget = read.attempts(old["about"]["environment"])
        before, after = headline(old, budget), None if new is None else headline(new, budget)
        low, high = before.get("interval", (0.0, 1.0))
        found = [NONE, NONE] if after is None else [percent(after["success"]), "yes" if low <= after["success"] <= high else "no"]
        rows.append([name, percent(before["success"]), between((low, high)), *found])
    title = f"{sum(row[-1] == 'yes' for row in rows)} of {len(rows)} fall into the interval of the published run (95 %, over tasks)"
    Console().print(rendered([TextTable(title, ["run", "published", "95 %", "again", "inside"], rows)], []))


@arena.command("report")
def report(
    file: File,
    out: Out = None,
    form: Annotated[str, typer.Option("--format", help="table, markdown or json.")] = "table",
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the report as one HTML file.")] = None,
) -> None:
    """Show what the cards say: intervals, paired differences, ranks, costs, controls."""
    import json

    from turnwise.arena.page import page
    from turnwise.arena.plan import Arena
    from turnwise.arena.results import results
    from turnwise.arena.run import cards_in
    from turnwise.arena.text import sentences, tables
    from turnwise.report.tables import WIDTH, as_markdown, rendered
    from turnwise.util.console import Console
    from turnwise.util.files import write_text_atomically
    from turnwise.util.terminal import say

    if form not in ("table", "markdown", "json"):
        raise TurnwiseError(f"--format is one of table, markdown, json, not {form!r}")
    computed = results(Arena.load(file), cards_in(folder_of(file, out)))
    if form == "json":
        say(json.dumps(computed, indent=1))
    elif form == "markdown":
        say("\n".join(f"- {sentence}" for sentence in sentences(computed)) + "\n\n" + as_markdown(tables(computed), []), end="")
    else:
        console = Console(wide=WIDTH)
        for sentence in sentences(computed):
            console.print(sentence, markup=False, highlight=False)
        console.print(rendered(tables(computed), []))
    if html is not None:
        say(f"written: {write_text_atomically(html, page(computed))}", err=True)


@card.command("make")
def make(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="A run.")],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="The card. Default: RUN.card.json.gz.")] = None,
) -> None:
    """Write the card of a run."""
    from turnwise.arena.card import ENDING, card_of, write
    from turnwise.runs.folder import SUMMARY, read_facts
    from turnwise.util.terminal import say

    run = Path(folder)
    ended = "finished" if read_facts(run, SUMMARY).get("finished") else "interrupted"
    say(f"written: {write(card_of(run, ended), Path(out or f'{run.name}{ENDING}'))}")


CARDS = typer.Argument(metavar="CARD", help="Cards, packed cards, or folders of them.")


@card.command("pack")
def pack(
    out: Annotated[str, typer.Argument(metavar="FILE", help="The file to write: NAME.cards.tar.xz.")], files: Annotated[list[str], CARDS]
) -> None:
    """Put many cards into one file, a tenth of the size. What reads cards reads it too."""
    from turnwise.arena.card import PACKED, read_all
    from turnwise.arena.card import pack as write_packed
    from turnwise.util.terminal import say

    if not out.endswith(PACKED):
        raise TurnwiseError(f"packed cards are called NAME{PACKED}, not {out}")
    cards = read_all([Path(file) for file in files])
    say(f"written: {write_packed(cards, Path(out))}, {len(cards)} cards")


@card.command("verify")
def verify(files: Annotated[list[str], CARDS]) -> None:
    """Compute every headline number of a card from its attempts, and compare. Exits with 1 if one differs."""
    from turnwise.arena.card import read_all
    from turnwise.arena.card import verify as differences
    from turnwise.util.terminal import say

    cards = read_all([Path(file) for file in files])
    if not cards:
        raise TurnwiseError(f"no card lies in {', '.join(files)}")
    wrong = {name: found for name, card in cards.items() if (found := differences(card))}
    for name, found in wrong.items():
        for text in found:
            say(f"{name}: {text}")
    say(f"{len(cards)} cards, {len(wrong)} of them wrong")
    raise typer.Exit(1 if wrong else 0)
