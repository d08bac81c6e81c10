"""A diagnosis of logs as pages: what goes into the folder and the file, and what a reader sees and clicks in a real browser."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from page_browser import open_page, serving, texts
from page_runs import ATTACK, ODD, turn
from typer.testing import CliRunner

from turnwise.cli.app import app
from turnwise.data.rollouts import Trajectory
from turnwise.logs.findings import Diagnosis, diagnose
from turnwise.pages import diagnosis as pages
from turnwise.pages.answers import Answers
from turnwise.pages.run_list import RunList

pytest_plugins = ["page_browser"]
PLACE = {"run": "logs", "part": "rollouts", "iteration": "0"}


def attempt(task: str, number: int, *actions: str, won: bool) -> Trajectory:
    """The state is where the last action led to, so attempts that do the same see the same."""
    states = ["hall", *actions[:-1]]
    turns = [turn(state, action, observation=f"You see {state}.", thought="") for state, action in zip(states, actions, strict=True)]
    return Trajectory(task, f"{task}/{number}", task, turns, success=won, goal=f"Your task is to: tidy {task}.")


def logs(tasks: int = 4, bad: str = "jump") -> list[Trajectory]:
    """In the hall, who opens wins, and who does something else loses; one attempt goes another way."""
    attempts = []
    for number in range(tasks):
        task = f"room-{number}"
        attempts += [attempt(task, n, "go", "open", "take", won=True) for n in range(5)]
        attempts += [attempt(task, n, "go", bad, "wait", "wait", won=False) for n in range(5, 10)]
        attempts.append(attempt(task, 10, "sing", won=False))
    return attempts


def saved(folder: Path, trajectories: list[Trajectory]) -> tuple[Diagnosis, Answers]:
    folder.mkdir()
    diagnosis = diagnose(trajectories)
    pages.save(diagnosis, trajectories, folder)
    return diagnosis, Answers(RunList(folder, "logs"))


def actions_of(answers: Answers) -> set[str]:
    states = answers("group", {**PLACE, "group": "room-0"})["states"].values()
    return {action for state in states for _, _, action in state["visits"]}


def test_the_folder_holds_the_diagnosis_and_the_task_of_every_turn(tmp_path: Path) -> None:
    diagnosis, answers = saved(tmp_path / "d", logs())
    told = answers("diagnosis", {"run": "logs"})
    (finding, *_) = diagnosis.findings
    assert [told["findings"][0][name] for name in ("kind", "where", "p")] == [finding.kind, finding.where, finding.p]
    assert told["findings"][0]["worse"] == {"text": "jump", "attempts": 20, "won": 0}
    assert told["findings"][0]["turns"][0] == {"id": "room-0/5", "group": "room-0", "t": 1}
    assert answers("run", {"run": "logs"})["card"]["diagnosed"] is True
    assert {"go", "jump", "open", "take", "wait", "sing"} == actions_of(answers)


def test_success_is_the_reward_where_all_returns_are_alike_and_nowhere_else(tmp_path: Path) -> None:
    _, answers = saved(tmp_path / "alike", logs())
    turns = {id: answers("attempt", {**PLACE, "id": id})["turns"] for id in ("room-0/0", "room-0/5")}
    assert [step["reward"] for step in turns["room-0/0"]] == [0, 0, 1] and not any(step["reward"] for step in turns["room-0/5"])
    assert turns["room-0/0"][1]["step"] > 0 > turns["room-0/5"][1]["step"]
    rewarded = logs()
    rewarded[0].turns[0].reward = 0.25
    _, answers = saved(tmp_path / "rewarded", rewarded)
    assert [step["reward"] for step in answers("attempt", {**PLACE, "id": "room-0/0"})["turns"]] == [0.25, 0, 0]


def test_who_won_by_a_return_above_the_median_is_shown_as_solved(tmp_path: Path) -> None:
    trajectories = logs()
    for trajectory in trajectories:
        trajectory.turns[-1].reward, trajectory.success = 2.0 + trajectory.success, False
    diagnosis, answers = saved(tmp_path / "d", trajectories)
    assert diagnosis.outcome == "return above the task's median"
    rows = answers("batch", PLACE)["rows"]
    assert sum(rows["success"]) == diagnosis.won == 20


def test_texts_and_facts_of_a_turn_are_bounded(tmp_path: Path) -> None:
    trajectories = logs()
    long = trajectories[0].turns[0]
    long.observation, long.response = "o" * 10**6, "r" * 10**6
    long.info = {"result": "x" * 10**6, "arguments": {"a": "y" * 10**6}, "error": None}
    trajectories[0].goal = "g" * 10**6
    _, answers = saved(tmp_path / "d", trajectories)
    shown = answers("attempt", {**PLACE, "id": "room-0/0"})
    assert len(json.dumps(shown)) < 6 * pages.LONGEST and "error" not in shown["turns"][0]["info"]


def test_long_actions_that_differ_late_are_different_actions(tmp_path: Path) -> None:
    trajectories = logs()
    trajectories[0].turns[1].action, trajectories[1].turns[1].action = "w" * 600 + "a", "w" * 600 + "b"
    _, answers = saved(tmp_path / "d", trajectories)
    named = {action for action in actions_of(answers) if action.startswith("www")}
    assert len(named) == 2 and max(map(len, named)) < 420


def test_a_file_holds_first_the_tasks_of_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_TURNS", 30)
    dull = [attempt("dull", n, "go", "wait", won=True) for n in range(4)]
    trajectories = dull + logs()
    path, collected = pages.write_page(diagnose(trajectories), trajectories, tmp_path / "d.html")
    rows = next(answer for name, answer in collected.found.items() if name.startswith("batch?"))["rows"]
    assert set(rows["group"]) == {"room-0"} and collected.kept == len(trajectories)
    inside = {answer["id"] for name, answer in collected.found.items() if name.startswith("attempt?")}
    assert "room-0/5" in inside and 0 < collected.attempts == len(inside) < len(rows["id"])
    assert path.read_text().count("room-1/") == 0


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    user = {"role": "user", "content": "Do it."}
    lines = [{"id": str(n), "reward": n % 2, "messages": [user, {"role": "assistant", "content": f"answer {n % 2}"}]} for n in range(6)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(app, ["diagnose", str(log), "--html", str(tmp_path / "d.html")])
    assert result.exit_code == 0, result.output
    assert "Content-Security-Policy" in (tmp_path / "d.html").read_text()


# -- in a browser ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The pages of logs with texts that try to do harm."""
    trajectories = logs(bad=ATTACK)
    for trajectory in trajectories:
        trajectory.turns[-1].observation += f" {ODD} {ATTACK}"
        trajectory.goal = f"{ATTACK} {trajectory.task}"
    return pages.write_page(diagnose(trajectories), trajectories, tmp_path / "d.html", ATTACK)[0].as_uri()


def test_a_click_on_a_finding_opens_its_state_and_how_its_actions_ended(page: Any, file: str) -> None:
    open_page(page, file)
    first = page.locator(".finding").first
    assert texts(page, ".finding .sides-of td.n")[:2] == ["0 of 20 won", "20 of 20 won"]
    first.click()
    page.wait_for_selector(".tree-detail .turn")
    better, worse = (row.rsplit(" ", 1) for row in texts(page, ".tree-detail tbody tr"))
    assert [better[0], worse[0]] == ["open 5 5 of 5", f"{ATTACK} 5 0 of 5"]
    assert better[1].startswith("+") and worse[1].startswith("−") and ATTACK in page.locator(".tree-detail tr.chosen").inner_text()
    assert texts(page, ".tree-detail .action")[0] == f"› {ATTACK}"
    assert page.locator(".tree-detail .observation").first.inner_text() == "You see go."
    page.get_by_role("button", name="open", exact=True).first.click()
    page.wait_for_selector(".tree-detail .action >> text=open")
    page.locator(".tree-detail a.visit").first.click()
    page.wait_for_selector(".turn.current")
    assert "id=room-0%2F0" in page.url and page.locator(".turn.current").get_attribute("data-turn") == "1"


def test_no_text_of_a_log_acts_as_html(page: Any, file: str) -> None:
    open_page(page, file)
    assert page.locator("h1").inner_text() == ATTACK
    for part in ("", "n=0"):
        open_page(page, f"{file}#/finding?{part}&run={ATTACK}" if part else file)
        page.wait_for_selector(".finding")
        assert page.locator("main script, main img").count() == 0
    page.wait_for_selector(".tree-detail .turn")
    page.get_by_role("button", name="take").last.click()
    page.wait_for_selector(".tree-detail .action >> text=take")
    assert "[U+202E]right to left[U+2028]" in page.locator(".tree-detail .observation").first.text_content()


def test_the_tree_has_a_cell_for_every_way_that_attempts_share(page: Any, tmp_path: Path) -> None:
    more = [attempt("room-0", 11, "go", "open", "drop", "take", won=False), attempt("room-0", 12, "go", won=False)]
    trajectories = [*logs(1), *more]
    saved(tmp_path / "logs", trajectories)
    ways: Counter[tuple[str, ...]] = Counter()
    wins: Counter[tuple[str, ...]] = Counter()
    for trajectory in trajectories:
        actions = [step.action for step in trajectory.turns]
        for t in range(len(actions)):
            ways[tuple(actions[: t + 1])] += 1
            wins[tuple(actions[: t + 1])] += trajectory.success
    with serving(tmp_path / "logs") as served:
        open_page(page, f"{served.url}#/tree?run=logs&group=room-0")
        page.wait_for_selector(".tree .cell")
        labels = [name.split("; ")[:2] for name in page.locator(".tree .cell").evaluate_all("all => all.map((one) => one.ariaLabel)")]
        total = len(trajectories)
        expected = [[f"turn {len(way)}: {way[-1]}", f"{n} of {total} attempts, {wins[way]} won"] for way, n in ways.items()]
        assert sorted(labels) == sorted(expected)
        forks = page.locator(".tree .cell.fork").evaluate_all("all => all.map((one) => one.ariaLabel.split(';')[0])")
        assert sorted(forks) == ["turn 1: go", "turn 2: open"]
        page.locator(".tree .cell").first.click()
        for key, action in (("ArrowRight", "open"), ("ArrowDown", "jump"), ("ArrowUp", "open"), ("ArrowLeft", "go")):
            page.keyboard.press(key)
            page.wait_for_selector(f".tree-detail .chosen >> text={action}")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_fit_and_everything_is_named(page: Any, tmp_path: Path, width: int, scheme: str) -> None:
    saved(tmp_path / "logs", logs())
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    with serving(tmp_path / "logs") as served:
        for address in ("", "#/run?run=logs", "#/finding?run=logs&n=0", "#/tree?run=logs&group=room-1", "#/attempts?run=logs"):
            open_page(page, served.url + address)
            page.wait_for_selector(".finding, .cell")
            nameless = page.evaluate(
                "[...document.querySelectorAll('button, a')].filter((one) => !(one.textContent.trim() || one.ariaLabel)).length"
            )
            assert not nameless and not page.evaluate("document.documentElement.scrollWidth > innerWidth"), address
            page.get_by_role("link", name="compare").wait_for(state="hidden")  # the pages ask while they are drawn whether these are logs


def test_of_many_ways_a_tree_has_those_that_several_attempts_took_and_the_open_one(page: Any, tmp_path: Path) -> None:
    trajectories = [attempt("room", n, "go", won=True) for n in range(3)] + [
        attempt("room", n, f"sing {n}", won=False) for n in range(3, 203)
    ]
    saved(tmp_path / "logs", trajectories)
    with serving(tmp_path / "logs") as served:
        open_page(page, f"{served.url}#/tree?run=logs&group=room&id=room/99")
        page.wait_for_selector(".tree .cell.here")
        assert sorted(texts(page, ".tree-labels button")) == ["go ✓ 3", "sing 99 ✗ 1"]
        assert "Branches of fewer than 2 attempts are not drawn." in page.locator(".tree-box").inner_text()


def test_the_group_of_a_run_is_a_tree_too(page: Any, url: str) -> None:
    open_page(page, f"{url}#/attempts?run=good&part=rollouts&iteration=3&id=1")
    page.get_by_role("link", name="As a tree").click()
    page.wait_for_selector(".tree .cell.here")
    assert texts(page, ".tree-labels button") == ["go to cellar ✓ 1 ✗ 1", "go to kitchen ✓ 1", "wait ✗ 1", "go to kitchen ✓ 1"]
    chosen = page.locator(".tree .cell.here").get_attribute("aria-label")
    assert chosen.startswith("turn 1: go to cellar; 2 of 3 attempts, 1 won; after it, they part")
