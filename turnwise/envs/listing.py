"""The listing and the checker's report as a person reads them in the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from turnwise.envs.check import Report
from turnwise.util.console import Console
from turnwise.util.printable import counted, printable


def print_environments(rows: list[dict[str, Any]], console: Console) -> None:
    """The environments, and below them what to do about what is missing: whole lines that can be copied, however narrow the terminal."""
    console.print(environments_table(rows))
    missing = ((row["name"], need) for row in rows for need in row["needs"] if not need["present"] and need["remedy"])
    remedies = dict.fromkeys((name, need["remedy"]) for name, need in missing)
    if remedies:
        console.print(Text("\n- something is missing. Where to get it:"))
    for name, remedy in remedies:
        console.print(Text.assemble((f"  {printable(name)}: ", "bold yellow"), printable(remedy)), soft_wrap=True)


def environments_table(rows: list[dict[str, Any]]) -> Table:
    """The environments with their horizon; one alone also with its tasks and needs. Those that lack something are yellow, with a mark."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    alone = len(rows) == 1
    for column in ("name", *(("tasks",) if alone else ()), "turns", *(("needs",) if alone else ())):
        table.add_column(column, no_wrap=column == "name", justify="right" if column == "turns" else "left", overflow="fold")
    table.add_column("what it is", ratio=1)
    for row in rows:
        name = Text.assemble("  " if row["ready"] else "- ", printable(row["name"]), style="green" if row["ready"] else "yellow")
        turns = "–" if row["max_turns"] is None else str(row["max_turns"])
        cells = (name, _splits(row["splits"]), turns, _needs(row)) if alone else (name, turns)
        about = Text(printable(row["summary"] or row["error"]), style="" if row["summary"] else "red")
        table.add_row(*cells, about)
    return table


def _splits(sizes: dict[str, int | None]) -> Text:
    if not sizes:
        return Text("?", style="dim")
    return Text("\n".join(f"{printable(split)} {'∞' if size is None else format(size, ',')}" for split, size in sizes.items()))


def _needs(row: dict[str, Any]) -> Text:
    text = Text()
    for need in row["needs"]:
        text.append(f"{need['what']}: {'present' if need['present'] else 'missing'}\n", style="" if need["present"] else "red")
    if row["error"]:
        text.append(printable(row["error"]), style="red")
    text.rstrip()
    return text if text.plain else Text("nothing", style="dim")


def contract_table(rows: list[dict[str, Any]]) -> Table:
    """Which environments keep the rules, and what is broken or missing."""
    table = Table("name", "contract", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        if "missing" in row:
            name, found = Text(printable(row["name"]), style="bold yellow"), Text(f"missing: {printable(', '.join(row['missing']))}", "red")
        else:
            name = Text(printable(row["name"]), style="bold green")
            found = Text(printable("broken: " + "; ".join(row["contract"])), style="red") if row["contract"] else Text("kept")
        table.add_row(name, found)
    return table


def print_report(report: Report, console: Console) -> None:
    """What the checker found, one problem a line."""
    played = f"{counted(report.episodes, 'episode')}, {counted(report.turns, 'turn')} of random actions, {report.won} won"
    for problem in report.problems:
        console.print(Text.assemble(("broken rule: ", "red"), (printable(problem.rule), "bold"), f"\n    {printable(problem.seen)}"))
        if problem.lines:
            console.print(Text(printable(problem.lines)), soft_wrap=True)
    for note in report.notes:
        console.print(Text.assemble(("note: ", "yellow"), printable(note)))
    verdict = "keeps the contract" if report.ok else f"breaks {len(report.problems)} rules" if len(report.problems) > 1 else "breaks a rule"
    snapshots = "" if report.snapshot_bytes is None else f", snapshots of up to {report.snapshot_bytes:,} bytes"
    console.print(Text.assemble((printable(report.name), "bold"), f" {verdict} ({played}{snapshots})"))
