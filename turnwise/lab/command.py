"""What `turnwise lab` does: read the choices, run with a progress bar, show tables, write files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from turnwise.lab.experiment import QUICK, Advance, Settings, read_cases, read_lines, run, total_steps, write
from turnwise.lab.tables import FULL_WIDTH, opening, show
from turnwise.util.console import Console
from turnwise.util.errors import TurnwiseError


def lab(
    algos: str | None,
    problems: str | None,
    group_sizes: str | None,
    load: list[str],
    out: str,
    *,
    quick: bool,
    train: bool,
    **given: float | None,
) -> None:
    """Run the lab from the command line's texts; None means the default (of the quick run, with `quick`)."""
    for path in load:
        from turnwise.config.loading import load_file

        load_file(Path(path))
    changes: dict[str, Any] = dict(QUICK) if quick else {}
    changes |= {name: value for name, value in given.items() if value is not None}
    if group_sizes is not None:
        changes["group_sizes"] = tuple(_whole(part) for part in split_names(group_sizes) or [])
    if not train:
        changes["iterations"] = 0
    settings = replace(Settings(split_names(problems), split_names(algos)), **changes).check()
    console = Console(wide=FULL_WIDTH)
    cases = read_cases(settings)  # wrong names are rejected before anything is shown or made
    lines, _ = read_lines(settings, cases[0])
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TurnwiseError(f"--out {out}: no folder can be made there ({error.strerror})") from None
    console.print(opening(len(cases), len(lines), settings.seeds), soft_wrap=True)
    with progress(total_steps(settings)) as advance:
        result = run(settings, advance)
    show(result, console, *write(result, out))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TurnwiseError(f"--group-sizes takes integers separated by commas, as in 2,8,32, not {text!r}") from None


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """A bar on stderr that says what is being done; nothing if stderr is not a terminal."""
    console = Console(stderr=True)
    what, share = TextColumn("{task.description:<16}", markup=False), TextColumn("{task.percentage:>3.0f} %")
    with Progress(what, BarColumn(), share, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("credit", total=total)
        yield lambda what: bar.update(task, advance=1, description=what)


def split_names(text: str | None) -> list[str] | None:
    """The parts of a comma-separated list, each once; None if nothing was given."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise TurnwiseError(f"{text!r} names nothing: write names separated by commas, as in gigpo,grpo")
    return list(dict.fromkeys(names))
