"""The real pages in a real browser: same answers in every process, experts that win, killed browsers, nothing left behind."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needing import ready
from page_runs import make_run
from processes import children, gone, kill, orphans

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.envs.base import Transition
from turnwise.pages.run_list import RunList
from turnwise.pages.server import Server
from turnwise_envs.miniwob.browser import BrowserGone
from turnwise_envs.miniwob.env import MiniWobEnv
from turnwise_envs.miniwob.experts import known
from turnwise_envs.miniwob.kinds import kinds

pytest_plugins = ["page_browser"]
ready("miniwob")


def task(kind: str, seed: int = 0, split: str = "train") -> Task:
    return Task(f"{kind}-{seed}", split, {"kind": kind, "seed": seed})


@pytest.fixture(scope="module")
def kept() -> Iterator[MiniWobEnv]:
    """An environment that all tests share, so that the browser is started once."""
    made = MiniWobEnv()
    made.reset(task("click-test"))
    yield made
    made.close()


@pytest.fixture
def env(kept: MiniWobEnv) -> Iterator[MiniWobEnv]:
    made = MiniWobEnv()
    yield made
    made.close()


def play(env: MiniWobEnv, *actions: str) -> Transition:
    return [env.step(action) for action in actions][-1]


def expert_plays(env: MiniWobEnv, start: Task, most: int = 25) -> Transition | None:
    env.reset(start)
    for _ in range(most):
        action = env.expert_action()
        if action is None:
            return None
        if (answer := env.step(action)).done:
            return answer
    return None


def test_there_are_more_than_a_hundred_kinds() -> None:
    assert len(kinds()) >= 120 and len(known() & set(kinds())) >= 100
    assert tw.tasks("miniwob", "valid", n=2, kinds=["click-test", "enter-text"])[1].data == {"kind": "enter-text", "seed": 1}


def test_a_page_is_read_and_used(env: MiniWobEnv) -> None:
    seen = env.reset(task("login-user"))
    assert seen.text.startswith('Your task is: Enter the username "')
    assert '2 textbox = ""' in seen.text and "4 password" in seen.text and '5 button "Login"' in seen.text
    assert seen.actions is not None and "click 5" in seen.actions
    answer = play(env, 'type 2 "wrong"', 'type 2 "right"')
    assert '2 textbox = "right" (focused)' in answer.observation.text, "typing replaces what was there"
    assert play(env, "click 5").reward == -1.0


def test_the_anchor_is_the_state_of_the_page(env: MiniWobEnv) -> None:
    first = env.reset(task("click-checkboxes-large"))
    other = play(env, "click 1")
    assert other.observation.anchor != first.anchor
    assert play(env, "click 1", "click 9999", "nonsense").observation.anchor != first.anchor, "the first box has the focus now"
    again = play(env, "click 1").observation
    assert again.anchor == other.observation.anchor and again.text == other.observation.text, "the way there does not count"


def test_an_action_that_cannot_be_done_is_explained(env: MiniWobEnv) -> None:
    env.reset(task("enter-text"))
    said = [play(env, text).observation.text.splitlines()[1] for text in ("jump", "click 77", 'type 2 "x"', 'select 1 "x"', "scroll up")]
    assert said[0].startswith("That is not an action. Actions: click N")
    assert said[1:] == [
        "There is no element 77 on the page.", "Nothing can be typed there.", "There is no such option or text.",
        "Nothing there can be scrolled further.",
    ]  # fmt: skip


def test_typed_html_stays_text(env: MiniWobEnv) -> None:
    env.reset(task("terminal"))
    answer = play(env, 'type 4 "<img src=x onerror=core.endEpisode(1)>"', "press enter", "wait")
    assert not answer.done and "img src=x onerror=core.endEpisode(1)>" in answer.observation.text


def test_no_wall_clock_ends_an_attempt_and_delays_pass_with_turns(env: MiniWobEnv) -> None:
    env.reset(task("enter-text"))
    assert not play(env, *["wait"] * 120).done, "two minutes of the page's clock"
    env.reset(task("button-delay", 1))
    play(env, "click 1")
    assert "The clock shows 3 seconds." in play(env, "wait").observation.text


@pytest.mark.parametrize("kind", ["click-button-sequence", "login-user", "click-tab-2", "choose-list", "email-inbox-reply", "use-slider"])
def test_experts_win(env: MiniWobEnv, kind: str) -> None:
    assert all((answer := expert_plays(env, task(kind, seed, "valid"))) is not None and answer.success for seed in (1, 4))


@pytest.mark.long
def test_experts_win_nearly_everywhere(env: MiniWobEnv) -> None:
    won = {kind for kind in sorted(known()) if (answer := expert_plays(env, task(kind, 4, "valid"), 30)) is not None and answer.success}
    assert len(won) >= 115, sorted(known() - won)


def test_things_are_dragged_from_where_they_are_after_scrolling(env: MiniWobEnv) -> None:
    seen = env.reset(task("daily-calendar", 0, "train")).text  # a list of 24 hours, of which a few are in sight
    slots = re.findall(r'(\d+) box "half-hour"', seen)
    seen = play(env, f"drag {slots[18]} to {slots[19]}").observation.text
    assert re.search(r'text "9am"\n\d+ text "to"\n\d+ text "10am"', seen), seen[-200:]


@pytest.mark.long
def test_every_kind_is_the_same_again_after_others(env: MiniWobEnv) -> None:
    def look(kind: str) -> list[object]:
        seen = env.reset(task(kind))
        found: list[object] = [seen]
        for number in range(2):
            answer = env.step((seen.actions or ("wait",))[number % max(1, len(seen.actions or ()))])
            found += [answer.observation, answer.reward]
            if answer.done:
                break
        return found

    first = {kind: look(kind) for kind in kinds()}
    assert [kind for kind in reversed(kinds()) if look(kind) != first[kind]] == []


def test_a_killed_browser_ends_the_attempt_with_a_reason_and_a_new_one_starts(env: MiniWobEnv) -> None:
    env.reset(task("enter-text"))
    other = MiniWobEnv()
    other.reset(task("click-test"))
    assert env._page is not None and other._page is not None and env._page.browser is other._page.browser, "one browser for all"
    pid = env._page.browser.pid
    processes = [pid, *children(pid)]
    kill(pid)
    with pytest.raises(BrowserGone, match="killed by signal 9"):
        env.step("click 1")
    assert gone(*processes)
    assert env.reset(task("enter-text")).text.startswith("Your task is")
    with pytest.raises(BrowserGone):
        other.step("click 1")
    assert other.reset(task("click-test")).text.startswith("Your task is")
    other.close()


def test_nothing_survives_a_process_that_was_killed() -> None:
    assert gone(*orphans("miniwob", kinds="click-test"))


def test_pages_are_played_from_several_threads(kept: MiniWobEnv) -> None:
    answers: dict[int, bool] = {}

    def one(number: int) -> None:
        own = MiniWobEnv()
        answer = expert_plays(own, task("enter-text", number))
        answers[number] = answer is not None and answer.success
        own.close()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {0: True, 1: True, 2: True}


def test_kept_screenshots_change_nothing_for_the_agent(env: MiniWobEnv) -> None:
    shown = MiniWobEnv(screenshots=True)
    for kind in ("click-collapsible", "click-menu"):
        assert env.reset(task(kind)) == shown.reset(task(kind))
        for action in ("click 1", "hover 1", "click 2"):
            plain, photographed = env.step(action), shown.step(action)
            assert plain.observation == photographed.observation and plain.reward == photographed.reward
            picture = photographed.info["screenshot"]
            assert picture.startswith("data:image/webp;base64,") and 500 < len(picture) < 33_000
            assert "screenshot" not in plain.info
            if plain.done:
                assert photographed.info["screenshot_after"] != ""
                break
    shown.close()


def test_a_run_shows_the_screenshots_of_a_real_attempt(browser: Any, tmp_path: Path) -> None:
    shown = MiniWobEnv(screenshots=True)
    seen, turns = shown.reset(task("login-user")), []
    for _ in range(3):
        action = shown.expert_action() or ""
        answer = shown.step(action)
        turns.append(Turn(seen.key, answer.reward, observation=seen.text, action=action, response_ids=[1], logprobs=[-1.0]))
        turns[-1].info = {"env": dict(answer.info)}
        seen = answer.observation
    shown.close()
    make_run(tmp_path, "real").save_batch(3, Batch.of([Trajectory(0, 0, "login-user-0", turns, success=True)]), keep=None)
    assert (tmp_path / "real" / "rollouts" / "000003.jsonl.gz").stat().st_size < 4 * 33_000
    served = Server(RunList(tmp_path), 0)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    page = browser.new_page()
    page.goto(f"{served.url}#/attempts?run=real&part=rollouts&iteration=3&id=0")
    expect = pytest.importorskip("playwright.sync_api").expect
    pictures = page.locator(".turn img.screenshot")
    expect(pictures).to_have_count(4)
    for place in range(4):
        expect(pictures.nth(place)).to_have_js_property("naturalWidth", 160)
    expect(page.locator(".turn .shot figcaption")).to_have_text(["before", "before", "before", "after"])
    page.close()
    served.shutdown()
    served.server_close()


def test_a_model_that_sees_gets_a_picture_with_numbers() -> None:
    pytest.importorskip("PIL", reason="the pictures need Pillow")
    seeing = MiniWobEnv(view="screenshot", kinds="count-sides")
    first = seeing.reset(task("count-sides"))
    assert "The picture shows the page." in first.text and 'button "' not in first.text
    (picture,) = first.images
    assert picture.shape == (420, 320, 3) and picture.dtype == np.uint8
    assert (picture == (255, 0, 0)).all(-1).sum() > 200, "frames and numbers"
    (again,) = seeing.reset(task("count-sides")).images
    assert np.array_equal(picture, again)
    seeing.close()


def test_a_task_of_another_environment_is_refused() -> None:
    with pytest.raises(tw.TurnwiseError, match="is not one of miniwob"):
        MiniWobEnv().reset(Task("x", "train", {"kind": "nothing"}))
