"""`turnwise compare`: read, compare, show, write."""

from __future__ import annotations

from turnwise.report.comparison import compare
from turnwise.report.tables import wide_console
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import say

FORMATS = ("table", "markdown", "latex", "json")


def compare_command(
    sources: list[str],
    at: str,
    target: float | None,
    form: str,
    out: str | None,
    picture: str | None,
    anyway: bool,
    baseline: str | None,
    metrics: list[str],
    by_type: bool,
) -> None:
    """Standard output has only the comparison, so that it can be piped; the names of written files go to standard error."""
    if form not in FORMATS:
        raise TurnwiseError(f"--format is one of {', '.join(FORMATS)}, not {form!r}")
    comparison = compare(sources, at=at, target=target, anyway=anyway, baseline=baseline, metrics=metrics, by_type=by_type)
    written = comparison.write(out) if out is not None else []
    written += [comparison.plot(picture)] if picture is not None else []
    if form == "table":
        wide_console().print(comparison.table())
    else:
        say({"markdown": comparison.to_markdown, "latex": comparison.to_latex, "json": comparison.to_json}[form](), end="")
    for path in written:
        say(f"written: {path}", err=True)
