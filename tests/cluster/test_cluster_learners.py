"""Several learners in a run: the recipe is the same, and so are the weights, also if the ranks have to repeat calls after a loss.

Every process that imports torch takes seconds, so there are two: the ranks, as actors of Ray. The engine plays in this process, and a loss
is what remains of it, ranks in another state. `test_cluster_ranks.py` kills ranks that have no model, at many moments; `make test-cluster`
kills those of whole runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_runs import SMALL, engines_here, same, trained
from conftest import ROOT

import turnwise as tw
from turnwise.cluster.ranked_learner import RankedLearner
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Run
from turnwise.setup.build import annotates
from turnwise.util.errors import TurnwiseError

ray = pytest.importorskip("ray")
MORE: dict[str, Any] = {"learner.tokens_per_batch": 64, "objective.kl": "loss", "run.checkpoint_every": 2}
TWO: dict[str, Any] = {"cluster.learners": 2, "cluster.engines": 1, "cluster.deadline": 120}


@pytest.fixture
def running() -> Iterator[None]:
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_two_learners_that_load_a_checkpoint_in_between_give_the_weights_of_one_process(
    running: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    lines = Run.open(tmp_path / "two").metrics()[1:]
    assert all(0 <= line[f"cluster/idle/rank_{rank}"] < 1 for line in lines for rank in range(2))
    assert repeated and plain.keys() == two.keys()
    for name, weight in plain.items():
        assert float((weight - two[name]).abs().max()) <= 1e-5, name  # AdamW amplifies the rounding of small gradients
    folder = next(tmp_path.glob("two*")) / "checkpoints"
    assert len(list(next(folder.glob("step-*2")).glob("shard-*"))) == 2


def test_a_transfer_that_several_learners_do_not_have_is_an_error(tmp_path: Path) -> None:
    changes = SMALL | TWO | {"cluster.transfer": "broadcast", "out": str(tmp_path), "name": "x"}
    with pytest.raises(TurnwiseError, match="is for one learner"):
        tw.train(ROOT / "recipes" / "own-env.toml", quiet=True, **changes)


@pytest.mark.parametrize("staleness", [0, 1])
def test_several_learners_also_say_how_far_the_policy_has_moved_since_a_batch_was_sampled(staleness: int) -> None:
    changes = [f"cluster.staleness={staleness}", "cluster.learners=2", "objective.importance=truncate", "learner.old_logprobs=learner"]
    config, calls = Config.load(ROOT / "recipes" / "quickstart.toml", changes), list[str]()
    ranks: Any = SimpleNamespace(call=lambda name, batch, progress, pure: calls.append(name) or {})
    batch: Any = SimpleNamespace(with_columns=lambda columns: "annotated")
    signalled = RankedLearner(ranks, signals=annotates(config)).signal(batch)
    assert (signalled, calls) == (("annotated", ["columns"]) if staleness else (batch, []))
