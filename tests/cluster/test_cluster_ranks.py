"""Learner ranks as actors: they answer together, and when one dies all start again and give the same result.

Most ranks here have no model, so that they start fast; `make test-cluster` kills those of whole runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_runs import engines_here, same, trained
from conftest import ROOT

from turnwise.cluster.ranked_learner import RankedLearner
from turnwise.cluster.ranks import LearnerRanks, Rank
from turnwise.collect.hooks import Hooks
from turnwise.recipe.schema import Config
from turnwise.setup.build import annotates
from turnwise.setup.cluster import join_cluster
from turnwise.util.errors import TurnwiseError

ray = pytest.importorskip("ray")


class Counter:
    """A stand-in for a learner: a number that calls add to, a checkpoint in a file, and ways to fail."""

    def __init__(self, rank: int, folder: Path):
        self.rank, self.folder, self.total, self.beats, self.was_restored = rank, folder, 0, 0, False
        self.dies("start")

    def dies(self, moment: str) -> None:
        """The rank that a file names for this moment is killed, once; the others wait for it, as in a collective operation."""
        for file in self.folder.glob(f"kill {moment} *"):
            if self.rank == int(file.name[-1]):
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def add(self, number: int) -> tuple[int, int]:
        self.dies("repeated" if self.was_restored else "add")
        self.total += number
        self.dies("added")
        return self.rank, self.total

    def look(self) -> int:
        self.dies("look")
        self.beats += 1
        self.dies("looked")
        return self.total

    def keep(self, step: int = 0) -> None:
        self.dies("keep")
        (self.folder / f"step {step} of {self.rank}").write_text(str(self.total))
        self.dies("kept")

    def restored(self, step: int = 0) -> None:
        self.total, self.was_restored = int((self.folder / f"step {step} of {self.rank}").read_text()), True
        self.dies("restored")

    def wrong(self) -> None:
        raise TurnwiseError("the batch has no advantages")

    def bug(self) -> None:
        raise ValueError("a bug")

    def torn(self) -> int:
        """One rank fails alone, once: the others would get an error of the connection, or wait."""
        if self.rank == 1 and not (self.folder / "torn").exists():
            (self.folder / "torn").touch()
            raise RuntimeError("Connection closed by peer")
        return self.total

    def hang(self) -> None:
        time.sleep(60)

    def slow(self) -> int:
        for _ in range(5):
            time.sleep(0.8)
            self.beats += 1
        return self.total

    def progress(self) -> int:
        return self.beats


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find the tests
    started = not ray.is_initialized()
    if started:
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    if started:
        ray.shutdown()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., LearnerRanks]]:
    made: list[LearnerRanks] = []

    def make(said: list[str] | None = None, **options: Any) -> LearnerRanks:
        def start(rank: int) -> Any:
            limits: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 2}
            return ray.remote(Rank).options(**limits).remote(lambda number, size, address: Counter(number, tmp_path), rank, 2)

        made.append(LearnerRanks(start, 2, **({"deadline": 30.0, "say": (said if said is not None else []).append} | options)))
        return made[-1]

    yield make
    for own in made:
        own.close()


MOMENTS = {  # during a call, and while the ranks start again after that
    "added": "start",
    "look": "restored",
    "kept": "repeated",
    "between two calls": "",
}


def test_at_whichever_moment_a_rank_is_killed_each_call_counts_once(ranks: Callable[..., LearnerRanks], tmp_path: Path) -> None:
    said: list[str] = []
    own = ranks(said)
    own.call("add", 1)
    own.save("keep", then=("restored",))
    total = 1
    for number, (moment, then) in enumerate(MOMENTS.items()):
        rank = number % 2
        for kill in filter(None, (moment, then)):
            (tmp_path / f"kill {kill} {rank}").touch()
        if moment == "between two calls":
            (tmp_path / f"kill {moment} {rank}").unlink()
            os.kill(own.pids[rank], signal.SIGKILL)
        total += 10**number
        assert own.call("add", 10**number) == (0, total)
        assert own.call("look", pure=True) == total
        own.save("keep", number, then=("restored", number))
    assert own.restarts == len(MOMENTS) + len([then for then in MOMENTS.values() if then]) == 7
    assert not list(tmp_path.glob("kill *"))
    assert len(said) == 7 and "rank 0 was lost during add" in said[0] and "repeat 1 call" in said[0]
    assert own.call("torn", pure=True) == total and own.restarts == 8


def test_ranks_that_are_lost_again_and_again_end_the_run(ranks: Callable[..., LearnerRanks], tmp_path: Path) -> None:
    own = ranks(retries=1)
    own.call("look")
    for moment in ("added", "start"):
        (tmp_path / f"kill {moment} 0").touch()
    with pytest.raises(TurnwiseError, match=r"lost 2 times in a row .*rank 0 was lost.*then resume the run"):
        own.call("add", 1)


def test_errors_of_the_work_itself_are_not_repeated(ranks: Callable[..., LearnerRanks]) -> None:
    own = ranks()
    with pytest.raises(TurnwiseError, match="the batch has no advantages"):
        own.call("wrong")
    with pytest.raises(TurnwiseError, match="bug failed on all ranks: ValueError: a bug"):
        own.call("bug")
    assert own.restarts == 0


def test_a_call_without_progress_is_lost_and_one_that_is_only_slow_is_not(ranks: Callable[..., LearnerRanks]) -> None:
    own = ranks(deadline=3.0, retries=0)
    assert own.call("slow") == 0
    with pytest.raises(TurnwiseError, match="hang made no progress within 3 seconds"):
        own.call("hang")


# -- whole runs with several learners. The engine plays in this process, and a loss is what remains of it: ranks in another state.

MORE: dict[str, Any] = {"learner.tokens_per_batch": 64, "objective.kl": "loss", "run.checkpoint_every": 2}
TWO: dict[str, Any] = {"cluster.learners": 2, "cluster.engines": 1, "cluster.deadline": 120}


def test_two_learners_that_load_a_checkpoint_in_between_give_the_weights_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(tmp_path, "plain", **MORE)
    update, repeated = RankedLearner.update, list[str]()

    def updated(learner: RankedLearner, batch: Any, seed: int, progress: float) -> dict[str, float]:
        if progress > 0 and not repeated:  # the second update; the last checkpoint is that of the start
            before = dict(learner.weights(False))
            learner.ranks.call("update", batch, seed + 1, progress, pure=True)
            assert not same(dict(learner.weights(False)), before)
            for method, arguments in learner.ranks._since:  # as new ranks do after a loss
                learner.ranks._run(method, arguments)
            repeated.append("repeated")
            assert same(dict(learner.weights(False)), before)
        return update(learner, batch, seed, progress)

    monkeypatch.setattr(RankedLearner, "update", updated)
    engines_here(monkeypatch)
    two = trained(tmp_path, "two", **MORE, **TWO)
    assert repeated and plain.keys() == two.keys()
    for name, weight in plain.items():
        assert float((weight - two[name]).abs().max()) <= 1e-5, name  # AdamW amplifies the rounding of small gradients
    folder = next(tmp_path.glob("two*")) / "checkpoints"
    assert len(list(next(folder.glob("step-*2")).glob("shard-*"))) == 2


def test_a_transfer_that_several_learners_do_not_have_is_an_error() -> None:
    changes = {"cluster.learners": 2, "cluster.transfer": "ipc", "device": "cuda"}
    with pytest.raises(TurnwiseError, match="is for one learner"):
        join_cluster(Config.load(ROOT / "recipes" / "own-env.toml", changes), Hooks(), ExitStack())


@pytest.mark.parametrize("staleness", [0, 1])
def test_several_learners_also_say_how_far_the_policy_has_moved_since_a_batch_was_sampled(staleness: int) -> None:
    changes = [f"cluster.staleness={staleness}", "cluster.learners=2", "objective.importance=truncate", "learner.old_logprobs=learner"]
    config, calls = Config.load(ROOT / "recipes" / "quickstart.toml", changes), list[str]()
    ranks: Any = SimpleNamespace(call=lambda name, batch, progress, pure: calls.append(name) or {})
    batch: Any = SimpleNamespace(with_columns=lambda columns: "annotated")
    signalled = RankedLearner(ranks, signals=annotates(config)).signal(batch)
    assert (signalled, calls) == (("annotated", ["columns"]) if staleness else (batch, []))
