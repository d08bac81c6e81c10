"""benchmarks/overlap.py: its arithmetic, that streams always have work, and that a tiny model runs on a CPU."""

from __future__ import annotations

import gc
import importlib
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("overlap")
    for name in ("overlap", "iteration", "results", "kept"):
        sys.modules.pop(name, None)


def test_what_is_under_way_at_the_end_counts_by_its_share(bench: Any) -> None:
    done = [10.0, 20.0, 40.0]
    assert [bench.count(done, end) for end in (0, 5, 10, 25, 40, 90)] == [0, 0.5, 1, 2.25, 3, 3]


def test_the_time_of_both_ends_with_a_whole_micro_batch_before_one_lane_is_alone(bench: Any) -> None:
    steps = [4.0, 8.0, 12.0, 16.0, 20.0]
    assert bench.overlapped(steps, [6.0, 18.0, 25.0]) == (4.5, 2, 18.0), "the third one ended alone"
    assert bench.overlapped(steps, [40.0, 50.0]) == (5, 0.5, 20.0), "none was whole"
    assert bench.overlapped([30.0, 60.0], [10.0, 20.0, 70.0])[1:] == (2, 20.0)
    assert bench.alone([7.0, 9.0, 11.0, 13.0]) == 2, "the first one may have waited for the host"


def test_gain_is_one_if_nothing_is_won_and_two_if_both_are_hidden_in_each_other(bench: Any) -> None:
    assert bench.gain(10, 4000, 40, step_ms=2, token_ms=0.005) == pytest.approx(1)
    assert bench.gain(10, 4000, 20, step_ms=2, token_ms=0.005) == pytest.approx(2)
    assert bench.gain(10, 4000, 50, step_ms=2, token_ms=0.005) == pytest.approx(0.8)


def test_an_iteration_saves_in_the_steps_in_which_there_is_something_to_score(bench: Any) -> None:
    shape = bench.Shape()
    assert bench.work_of(shape) == (4950, 5_120_000)
    alone = {"step_ms": 2.0, "token_ms": 0.005}
    assert bench.saved(shape, 10, 4000, 40, **alone) == pytest.approx(0)
    assert bench.saved(shape, 10, 4000, 20, **alone) == pytest.approx(4950 * 2 / 1000), "2 of 4 ms in every step"
    assert bench.saved(shape, 10, 20000, 100, **alone) == pytest.approx(5_120_000 / 2000 * 2 / 1000), "all tokens in 2,560 steps"
    assert bench.saved(shape, 10, 4000, 50, **alone) == pytest.approx(-4950 / 1000), "a loss is not hidden"


class Moment:
    """An event of a GPU that is over when the test says so."""

    over = False

    def query(self) -> bool:
        return self.over


def test_a_lane_has_as_many_launches_under_way_as_it_may_and_not_more(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "now", lambda stream: Moment())
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    launched: list[int] = []
    lane = bench.Lane(lambda: launched.append(1), object(), 2)
    assert [lane.fill() for _ in range(4)] == [True, True, False, False]
    lane.marks[0].over = True
    assert [lane.fill() for _ in range(2)] == [True, False] and len(launched) == 3


def test_a_recorded_graph_keeps_what_it_reads_and_is_recorded_on_its_stream(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[Any] = []
    replayed: list[int] = []
    graph = SimpleNamespace(replay=lambda: replayed.append(1))

    def capture(given: Any, stream: Any) -> Any:
        assert given is graph
        streams.append(stream)
        return nullcontext()

    doubles = {"synchronize": lambda: None, "CUDAGraph": lambda: graph, "stream": nullcontext, "graph": capture}
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)

    def made() -> tuple[Any, Any]:
        cache, uses = torch.zeros(1), list[int]()

        def work() -> None:
            cache.add_(1)
            uses.append(int(cache))

        return bench.Recorded(work, "own"), (weakref.ref(cache), uses)

    recorded, (cache, uses) = made()
    recorded()
    gc.collect()
    assert streams == ["own"] and uses == [1, 2] and replayed == [1] and cache() is not None


def test_a_tiny_model_is_measured_on_a_cpu(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "PIECES", (1, 3))
    bench.main(["--size", "tiny", "--seconds", "0.01", "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    lines, iteration = found["micro_batches"], found["iteration"]
    assert (found["machine"], found["forward"]) == ("CPU", "issued")
    assert [line["tokens"] for line in lines] == [45, 3 * 45] and all(line["gap"] == 0 for line in lines)
    assert (iteration["decode_steps"], iteration["tokens"]) == (4 * 4, 8 * 4 * 45)
    for line in lines:
        for name in bench.PRIORITIES:
            own = line[name]
            again = (own["steps"] * line["step_ms"] + own["tokens"] * line["ms_per_1000_tokens"] / 1000) / own["ms"]
            assert own["gain"] == pytest.approx(again, rel=0.05) and 0 < own["gain_at_best"] <= own["gain"]
    best = iteration["best"]
    assert best["saved_s"] == max(line[name]["saved_s"] for line in lines for name in bench.PRIORITIES)
    assert any(line["tokens"] == best["tokens"] and line[best["priority"]]["saved_s"] == best["saved_s"] for line in lines)


def test_the_recorded_pass_is_the_learners_and_sends_nothing_again(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a graph is recorded; here the work is done twice, as it is for one. If it cannot be recorded, it is launched."""
    own = bench.Bench(bench.TINY)
    packed = own.packed(2)
    wanted = own.learner.reference_logprobs(packed)
    before, seen = bench.forward.sent, list[Any]()

    def record(work: Callable[[], None], stream: Any) -> Callable[[], None]:
        seen.append((bench.forward.sent, bench.learner.sent))
        work()
        return work

    def fail(work: Callable[[], None], stream: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    for way, stays in ((record, True), (fail, False)):
        own.recorded = True
        monkeypatch.setattr(bench, "Recorded", way)
        lane, found = own.piece(packed)
        assert own.recorded is stays and (bench.forward.sent, bench.learner.sent) == (before, before)
        lane.work()
        np.testing.assert_array_equal(found[0].numpy(), wanted)
    assert seen == [(own._sent, own._sent)]
    place = torch.device("meta")
    first = own._sent(np.arange(3), place)
    assert own._sent(np.arange(3), place) is first and own._sent(first, place) is first
    assert own._sent(np.arange(3), place, torch.int32) is not first and own._sent(np.arange(1, 4), place) is not first
