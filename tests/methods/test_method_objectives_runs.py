"""Short runs of objectives and filters: what only a run shows of them, and that they are resumed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from train_cases import Impatient, start, without_times

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.data.batch import Batch
from turnwise.learn import checkpoint
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

FATED = f"{ROOT / 'tests' / 'support' / 'fated_env.py'}:Fated"  # all attempts of a group end alike


def run(out: Path, method: str, iterations: int = 1, **changes: Any) -> tuple[list[dict[str, Any]], Batch]:
    """The metrics of each iteration, and the last batch."""
    result = start(out, **{"method.name": method, "iterations": iterations, "eval.n": 1, "quiet": True, **changes})
    return result.metrics[1:], stored_batch(Run.open(result.folder), iterations)


def test_the_power_falls_during_the_run(tmp_path: Path) -> None:
    metrics, _ = run(tmp_path, "holder", 2)
    assert [line["learner/holder_p"] for line in metrics] == pytest.approx([1.0, 0.0])


def test_starpo_s_learns_from_the_best_quarter_with_a_critic(tmp_path: Path) -> None:
    [metrics], batch = run(tmp_path, "starpo_s", **{"collect.groups": 4})
    assert (metrics["collect/groups_scored"], metrics["collect/groups_kept"]) == (4, 1)
    assert len(batch.rollouts.group_labels) == 1 and batch.has("token.value") and metrics["learner/value_loss"] > 0


def test_the_soft_form_weights_groups_by_their_spread(tmp_path: Path) -> None:
    [metrics], batch = run(tmp_path, "starpo_s", **{"method.soft": True, "method.critic": False, "collect.groups": 4})
    assert "collect/groups_kept" not in metrics and batch.column("group.snr").max() == 1
    plain = tw.credit.compute("grpo", batch.rollouts, norm="none")
    np.testing.assert_allclose(batch.column("turn.advantage"), plain * batch.column("group.snr")[batch.rollouts.group], atol=1e-6)


def test_iterations_without_a_group_have_no_update_and_the_run_ends_with_words(tmp_path: Path) -> None:
    own = {"env.name": FATED, "method.critic": False, "plan.patience": 2}
    with pytest.raises(TurnwiseError, match="no group was kept in 2 iterations in a row"):
        run(tmp_path, "starpo_s", 3, **own)
    [_, first] = Run.open(tmp_path / "try").metrics()
    assert first["collect/groups_kept"] == 0 and not any(name.startswith("learner/") for name in first)


def test_gpg_collects_again_where_all_attempts_end_alike(tmp_path: Path) -> None:
    [metrics], batch = run(tmp_path, "gpg", **{"env.name": FATED, "method.attempts": 3})
    assert metrics["collect/resampled"] == 2 and (batch.column("turn.advantage") == 0).all()
    [metrics], batch = run(tmp_path / "bandit", "gpg", **{"collect.groups": 4})
    assert np.abs(batch.column("turn.advantage")).max() > 0 and metrics["learner/steps"] == 1


def test_dapo_prices_responses_near_the_engines_limit_unless_told_another(tmp_path: Path) -> None:
    _, batch = run(tmp_path, "dapo", **{"engine.max_tokens": 10})
    tokens = np.asarray(batch.rollouts.tokens)
    assert batch.column("turn.overlong") == pytest.approx(np.minimum(0, (8 - tokens) / 2)) and (tokens == 10).any()


def test_icepop_masks_tokens_beyond_its_bounds(tmp_path: Path) -> None:
    [metrics], _ = run(tmp_path, "icepop", **{"method.low": 1.0, "method.high": 1.0, "learner.minibatches": 2})
    assert metrics["learner/importance_truncated"] > 0  # the two never agree to the last digit


@pytest.mark.parametrize("ratio", ["token", "turn"])
def test_turn_level_ppo_values_and_whitens_turns(tmp_path: Path, ratio: str) -> None:
    [metrics], batch = run(tmp_path, "turn_ppo", **{"method.ratio": ratio})
    advantage = batch.column("turn.advantage")
    assert batch.has("turn.value") and batch.has("turn.target") and ("learner/span_ratio" in metrics) == (ratio == "turn")
    assert advantage.mean() == pytest.approx(0, abs=1e-5) and advantage.std(ddof=1) == pytest.approx(1, abs=1e-3)


RESUMED: dict[str, dict[str, Any]] = {
    "clip_cov": {"objective.cov_low": -9.0, "method.fraction": 0.3, "plan.name": "filtered", "plan.zero": True, "learner.minibatches": 2},
    "holder": {"objective.steps": 3, "learner.minibatches": 2},
    "starpo_s": {"env.name": FATED, "method.critic": False},
}


@pytest.mark.parametrize("method", RESUMED)
def test_a_killed_and_resumed_run_gives_the_same_result_as_an_uninterrupted_one(tmp_path: Path, method: str) -> None:
    own = {"method.name": method, "iterations": 3, "eval.n": 1, "quiet": True, **RESUMED[method]}
    whole = start(tmp_path / "whole", **own)
    stopped = start(tmp_path / "stopped", reporter=Impatient("collecting", 2), **own)
    assert stopped.interrupted
    found = checkpoint.latest_good(stopped.folder / "checkpoints")
    assert found is not None
    states = {"clip_cov": {"draws": 2}, "holder": {"updates": 1}}
    if method == "clip_cov":
        assert all(0 < line["learner/cov_dropped"] <= 0.3 for line in whole.metrics[1:])
    if method in states:
        assert found.state["learner"]["pieces"]["objective"]["state"] == states[method]
    assert without_times(tw.train(resume=stopped.folder, quiet=True).metrics) == without_times(whole.metrics)
