"""What `turnwise view` and `turnwise report` do."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from turnwise.pages.report import ATTEMPTS, write_report
from turnwise.pages.run_list import RunList, readable
from turnwise.pages.server import PORT, Server
from turnwise.util.errors import TurnwiseError
from turnwise.util.terminal import say


def view(folder: str, port: int | None = None, browser: bool = True) -> None:
    """Serve the pages of the runs below a folder until Ctrl-C."""
    runs = RunList(folder)
    server = open_server(runs, port)
    count = len(runs.folders())
    say(f"{count} run{'s' if count != 1 else ''} at {server.url}   (Ctrl-C ends)")
    if browser:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def open_server(runs: RunList, port: int | None) -> Server:
    """On the given port, or on the usual one, or if that is taken on a free one."""
    for choice in (port,) if port is not None else (PORT, 0):
        try:
            return Server(runs, choice)
        except OSError as error:
            problem = error
    raise TurnwiseError(f"cannot listen on port {port}: {problem.strerror}. Take another with --port, or leave it out for a free one")


def report(run: str, out: str | None = None, compare: Sequence[str] = (), attempts: int = ATTEMPTS) -> None:
    """Write one HTML file about a run, or several, and print what is in it."""
    folder = Path(run)
    path = Path(out) if out is not None else folder / "report.html"
    written, told = write_report(folder, path, [Path(other) for other in compare], attempts)
    size = written.stat().st_size / 1e6
    left = "" if told.attempts == told.kept else f" of {told.kept} (--attempts N embeds more)"
    say(f"{readable(written)}: {size:.1f} MB, {told.attempts} attempts{left}. It needs no network; open it in a browser.")
