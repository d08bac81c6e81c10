"""How many threads torch gets, and how idle ones wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from turnwise.recipe.schema import Config
from turnwise.setup.build import load_model
from turnwise.util import threads


@pytest.fixture(autouse=True)
def eight_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv(threads.CORES, "8")


def test_a_tiny_model_gets_one_thread_and_a_large_one_every_core() -> None:
    assert [threads.threads_for(size) for size in (0, 460_000, 135_000_000, 7_000_000_000)] == [1, 1, 8, 8]


def test_independent_work_takes_the_cores_that_are_left_unless_somebody_has_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_requested", False)
    assert [threads.at_once(used) for used in (1, 4, 5, 8, 20)] == [2, 2, 1, 1, 1]
    threads.request(1)
    assert threads.at_once(1) == 1
    threads.request(None)
    assert threads.at_once(1) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.at_once(1) == 1


def test_the_recipe_is_obeyed_first_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5,3")
    assert threads.threads_for(460_000) == 5
    assert threads.threads_for(460_000, asked=2) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.threads_for(460_000) == 1


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(threads.CORES)
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(before)})
            assert threads.cores() == 1
        finally:
            os.sched_setaffinity(0, before)
    assert threads.cores() >= 1


def test_loading_a_model_sets_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    given: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    changes = ["env.name=tests/support/toy_env.py:Corridor", "model.tiny.layers=1", "model.tiny.vocabulary_tasks=2", "device=cpu"]
    changes.append("model.tiny.max_length=4096")
    for more in ([], ["threads=3"]):
        load_model(Config.load(None, [*changes, *more]))
    assert given == [1, 3]


ASKED = """
import os, sys
class Torch:  # stands before what would import it: the variables count only where they are set by then
    @staticmethod
    def find_spec(name, *rest):
        if name == "torch":
            tell()
def tell():
    print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("KMP_BLOCKTIME"), flush=True)
    os._exit(0)
sys.meta_path.insert(0, Torch)
{start}
tell()
"""


@pytest.mark.parametrize("start", ["import turnwise", "from turnwise.cli.app import main", "import turnwise.learn.learner"])
def test_idle_threads_sleep_unless_the_user_says_otherwise(start: str) -> None:
    command = [sys.executable, "-c", ASKED.format(start=start)]
    clean = {name: value for name, value in os.environ.items() if name not in threads.QUIET}
    for given, said in (({}, "PASSIVE 0"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None")):
        done = subprocess.run(command, env=clean | given, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == said
