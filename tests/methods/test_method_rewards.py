"""Methods with learned or shaped rewards: iStar, Flow-GRPO."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import BANDIT, OTHER_GAME, QUICK, agrees_with, batch_of, resumes_alike, rollouts, start, train
from references import istar

import turnwise as tw
from turnwise.methods.istar import OutcomePairs, implicit_reward, pairs
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

GAME: dict[str, Any] = {**OTHER_GAME, "env.name": BANDIT, "sft": None}


# -- agreement with slow references ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "constant", "alone"])
@pytest.mark.parametrize(("baseline", "how", "weight"), [("rloo", "rloo", 1.0), ("mean_std", "std", 0.3), ("mean", "mean", 1.0)])
def test_credit_is_that_of_its_formula(baseline: str, how: str, weight: float, kind: str) -> None:
    agrees_with(lambda r, g, n, x: istar.advantages(r, x, g, weight, how), "istar", {"baseline": baseline, "weight": weight}, kind)


# -- iStar ------------------------------------------------------------------------------------------------------------------------


def test_the_implicit_reward_of_a_turn_is_the_log_ratio_of_its_tokens() -> None:
    batch = batch_of((2, 1), (3,))
    policy = SimpleNamespace(score=lambda _: np.full(6, -1.0, np.float32))
    prm = SimpleNamespace(score=lambda _: np.array([0, -1, -3, -1, -1, -0.5], np.float32))
    models = type("Models", (dict,), {"policy": policy})(prm=prm)
    found = implicit_reward(batch, models, beta=0.1)
    np.testing.assert_allclose(found["turn.implicit_reward"], [0.1, -0.2, 0.05], atol=1e-7)


def test_each_success_is_paired_with_a_failure_of_its_own_group() -> None:
    success, group = np.array([1, 0, 1, 0, 1, 1, 0]) > 0, np.array([0, 0, 0, 1, 2, 2, 2])
    assert pairs(success, group) == ([0, 2, 4, 5], [1, 1, 6, 6])
    assert pairs(np.array([True, True]), np.array([0, 0])) == ([], [])


def test_the_loss_ranks_successes_above_failures_and_skips_a_batch_without_pairs() -> None:
    logprob = torch.tensor([0.5, -1.0, 0.0], requires_grad=True)
    rows = SimpleNamespace(path=lambda low, high: np.zeros(2, np.int64))

    def said(success: list[float]) -> Any:
        columns = {"token.sampling_logprob": torch.zeros(3), "trajectory.success": torch.tensor(success)}

        class Said(dict[str, Any]):
            def sum(self, values: Any, low: str, high: str) -> Any:
                return torch.stack([values[:2].sum(), values[2]])

        found = Said(columns)
        found.logprob, found.rows = logprob, rows  # type: ignore[attr-defined]
        return found

    kind = OutcomePairs(beta=2.0)
    result = kind.loss(said([1.0, 0.0]))
    assert result is not None
    loss, metrics = result
    assert loss.item() == pytest.approx(np.log1p(np.exp(1.0)), rel=1e-6)  # −log sigmoid(2 · −0.5 − 0)
    loss.backward()
    assert logprob.grad is not None and (logprob.grad[:2] < 0).all() and logprob.grad[2] > 0 and metrics["accuracy"] == 0
    assert kind.loss(said([1.0, 1.0])) is None


def test_istar_trains_its_model_and_rewards_turns_by_it_after_a_resume_too(tmp_path: Path) -> None:
    changes = GAME | {"method": {"name": "istar", "lr": 1e-3, "beta": 0.5}}
    whole = train(tmp_path / "whole", **changes)
    first, second = (stored_batch(Run.open(whole.folder), n).column("turn.implicit_reward") for n in (1, 2))
    assert np.abs(first).max() < 1e-5 < np.abs(second).max()  # a copy at first, another model after its first update
    assert whole.metrics[1]["model/prm/pairs"] > 0 and np.isfinite(whole.metrics[1]["model/prm/loss"])
    resumes_alike(tmp_path / "stopped", whole, 2, **changes)


# -- Flow-GRPO --------------------------------------------------------------------------------------------------------------------


def test_the_outcome_goes_to_every_turn_by_statistics_over_turns(tmp_path: Path) -> None:
    batch = stored_batch(start(tmp_path, **QUICK, **{"method.name": "flow_grpo", "method.faithful": True}), 1)
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("grpo", batch.rollouts, weighting="step"), atol=1e-6)
    r = rollouts(3)
    assert not np.allclose(tw.credit.compute("grpo", r, weighting="step"), tw.credit.compute("grpo", r))
