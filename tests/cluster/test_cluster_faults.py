"""Engines, workers and nodes that die: the run ends, nothing is counted twice, and in step the result is that of an undisturbed run.

Threads stand for the actors of Ray, which lets the tests choose the moment exactly; `test_cluster_kills.py` kills real processes.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_light import GROUPS, SIZE, Learner, LightParts, Sender, alone, run, task_slots
from seats_env import Race
from toy_env import Corridor

from turnwise import TurnwiseError
from turnwise.cluster.collecting import RemoteCollector
from turnwise.cluster.prefetch import Prefetcher
from turnwise.cluster.source import ClusterSource, RemoteEngine
from turnwise.cluster.work import Spec
from turnwise.cluster.worker import RolloutWorker
from turnwise.cluster.workers import RolloutWorkers
from turnwise.collect.games import PLAYER_OFFSET
from turnwise.collect.hooks import Hooks
from turnwise.collect.source import LocalSource
from turnwise.data.tasks import Task
from turnwise.methods.planning import Plain

ray = pytest.importorskip("ray")
LOST = ray.exceptions.RayActorError


class Handle:
    """An actor in this process: all that it gets and gives is copied. A dead one answers nothing, whatever its threads still do."""

    def __init__(self, make: Callable[[Hooks], Any], number: int, retries: int = 2):
        self._actor = RolloutWorker(make, number, retries)
        self._open: set[Future[Any]] = set()
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(getattr(self._actor, name), pickle.dumps(arguments)))

    def _call(self, method: Callable[..., Any], packed: bytes) -> Future[Any]:
        answer: Future[Any] = Future()
        self._open.add(answer)

        def work() -> None:
            try:
                found, wrong = pickle.loads(pickle.dumps(method(*pickle.loads(packed)))), None
            except Exception as error:
                found, wrong = None, ray.exceptions.RayTaskError("work", "", error)
            if not self._dead and not answer.done():
                answer.set_result(found) if wrong is None else answer.set_exception(wrong)

        if self._dead:
            answer.set_exception(LOST())
        else:
            threading.Thread(target=work, daemon=True).start()
        return answer

    def die(self) -> None:
        self._dead = True
        self._actor.cancel()
        for answer in self._open:
            if not answer.done():
                answer.set_exception(LOST())


class FakeRay:
    """Waiting, getting and killing, for handles of this process."""

    exceptions = ray.exceptions

    def wait(self, refs: list[Future[Any]], num_returns: int, timeout: float) -> tuple[list[Future[Any]], list[Future[Any]]]:
        done = wait_for(refs, timeout, "FIRST_COMPLETED").done
        return [ref for ref in refs if ref in done], [ref for ref in refs if ref not in done]

    def get(self, ref: Future[Any], timeout: float | None = None) -> Any:
        return ref.result(timeout)

    def kill(self, handle: Handle, no_restart: bool = True) -> None:
        handle.die()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.cluster.workers.import_ray", FakeRay)


class Dies:
    """Kills the engine of a number at one of its turns, once; without a number, whichever engine plays that turn of all."""

    def __init__(self, engine: int | None, turn: int, env: Any = Corridor):
        self.engine, self.turn, self.env, self.struck, self.total = engine, turn, env, False, 0
        self.handles: dict[int, Handle] = {}
        self._one = threading.Lock()

    def start(self, number: int) -> Handle:
        def strike(parts: LightParts) -> None:
            with self._one:
                self.total += 1
                now = self.total if self.engine is None else parts.turns if self.engine == number else -1
                if now != self.turn or self.struck:
                    return
                self.struck = True
            self.handles[number].die()

        self.handles[number] = Handle(lambda hooks: LightParts(hooks, strikes=strike, env=self.env), number)
        return self.handles[number]


def trained(
    start: Callable[[int], Any], engines: int = 2, staleness: int = 0, batches: int = 3, **workers: Any
) -> tuple[Learner, RolloutWorkers]:
    """A run over engines."""
    learner = Learner()
    made = RolloutWorkers(start, engines, **{"deadline": 30.0, "hooks": Hooks(), **workers})
    own, engine = task_slots(), RemoteEngine(made, Sender(learner))
    engine.refresh()

    def begin(plan: Any, first: int, n: int | None) -> Prefetcher:
        return Prefetcher(made, on_demand, plan, staleness, Spec(training=True), first, n)

    on_demand = LocalSource(own, GROUPS, lambda: RemoteCollector(engine), lambda: engine)
    source = ClusterSource(on_demand, lambda: engine, begin if staleness else None)
    try:
        return run(source, engine, learner, batches), made
    finally:
        engine.close()


def test_engines_have_closed_their_parts_when_the_workers_are_closed(fake: None) -> None:
    closed: list[int] = []

    class Parts(LightParts):
        def close(self) -> None:
            time.sleep(0.2)
            super().close()
            closed.append(1)

    trained(lambda number: Handle(lambda hooks: Parts(hooks), number), batches=1)
    assert closed == [1, 1]


def played_by(workers: RolloutWorkers) -> dict[str, float]:
    """The seconds that environments have played since the last question."""
    return {part: seconds for part, seconds in workers.worked().items() if part.startswith("environments")}


class Counts(LightParts):
    """Parts whose environments play for half a second per turn."""

    @property
    def environments(self) -> float:
        return self.turns / 2


@pytest.mark.parametrize("staleness", [0, 2])
def test_the_seconds_of_environments_are_told_by_engine_and_once(fake: None, staleness: int) -> None:
    made: dict[int, Counts] = {}

    def start(number: int) -> Handle:
        def make(hooks: Hooks) -> Counts:
            made[number] = Counts(hooks)
            return made[number]

        return Handle(make, number)

    _, workers = trained(start, staleness=staleness)
    assert played_by(workers) == {f"environments_{number}": parts.turns / 2 for number, parts in made.items()}
    assert played_by(workers) == {"environments_0": 0.0, "environments_1": 0.0}


def test_the_seconds_of_environments_of_a_lost_engine_still_count(fake: None) -> None:
    workers = RolloutWorkers(lambda number: Handle(LightParts, number), 1, deadline=30.0)
    (member,) = workers.members
    member.played = 3.0
    assert played_by(workers) == {"environments_0": 3.0}
    member.played = 5.0
    workers.lose(member, "a test")
    member.played = 1.0
    assert played_by(workers) == {"environments_0": 3.0}
    workers.close()


# -- in step ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_any_number_of_engines_learns_what_one_process_learns(fake: None, engines: int) -> None:
    found, _ = trained(Dies(-1, 0).start, engines)
    assert found.batches == alone().batches and found.weight == alone().weight


class Loads(LightParts):
    """Parts that write down what is loaded ahead."""

    loaded: list[str]

    def load_ahead(self, task: Task) -> None:
        self.loaded.append(task.id)


def test_engines_load_their_own_next_tasks_while_they_have_nothing_else_to_do(fake: None) -> None:
    loaded: dict[int, list[str]] = {0: [], 1: []}

    def start(number: int) -> Handle:
        def make(hooks: Hooks) -> LightParts:
            parts = Loads(hooks)
            parts.loaded = loaded[number]
            return parts

        return Handle(make, number)

    workers = RolloutWorkers(start, 2, deadline=30.0)
    try:
        workers.publish(0, Sender(Learner()).send)
        workers.settle()
        workers.load_ahead([Task(str(number)) for number in range(5)])
        until = time.monotonic() + 30.0
        while sum(map(len, loaded.values())) < 5 and time.monotonic() < until:
            time.sleep(0.005)
        assert loaded == {0: ["0", "2", "4"], 1: ["1", "3"]}
        workers.members[0].handle.die()
        workers.load_ahead([Task("5"), Task("6")])  # one that is lost is not missed
    finally:
        workers.close()


@pytest.mark.parametrize("engine", [0, 1])
@pytest.mark.parametrize("turn", [1, 5, 14, 20, 40])
def test_an_engine_that_dies_at_any_turn_changes_nothing(fake: None, engine: int, turn: int) -> None:
    dies = Dies(engine, turn)
    found, workers = trained(dies.start)
    assert dies.struck and workers.counts["lost_engines"] == 1
    assert found.batches == alone().batches and len(found.learned) == len(set(found.learned)) == 3 * GROUPS * SIZE


def test_an_engine_that_always_dies_costs_its_share_and_not_the_run(fake: None) -> None:
    handles: dict[int, Handle] = {}

    def start(number: int) -> Handle:
        strikes = (lambda parts: handles[number].die()) if number == 0 else None
        handles[number] = Handle(lambda hooks: LightParts(hooks, strikes=strikes), number)
        return handles[number]

    found, _ = trained(start, retries=40)
    assert found.batches == alone().batches, "the other one does its work"
    alone_there, workers = trained(start, engines=1, retries=1, batches=1)
    assert alone_there.learned == [] and workers.counts["lost_engines"] == 2, "faults are left out by the source"


def test_an_engine_that_hangs_is_lost_after_the_deadline(fake: None) -> None:
    hung = threading.Event()

    def start(number: int) -> Handle:
        def hang(parts: LightParts) -> None:
            if not hung.is_set():
                hung.set()
                time.sleep(60)

        return Handle(lambda hooks: LightParts(hooks, strikes=hang if number == 1 else None), number)

    found, workers = trained(start, deadline=0.5)
    assert workers.counts["lost_engines"] == 1 and found.batches == alone().batches


def test_an_engine_that_never_starts_is_left_out_and_the_last_one_ends_the_run(fake: None) -> None:
    said: list[str] = []

    def never(hooks: Hooks) -> Any:
        time.sleep(60)

    def start(number: int) -> Handle:
        return Handle(LightParts if number == 0 else never, number)

    found, _ = trained(start, deadline=0.5, hooks=Hooks(said.append))
    assert found.batches == alone().batches and any("engine 1 is gone" in line for line in said)
    with pytest.raises(TurnwiseError, match="no engine is left"):
        trained(lambda number: Handle(never, number), 1, deadline=0.3)


def test_an_error_of_the_parts_ends_the_run_with_its_words(fake: None) -> None:
    def wrong(hooks: Hooks) -> Any:
        raise TurnwiseError("model nowhere: there is no such folder here")

    with pytest.raises(TurnwiseError, match="there is no such folder here"):
        trained(lambda number: Handle(wrong, number))


# -- ahead -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_ahead_of_the_learner_the_bound_holds_and_every_group_is_learned_from_once(fake: None, staleness: int) -> None:
    found, _ = trained(Dies(-1, 0).start, staleness=staleness, batches=8)
    assert max(found.ages) <= staleness and min(found.ages) >= 0
    assert sorted(found.learned) == list(range(8 * GROUPS * SIZE)), "every attempt of every place, once"


def test_ahead_of_the_learner_all_engines_have_work_even_if_one_gets_its_weights_later(fake: None) -> None:
    given: list[tuple[int, int]] = []

    class Slow(LightParts):
        def publish(self, version: int, weights: Any) -> None:
            time.sleep(0.05)
            super().publish(version, weights)

    class Noted(Handle):
        def _call(self, method: Callable[..., Any], packed: bytes) -> Future[Any]:
            if method.__name__ == "group":
                given.append((pickle.loads(packed)[0], self._actor.number))
            return super()._call(method, packed)

    trained(lambda number: Noted(LightParts if number else Slow, number), staleness=1, batches=4)
    assert {(batch, engine) for batch in range(4) for engine in (0, 1)} == set(given)


@pytest.mark.parametrize("turn", [1, 20, 50])
@pytest.mark.parametrize("staleness", [1, 3])
def test_ahead_of_the_learner_a_lost_engine_costs_nothing_but_time(fake: None, turn: int, staleness: int) -> None:
    dies = Dies(None, turn)
    found, _ = trained(dies.start, staleness=staleness, batches=8)
    assert dies.struck and max(found.ages) <= staleness
    assert sorted(found.learned) == list(range(8 * GROUPS * SIZE))


@pytest.mark.parametrize("deaths", [2, 3])
def test_ahead_of_the_learner_a_group_fails_only_when_its_retries_are_used_up(fake: None, deaths: int) -> None:
    handles: dict[int, Handle] = {}
    struck: list[int] = []

    def start(number: int) -> Handle:
        def strike(parts: LightParts) -> None:
            if parts.group == 5 and len(struck) < deaths:  # whoever plays it dies, with all that it plays
                struck.append(number)
                handles[number].die()

        handles[number] = Handle(lambda hooks: LightParts(hooks, strikes=strike), number)
        return handles[number]

    found, _ = trained(start, staleness=2, batches=4)
    groups = [int(number) // SIZE for number in found.learned]
    assert len(struck) == deaths and len(found.learned) == len(set(found.learned))
    assert all(groups.count(group) == SIZE for group in groups), "groups are learned from as a whole"
    assert sorted(set(groups)) == list(range(4 * GROUPS)) if deaths == 2 else 5 not in groups


def test_a_checkpoint_keeps_what_was_learned_from_and_not_what_was_collected_ahead(fake: None) -> None:
    learner, own, plan = Learner(), task_slots(), Plain()
    workers = RolloutWorkers(Dies(-1, 0).start, 2, deadline=30.0)
    engine = RemoteEngine(workers, Sender(learner))
    engine.refresh()
    on_demand = LocalSource(own, GROUPS, RemoteCollector, lambda: engine)  # type: ignore[arg-type]
    source = ClusterSource(on_demand, lambda: engine, lambda *_: Prefetcher(workers, on_demand, plan, 3, Spec(training=True), 0, 8))
    marks = []
    for number, _ in enumerate(source.batches(plan, n=8)):
        marks.append((source.mark(plan).used, own.used))
        engine.publish(number + 1)
    engine.close()
    assert [used for used, _ in marks] == [GROUPS * (number + 1) for number in range(8)]
    assert any(taken > used for used, taken in marks), "more was under way"


def test_a_game_with_two_seats_is_played_whole_whatever_is_lost(fake: None) -> None:
    game = partial(Race, goal=4, lenient=True)
    dies = Dies(1, 9, game)
    found, _ = trained(dies.start)
    assert dies.struck and found.batches == alone(env=game).batches
    dies = Dies(None, 20, game)
    found, _ = trained(dies.start, staleness=2, batches=4)
    games = range(4 * GROUPS * SIZE)
    assert dies.struck and sorted(map(int, found.learned)) == sorted([*games, *(number + PLAYER_OFFSET for number in games)])
