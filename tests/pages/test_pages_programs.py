"""The page of a program's attempt shows the tree of its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from page_browser import open_page, texts
from page_runs import ATTACK, make_run, place, turn

from turnwise.collect.call_trees import SIDE
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.pages.answers import Answers
from turnwise.pages.run_list import RunList
from turnwise.runs.folder import Run

pytest_plugins = ["page_browser"]
# two attempts: a planner whose first call is continued twice, with a sub-agent; and one with a single call
LINES = [
    (0, 0, [(0, None, "plan"), (2, 0, "go on")]),
    (0, SIDE, [(1, None, ATTACK)]),
    (0, SIDE + 1, [(3, 0, "go back")]),
    (1, 1, [(0, None, "guess")]),
]


def with_calls(run: Run) -> Run:
    batch = [
        Trajectory(
            0,
            number,
            "task",
            [
                turn("hall", said, info={"call": {"number": call, "parent": parent}, "branch": [0, 3], "attempt": attempt})
                for call, parent, said in line
            ],
        )
        for attempt, number, line in LINES
    ]
    run.save_batch(4, Batch.of(batch), keep=None)
    return run


def test_the_calls_of_an_attempt_come_from_all_of_its_lines(tmp_path: Path) -> None:
    with_calls(make_run(tmp_path))
    answers = Answers(RunList(tmp_path))
    calls = answers("attempt", place(4, id=SIDE))["calls"]
    assert [(call["number"], call["parent"], call["id"], call["t"]) for call in calls] == [
        (0, None, "0", 0),
        (1, None, str(SIDE), 0),
        (2, 0, "0", 1),
        (3, 0, str(SIDE + 1), 0),
    ]
    assert [call["said"] for call in answers("attempt", place(4, id=1))["calls"]] == ["guess"]
    assert "calls" not in answers("attempt", place(3, id=0)), "an attempt in an environment has none"


def test_the_tree_of_calls_is_drawn_and_opens_any_of_them(page: Any, url: str, runs: Path) -> None:
    with_calls(Run.open(runs / "good"))
    open_page(page, f"{url}#/attempts?run=good&part=rollouts&iteration=4&id=0")
    page.wait_for_selector(".calls li")
    assert "The attempt: 4 calls in 2 conversations" in page.locator(".calls summary").inner_text()
    assert texts(page, ".calls li") == ["◆ call 1 plan", "↳ call 3 go on", "↳ call 4 go back", f"◆ call 2 {' '.join(ATTACK.split())}"]
    page.locator(".calls button", has_text="go back").click()
    page.wait_for_selector(".calls button.here:has-text('go back')")
    assert f"id={SIDE + 1}" in page.url
