"""The display of a sweep, a line whenever something changes; and `turnwise sweep`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from turnwise.evaluation.sweep import LOG, SWEEP, Job, Sweep, Watcher, plan
from turnwise.recipe.reading import is_override
from turnwise.report.progress import duration
from turnwise.report.tables import wide_console
from turnwise.util.console import Console
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import command


class Lines(Watcher):
    """One line for every start, evaluation and end of a run."""

    def __init__(self, console: Console):
        self.console = console
        self._shown: dict[str, float | None] = {}

    def begin(self, jobs: Sequence[Job]) -> None:
        self._shown = {job.name: job.success for job in jobs}
        for job in jobs:
            if job.state == "finished":
                self.note(f"{job.name}: finished before, success {_percent(job.success)}; skipped")

    def look(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.state == "running" and job.success != self._shown.get(job.name):
                self._shown[job.name] = job.success
                self.note(f"{job.name}: {_progress(job)}")

    def changed(self, job: Job) -> None:
        begun = {"new": "started", "cut off": f"resumes after iteration {job.iteration}"}
        words = {"running": begun.get(job.found, "started"), "finished": f"finished: {_progress(job)}, {duration(job.seconds)}"}
        self.note(f"{job.name}: {words.get(job.state) or f'{job.state}: {job.message}'}")

    def note(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _measured(job: Job) -> str:
    """The last evaluation, and its iteration if the run is further by now."""
    return _percent(job.success) + (f" (at {job.measured})" if job.success is not None and job.measured != job.iteration else "")


def _progress(job: Job) -> str:
    left = f", {duration(job.left)} left" if job.left is not None else ""
    return f"iteration {job.iteration}/{job.config.iterations}, success {_measured(job)}{left}"


def sweep_command(
    recipe: str | None, given: list[str], out: str | None, jobs: int, threads: int | None, dry_run: bool, target: float | None
) -> int:
    """`turnwise sweep`. The exit code: 0 all finished, 1 some failed, 130 interrupted."""
    from turnwise.recipe.reading import shipped_recipe

    console = wide_console()
    if recipe is not None and is_override(recipe):  # the first list of values may be in the position of a recipe
        given, recipe = [recipe, *given], None
    path = recipe or str(shipped_recipe("quickstart"))
    folder, planned = plan(path, given, out)
    if dry_run:
        show_plan(console, folder, planned)
        return 0
    sweep = Sweep(folder, planned, jobs, threads, Lines(console))
    sweep.head |= {"recipe": path, "given": given}
    sweep.run()
    close(console, sweep, target)
    return sweep.exit_code


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
