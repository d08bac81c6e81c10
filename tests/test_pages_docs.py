"""docs/pages.md shows the committed figures."""

from __future__ import annotations

import json
from typing import Any

from conftest import ROOT


def lines() -> list[str]:
    """The table of docs/pages.md, as the committed result has it."""
    result = json.loads((ROOT / "benchmarks" / "pages.json").read_text())
    many, one = result["many_iterations"], result["one_iteration"]

    def times(shape: dict[str, Any], name: str) -> str:
        found = shape["http_ms"][name]
        return f"{found['first']:.0f} ({found['first_cpu']:.0f}) | {found['again']:.0f}"

    rows = [f"| {name} | {times(many, name)} | {times(one, name)} |" for name in many["http_ms"]]
    rows += [
        f"| in Chromium: {name} | {many['chromium_ms'][name]:.0f} | | {one['chromium_ms'][name]:.0f} | |" for name in many["chromium_ms"]
    ]
    rows.append(f"| report of 200 attempts, seconds | {many['report_seconds']:.1f} | | {one['report_seconds']:.1f} | |")
    rows.append(f"| its size, MB | {many['report_mb']:.1f} | | {one['report_mb']:.1f} | |")
    rows.append(f"| most memory of the server, MB | {many['peak_memory_mb']} | | {one['peak_memory_mb']} | |")
    return rows


def test_the_page_shows_the_committed_figures() -> None:
    text = (ROOT / "docs" / "pages.md").read_text()
    missing = [line for line in lines() if line not in text]
    assert not missing, "the benchmark was run again; put these into docs/pages.md:\n" + "\n".join(missing)
