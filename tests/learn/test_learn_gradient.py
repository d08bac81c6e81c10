"""The gradient of an update against a slow definition: full logits, one turn at a time, plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gradient_cases import GradientOf, assert_same
from learn_cases import changed, credited, gradients, plain_logprobs, rollouts_of, tiny, trajectories

from turnwise import credit
from turnwise.data.rollouts import Rollouts, Trajectory
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.objectives import Loss


def slow_gigpo(
    model: Any, found: list[Trajectory], rollouts: Rollouts, values: Any, aggregation: str, entropy_coef: float = 0.0
) -> dict[str, torch.Tensor]:
    """The clipped objective at the old policy's own log-probs from the engine, one turn and one token at a time."""
    row_of = {(rollouts.trajectory_labels[c], t): r for r, (c, t) in enumerate(zip(rollouts.trajectory, rollouts.t.tolist(), strict=True))}
    turns = sum(len(x.turns) for x in found)
    tokens = sum(len(turn.response_ids) for x in found for turn in x.turns)
    total = torch.zeros(())
    for x in found:
        for t, turn in enumerate(x.turns):
            advantage = float(values[row_of[x.id, t]])
            logprob = plain_logprobs(model, list(turn.prompt_ids), list(turn.response_ids))
            logits = model(input_ids=torch.tensor([[*turn.prompt_ids, *turn.response_ids]])).logits[0]
            for place, (new, old) in enumerate(zip(logprob, turn.logprobs, strict=True)):
                ratio = torch.exp(new - old)
                loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
                loss = loss - entropy_coef * torch.distributions.Categorical(logits=logits[len(turn.prompt_ids) - 1 + place]).entropy()
                total = total + loss / (turns * len(turn.response_ids) if aggregation == "turn" else tokens)
    model.zero_grad()
    total.backward()
    return gradients(model)


@pytest.mark.parametrize("context", ["window", "full"])
@pytest.mark.parametrize("aggregation", ["turn", "token"])
def test_one_gigpo_step_has_the_gradient_of_the_slow_definition(context: str, aggregation: str) -> None:
    found = trajectories(7, groups=2, size=4, context=context)
    rollouts = rollouts_of(found)
    values = credit.compute("gigpo", rollouts)
    assert len(np.unique(values)) > 4
    settings = LearnerSettings(
        loss=Loss(entropy_coef=0.01),
        aggregation=aggregation,
        old_logprobs="engine",
        optimiser=OptimiserSettings(lr=0.0),
        tokens_per_batch=40,
    )
    own = GradientOf(Learner(tiny(), settings))(credited(found, values))
    assert_same(own, slow_gigpo(tiny(), found, rollouts, values, aggregation, entropy_coef=0.01))


LOSSES = {
    "clip": Loss(),
    "gspo": Loss("gspo", {"level": "trajectory", "clip_low": 0.5, "clip_high": 0.5}),
    "gmpo with truncation": Loss("gmpo", importance="truncate", importance_options={"level": "trajectory", "span": "mean"}),
    "kl and entropy": Loss(kl_coef=0.1, entropy_coef=0.01),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("context", ["window", "full"])
def test_the_token_budget_never_changes_the_gradient(name: str, context: str) -> None:
    found = trajectories(8, context=context)
    rollouts = rollouts_of(found)
    values = credit.compute("gigpo", rollouts)
    results = []
    for budget in (1, 30, 10_000):
        settings = LearnerSettings(loss=LOSSES[name], tokens_per_batch=budget, optimiser=OptimiserSettings(lr=0.0))
        run = GradientOf(Learner(tiny(), settings, reference=tiny(1)))
        results.append((run(credited(found, values)), run.metrics))
    for gradient, metrics in results[:2]:
        assert_same(gradient, results[2][0])
        for key in ("loss", "entropy", "ratio"):
            assert metrics[key] == pytest.approx(results[2][1][key], abs=1e-5)


def test_neither_gradient_checkpointing_nor_the_order_of_trajectories_changes_the_gradient() -> None:
    found = trajectories(9, context="full")
    rollouts = rollouts_of(found)
    values = credit.compute("gigpo", rollouts)
    plain = LearnerSettings(optimiser=OptimiserSettings(lr=0.0))
    wanted = GradientOf(Learner(tiny(), plain))(credited(found, values))
    assert_same(GradientOf(Learner(tiny(), changed(plain, gradient_checkpointing=True)))(credited(found, values)), wanted)
    assert_same(GradientOf(Learner(tiny(), plain))(credited(found[::-1])), wanted)


def test_credit_a_token_weighs_each_token_by_its_own() -> None:
    found = trajectories(10)
    rollouts = rollouts_of(found)
    settings = LearnerSettings(optimiser=OptimiserSettings(lr=0.0))
    turn_credit = np.random.default_rng(0).normal(size=len(rollouts))
    assert rollouts.tokens is not None
    repeated = np.repeat(turn_credit, rollouts.tokens)
    given = (turn_credit, credit.Credit(repeated.copy(), "token"))
    same = [GradientOf(Learner(tiny(), settings))(credited(found, values)) for values in given]
    assert_same(*same)
    repeated[0] += 1
    other = GradientOf(Learner(tiny(), settings))(credited(found, credit.Credit(repeated, "token")))
    assert (other["lm_head.weight"] - same[0]["lm_head.weight"]).abs().max() > 1e-3
