"""A sweep in words: what it would do, a line whenever something changes, and the comparison at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from turnwise.evaluation.sweep import LOG, SWEEP, Job, Sweep
from turnwise.report.progress import duration
from turnwise.util.console import Console
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import command


def line_of(job: Job) -> str:
    """What there is to say about a job whose state has changed, or that was evaluated."""
    if job.state in ("failed", "stopped"):
        return f"{job.name}: {job.state}: {job.message}"
    if job.state == "running" and job.success is None and not job.iteration:
        return f"{job.name}: started"
    success = "–" if job.success is None else f"{100 * job.success:.1f} %"
    taken = f", {duration(job.seconds)}" if job.seconds else ""
    return f"{job.name}: {job.state}, iteration {job.iteration}/{job.config.iterations}, success {success}{taken}"


def show_plan(console: Console, folder: Path, jobs: Sequence[Job]) -> None:
    """What a sweep would do."""
    for job in jobs:
        does = {"new": "new", "cut off": f"resumes after iteration {job.iteration}", "finished": "finished already: skipped"}[job.found]
        console.print(Text(f"{job.folder}  ({job.config.iterations} iterations; {does})"), soft_wrap=True)
    left = sum(job.found != "finished" for job in jobs)
    console.print(Text(f"{len(jobs)} runs in {folder}, {left} to do."), soft_wrap=True)


def close(console: Console, sweep: Sweep, target: float | None) -> None:
    """The end of a sweep: what failed, the comparison, and the paths of the files."""
    from turnwise.report.comparison import compare

    for job in sweep.jobs:
        if job.state in ("failed", "stopped"):
            more = f" (all of it: {job.folder / LOG})" if job.state == "failed" else ""
            console.print(Text(f"{job.name} {job.state}: {job.message}{more}"), soft_wrap=True)
    done = [job.folder for job in sweep.jobs if job.state == "finished"]
    if done:
        try:
            comparison = compare(done, target=target)
        except TurnwiseError as error:
            console.print(Text(f"No comparison: {error}"), soft_wrap=True)
        else:
            console.print(comparison.table())
    counts = Counter(job.state for job in sweep.jobs)
    console.print(Text(f"{len(sweep.jobs)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())), soft_wrap=True)
    console.print(Text(f"The sweep: {sweep.folder / SWEEP}. Again: {command('compare', str(sweep.folder))}"), soft_wrap=True)
