"""The terms around an objective: KL estimators, entropy, importance corrections, and the critic's loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.objectives import Loss, Tokens, combine, explained_variance, kl, token_weights, value_loss
from turnwise.util.errors import TurnwiseError

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")

KINDS = ("k1", "k2", "k3", "k3+")


def two_policies(seed: int = 0, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a policy (with gradient) and the log-probabilities of a reference."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_()
    return logits, torch.randn(size, dtype=torch.float64, generator=generator).log_softmax(-1)


def expected_estimate(kind: str, logits: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """The estimate's mean over infinitely many samples of the policy; the sampling itself carries no gradient, as in training."""
    logprob = logits.log_softmax(-1)
    return (logprob.exp().detach() * kl.estimate(logprob, ref, kind)).sum()


def exact_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum()


def slope(value: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, of)[0]


@pytest.mark.parametrize("seed", range(5))
def test_k1_and_k3_are_unbiased_and_k2_is_close_for_near_policies(seed: int) -> None:
    logits, ref = two_policies(seed)
    exact = float(exact_kl(logits.log_softmax(-1), ref))
    for kind in ("k1", "k3", "k3+"):
        assert float(expected_estimate(kind, logits, ref)) == pytest.approx(exact, rel=1e-10)
    near = logits.detach() + 0.01 * ref
    assert float(expected_estimate("k2", near, logits.detach().log_softmax(-1))) == pytest.approx(
        float(exact_kl(near.log_softmax(-1), logits.detach().log_softmax(-1))), rel=0.05
    )


@pytest.mark.parametrize("seed", range(5))
def test_only_k2_and_k3_plus_descend_the_kl(seed: int) -> None:
    logits, ref = two_policies(seed)
    logprob = logits.log_softmax(-1)
    right, reverse = slope(exact_kl(logprob, ref), logits), slope(exact_kl(ref, logits.log_softmax(-1)), logits)
    found = {kind: slope(expected_estimate(kind, logits, ref), logits) for kind in KINDS}
    assert torch.allclose(found["k2"], right, rtol=1e-10, atol=1e-12)
    assert torch.allclose(found["k3+"], right, rtol=1e-10, atol=1e-12)
    assert torch.allclose(found["k3"], reverse, rtol=1e-10, atol=1e-12)
    assert torch.allclose(found["k1"], torch.zeros_like(right), atol=1e-12)
    assert not torch.allclose(right, reverse, rtol=0.01)


def test_k3_keeps_its_digits_where_the_policies_almost_agree() -> None:
    d = torch.tensor([3e-4], dtype=torch.float32)
    assert float(kl.estimate(-d, torch.zeros(1), "k3")) == pytest.approx(4.5e-8, rel=1e-2)


def test_the_cap_bounds_k3_and_only_k3() -> None:
    logprob = torch.tensor([-15.0], requires_grad=True)
    ref = torch.zeros(1)
    assert float(kl.estimate(logprob, ref, "k3", cap=10.0)) == 10.0
    assert float(slope(kl.estimate(logprob, ref, "k3", cap=10.0).sum(), logprob)) == 0.0
    assert float(kl.estimate(logprob, ref, "k3+", cap=10.0)) == 10.0
    assert float(slope(kl.estimate(logprob, ref, "k3+", cap=10.0).sum(), logprob)) == -15.0
    assert float(kl.estimate(logprob, ref, "k2", cap=10.0)) == 112.5
    assert float(kl.estimate(logprob, ref, "k1", cap=10.0)) == -15.0


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_summed_over_the_tokens_of_each_turn(kind: str) -> None:
    logprob, ref = np.array([-1.0, -2.0, -0.5, -4.0]), np.array([-1.5, -1.0, -0.5, -3.0])
    a_token = kl.reward_penalty(logprob, ref, 0.1, kind)
    expected = -0.1 * kl.estimate(torch.from_numpy(logprob), torch.from_numpy(ref), kind).numpy()
    assert isinstance(a_token, np.ndarray) and a_token == pytest.approx(expected)
    a_turn = kl.reward_penalty(logprob, ref, 0.1, kind, turn=np.array([0, 0, 2, 2]), turns=4)
    assert a_turn == pytest.approx([expected[:2].sum(), 0, expected[2:].sum(), 0])
    learned = torch.from_numpy(logprob).requires_grad_()
    assert not kl.reward_penalty(learned, torch.from_numpy(ref), 0.1, kind).requires_grad
    with pytest.raises(TurnwiseError, match="use k3"):
        kl.reward_penalty(logprob, ref, 0.1, "k3+")


def batch(**columns: Any) -> Tokens:
    """Two turns of two trajectories, with every optional column."""
    turn = torch.tensor([0, 0, 0, 1, 1])
    known: dict[str, Any] = {
        "logprob": torch.tensor([-1.0, -0.5, -2.0, -0.1, -3.0], dtype=torch.float64, requires_grad=True),
        "old_logprob": torch.tensor([-1.1, -0.4, -2.5, -0.1, -2.0], dtype=torch.float64),
        "advantage": torch.tensor([1.0, 1.0, 1.0, -0.5, -0.5], dtype=torch.float64),
        "turn": turn,
        "trajectory": turn,
        "weight": token_weights(turn, turn, "turn", dtype=torch.float64),
        "engine_logprob": torch.tensor([-1.0, -2.4, -2.5, -0.1, -1.8], dtype=torch.float64),
        "ref_logprob": torch.tensor([-1.3, -0.5, -1.5, -0.2, -2.9], dtype=torch.float64),
        "entropy": torch.tensor([0.3, 0.6, 0.1, 0.9, 0.2], dtype=torch.float64, requires_grad=True),
    }
    return Tokens(**{**known, **columns})


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_objective_plus_kl_minus_entropy_with_the_same_weights(kind: str) -> None:
    tokens = batch()
    alone, _ = Loss("clip")(tokens)
    total, metrics = Loss("clip", kl=kind, kl_coef=0.3, entropy_coef=0.2)(tokens)
    penalty = (tokens.weight * kl.estimate(tokens.logprob, tokens.ref_logprob, kind)).sum()
    expected = alone + 0.3 * penalty - 0.2 * (tokens.weight * tokens.entropy).sum()
    assert float(total) == pytest.approx(float(expected), rel=1e-12)
    assert torch.allclose(slope(total, tokens.logprob), slope(expected, tokens.logprob))
    assert torch.allclose(slope(total, tokens.entropy), -0.2 * tokens.weight)
    assert float(metrics["policy_loss"]) == pytest.approx(float(alone))
    assert float(metrics["entropy"]) == pytest.approx(float(tokens.entropy.mean()))


def test_truncated_importance_weights_multiply_the_policy_loss_only() -> None:
    tokens = batch()
    total, metrics = Loss("reinforce", importance="truncate", importance_options={"high": 2.0}, kl_coef=0.3, kl="k2")(tokens)
    weights = torch.tensor([math.exp(-0.1), 2.0, 1.0, 1.0, math.exp(-0.2)], dtype=torch.float64)  # e² is truncated to 2
    expected = (tokens.weight * (-tokens.advantage * tokens.logprob * weights + 0.3 * (tokens.ref_logprob - tokens.logprob) ** 2 / 2)).sum()
    assert float(total) == pytest.approx(float(expected), rel=1e-12)
    assert torch.allclose(slope(total, tokens.logprob), slope(expected, tokens.logprob))
    assert float(metrics["importance"]) == pytest.approx(float(weights.mean()))
    assert float(metrics["importance_truncated"]) == pytest.approx(0.2)


def test_masked_importance_sampling_drops_what_is_out_of_bounds() -> None:
    tokens = batch()
    total, metrics = Loss("reinforce", importance="mask", importance_options={"low": 0.85, "high": 2.0})(tokens)
    gradient = slope(total, tokens.logprob)
    assert (gradient == 0).tolist() == [False, True, False, False, True]
    assert float(metrics["importance_truncated"]) == pytest.approx(0.4)


@pytest.mark.parametrize(("span", "expected"), [("product", math.exp(1.9)), ("mean", math.exp(1.9 / 3))])
def test_a_turns_importance_weight_is_the_product_or_the_geometric_mean_of_its_tokens(span: str, expected: float) -> None:
    tokens = batch()
    loss = Loss("reinforce", importance="truncate", importance_options={"level": "turn", "span": span, "high": 100.0})
    plain = slope(Loss("reinforce")(tokens)[0], tokens.logprob)
    assert (slope(loss(tokens)[0], tokens.logprob) / plain)[:3].tolist() == pytest.approx([expected] * 3)


def test_importance_weights_carry_no_gradient() -> None:
    old = batch().old_logprob.clone().requires_grad_()
    engine = batch().engine_logprob.clone().requires_grad_()
    tokens = batch(old_logprob=old, engine_logprob=engine)
    for name in ("truncate", "mask"):
        total, _ = Loss("clip", importance=name)(tokens)
        assert torch.autograd.grad(total, (old, engine), allow_unused=True, retain_graph=True) == (None, None)


@pytest.mark.parametrize("name", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "turn", "trajectory"])
def test_an_engine_that_agrees_with_the_learner_changes_nothing(name: str, level: str) -> None:
    tokens = batch(engine_logprob=batch().old_logprob)
    plain, _ = Loss("clip")(tokens)
    corrected, metrics = Loss("clip", importance=name, importance_options={"level": level})(tokens)
    assert torch.equal(plain, corrected)
    assert torch.equal(slope(plain, tokens.logprob), slope(corrected, tokens.logprob))
    found = [float(metrics[key]) for key in ("importance", "importance_truncated", "engine_gap", "engine_gap_max", "engine_kl_k3")]
    assert found == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_the_gap_between_engine_and_learner_is_measured() -> None:
    tokens = batch()
    _, metrics = Loss("clip")(tokens)
    gap = (tokens.old_logprob - tokens.engine_logprob).abs()
    assert float(metrics["engine_gap"]) == pytest.approx(float(gap.mean()))
    assert float(metrics["engine_gap_max"]) == 2.0
    parts = [Loss("clip")(tokens.take(tokens.turn == k))[1] for k in (0, 1)]
    assert float(combine(parts)["engine_gap_max"]) == 2.0


def critic_batch(seed: int = 0, size: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    value, old, target = (torch.randn(size, dtype=torch.float64, generator=generator) for _ in range(3))
    turn = torch.arange(size) // 4
    return value.requires_grad_(), old, target, token_weights(turn, turn // 3, "turn", mask=torch.arange(size) % 5 > 0, dtype=torch.float64)


@pytest.mark.parametrize("eps_v", [None, 0.2, 0.5])
def test_value_loss_equals_its_definition_and_adds_up_over_parts(eps_v: float | None) -> None:
    value, old, target, weight = critic_batch()
    loss, metrics = value_loss(value, old, target, weight, eps_v)
    expected, clipped = torch.zeros((), dtype=torch.float64), 0
    for v, o, r, w in zip(value, old.tolist(), target.tolist(), weight.tolist(), strict=True):
        error = (v - r) ** 2
        if eps_v is not None:
            bounded = min(max(float(v), o - eps_v), o + eps_v)
            if bounded != float(v) and (bounded - r) ** 2 > float(error):
                error = torch.tensor((bounded - r) ** 2, dtype=torch.float64)
                clipped += w > 0
        expected = expected + 0.5 * w * error
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    whole = slope(loss, value)
    assert torch.allclose(whole, slope(expected, value), rtol=1e-10, atol=1e-14)
    kept = int((weight > 0).sum())
    assert float(metrics["value_clip"]) == pytest.approx(clipped / kept)
    parts = [value_loss(value[s], old[s], target[s], weight[s], eps_v, batch_size=kept) for s in (slice(0, 7), slice(7, 7), slice(7, 40))]
    assert torch.allclose(slope(sum(part for part, _ in parts), value), whole, rtol=1e-12)
    together = combine(measured for _, measured in parts)
    assert {k: float(v) for k, v in together.items()} == pytest.approx({k: float(v) for k, v in metrics.items()})


def test_explained_variance_is_that_of_the_whole_batch() -> None:
    value, old, target, weight = critic_batch(1)
    close = target + 0.3 * value.detach()
    _, metrics = value_loss(close, old, target, weight)
    kept = weight > 0
    expected = 1 - float((target - close)[kept].var(correction=0) / target[kept].var(correction=0))
    assert explained_variance(metrics) == pytest.approx(expected, rel=1e-9)
    _, flat = value_loss(close, old, torch.zeros_like(close), weight)
    assert explained_variance(flat) == 0.0


def test_left_out_values_may_hold_anything() -> None:
    value, old, target, weight = critic_batch()
    expected, _ = value_loss(value, old, target, weight)
    dirty = torch.where(weight > 0, value.detach(), math.nan).requires_grad_()
    loss, _ = value_loss(dirty, torch.where(weight > 0, old, math.inf), target, weight)
    assert float(loss) == float(expected) and slope(loss, dirty).isfinite().all()
    with pytest.raises(TurnwiseError, match="eps_v"):
        value_loss(value, old, target, weight, eps_v=0.0)
    with pytest.raises(TurnwiseError, match="equal shapes"):
        value_loss(value, old[:-1], target, weight)


def test_targets_that_do_not_vary_have_no_variance_to_explain_in_any_precision() -> None:
    for size, target in ((5_000, 0.3), (5_000, 1e6 / 3), (7, -0.1)):
        goal = torch.full((size,), target)
        values = torch.linspace(-1, 1, size)
        _, metrics = value_loss(values, torch.zeros(size), goal, torch.full((size,), 1 / size), None)
        assert explained_variance({name: float(x) for name, x in metrics.items()}) == 0.0


def test_a_small_spread_around_a_large_mean_is_measured_right_from_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    goal = 1000 + torch.randn(4_000, generator=generator)
    values = goal + 0.5 * torch.randn(4_000, generator=generator)
    pieces = [(values[i : i + 700], goal[i : i + 700]) for i in range(0, 4_000, 700)]
    parts = [value_loss(v, torch.zeros_like(v), g, torch.ones_like(v) / 4_000, None, 4_000)[1] for v, g in pieces]
    found = explained_variance({name: float(x) for name, x in combine(parts).items()})
    expected = 1 - (goal - values).double().var(correction=0) / goal.double().var(correction=0)
    assert found == pytest.approx(float(expected), rel=1e-6)


def test_k3_in_the_reward_is_capped_as_in_the_loss() -> None:
    logprob, ref = torch.tensor([-10.0, -1.0]), torch.tensor([-0.5, -1.5])  # d = 9.5: k3 is 13,349
    k3 = float(torch.tensor(-0.5).expm1() + 0.5)
    assert kl.reward_penalty(logprob, ref, 0.01, "k3").tolist() == pytest.approx([-0.1, -0.01 * k3])
    assert kl.reward_penalty(logprob, ref, 0.01, "k3", cap=None).tolist()[0] == pytest.approx(-133.49, abs=0.1)
    assert kl.reward_penalty(logprob, ref, 0.01, "k1").tolist() == pytest.approx([0.095, -0.005]), "k1 has nothing to cap"
    by_turn = kl.reward_penalty(logprob, ref, 0.01, "k3", turn=[1, 1], turns=2)
    assert by_turn.tolist() == pytest.approx([0.0, -0.1 - 0.01 * k3])


@pytest.mark.parametrize("distance", [-60.0, -25.0, -20.5, -3.0, 2.0, 19.0, 21.0, 40.0])
def test_k3_plus_has_the_gradient_of_k2_however_far_the_policy_went(distance: float) -> None:
    logprob = torch.tensor([-1.0], requires_grad=True)
    for cap in (None, 10.0):
        (slope,) = torch.autograd.grad(kl.estimate(logprob, logprob.detach() + distance, "k3+", cap).sum(), logprob)
        assert slope.item() == pytest.approx(-distance)
