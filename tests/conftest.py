"""Shared by the tests: where the benchmark data and the golden values lie, and a strategy for rollouts."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

Cli = Callable[..., SimpleNamespace]  # words in; returncode, stdout and stderr out
ROOT = Path(__file__).resolve().parent.parent
TEST_PATHS = [str(ROOT / "tests" / "support"), str(ROOT / "tests"), str(ROOT)]  # for processes that tests start
DATA = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data")).resolve()

if "TURNWISE_STATE" not in os.environ:  # marks of the tests' own runs are none of the user's
    os.environ["TURNWISE_STATE"] = tempfile.mkdtemp(prefix="turnwise-tests-")
    atexit.register(shutil.rmtree, os.environ["TURNWISE_STATE"], ignore_errors=True)

settings.register_profile("turnwise", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("turnwise")


def _flushed(handle: int) -> None:
    os.fstat(handle)  # an error for a closed file, as from the real one


os.fsync = _flushed  # no test cuts the power, and waiting for the disk takes longer than most runs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in `tests/gpu/` are marked `gpu`. Those marked `long` play real packages for minutes: only where TURNWISE_ENVS=all, as in
    `make test-envs`."""
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
    if os.environ.get("TURNWISE_ENVS") == "all":
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="takes long: make test-envs, or TURNWISE_ENVS=all"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported while tests are collected stays: nothing is to be gained by looking for garbage in it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Set apart what is loaded by now. Otherwise every run in this process looks through all of torch and the tests for garbage first,
    which takes longer than the run itself."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _usual_garbage_collection() -> Iterator[None]:
    """A part that is made for a process of its own (an engine's actor) changes how often this one collects: only for its test."""
    before = gc.get_threshold()
    yield
    if gc.get_threshold() != before:
        gc.set_threshold(*before)


@pytest.fixture(autouse=True)
def _usual_products() -> Iterator[None]:
    """On a processor without bfloat16, torch's first product in it turns oneDNN off for the whole process, and later products in float32
    round otherwise than in other processes: only for its test."""
    yield
    if (torch := sys.modules.get("torch")) is not None and not torch._C._get_mkldnn_enabled():
        torch._C._set_mkldnn_enabled(True)


def shared_folder(name: str) -> Path:
    """A folder of the shared benchmark data; the test is skipped, with the reason, where it is absent."""
    folder = DATA / name
    if not folder.exists():
        pytest.skip(f"{folder} is absent: set TURNWISE_DATA to the folder with the benchmark data")
    return folder


@pytest.fixture(autouse=True)
def known_algorithms() -> Iterator[None]:
    """What a test registers is forgotten after it: tests that go over all credit algorithms mean those that come with the package."""
    from turnwise.credit import algorithms

    algorithms.names()  # the built-in ones are loaded before they are noted
    kept = dict(algorithms._entries)
    yield
    algorithms._entries.clear()
    algorithms._entries.update(kept)


@pytest.fixture
def refusing() -> Iterator[None]:
    """Code from elsewhere is refused, as in a script, before the test and after it."""
    from turnwise.config import trust

    trust.ask_with(trust.refuse)
    yield
    trust.ask_with(trust.refuse)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in this process and in the test's own folder: no other process has to import torch."""
    from turnwise.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("turnwise.cli.app.guard", lambda: None)  # it changes how this process reports errors

    def called(*arguments: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["turnwise", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=told.out, stderr=told.err)

    return called
