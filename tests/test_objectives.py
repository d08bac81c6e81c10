"""Every objective against a slow implementation from its definition, and the promise that the split of a batch never matters."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise import objectives
from turnwise.errors import TurnwiseError
from turnwise.objectives import AGGREGATIONS, Loss, TokenLoss, Tokens, algorithms, combine, token_weights

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")

CONSTANT = {"turn_sum": 7.0, "trajectory_sum": 11.0}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("reinforce", {}),
    ("clip", {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 1.5}),
    ("clip", {}),
    ("cispo", {"ratio_low": 0.7, "ratio_high": 1.4}),
    ("sapo", {}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.15}),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.15, "level": "trajectory"}),
    ("gmpo", {"clip_low": 0.2, "clip_high": 0.3}),
    ("gmpo", {"clip_low": 0.2, "clip_high": 0.3, "level": "trajectory"}),
]
NAMES = [f"{name}-{options.get('level') or len(options)}" for name, options in CASES]


def leaf(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def random_tokens(seed: int, how: str = "token", per: str = "turn", spread: float = 0.4, gaps: bool = True) -> Tokens:
    """A ragged batch in float64. `per` is the span that shares one advantage; with `gaps` some tokens are left out."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 7, size=rng.integers(1, 5)) for _ in range(rng.integers(2, 6))]
    turns = np.concatenate(lengths)
    turn = np.repeat(np.arange(len(turns)), turns)
    trajectory = np.repeat(np.repeat(np.arange(len(lengths)), [len(x) for x in lengths]), turns)
    logprob = -rng.exponential(1.0, len(turn))
    old = logprob - spread * rng.standard_normal(len(turn))
    advantage = rng.standard_normal(len(turns))[turn if per == "turn" else trajectory]
    mask = rng.random(len(turn)) > 0.15 if gaps else np.ones(len(turn), bool)
    mask[0] = True
    column = torch.from_numpy
    return Tokens(
        logprob=leaf(logprob),
        old_logprob=column(old),
        advantage=column(advantage),
        turn=column(turn),
        trajectory=column(trajectory),
        weight=token_weights(turn, trajectory, how, CONSTANT.get(how), mask, dtype=torch.float64),
        engine_logprob=column(old + 0.3 * rng.standard_normal(len(turn))),
        ref_logprob=column(logprob + 0.5 * rng.standard_normal(len(turn))),
        entropy=leaf(rng.exponential(1.0, len(turn))),
    )


def gradient(loss: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    return torch.autograd.grad(loss, tokens.logprob)[0]


def slow_span_losses(name: str, options: dict[str, Any], tokens: Tokens) -> torch.Tensor:
    """Sum of weight × loss for the objectives that are defined on spans, from their sequence form, by loops."""
    ids = (tokens.trajectory if options.get("level") == "trajectory" else tokens.turn).tolist()
    spans = defaultdict(list)
    for i, span in enumerate(ids):
        if float(tokens.weight[i]) > 0:
            spans[span].append(i)
    total = torch.zeros((), dtype=torch.float64)
    for members in spans.values():
        a = float(tokens.advantage[members[0]])
        logs = []
        for i in members:
            x = tokens.logprob[i] - float(tokens.old_logprob[i])
            if name == "gmpo" and a > 0 and float(x) > options["clip_high"]:
                x = torch.tensor(options["clip_high"], dtype=torch.float64)
            if name == "gmpo" and a < 0 and float(x) < -options["clip_low"]:
                x = torch.tensor(-options["clip_low"], dtype=torch.float64)
            logs.append(x)
        s = torch.exp(sum(logs) / len(logs))
        loss = -a * s
        if name == "gspo":
            bounded = min(max(float(s), 1 - options["clip_low"]), 1 + options["clip_high"])
            if -a * bounded > float(loss):
                loss = torch.tensor(-a * bounded, dtype=torch.float64)
        total = total + sum(float(tokens.weight[i]) for i in members) * loss
    return total


def slow_token_loss(name: str, options: dict[str, Any], logprob: torch.Tensor, old: float, a: float) -> torch.Tensor:
    """One token's loss, straight from the definition."""
    ratio = torch.exp(logprob - old)
    r = float(ratio.detach())
    if name == "reinforce":
        return -a * logprob
    if name == "cispo":
        return -min(max(r, options["ratio_low"]), options["ratio_high"]) * a * logprob
    if name == "sapo":
        tau = 1.0 if a > 0 else 1.05
        return -(1 / (1 + torch.exp(-tau * (ratio - 1)))) * 4 / tau * a
    low, high, dual = 1 - options.get("clip_low", 0.2), 1 + options.get("clip_high", 0.2), options.get("dual_clip")
    if a > 0 and r > high:
        return torch.tensor(-a * high, dtype=torch.float64)
    if a < 0 and r < low:
        return torch.tensor(-a * low, dtype=torch.float64)
    if a < 0 and dual is not None and r > dual:
        return torch.tensor(-a * dual, dtype=torch.float64)
    return -a * ratio


def slow_loss(name: str, options: dict[str, Any], tokens: Tokens) -> torch.Tensor:
    if name in ("gspo", "gmpo"):
        return slow_span_losses(name, options, tokens)
    total = torch.zeros((), dtype=torch.float64) * tokens.logprob.sum()
    for i in range(len(tokens)):
        if (w := float(tokens.weight[i])) > 0:
            total = total + w * slow_token_loss(name, options, tokens.logprob[i], float(tokens.old_logprob[i]), float(tokens.advantage[i]))
    return total


def slow_weights(turn: list[int], trajectory: list[int], mask: list[bool], how: str, constant: float) -> list[float]:
    kept = [i for i, keep in enumerate(mask) if keep]
    turns, trajectories = {turn[i] for i in kept}, {trajectory[i] for i in kept}
    weights = [0.0] * len(turn)
    for i in kept:
        tokens_of_turn = sum(turn[j] == turn[i] for j in kept)
        tokens_of_trajectory = sum(trajectory[j] == trajectory[i] for j in kept)
        turns_of_trajectory = len({turn[j] for j in kept if trajectory[j] == trajectory[i]})
        weights[i] = {
            "token": 1 / len(kept),
            "turn": 1 / len(turns) / tokens_of_turn,
            "trajectory": 1 / len(trajectories) / tokens_of_trajectory,
            "trajectory_turn": 1 / len(trajectories) / turns_of_trajectory / tokens_of_turn,
            "turn_sum": 1 / len(turns) / constant,
            "trajectory_sum": 1 / len(trajectories) / constant,
        }[how]
    return weights


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), how=st.sampled_from(["token", "trajectory", "trajectory_sum"]))
def test_value_and_gradient_equal_the_definition(name: str, options: dict[str, Any], seed: int, how: str) -> None:
    tokens = random_tokens(seed, how, per=options.get("level", "turn"))
    loss, _ = objectives.compute(name, tokens, **options)
    expected = slow_loss(name, options, tokens)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12, abs=1e-14)
    assert torch.allclose(gradient(loss, tokens), gradient(expected + 0 * tokens.logprob.sum(), tokens), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("how", AGGREGATIONS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_weights_equal_the_definition(how: str, seed: int) -> None:
    tokens = random_tokens(seed, how)
    constant = CONSTANT.get(how, 1.0)
    expected = slow_weights(tokens.turn.tolist(), tokens.trajectory.tolist(), (tokens.weight > 0).tolist(), how, constant)
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


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_on_policy_every_objective_has_the_gradient_of_reinforce_and_clips_nothing(name: str, options: dict[str, Any], how: str) -> None:
    if options.get("level") == "trajectory" and name == "gmpo" and how not in ("token", "trajectory", "trajectory_sum"):
        pytest.skip("gmpo averages over the trajectory, so weights that differ inside it are spread evenly")
    tokens = random_tokens(3, how, per=options.get("level", "turn"), spread=0.0)
    loss, metrics = objectives.compute(name, tokens, **options)
    expected, _ = objectives.compute("reinforce", tokens)
    assert torch.allclose(gradient(loss, tokens), gradient(expected, tokens), rtol=1e-12, atol=1e-16)
    assert float(metrics["ratio"]) == pytest.approx(1.0, abs=1e-15)
    assert all(float(metrics[key]) == 0 for key in ("clip_low", "clip_high", "clip_dual", "kl_old_k1", "kl_old_k3") if key in metrics)


def single_turn(log_ratio: list[float], advantage: list[float]) -> Tokens:
    """One turn of a few tokens, each with weight 1, so that gradients are those of the token losses."""
    size = len(log_ratio)
    logprob, zeros = leaf([-1.0] * size), torch.zeros(size, dtype=torch.int64)
    old = logprob.detach() - torch.tensor(log_ratio, dtype=torch.float64)
    return Tokens(logprob, old, torch.tensor(advantage, dtype=torch.float64), zeros, zeros, torch.ones(size, dtype=torch.float64))


def outcome(name: str, log_ratio: list[float], advantage: list[float], **options: Any) -> tuple[float, list[float], dict[str, float]]:
    tokens = single_turn(log_ratio, advantage)
    loss, metrics = objectives.compute(name, tokens, **options)
    return float(loss), gradient(loss, tokens).tolist(), {key: float(value) for key, value in metrics.items()}


def test_dual_clip_bounds_the_loss_of_a_bad_token_that_became_likely() -> None:
    loss, slope, metrics = outcome("clip", [math.log(10)], [-1.0], dual_clip=3.0)
    assert (loss, slope, metrics["clip_dual"]) == (3.0, [0.0], 1.0)
    loss, slope, metrics = outcome("clip", [math.log(10)], [-1.0])
    assert loss == pytest.approx(10) and slope == [pytest.approx(10)] and "clip_dual" not in metrics


def test_dual_clip_leaves_positive_advantages_alone() -> None:
    loss, _, metrics = outcome("clip", [math.log(10)], [1.0], dual_clip=3.0)
    assert loss == pytest.approx(-1.2) and metrics["clip_dual"] == 0


def test_clip_higher_keeps_the_gradient_of_good_tokens_between_the_two_bounds() -> None:
    assert outcome("clip", [math.log(1.25)], [1.0])[1] == [0.0]
    loss, slope, metrics = outcome("clip", [math.log(1.25)], [1.0], clip_high=0.28)
    assert slope == [pytest.approx(-1.25)] and loss == pytest.approx(-1.25) and metrics["clip_high"] == 0


def test_clip_shares_count_low_and_high_apart() -> None:
    _, slope, metrics = outcome("clip", [math.log(x) for x in (1.5, 1.5, 0.5, 0.5)], [1.0, -1.0, -1.0, 1.0])
    assert (metrics["clip_high"], metrics["clip_low"]) == (0.25, 0.25)
    assert slope == [0.0, pytest.approx(1.5), 0.0, pytest.approx(-0.5)]


def test_the_reciprocal_lower_bound_of_loop_can_be_said() -> None:
    epsilon = 0.1
    loss, slope, _ = outcome("clip", [math.log(0.90)], [-1.0], clip_low=epsilon / (1 + epsilon), clip_high=epsilon)
    assert loss == pytest.approx(1 / (1 + epsilon)) and slope == [0.0]
    assert outcome("clip", [math.log(0.92)], [-1.0], clip_low=epsilon / (1 + epsilon), clip_high=epsilon)[1] == [pytest.approx(0.92)]


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


def test_gspo_clips_whole_turns() -> None:
    _, slope, metrics = outcome("gspo", [0.5, -0.1], [1.0, 1.0], clip_high=0.1)
    assert slope == [0.0, 0.0] and metrics["clip_high"] == 1.0
    assert outcome("clip", [0.5, -0.1], [1.0, 1.0], clip_high=0.1)[1][1] != 0


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


def test_sapo_fades_where_clip_stops() -> None:
    near, far = outcome("sapo", [0.0], [1.0])[1][0], outcome("sapo", [math.log(4.0)], [1.0])[1][0]
    assert near == pytest.approx(-1.0) and -1.0 < far < 0
    assert outcome("sapo", [0.0], [-1.0])[1][0] == pytest.approx(1.0)


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_left_out_tokens_change_nothing_whatever_they_hold(name: str, options: dict[str, Any]) -> None:
    tokens = random_tokens(11, "turn")
    dirt = {
        key: torch.where(tokens.weight > 0, column.detach(), bad)
        for (key, column), bad in zip(
            ((k, c) for k, c in tokens.columns().items() if c.is_floating_point() and k != "weight"),
            (math.nan, math.inf, math.nan, -math.inf, math.nan, math.inf),
            strict=True,
        )
    }
    dirty = Tokens(**{**tokens.columns(), **dirt})
    dirty.logprob.requires_grad_()
    clean = tokens.take(tokens.weight > 0)
    settings_ = {"kl_coef": 0.1, "entropy_coef": 0.1, "importance": "truncate"}
    loss, metrics = Loss(name, options, **settings_)(dirty)
    expected, known = Loss(name, options, **settings_)(clean)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    assert {k: float(v) for k, v in metrics.items()} == pytest.approx({k: float(v) for k, v in known.items()}, rel=1e-12)
    slope = gradient(loss, dirty)
    assert torch.equal(slope[tokens.weight == 0], torch.zeros(int((tokens.weight == 0).sum()), dtype=torch.float64))
    assert slope.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_extreme_log_probabilities_give_finite_numbers(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    grid = [(new, old, a) for new in (-1e4, -1e-3, 0.0) for old in (-1e4, 0.0) for a in (-100.0, 0.0, 100.0)]
    new, old, advantage = (torch.tensor(column, dtype=dtype) for column in zip(*grid, strict=True))
    new.requires_grad_()
    turn = torch.arange(len(grid)) // 2
    tokens = Tokens(new, old, advantage, turn, turn // 2, token_weights(turn, turn // 2, "turn"), old.flip(0), old, new.detach().exp())
    for importance in ("none", "truncate", "mask"):
        loss, metrics = Loss(name, options, kl_coef=0.1, entropy_coef=0.1, importance=importance)(tokens)
        assert loss.dtype == torch.float32 and loss.isfinite()
        assert gradient(loss, tokens).isfinite().all()
        assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_bfloat16_columns_are_computed_in_float32(name: str, options: dict[str, Any]) -> None:
    tokens = random_tokens(2)
    half = {key: column.detach().bfloat16() for key, column in tokens.columns().items() if column.is_floating_point() and key != "weight"}
    low = Tokens(**{**tokens.columns(), **half})
    upcast = Tokens(**{**tokens.columns(), **{key: column.float() for key, column in half.items()}})
    assert torch.equal(objectives.compute(name, low, **options)[0], objectives.compute(name, upcast, **options)[0])


@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_a_part_without_tokens_has_loss_zero_and_can_be_differentiated(name: str, options: dict[str, Any]) -> None:
    tokens = random_tokens(1)
    nothing = tokens.take(slice(0, 0))
    loss, metrics = Loss(name, options, kl_coef=0.1, importance="truncate")(nothing)
    assert float(loss) == 0 and all(float(value) == 0 for value in metrics.values())
    assert torch.equal(gradient(loss, tokens), torch.zeros(len(tokens), dtype=torch.float64))


def test_turns_without_tokens_and_gaps_in_the_ids_do_no_harm() -> None:
    turn, trajectory = torch.tensor([0, 0, 3, 3]), torch.tensor([0, 0, 2, 2])
    assert token_weights(turn, trajectory, "turn").tolist() == [0.25] * 4
    new = leaf([-1.0, -2.0, -3.0, -4.0])
    for name in ("gspo", "gmpo"):
        loss, _ = objectives.compute(name, Tokens(new, new, torch.ones(4), turn, trajectory, token_weights(turn, trajectory, "turn")))
        assert torch.autograd.grad(loss, new)[0].tolist() == [-0.25] * 4
    assert token_weights([], [], "turn").tolist() == []
    assert token_weights([0, 1], [0, 0], "turn", mask=[False, False]).tolist() == [0.0, 0.0]


def test_the_old_policy_carries_no_gradient_even_if_it_is_the_same_tensor() -> None:
    tokens = random_tokens(4)
    same = Tokens(**{**tokens.columns(), "old_logprob": tokens.logprob})
    expected = gradient(objectives.compute("reinforce", tokens)[0], tokens)
    assert torch.allclose(gradient(objectives.compute("clip", same)[0], same), expected)


def test_metrics_carry_no_gradient() -> None:
    _, metrics = Loss("gspo", kl_coef=0.1, entropy_coef=0.1, importance="truncate")(random_tokens(0))
    assert not any(value.requires_grad for value in metrics.values())
    assert all(value.dim() == 0 for value in metrics.values())


def test_a_split_trajectory_is_refused_where_the_loss_needs_it_whole() -> None:
    assert (Loss("clip").level, Loss("gspo").level, Loss("gspo", {"level": "trajectory"}).level) == ("token", "turn", "trajectory")
    assert Loss("gspo", importance="mask", importance_options={"level": "trajectory"}).level == "trajectory"
    with pytest.raises(TurnwiseError, match="trajectory 1 is split over micro-batches 0 and 1"):
        objectives.check_split([[0, 0, 1], [1, 2]], "trajectory")
    objectives.check_split([[0, 0, 1], [2, 3]], "trajectory")
    objectives.check_split([[0], [0]], "token")


def test_wrong_names_and_columns_are_explained() -> None:
    tokens = random_tokens(0)
    with pytest.raises(TurnwiseError, match=r"unknown objective 'gpso'\. Did you mean 'gspo'"):
        objectives.compute("gpso", tokens)
    with pytest.raises(TurnwiseError, match="Did you mean 'clip_high'"):
        objectives.compute("clip", tokens, clip_hihg=0.2)
    with pytest.raises(TurnwiseError, match=r"clip_low takes number in \[0, 1\]"):
        objectives.compute("clip", tokens, clip_low=-0.1)
    with pytest.raises(TurnwiseError, match="unknown importance correction 'truncated'"):
        Loss(importance="truncated")
    with pytest.raises(TurnwiseError, match='importance is "none"'):
        Loss(importance_options={"high": 2.0})
    with pytest.raises(TurnwiseError, match="kl_coef is a number"):
        Loss(kl_coef=-1.0)
    with pytest.raises(TurnwiseError, match="Did you mean 'k3"):
        Loss(kl="k4")
    with pytest.raises(TurnwiseError, match="Did you mean 'turn'"):
        token_weights([0], [0], "turns")
    with pytest.raises(TurnwiseError, match="constant"):
        token_weights([0], [0], "turn", constant=3.0)
    with pytest.raises(TurnwiseError, match="one turn id occurs in several trajectories"):
        token_weights([0, 1, 0], [0, 0, 1], "turn")
    with pytest.raises(TurnwiseError, match="column advantage has shape"):
        Tokens(**{**tokens.columns(), "advantage": tokens.advantage[:-1]})
    with pytest.raises(TurnwiseError, match="'advantage' has the name of a column"):
        Tokens(**tokens.columns(), extra={"advantage": tokens.advantage})
    with pytest.raises(TurnwiseError, match="int64 or int32"):
        Tokens(**{**tokens.columns(), "turn": tokens.turn.double()})


def test_a_missing_column_names_who_needs_it() -> None:
    columns = random_tokens(0).columns()
    bare = Tokens(**{key: columns[key] for key in ("logprob", "old_logprob", "advantage", "turn", "trajectory", "weight")})
    for settings_, column in (
        ({"kl_coef": 0.1}, "ref_logprob"),
        ({"entropy_coef": 0.1}, "entropy"),
        ({"importance": "mask"}, "engine_logprob"),
    ):
        loss_of = Loss(**settings_)
        assert loss_of.needs == (column,)
        with pytest.raises(TurnwiseError, match=f"no column {column}"):
            loss_of(bare)


def test_an_objective_of_ones_own_is_one_function() -> None:
    @objectives.register("test_scaled")
    def scaled(tokens: Tokens, *, factor: float = 2.0) -> TokenLoss:
        """Reinforce times a column of one's own."""
        return TokenLoss(-factor * tokens.extra["scale"] * tokens.advantage * tokens.logprob, {"scale": tokens.extra["scale"]})

    tokens = random_tokens(6)
    wide = Tokens(**tokens.columns(), extra={"scale": torch.full((len(tokens),), 0.5)})
    loss, metrics = objectives.compute("test_scaled", wide)
    assert float(loss) == pytest.approx(float(objectives.compute("reinforce", tokens)[0]))
    assert float(metrics["scale"]) == pytest.approx(0.5)

    @objectives.register("test_summed")
    def summed(tokens: Tokens) -> TokenLoss:
        """A sum where one loss a token belongs."""
        return TokenLoss(-tokens.logprob.sum(), {})

    with pytest.raises(TurnwiseError, match="return one loss a token"):
        objectives.compute("test_summed", tokens)
    halves = [wide.take(tokens.turn % 2 == k) for k in (0, 1)]
    assert sum(float(objectives.compute("test_scaled", half)[0]) for half in halves) == pytest.approx(float(loss))


def test_the_page_names_every_objective_option_aggregation_and_metric() -> None:
    page = (Path(__file__).parent.parent / "docs" / "objectives.md").read_text()
    names = {name for name, _ in CASES} | {option for name, _ in CASES for option in algorithms[name].options} | set(AGGREGATIONS)
    for importance in objectives.corrections.names():
        names |= {importance} | set(objectives.corrections[importance].options)
        for name, options in CASES:
            names |= set(Loss(name, options, kl_coef=0.1, entropy_coef=0.1, importance=importance)(random_tokens(0))[1])
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_the_page_gives_the_defaults_that_the_code_has() -> None:
    page = (Path(__file__).parent.parent / "docs" / "objectives.md").read_text()
    for name in {name for name, _ in CASES}:
        section = page.split(f"### `{name}`")[1].split("\n##")[0]
        for option in algorithms[name].options.values():
            assert f"| `{option.name}` | {'none' if option.default is None else option.default} |" in section


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).parent.parent / "docs" / "objectives.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        exec(compile(example, f"objectives.md, example {number}", "exec"), {"__name__": "objectives_page"})
    assert "one_sided" in algorithms


def test_credit_does_not_load_objectives_and_objectives_load_no_other_part() -> None:
    check = (
        "import sys; import turnwise.credit; assert 'turnwise.objectives' not in sys.modules; import turnwise.objectives; "
        "parts = {m.split('.')[1] for m in sys.modules if m.startswith('turnwise.')}; "
        "assert not parts & {'envs', 'engines', 'learn', 'collect', 'agent', 'adapters'}, parts; assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "options"), CASES, ids=NAMES)
def test_loss_and_gradient_can_be_captured_in_a_cuda_graph(name: str, options: dict[str, Any]) -> None:
    whole = random_tokens(9, "turn")
    columns = {key: column.detach().cuda() for key, column in whole.columns().items()}
    tokens = Tokens(**columns, batch_tokens=int((whole.weight > 0).sum()), turns=whole.turns, trajectories=whole.trajectories)
    tokens.logprob.requires_grad_()
    loss_of = Loss(name, options, kl_coef=0.1, entropy_coef=0.1, importance="truncate")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.autograd.grad(loss_of(tokens)[0], tokens.logprob)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, _ = loss_of(tokens)
        slope = torch.autograd.grad(loss, tokens.logprob)[0]
    graph.replay()
    expected, _ = loss_of(whole)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)
    assert torch.allclose(slope.cpu(), gradient(expected, whole), rtol=1e-10, atol=1e-14)
