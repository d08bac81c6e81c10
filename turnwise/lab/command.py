"""What `turnwise lab` does: read the choices, run, show tables, write files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.lab.experiment import QUICK, Settings, read_cases, run, write
from turnwise.lab.lines import choose
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
    cases, lines = read_cases(settings), choose(settings.algos)  # wrong names are rejected before anything is shown or made
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TurnwiseError(f"--out {out}: no folder can be made there ({error.strerror})") from None
    console.print(opening(len(cases), len(lines), settings.seeds), soft_wrap=True)
    result = run(settings)
    show(result, console, *write(result, out))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TurnwiseError(f"--group-sizes takes integers separated by commas, as in 2,8,32, not {text!r}") from None


def split_names(text: str | None) -> list[str] | None:
    """The parts of a comma-separated list, each once; None if nothing was given."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise TurnwiseError(f"{text!r} names nothing: write names separated by commas, as in gigpo,grpo")
    return list(dict.fromkeys(names))
