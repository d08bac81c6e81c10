"""The pool: the same answers in any number of workers, and faults that stay in their slot."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import gone, runs
from timed_env import CLOCK, RESET, Factory

from turnwise.data.tasks import Task
from turnwise.envs import EpisodeOver
from turnwise.envs import pool as pools
from turnwise.envs.pool import EnvResult, Fault, Pool
from turnwise.util.errors import TurnwiseError

ENV = f"{Path(__file__).parents[1] / 'support/troubled_env.py'}:Troubled"


def starts(count: int) -> list[tuple[int, Task, int]]:
    return [(slot, Task(str(slot)), 100 + slot) for slot in range(count)]


def texts(results: list[EnvResult]) -> list[str]:
    return [result.observation.text for result in results]


def test_a_worker_that_plays_texts_loads_no_large_library() -> None:
    """Every worker would pay for it: numpy takes longer to import than all that a worker needs."""
    code = f"""
import sys
from functools import partial
from turnwise.envs import make, worker
from turnwise.envs.worker import GuardedEnvs
from turnwise.data.tasks import Task
played = GuardedEnvs(partial(make, {ENV!r}))
played.perform(0, worker.Reset(Task("0"), 1))
played.perform(0, "walk")
print(*sorted({{"numpy", "torch", "pydantic", "email"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stdout + done.stderr


def test_a_waiting_call_keeps_the_results_of_other_slots() -> None:
    with Pool(ENV, 2, workers=1) as pool:
        pool.submit_reset(0, Task("0"), 100)
        assert pool.reset(1, Task("1"), 101).observation.text == "place 0"
        assert [result.slot for result in pool.results()] == [0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("raise", "ZeroDivisionError: the environment's own mistake"),
        ("sys.exit", "SystemExit: 1"),
        ("tuple", "Troubled.step() returned a tuple"),
    ],
)
def test_an_exception_is_a_fault_of_its_slot_alone(workers: int, action: str, message: str) -> None:
    with Pool(ENV, 3, workers=workers) as pool:
        pool.reset_all(starts(3))
        results = pool.step_all([(0, "walk"), (1, action), (2, "walk")])
        assert [result.fault for result in results] == [None, Fault.ERROR, None]
        assert results[1].stop_reason.startswith(f"environment fault: {message}")
        assert "Traceback" in results[1].traceback
        assert results[1].over
        with pytest.raises(EpisodeOver, match="slot 1 has no running episode"):
            pool.step(1, "walk")
        assert pool.reset(1, Task("1"), 101).fault is None
        assert pool.step(1, "walk").fault is None


@pytest.mark.parametrize(("action", "cause"), [("exit", "ended with exit code 3"), ("kill", "was killed by SIGKILL")])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_dead_worker_is_replaced_and_the_other_slots_go_on(workers: int, action: str, cause: str) -> None:
    with Pool(ENV, 3) as pool:
        pool.reset_all(starts(3))
        expected = [texts(pool.step_all([(slot, "walk") for slot in range(3)])) for _ in range(4)]
    with Pool(ENV, 3, workers=workers) as pool:
        pool.reset_all(starts(3))
        assert [texts(pool.step_all([(slot, "walk") for slot in range(3)])) for _ in range(2)] == expected[:2]
        results = pool.step_all([(1, action), (0, "walk"), (2, "walk")])
        assert results[0].stop_reason == f"environment fault: the worker process {cause}"
        assert texts(results[1:]) == expected[2][::2]
        assert texts(pool.step_all([(0, "walk"), (2, "walk")])) == expected[3][::2]
        pool.reset(1, Task("1"), 101)
        assert pool.step(1, "walk").observation.text == expected[0][1]


@pytest.mark.parametrize("action", ["hang", "freeze"])
def test_a_hung_worker_is_replaced_at_the_time_limit(action: str) -> None:
    with Pool(ENV, 2, workers=1, timeout=2.0) as pool:
        pool.reset_all(starts(2))
        hung = pool.pids[0]
        results = pool.step_all([(0, action), (1, "walk")])
        assert results[0].fault is Fault.TIMEOUT
        assert results[0].stop_reason == "environment timeout"
        assert results[1].fault is None
        assert not runs(hung)
        assert pool.reset(0, Task("0")).fault is None


def test_an_environment_that_plays_differently_again_is_a_fault_and_not_a_silent_change() -> None:
    with Pool(ENV, 2, workers=1) as pool:
        pool.reset_all(starts(2))
        pool.step(0, "forget")
        pool.step(1, "exit")
        result = pool.step(0, "walk")
        assert result.fault is Fault.ERROR
        assert "not deterministic" in result.message


def test_long_answers_and_answers_that_cannot_be_sent() -> None:
    with Pool(ENV, 2, workers=1) as pool:
        pool.reset_all(starts(2))
        long, unpicklable = pool.step_all([(0, "long"), (1, "unpicklable")])
        assert len(long.observation.text) == 3_000_000
        assert "cannot be sent to another process" in unpicklable.message


def test_many_long_requests_do_not_block_a_busy_worker() -> None:
    count = 40
    with Pool(ENV, count, workers=1) as pool:
        results = pool.reset_all([(slot, Task(str(slot), data={"text": "y" * 100_000}), 0) for slot in range(count)])
        assert not any(result.fault for result in results)
        assert not any(result.fault for result in pool.step_all([(slot, "z" * 100_000) for slot in range(count)]))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_pool_knows_how_long_its_environments_have_played(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "time", CLOCK)
    with Pool(Factory(), 4, workers=workers) as pool:
        assert pool.busy == 0.0
        pool.reset_all(starts(4))
        pool.step_all([(0, "0.5"), (1, "2"), (2, "4"), (3, "8")])
        pool.snapshot(1)
        assert pool.busy == (4 * RESET + 14.5) / max(workers, 1)
        pool.reset(2, Task("2"))
        pool.step(2, "0.25")
        assert pool.busy == (5 * RESET + 14.75) / max(workers, 1)


def test_close_leaves_no_process_behind_and_closes_the_environments(tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    with Pool(ENV, 3, workers=2, options={"marker": str(marker)}) as pool:
        pool.reset_all(starts(3))
        pool.step(0, "child")
        pool.step(0, "daemon")
        pids = pool.pids
        left = children_of(pids[0])
        assert all(map(runs, pids)) and len(left) == 2
    assert not any(map(runs, pids))
    assert marker.read_text() == "closed\n" * 3
    assert gone(*left)
    pool.close()
    with pytest.raises(TurnwiseError, match="closed"):
        pool.reset(0, Task("0"))


def test_a_worker_that_is_replaced_leaves_no_daemon_behind() -> None:
    with Pool(ENV, 1, workers=1, timeout=2.0) as pool:
        pool.reset_all(starts(1))
        pool.step(0, "daemon")
        left = children_of(pool.pids[0])
        assert left and pool.step(0, "hang").fault is Fault.TIMEOUT
        assert gone(*left)


def children_of(pid: int) -> list[int]:
    """The processes that `Troubled` started in this one, also those that have left it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if f"child of {pid}" in (entry / "cmdline").read_text(errors="replace"):
                found.append(int(entry.name))
    return found


def test_a_forgotten_pool_ends_its_workers() -> None:
    pool = Pool(ENV, 1, workers=1)
    pool.reset(0, Task("0"))
    pids = pool.pids
    del pool
    assert gone(*pids)


def test_a_dead_parent_leaves_no_orphans_even_when_a_worker_hangs() -> None:
    script = f"""
        import time
        from turnwise.envs.pool import Pool
        from turnwise.data.tasks import Task
        pool = Pool({ENV!r}, 2, workers=2, timeout=None)
        pool.reset(0, Task("0")), pool.reset(1, Task("1"))
        pool.step(0, "child")
        pool.submit_step(0, "hang")
        print(*pool.pids, flush=True)
        time.sleep(1000)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(runs, pids))
    left = children_of(pids[0])
    parent.kill()
    parent.wait()
    assert left and gone(*pids, *left)


def test_what_a_worker_cannot_import_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TurnwiseError, match="worker processes cannot get this environment"):
        Pool(lambda: None, 1, workers=1)
    monkeypatch.setattr(Factory, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Factory", Factory, raising=False)
    with pytest.raises(TurnwiseError, match="a class of the script itself"):
        Pool(Factory, 1, workers=1)


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (ENV, {"options": {"markr": ""}}, "Did you mean 'marker'"),
        ("no-such-environment", {}, "unknown environment"),
        (ENV, {"size": 0}, "at least one slot"),
        (ENV, {"timeout": 0}, "positive number of seconds"),
        (partial(int), {"options": {"start": 1}}, "bind them"),
        (ENV, {"memory_mb": 500}, "limits worker processes"),
        (ENV, {"workers": 1, "memory_mb": 0}, "limits worker processes"),
    ],
)
def test_wrong_names_options_and_sizes_are_errors_when_the_pool_is_made(factory: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        Pool(factory, **{"size": 1, **options})


def test_misuse_of_slots_is_an_error() -> None:
    with Pool(ENV, 2) as pool:
        with pytest.raises(TurnwiseError, match="slots 0 to 1"):
            pool.reset(2, Task("0"))
        with pytest.raises(EpisodeOver):
            pool.step(0, "walk")
        pool.submit_reset(0, Task("0"))
        with pytest.raises(TurnwiseError, match="call results"):
            pool.submit_step(0, "walk")
        pool.results()
        pool.step(0, "end")
        with pytest.raises(EpisodeOver):
            pool.step(0, "walk")


@pytest.mark.parametrize("action", ["eat", "nibble"])
def test_a_worker_that_exceeds_its_memory_limit_is_a_fault_of_that_slot_alone(action: str) -> None:
    with Pool(ENV, 2, workers=1, memory_mb=500) as pool:
        pool.reset_all(starts(2))
        results = pool.step_all([(0, action), (1, "walk")])
        assert results[0].fault is Fault.ERROR
        assert "MemoryError" in results[0].stop_reason
        assert "the memory limit of a worker is 500 MB" in results[0].stop_reason
        assert results[1].fault is None
        assert pool.reset(0, Task("0")).fault is None
