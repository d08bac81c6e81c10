"""A real browser for the tests of the pages, two runs to look at, and a server that shows them.

Needs a Chromium (`make browser` installs one where it can) and Playwright; what uses it is skipped, with the reason, where one is missing.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_runs import make_run

from turnwise.pages.run_list import RunList
from turnwise.pages.server import Server

CHROMIUM = (
    os.environ.get("TURNWISE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

SCREEN = {"width": 1280, "height": 720}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (the extra `dev` brings it)")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: `make browser` installs one, or TURNWISE_CHROMIUM names it")
    with playwright.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def tab(browser: Any) -> Any:
    """One page for all tests, which notes errors and requests to anywhere else: opening one takes as long as most tests."""
    opened = browser.new_page(viewport=SCREEN)
    opened.set_default_timeout(15_000)
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.on("console", lambda said: opened.problems.append(said.text) if said.type == "error" else None)
    opened.on(
        "request",
        lambda asked: None if asked.url.startswith(("http://127.0.0.1:", "data:", "file:")) else opened.problems.append(asked.url),
    )
    return opened


@pytest.fixture
def page(tab: Any, url: str) -> Iterator[Any]:
    """A page as new, of 1280 × 720, on which nothing may go wrong. It is left before the server is closed. Servers differ in their port,
    so that nothing which a page stores is found by the next one."""
    tab.problems = []
    yield tab
    harmed, problems = tab.evaluate("window.harmed"), list(tab.problems)
    tab.unroute_all()
    tab.goto("about:blank")
    tab.emulate_media(color_scheme="null")
    tab.set_viewport_size(SCREEN)
    assert harmed is None, "a text ran as a script"
    assert problems == []


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs")
    make_run(tmp_path / "runs", "other", algorithm="grpo", seed=1)
    return tmp_path / "runs"


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server of the runs below a folder, on a free port."""
    with Server(RunList(folder), 0) as served:
        threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        yield served
        served.shutdown()


@pytest.fixture
def url(runs: Path) -> Iterator[str]:
    with serving(runs) as served:
        yield served.url


def open_page(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("body[data-ready]")


def texts(page: Any, selector: str) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]
