"""Every objective against a slow implementation from its definition, and the promise that the split of a batch never matters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import slow_objectives as slow
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from slow_objectives import CASES, CONSTANT, NAMES, gradient, leaf, random_tokens

from turnwise import objectives
from turnwise.objectives import AGGREGATIONS, Loss, Tokens, combine

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")


def even_inside(options: dict[str, Any], how: str) -> bool:
    """Whether all tokens of the objective's span have the same weight, so that its sequence form has the same gradient."""
    return options.get("level") != "trajectory" or how in ("token", "trajectory", "trajectory_sum")


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), how=st.sampled_from(AGGREGATIONS))
def test_value_and_gradient_equal_the_definition(name: str, options: dict[str, Any], seed: int, how: str) -> None:
    assume(even_inside(options, how))
    tokens = random_tokens(seed, how, per=options.get("level", "turn"))
    loss, _ = objectives.compute(name, tokens, **options)
    expected = slow.loss_of(name, options, tokens)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12, abs=1e-14)
    assert torch.allclose(gradient(loss, tokens), gradient(expected + 0 * tokens.logprob.sum(), tokens), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("how", AGGREGATIONS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_weights_equal_the_definition(how: str, seed: int) -> None:
    tokens = random_tokens(seed, how)
    constant = CONSTANT.get(how, 1.0)
    expected = slow.weights_of(tokens.turn.tolist(), tokens.trajectory.tolist(), (tokens.weight > 0).tolist(), how, constant)
    assert tokens.weight.tolist() == pytest.approx(expected, rel=1e-12)
    if how not in CONSTANT:
        assert float(tokens.weight.sum()) == pytest.approx(1.0)


def parts_of(tokens: Tokens, level: str, count: int, seed: int) -> list[Tokens]:
    """The batch cut into parts of unequal size (some may be empty): whole spans, dealt out at random and not in order."""
    ids = tokens.trajectory if level == "trajectory" else tokens.turn
    shares = np.arange(1, count + 1) / (count * (count + 1) / 2)
    part_of_span = torch.from_numpy(np.random.default_rng(seed).choice(count, size=int(ids.max()) + 1, p=shares))
    parts = [tokens.take(part_of_span[ids] == number) for number in range(count)]
    objectives.check_split([part.trajectory if level == "trajectory" else part.turn for part in parts], level)
    return parts


@pytest.mark.parametrize("importance", ["none", "truncate", "mask"])
@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_the_split_into_micro_batches_changes_no_gradient_and_no_metric(
    name: str, options: dict[str, Any], how: str, importance: str
) -> None:
    corrected = {} if importance == "none" else {"importance_options": {"level": options.get("level", "turn"), "span": "mean", "high": 1.1}}
    loss_of = Loss(name, options, kl="k3+", kl_coef=0.3, entropy_coef=0.2, importance=importance, **corrected)
    for seed in range(3):
        tokens = random_tokens(seed, how)
        whole, metrics = loss_of(tokens)
        expected = torch.autograd.grad(whole, (tokens.logprob, tokens.entropy))
        for count in (1, 2, 7):
            losses, measured = zip(*(loss_of(part) for part in parts_of(tokens, loss_of.level, count, seed)), strict=True)
            found = torch.autograd.grad(sum(losses), (tokens.logprob, tokens.entropy))
            assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-16) for a, b in zip(found, expected, strict=True))
            together = combine(measured)
            assert together.keys() == metrics.keys()
            assert {k: float(v) for k, v in together.items()} == pytest.approx({k: float(v) for k, v in metrics.items()}, rel=1e-9)


def test_micro_batches_in_float32_agree_to_a_millionth() -> None:
    tokens = random_tokens(5, "turn")
    single = Tokens(
        **{name: column.detach().float() if column.is_floating_point() else column for name, column in tokens.columns().items()}
    )
    single.logprob.requires_grad_()
    loss_of = Loss("gspo", kl_coef=0.1)
    expected = gradient(loss_of(single)[0], single)
    found = gradient(sum(loss_of(part)[0] for part in parts_of(single, "turn", 7, 0)), single)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "how"),
    # gmpo averages over its span, so weights that differ inside it are spread evenly
    [(name, options, how) for name, options in CASES for how in AGGREGATIONS if name != "gmpo" or even_inside(options, how)],
)
def test_on_policy_every_objective_has_the_gradient_of_reinforce_and_clips_nothing(name: str, options: dict[str, Any], how: str) -> None:
    tokens = random_tokens(3, how, per=options.get("level", "turn"), spread=0.0)
    loss, metrics = objectives.compute(name, tokens, **options)
    expected, _ = objectives.compute("reinforce", tokens)
    assert torch.allclose(gradient(loss, tokens), gradient(expected, tokens), rtol=1e-12, atol=1e-16)
    assert float(metrics["ratio"]) == pytest.approx(1.0, abs=1e-15)
    assert all(float(metrics[key]) == 0 for key in ("clip_low", "clip_high", "clip_dual", "kl_old_k1", "kl_old_k3") if key in metrics)


def outcome(name: str, log_ratio: list[float], advantage: list[float], **options: Any) -> tuple[float, list[float], dict[str, float]]:
    size = len(log_ratio)
    logprob, zeros = leaf([-1.0] * size), torch.zeros(size, dtype=torch.int64)
    old = logprob.detach() - torch.tensor(log_ratio, dtype=torch.float64)
    tokens = Tokens(logprob, old, torch.tensor(advantage, dtype=torch.float64), zeros, zeros, torch.ones(size, dtype=torch.float64))
    loss, metrics = objectives.compute(name, tokens, **options)
    return float(loss), gradient(loss, tokens).tolist(), {key: float(value) for key, value in metrics.items()}


def test_dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely() -> None:
    loss, slope, metrics = outcome("clip", [math.log(10)], [-1.0], dual_clip=3.0)
    assert (loss, slope, metrics["clip_dual"]) == (3.0, [0.0], 1.0)
    loss, slope, metrics = outcome("clip", [math.log(10)], [-1.0])
    assert loss == pytest.approx(10) and slope == [pytest.approx(10)] and "clip_dual" not in metrics


def test_clip_shares_count_low_and_high_apart() -> None:
    _, slope, metrics = outcome("clip", [math.log(x) for x in (1.5, 1.5, 0.5, 0.5)], [1.0, -1.0, -1.0, 1.0])
    assert (metrics["clip_high"], metrics["clip_low"]) == (0.25, 0.25)
    assert slope == [0.0, pytest.approx(1.5), 0.0, pytest.approx(-0.5)]


def test_cispo_never_drops_a_gradient() -> None:
    ratios = [math.log(x) for x in (10.0, 0.05)]
    assert outcome("clip", ratios, [1.0, -1.0])[1] == [0.0, 0.0]
    _, slope, metrics = outcome("cispo", ratios, [1.0, -1.0], ratio_low=0.1)
    assert slope == [-5.0, pytest.approx(0.1)]
    assert (metrics["clip_high"], metrics["clip_low"]) == (0.5, 0.5)


def test_gspo_gives_each_token_the_gradient_of_its_own_log_probability() -> None:
    s = math.exp((0.02 + 0.04) / 2)
    _, slope, metrics = outcome("gspo", [0.02, 0.04], [1.0, 0.0], clip_low=0.1, clip_high=0.1)
    assert slope == [pytest.approx(-s), 0.0]  # without the stop-gradient the second token would get half of the first one's
    assert metrics["span_ratio"] == pytest.approx(s)


def test_gspo_clamps_the_exponent() -> None:
    assert outcome("gspo", [15.0], [-1.0])[0] == pytest.approx(math.exp(10))


def test_gspo_has_one_ratio_a_trajectory_where_asked() -> None:
    tokens = random_tokens(8, gaps=False)
    _, turn_level = objectives.compute("gspo", tokens)
    _, trajectory_level = objectives.compute("gspo", tokens, level="trajectory")
    expected = [
        math.exp(float(tokens.log_ratio[tokens.trajectory == k].mean())) * int((tokens.trajectory == k).sum())
        for k in range(int(tokens.trajectory.max()) + 1)
    ]
    assert float(trajectory_level["span_ratio"]) == pytest.approx(sum(expected) / len(tokens))
    assert float(trajectory_level["span_ratio"]) != pytest.approx(float(turn_level["span_ratio"]))


def test_gmpo_clips_each_token_in_log_space_before_the_mean() -> None:
    loss, slope, metrics = outcome("gmpo", [5.0, 0.0], [1.0, 1.0])
    assert loss == pytest.approx(-2 * math.exp(0.4 / 2))
    assert slope == [0.0, pytest.approx(-math.exp(0.2))]
    assert metrics["clip_high"] == 0.5
    assert outcome("gmpo", [-5.0, 0.0], [1.0, 1.0])[0] == pytest.approx(-2 * math.exp(-2.5))  # one-sided, as PPO's clip
