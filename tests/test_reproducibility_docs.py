"""The figures of docs/reproducibility.md are those of the committed results."""

from __future__ import annotations

import json
from typing import Any

from conftest import ROOT

PAGE = ROOT / "docs" / "reproducibility.md"
RESULT = json.loads((ROOT / "benchmarks" / "seeds.json").read_text())


def power_rows() -> list[str]:
    cells: dict[tuple[float, float], dict[int, float]] = {}
    for row in RESULT["power"]:
        cells.setdefault((row["spread"], row["difference"]), {})[row["seeds"]] = row["found_by_t"]
    return [
        f"| {100 * spread:.0f} points | {100 * gap:.0f} points | "
        + " | ".join(f"{100 * share:.0f} %" for share in by_seeds.values())
        + " |"
        for (spread, gap), by_seeds in cells.items()
        if gap
    ]


def task_rows() -> list[str]:
    cells: dict[float, list[str]] = {}
    for row in RESULT["tests_over_tasks_of_equal_algorithms"]:
        cells.setdefault(row["spread"], []).append(f"{100 * row['called_different']:.0f} %")
    return [f"| {100 * spread:.0f} points | " + " | ".join(shares) + " |" for spread, shares in cells.items()]


def missing(lines: list[str]) -> list[str]:
    text = PAGE.read_text()
    return [line for line in lines if line not in text]


def test_the_tables_of_power_show_the_committed_figures() -> None:
    lines = power_rows() + task_rows()
    assert not missing(lines), "the benchmark was run again; put these into docs/reproducibility.md:\n" + "\n".join(missing(lines))


def test_without_a_true_difference_the_committed_simulation_is_wrong_one_time_in_twenty() -> None:
    shares = [row["found_by_t"] for row in RESULT["power"] if row["difference"] == 0]
    assert f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %" in PAGE.read_text()
    assert all(abs(share - 0.05) < 4 * (0.05 * 0.95 / RESULT["settings"]["trials"]) ** 0.5 for share in shares)


def test_the_committed_comparison_is_the_one_on_the_page() -> None:
    folder = ROOT / "docs" / "results" / "ezpoints-gigpo-grpo"
    found: dict[str, Any] = json.loads((folder / "comparison.json").read_text())
    tables = [line for line in (folder / "comparison.md").read_text().splitlines() if line.startswith("|")]
    assert not missing(tables)
    assert (folder / "comparison.png").is_file() and [len(group["seeds"]) for group in found["groups"]] == [5, 5]
    spreads = RESULT["observed_spread"]
    assert len(spreads) >= 2 and not missing([f"{100 * one['spread']:.1f}" for one in spreads.values()])


def test_the_coverage_of_intervals_is_the_committed_one() -> None:
    found = json.loads((ROOT / "benchmarks" / "intervals.json").read_text())
    lines = [
        f"| {row['tasks']} | {row['panel']} × {row['repeats']} | {100 * row['over_tasks']:.1f} % | {100 * row['over_attempts']:.1f} % |"
        for row in found["coverage"]
        if row["repeats"] > 1
    ]
    assert not missing(lines), "the benchmark was run again; put these into docs/reproducibility.md:\n" + "\n".join(missing(lines))
    assert all(row["over_tasks"] > 0.93 for row in found["coverage"])
