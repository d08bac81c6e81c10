"""`turnwise diagnose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from turnwise.data.rollouts import Trajectory
    from turnwise.logs.findings import Diagnosis

Sources = Annotated[list[str], typer.Argument(metavar="LOGS", help="Files, folders or patterns of logs, or a run.")]
Format = Annotated[str | None, typer.Option("--format", help="The format of the logs. Default: each record's own.")]
Task = Annotated[
    str | None, typer.Option(metavar="KEY", help="Where a record names its task. Default: known names, else the first message.")
]
Outcome = Annotated[str | None, typer.Option(metavar="KEY", help="Where a record says how it ended: a score, a feedback, an attribute.")]
Outcomes = Annotated[str | None, typer.Option(metavar="FILE.csv", help="Outcomes by the ids of attempts: the columns id and outcome.")]
WonAt = Annotated[float, typer.Option(metavar="SCORE", help="The score from which on an attempt is won.")]
SimilarTasks = Annotated[float | None, typer.Option(metavar="0-1", help="Tasks that are so similar are one.")]
SimilarStates = Annotated[float | None, typer.Option(metavar="0-1", help="States of a task that are so similar are one.")]
Embed = Annotated[str | None, typer.Option(metavar="MODEL", help="Compare by a model of sentences instead of by letters (extra dense).")]


def diagnose(
    logs: Sources,
    format: Format = None,
    task: Task = None,
    outcome: Outcome = None,
    outcomes: Outcomes = None,
    won_at: WonAt = 1.0,
    similar_tasks: SimilarTasks = None,
    similar_states: SimilarStates = None,
    embed: Embed = None,
    top: Annotated[int, typer.Option(min=1, help="Findings to show.")] = 10,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write the findings as one HTML file that needs no network.")] = None,
    view: Annotated[bool, typer.Option("--view", help="Show the findings and all attempts in a browser.")] = False,
) -> None:
    """Find what loses an agent's tasks, from its logs: deciding states, wasted turns, tools and errors that precede failures."""
    import json

    from turnwise.logs.findings import diagnose
    from turnwise.logs.text import diagnosis_text
    from turnwise.util.console import Console
    from turnwise.util.terminal import say

    trajectories = read(
        logs,
        format=format,
        task=task,
        outcome=outcome,
        outcomes=outcomes,
        won_at=won_at,
        similar_tasks=similar_tasks,
        similar_states=similar_states,
        embed=embed,
    ).trajectories
    diagnosis = diagnose(trajectories)
    if json_:
        say(json.dumps(diagnosis.to_json()))
    else:
        say(diagnosis_text(diagnosis, Console(wide=80).width, top), end="")
    if html is not None or view:
        show(diagnosis, trajectories, logs, html, view)


def show(diagnosis: Diagnosis, trajectories: Sequence[Trajectory], logs: list[str], html: str | None, view: bool) -> None:
    """The pages of a diagnosis, named after the first of the logs: as a file, and in a browser."""
    from pathlib import Path

    from turnwise.pages.diagnosis import view_diagnosis, write_page
    from turnwise.pages.run_list import readable
    from turnwise.util.terminal import say

    name = readable(Path(logs[0]).resolve().name) + (f" and {len(logs) - 1} more" if len(logs) > 1 else "")
    if html is not None:
        written, collected = write_page(diagnosis, trajectories, Path(html), name)
        part = "" if collected.attempts == collected.kept else f" of {collected.kept:,} (--view shows all)"
        say(f"{readable(written)}: {written.stat().st_size / 1e6:.1f} MB, {collected.attempts:,} attempts{part}", err=True)
    if view:
        view_diagnosis(diagnosis, trajectories, name)


def read(logs: list[str], **options: Any) -> Any:
    """Logs, with progress on a terminal, and with notes about what was left out on standard error."""
    from turnwise.logs.reading import read_logs
    from turnwise.util.console import Console
    from turnwise.util.garbage import rare_searches
    from turnwise.util.terminal import say

    with rare_searches(), Console(stderr=True).status("reading …") as status:
        result = read_logs(logs, progress=lambda count: status.update(f"reading … {count:,} attempts"), **options)
    for note in result.notes:
        say(note, err=True)
    return result
