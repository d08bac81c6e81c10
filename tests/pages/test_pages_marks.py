"""The pages in a real browser: goals and marks in words, what the map is coloured by, any number of runs, names that nobody expects."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from page_browser import open_page, texts
from page_runs import ATTACK, evaluated, group, log, make_run

from turnwise.data.batch import Batch
from turnwise.runs.folder import Run

pytest_plugins = ["page_browser"]

PROTOTYPE = ("constructor", "__proto__", "toString", "hasOwnProperty", "valueOf")
ATTEMPTS = "#/attempts?run=good&part=rollouts&iteration=3"


def words(page: Any, selector: str) -> str:
    return " ".join(page.locator(selector).first.inner_text().split())


def test_goals_stand_in_words_and_attempts_by_number(page: Any, runs: Path, url: str) -> None:
    goal = f"put {ATTACK} away"
    batch = group(0, "hash-0123") + group(1, "hash-4567")
    for attempt in batch[:3]:
        attempt.goal = goal
    Run(runs / "good").save_batch(3, Batch.of(batch), keep=None)
    open_page(page, url + ATTEMPTS)
    page.wait_for_selector(".turn.current")
    assert texts(page, ".group-head .goal") == [f"Put {ATTACK} away", "…4567"]
    assert "You are in the hall." in words(page, ".group:nth-child(2) .group-head"), "where no goal is known, how the task begins"
    assert texts(page, ".pick .id")[:3] == ["attempt 1", "attempt 2", "attempt 3"]
    assert words(page, ".head h2") == f"Put {ATTACK} away" and "attempt 1 of 3 · 2 turns" in words(page, ".head")
    page.keyboard.press("/")
    page.keyboard.type("away")
    assert page.locator(".pick").count() == 3


def test_the_map_is_coloured_by_step_or_episode_credit_or_their_sum(page: Any, url: str) -> None:
    open_page(page, url + ATTEMPTS)
    page.wait_for_selector(".turn.current")
    cells = ".line:nth-child(4) .cell"  # the third attempt: below the others from the start
    assert texts(page, ".one-of label") == ["credit", "step credit", "episode credit"]
    assert texts(page, cells) == ["−", "!", "−"]
    colour = f"getComputedStyle(document.querySelector('{cells}:last-child')).backgroundColor"
    summed = page.evaluate(colour)
    page.get_by_text("episode credit", exact=True).click()
    assert words(page, ".map-legend").count("episode credit: blue and + above 0") == 1
    assert page.evaluate(colour) != summed
    page.keyboard.press("ArrowLeft")
    assert page.locator(".one-of input:checked").get_attribute("value") == "step", "the arrow keys choose"
    assert texts(page, ".line:nth-child(3) .cell") == ["+", "+", "·"], "both visits of the kitchen came to the same"
    page.locator(".pick").nth(1).click()
    page.wait_for_selector("text=attempt 2 of 3 ·")
    assert page.locator(".one-of input:checked").get_attribute("value") == "step", "the choice stays"


def test_marks_are_explained_to_mouse_keyboard_and_ear(page: Any, url: str) -> None:
    open_page(page, url + ATTEMPTS)
    page.wait_for_selector(".turn.current")
    page.locator(".line:nth-child(4) .cell").nth(1).hover()
    tip = "attempt 3 of 3, turn 2; credit −0.98; step credit −0.32; episode credit −0.67; its response could not be read; 3 turns of"
    assert words(page, "#tip").startswith(tip)
    assert page.locator(".line:nth-child(4) .cell").nth(1).get_attribute("aria-label").startswith(tip)
    assert page.locator(".map .cell[tabindex='0']").count() == 1, "the map is one stop of the tab key"
    page.locator(".map .cell[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert words(page, "#tip").startswith("attempt 2 of 3, turn 2;")
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


@pytest.fixture
def many(runs: Path) -> list[str]:
    """Six runs more: two settings with three seeds each, with known success."""
    names = []
    for algorithm, base in (("gigpo", 0.5), ("grpo", 0.25)):
        for seed in (0, 1, 2):
            run = make_run(runs, f"{algorithm}-{seed}", algorithm=algorithm, seed=seed)
            log(run, 4, **evaluated(base + 0.1 * seed))
            names.append(run.folder.name)
    return names


def test_any_number_of_runs_is_compared_with_bands_over_seeds(page: Any, url: str, many: list[str]) -> None:
    open_page(page, url)
    for name in many:
        page.get_by_label(f"Choose {name} to compare").check()
    page.get_by_role("button", name="Compare 6 runs").click()
    page.wait_for_selector(".settings tbody tr")
    assert texts(page, ".settings td.name") == ["gigpo", "grpo"]
    # three seeds at 50, 60 and 70 %: the mean and Student's interval, 4.303 × 10 / √3
    assert texts(page, ".settings td:last-child") == ["60 % (35 % to 85 %)", "35 % (10 % to 60 %)"]
    chart = page.locator(".chart", has_text="Success in evaluation").first
    assert "gigpo 60 % (35 % to 85 %)" in " ".join(chart.inner_text().split())
    assert chart.locator("svg.plot path.curve").count() == 2 and chart.locator("svg.plot path.band").count() == 2
    assert page.locator(".chart", has_text="Share of turns with step credit").locator("svg.plot path.curve").count() == 1, "GRPO gives none"
    page.get_by_label("every run as a thin line").check()
    assert chart.locator("svg.plot path.curve").count() == 8
    assert texts(page, ".recipe tbody tr") == ["credit.name gigpo grpo"]
    page.get_by_label("Leave out grpo-2").click()
    page.wait_for_selector("text=Choose runs (5 of 8 are shown)")
    page.wait_for_selector(".settings tbody tr:nth-child(2) .member-chip:nth-child(2):last-child")


def test_a_seed_alone_and_seeds_that_tie_show_the_interval_over_tasks(page: Any, url: str) -> None:
    open_page(page, f"{url}#/compare?a=good&b=other")
    page.wait_for_selector(".column .turn")
    assert "gigpo 75 % (38 % to 88 %)" in words(page, ".chart")
    tied = "Turnwise.meanOf([0.5, 0.5, 0.5])"
    assert page.evaluate(tied) == {"mean": 0.5, "low": None, "high": None}
    found = page.evaluate("[2, 3, 11, 40].map((n) => Turnwise.meanOf(Array.from({ length: n }, (_, i) => i % 2)))")
    from turnwise.util.statistics import t_interval

    for n, interval in zip((2, 3, 11, 40), found, strict=True):
        known = t_interval([i % 2 for i in range(n)])
        assert known is not None and (interval["low"], interval["high"]) == pytest.approx(known, abs=1e-3)


@pytest.mark.parametrize("name", PROTOTYPE[:2])
def test_runs_tasks_and_pages_named_like_parts_of_a_script(page: Any, runs: Path, url: str, name: str) -> None:
    run = make_run(runs, name)
    batch = [*group(0, name), *group(1, "b")]
    for attempt in batch:
        attempt.id, attempt.group = f"{name}{attempt.id}", f"{name}{attempt.group}"
        attempt.stop_detail = attempt.goal = name
    run.save_batch(3, Batch.of(batch), keep=None)
    open_page(page, url)
    page.locator("td .name", has_text=name).click()
    page.wait_for_selector(".chart")
    page.get_by_role("link", name="See the attempts").click()
    page.wait_for_selector(".turn.current")
    assert words(page, ".head h2") == name[0].upper() + name[1:] and page.locator(".pick").count() == 6
    page.goto(f"{url}#/{name}")
    page.wait_for_selector("text=There is no such page.")
    page.goto(f"{url}#/attempts?run={name}&part={name}&iteration=3&turn={name}")
    page.wait_for_selector(".turn.current")


def test_runs_with_odd_names_are_opened_and_compared(page: Any, runs: Path, url: str) -> None:
    odd = ["%2e%2e", "a#b?c&d=e", "new\nline", "static", "x" * 200, "'\"<b>", os.fsdecode(b"caf\xe9")]
    for name in odd:
        make_run(runs, name)
    open_page(page, url)
    for link in [link.get_attribute("href") for link in page.locator("td .name").all()]:
        open_page(page, url + link)
        page.wait_for_selector(".chart path.curve", state="attached")
        page.get_by_role("link", name="See the attempts").click()
        page.wait_for_selector(".turn.current")
    open_page(page, url)
    page.get_by_label("Choose all runs shown to compare").check()
    page.get_by_role("button", name=f"Compare {len(odd) + 2} runs").click()
    page.wait_for_selector(".column .turn")
    assert page.locator(".member-chip").count() == len(odd) + 2
