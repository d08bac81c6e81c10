"""The pages in a real browser: what a person would do, and what a harmful text would like to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_browser import open_page, serving, texts
from page_runs import ATTACK, evaluated, log, make_run, turn

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.pages.report import write_report
from turnwise.runs.folder import Run

pytest_plugins = ["page_browser"]


def test_a_run_is_found_sorted_and_opened(page: Any, url: str) -> None:
    open_page(page, url)
    assert sorted(texts(page, "td .name")) == ["good", "other"]
    page.get_by_role("button", name="seed").click()
    assert texts(page, "td .name") == ["other", "good"]
    page.get_by_role("button", name="seed").click()
    assert texts(page, "td .name") == ["good", "other"]
    page.keyboard.press("/")
    page.keyboard.type("grpo")
    assert texts(page, "td .name") == ["other"]
    page.locator("td .name").click()
    page.wait_for_selector(".chart")
    assert page.locator("h1").inner_text() == "other" and "75.0 %" in page.locator(".facts").inner_text()


def test_a_curve_is_read_by_mouse_and_by_keyboard(page: Any, url: str) -> None:
    open_page(page, f"{url}#/run?run=good")
    chart = page.locator(".chart", has_text="Success").first
    assert "evaluation 75 % (38 % to 88 %)" in " ".join(chart.locator(".legend").inner_text().split())
    plot = chart.locator("svg.plot")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    read = " ".join(chart.locator(".legend").inner_text().split())
    assert "training 25 %" in read and "iteration 1" in read
    assert "training 25 %" in page.locator("#say").inner_text()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 46 + (box["width"] - 56) * 2 / 3, box["y"] + 60)
    assert "training 50 %" in " ".join(chart.locator(".legend").inner_text().split())
    page.mouse.click(box["x"] + box["width"] - 12, box["y"] + 60)
    page.wait_for_selector(".turn.current")
    assert "iteration=3" in page.url


def test_an_attempt_is_found_by_filter_and_its_state_shows_all_actions(page: Any, url: str) -> None:
    open_page(page, f"{url}#/attempts?run=good&part=rollouts&iteration=3")
    page.wait_for_selector(".turn.current")
    assert page.locator(".pick").count() == 6
    page.get_by_label("Outcome").select_option("lost")
    assert page.locator(".pick").count() == 2
    page.get_by_label("Task type").select_option("find")
    assert page.locator(".pick").count() == 1
    page.locator(".pick").click()
    page.wait_for_selector("text=attempt 3 of 3 ·")
    page.locator(".turn").first.click()
    said = " ".join(page.locator(".side").inner_text().split())
    assert "on average over 3 visits of this state" in said
    assert texts(page, ".actions .sum td:first-child") == ["go to kitchen", "go to cellar × 2"]
    page.get_by_role("button", name="✓ 1 turn 1").click()
    page.wait_for_selector("text=attempt 1 of 3 ·")
    assert "Step credit +0.33" in page.locator(".side").inner_text()
    assert page.locator(".map .cell.same").count() == 3


def test_the_keyboard_walks_through_turns_and_attempts(page: Any, url: str) -> None:
    open_page(page, f"{url}#/attempts?run=good&part=rollouts&iteration=3&id=0")
    page.wait_for_selector(".turn.current")
    page.keyboard.press("j")
    assert page.locator(".turn.current").get_attribute("data-turn") == "1"
    page.keyboard.press("k")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("text=attempt 2 of 3 ·")
    page.keyboard.press("h")
    page.wait_for_selector("text=attempt 1 of 3 ·")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog#keys").is_visible()
    page.keyboard.press("o")
    page.wait_for_selector(".chart")


def test_harmful_and_broken_texts_are_shown_and_nothing_else(page: Any, runs: Path, url: str) -> None:
    run = make_run(runs, "harmful", option=ATTACK)
    folder = run.folder.rename(runs / ATTACK.replace("/", "_"))
    (folder / "warnings.jsonl").write_text('{"iteration": 1, "name": "<img src=x onerror=window.harmed=1>", "text": "<b>bold</b>"}\n')
    open_page(page, url)
    page.locator("td .name", has_text="<script>").click()
    page.wait_for_selector(".recipe tbody tr")
    assert "<b>bold</b>" in page.locator(".warnings").inner_text()
    assert ATTACK in page.locator(".recipe-card pre").text_content()
    page.get_by_role("link", name="See the attempts").click()
    page.wait_for_selector(".turn.current")
    page.locator(".pick").nth(3).click()
    page.wait_for_selector(".head >> text=put-<script>")
    assert page.locator(".observation").first.text_content() == ATTACK
    thought = page.locator(".thought").first.text_content()
    for sign in ("a[U+D800]b", "[U+202E]right to left[U+2028]", "bell[U+0007]", "[U+0000]nul </script><!--"):
        assert sign in thought
    assert ATTACK in page.locator(".head").inner_text()


def test_a_run_that_is_training_updates_by_itself(page: Any, runs: Path, url: str) -> None:
    run = Run(runs / "good")
    (run.folder / "summary.json").unlink()
    open_page(page, f"{url}#/run?run=good")
    page.wait_for_selector("#live:not([hidden])")
    sent: list[str] = []
    page.on("response", lambda answer: sent.append(answer.text()) if "/api/metrics" in answer.url else None)
    log(run, 4, **evaluated(1.0))
    page.wait_for_selector(".facts >> text=4 of 4")
    page.wait_for_selector(".legend >> text=100 % (50 % to 100 %)")
    assert max(map(len, sent)) < 1500, "only the new line is sent"


def test_two_runs_stand_side_by_side_on_the_same_task(page: Any, url: str) -> None:
    open_page(page, url)
    for name in ("good", "other"):
        page.get_by_label(f"Choose {name} to compare").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    page.wait_for_selector(".column .turn")
    assert "2 of 2 shared tasks" in page.locator(".pair-box").inner_text()
    assert page.locator(".column").count() == 2
    page.get_by_role("button", name="put-cup").click()
    page.wait_for_selector(".column >> text=put-cup")
    assert texts(page, ".column .outcome") == ["✗ not solved", "✗ not solved"]


def test_pictures_are_shown(page: Any, url: str) -> None:
    open_page(page, f"{url}#/attempts?run=good&part=rollouts&iteration=3&id=0")
    expect = pytest.importorskip("playwright.sync_api").expect
    # An assertion of the locator asks again from outside; `wait_for_function` would evaluate text, which the page's policy forbids.
    expect(page.locator(".turn img").first).to_have_js_property("naturalWidth", 6)


@pytest.mark.parametrize("width", [1280, 400])
def test_everything_can_be_reached_and_is_named(page: Any, url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for place in ("#/", "#/run?run=good", "#/attempts?run=good", "#/compare?a=good&b=other"):
        open_page(page, url + place)
        page.wait_for_timeout(300)
        nameless = page.evaluate(
            """[...document.querySelectorAll('button, a, select, input')].filter((node) =>
                !(node.textContent.trim() || node.getAttribute('aria-label') || node.closest('label'))).length"""
        )
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert nameless == 0 and not wide, place


def test_a_server_that_went_away_is_told(page: Any, runs: Path) -> None:
    with serving(runs) as served:
        open_page(page, served.url)
        page.route("**/api/**", lambda route: route.abort())
        page.wait_for_selector("#notice:not([hidden])")
        assert "does not answer" in page.locator("#notice").inner_text()
        page.problems.clear()


def test_the_report_works_from_a_file(page: Any, runs: Path, tmp_path: Path) -> None:
    written, _ = write_report(runs / "good", tmp_path / "one.html")
    open_page(page, written.as_uri())
    page.wait_for_selector(".chart path.curve", state="attached")
    page.wait_for_selector(".recipe tbody tr")
    page.get_by_role("link", name="See the attempts").click()
    page.wait_for_selector(".turn.current")
    page.wait_for_selector(".turn img")
    page.keyboard.press("/")
    page.keyboard.type("harmed")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hit")
    page.locator(".hit").first.click()
    page.wait_for_selector(".head >> text=put-<script>")
    assert page.locator(".observation").first.text_content() == ATTACK
    assert "What the group did from this state" in page.locator(".side").inner_text()


ESCAPES = "\x1b[1;31mred\x1b[0m plain \x1b]0;title\x07\x1b[2J\x1b[38;5;9mstill\x1b[m\n10 %\r99 %\x07"


def test_a_shell_attempt_looks_like_a_terminal_and_hostile_output_is_text(page: Any, runs: Path, url: str) -> None:
    run = make_run(runs, "shell")
    seen = ["Your task is: go.\n/work$", f"{ESCAPES}\n{ATTACK}\n/work$", "[exit code 1]\n/work/d$"]
    said = [f"echo {ATTACK}", "cd d; false", "submit"]
    infos = [{"exit_code": 0, "limit": ""}, {"exit_code": 1, "limit": ATTACK}, {"output": "The task is not solved."}]
    attempt = Trajectory(0, 0, "go", [], Stop.DONE, "", False, seed=7)
    for text, command, info in zip(seen, said, infos, strict=True):
        attempt.turns.append(turn(text, command, observation=text, thought="", info={"env": info}))
    run.save_batch(3, Batch.of([attempt]), keep=None)
    run.write_facts("environment.json", {"name": "shell", "shows": "terminal"})
    open_page(page, f"{url}#/attempts?run=shell&part=rollouts&iteration=3&id=0")
    page.wait_for_selector(".turn.current")
    assert page.locator(".terminal").count() == 3 and page.locator(".told").inner_text() == "Your task is: go."
    assert texts(page, ".turn .action") == [f"/work$ echo {ATTACK}", "/work$ cd d; false", "/work/d$ submit"]
    first = page.locator(".terminal .output").first
    assert first.text_content() == f"red plain still\n99 %[U+0007]\n{ATTACK}", "of the escape sequences only colours have an effect"
    assert first.locator(".colour-1.bold").inner_text() == "red" and first.locator("img, script").count() == 0
    assert "monospace" in first.evaluate("node => getComputedStyle(node).fontFamily")
    assert texts(page, ".terminal .exit") == ["exit 0", "exit 1", ATTACK]
    assert page.locator(".terminal .output").count() == 2, "the exit code is not printed a second time"
    assert page.locator(".terminal .output").last.inner_text() == "The task is not solved."
