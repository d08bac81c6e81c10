"""The collector while the model thinks: environments that are ready do not wait, and in order nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from collect_cases import numbered, policy
from slow_env import Slow
from toy_env import Corridor

from turnwise.collect.collector import Collector
from turnwise.data.rollouts import Trajectory
from turnwise.engines.base import Engine, Request, Response
from turnwise.envs.pool import EnvResult, Pool
from turnwise.methods.planning import TaskSlots


class StepEngine(Engine):
    """Every request takes a number of steps by its slot, the first slot's very many. Keeps a record of submissions and steps."""

    def __init__(self, long: int = 12):
        self.long = long
        self.left: dict[int, tuple[Request, int]] = {}
        self.record: list[Any] = []

    @property
    def pending(self) -> int:
        return len(self.left)

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.left[request.key] = (request, self.long if request.key == 0 else 1 + request.key % 3)
            self.record.append((request.key, tuple(request.prompt_ids)))

    def poll(self, wait: bool = True) -> list[Response]:
        done = self._step()
        while wait and not done and self.left:
            done = self._step()
        return done

    def _step(self) -> list[Response]:
        self.record.append("step")
        self.left = {key: (request, steps - 1) for key, (request, steps) in self.left.items()}
        done = [request for request, steps in self.left.values() if steps <= 0]
        for request in done:
            del self.left[request.key]
        return [Response(request.key, (request.seed % 3, 3), (-0.5, -0.1)) for request in done]

    def release(self, sequence: int) -> None: ...


class Whole(StepEngine):
    """The same engine, which always takes steps until something is done."""

    def poll(self, wait: bool = True) -> list[Response]:
        return super().poll()


class Workers:
    """A pool that answers like worker processes which are always quick: what was asked is there at the next question."""

    def __init__(self, size: int):
        self.size, self.pids = size, [1]
        self._pool = Pool(Corridor, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def results(self, timeout: float | None = None) -> list[EnvResult]:
        return self._pool.results(timeout)


def play(engine: StepEngine, ordered: bool) -> list[Trajectory]:
    collector = Collector(Workers(4), policy(engine), max_turns=6, ordered=ordered)  # type: ignore[arg-type]
    return collector.run(TaskSlots(numbered(4), seed=2, group_size=2).starts(0, 2))


def told(found: list[Trajectory]) -> list[list[tuple[Any, ...]]]:
    return [[(turn.prompt_ids, turn.response_ids, turn.action) for turn in t.turns] for t in found]


def test_an_observation_that_comes_while_the_model_thinks_joins_its_next_step() -> None:
    engine = StepEngine()
    found = play(engine, ordered=False)
    first = engine.record.index("step")
    end = [place for place, event in enumerate(engine.record) if event != "step" and event[0] == 0][1]  # slot 0 asks again
    meanwhile = [event for event in engine.record[first:end] if event != "step"]
    assert len({tuple(event) for event in meanwhile}) > 3, "others made several turns during one long response"
    gaps = [len(run) for run in "".join("s" if event == "step" else " " for event in engine.record[first:end]).split()]
    assert max(gaps) <= 3, "none of them waited for longer than its own response took"
    assert told(found) == told(play(StepEngine(), ordered=True)), "what is drawn depends on seeds alone"


def test_in_order_the_model_takes_the_same_steps_with_the_same_rows_as_without_single_steps() -> None:
    records = []
    for kind in (StepEngine, Whole):
        engine = kind(long=5)
        play(engine, ordered=True)
        records.append(engine.record)
    assert records[0] == records[1] and "step" in records[0]


@pytest.mark.parametrize("ordered", [True, False])
def test_worker_processes_of_any_pace_bring_the_same_turns(ordered: bool) -> None:
    starts = TaskSlots(numbered(6), seed=5, group_size=2).starts(0, 3)
    with Pool(Corridor, 6) as pool:
        expected = told(Collector(pool, policy(StepEngine()), max_turns=5).run(starts))
    with Pool(partial(Slow, 1, 0.01), 6, workers=2, timeout=20.0) as pool:
        assert told(Collector(pool, policy(StepEngine()), max_turns=5, ordered=ordered).run(starts)) == expected
