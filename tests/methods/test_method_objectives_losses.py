"""Clip-Cov, KL-Cov, HölderPO, IcePop and rejection: the losses against slow references, and their independence of micro-batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gradient_cases import GradientOf, assert_same
from learn_cases import credited, rollouts_of, tiny, trajectories
from method_tokens import close, one_token, prepared, rows_of
from references import clip_cov, holder, icepop, kl_cov
from slow_objectives import gradient, random_tokens

from turnwise import credit
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.methods.covariance import ClipCov, KlCov
from turnwise.methods.holder import Holder, power_at
from turnwise.objectives import Loss, Tokens, corrections
from turnwise.util.errors import TurnwiseError

SEEDS = range(3)


def places(flags: list[list[float]]) -> set[tuple[int, int]]:
    return {(i, t) for i, row in enumerate(flags) for t, flag in enumerate(row) if flag}


@pytest.mark.parametrize("seed", SEEDS)
def test_clip_cov_drops_random_candidates_and_is_the_clip_elsewhere(seed: int) -> None:
    tokens, fraction = random_tokens(seed, "token"), 0.15
    tokens = replace(tokens, advantage=tokens.advantage * 2)
    piece = ClipCov(fraction=fraction, cov_low=0.2, cov_high=3.0, clip_low=0.3, clip_high=0.3)
    ready = prepared(tokens, piece)
    logprobs, old, advantages = (rows_of(tokens, x) for x in (tokens.logprob.detach(), tokens.old_logprob, tokens.advantage))
    chosen = places(rows_of(ready, ready.extra["cov_dropped"]))
    candidates = clip_cov.candidates(old, old, advantages, 0.2, 3.0)
    count = clip_cov.number(sum(map(len, old)), fraction)
    assert chosen <= set(candidates) and len(chosen) == min(count, len(candidates))
    close(ready, piece(ready.prepared()).loss, *clip_cov.losses(logprobs, old, advantages, chosen, 0.3, 0.3))


def test_clip_cov_draws_differently_in_each_mini_batch_and_alike_after_a_resume() -> None:
    tokens = replace(random_tokens(3, gaps=False), advantage=2 * random_tokens(3, gaps=False).advantage)
    piece = ClipCov(fraction=0.1, cov_low=-9.0, cov_high=9.0)
    drawn = [prepared(tokens, piece).extra["cov_dropped"].tolist() for _ in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    again = ClipCov(fraction=0.1, cov_low=-9.0, cov_high=9.0)
    again.load_state({"draws": 1})
    assert prepared(tokens, again).extra["cov_dropped"].tolist() == drawn[1] and again.state() == {"draws": 2}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fraction", [0.0, 2e-4, 0.2, 1.0])
def test_kl_cov_charges_the_tokens_with_the_largest_covariance(seed: int, fraction: float) -> None:
    tokens, piece = random_tokens(seed, "token"), KlCov(fraction=fraction, coefficient=0.7)
    ready = prepared(tokens, piece)
    logprobs, old, advantages = (rows_of(tokens, x) for x in (tokens.logprob.detach(), tokens.old_logprob, tokens.advantage))
    chosen = kl_cov.chosen(old, advantages, fraction)
    assert places(rows_of(ready, ready.extra["cov_held"])) == chosen
    covariances = clip_cov.covariances(old, advantages)
    np.testing.assert_allclose(np.concatenate(rows_of(ready, ready.extra["cov"])), np.concatenate(covariances), atol=1e-9)
    close(ready, piece(ready.prepared()).loss, *kl_cov.losses(logprobs, old, advantages, chosen, 0.7))


def test_equal_advantages_have_a_covariance_of_exactly_zero() -> None:
    tokens = replace(random_tokens(2), advantage=torch.full_like(random_tokens(2).advantage, 0.1))
    for piece in (ClipCov(cov_low=0.0), KlCov()):
        ready = prepared(tokens, piece)
        assert (ready.extra["cov"][ready.kept] == 0).all()
    assert not prepared(tokens, ClipCov(cov_low=0.0)).extra["cov_dropped"].any()
    assert prepared(one_token(), KlCov()).extra["cov_held"].tolist() == [True]
    assert prepared(one_token(weight=0.0), KlCov()).extra["cov_held"].tolist() == [False]


def test_of_equal_covariances_the_earlier_tokens_are_held() -> None:
    tokens = random_tokens(1, gaps=False)
    tokens = replace(tokens, advantage=torch.sign(tokens.advantage), old_logprob=torch.full_like(tokens.old_logprob, -0.3))
    old, advantages = rows_of(tokens, tokens.old_logprob), rows_of(tokens, tokens.advantage)
    held = places(rows_of(tokens, prepared(tokens, KlCov(fraction=0.3)).extra["cov_held"]))
    assert held == kl_cov.chosen(old, advantages, 0.3) and len(held) == int(0.3 * len(tokens))


@pytest.mark.parametrize("p", [-2.0, 0.0, 2.0])
def test_a_turn_that_is_left_out_as_a_whole_changes_nothing_in_holder(p: float) -> None:
    tokens = random_tokens(1, gaps=False)
    kept = replace(tokens, weight=torch.where(tokens.turn == 0, 0.0, tokens.weight))
    loss, _ = Loss("holder", {"start": p})(kept)
    alone, _ = Loss("holder", {"start": p})(tokens.take(tokens.turn != 0))
    assert loss.item() == pytest.approx(alone.item())
    slopes = gradient(loss, tokens)
    assert slopes.isfinite().all() and (slopes[tokens.turn == 0] == 0).all() and (slopes != 0).any()


@pytest.mark.parametrize("level", ["turn", "trajectory"])
@pytest.mark.parametrize("p", [-2.0, -0.5, 0.0, 1e-7, 1.0, 2.0, 30.0])
def test_holder_is_the_clipped_power_mean(p: float, level: Any) -> None:
    for seed in SEEDS:
        tokens = random_tokens(seed, level, per=level)
        piece = Holder(start=p, level=level, clip_low=0.2, clip_high=0.3)
        loss = piece(tokens.prepared()).loss
        logprobs, old, advantages = (rows_of(tokens, x, level) for x in (tokens.logprob.detach(), tokens.old_logprob, tokens.advantage))
        losses, slopes = holder.sequence_losses(logprobs, old, [row[0] for row in advantages], p, 0.2, 0.3)
        np.testing.assert_allclose([row[0] for row in rows_of(tokens, loss.detach(), level)], losses, atol=1e-9)
        whole, expected = gradient((tokens.weight * loss).sum(), tokens), np.concatenate(slopes) / len(losses)
        np.testing.assert_allclose(np.concatenate(rows_of(tokens, whole, level)), expected, atol=1e-9)


def test_the_power_follows_the_schedule_of_the_run_or_of_a_number_of_iterations() -> None:
    assert [power_at(step / 8, 2.0, -1.5) for step in (-1, 0, 4, 8, 12)] == [2.0, 2.0, 0.25, -1.5, -1.5]
    piece = Holder(start=1.0, end=-1.0)
    piece.begin(0.25)
    assert piece.p == 0.5
    counted = Holder(start=1.0, end=-1.0, steps=4)
    seen = []
    for update in range(6):
        if update == 2:  # killed and resumed
            kept, counted = counted.state(), Holder(start=1.0, end=-1.0, steps=4)
            counted.load_state(kept)
        counted.begin(0.99)
        seen.append(counted.p)
        counted.observe({})
    assert seen == [1.0, 0.5, 0.0, -0.5, -1.0, -1.0]


@pytest.mark.parametrize("level", ["turn", "trajectory"])
def test_masks_and_truncated_weights_are_those_of_the_definitions(level: str) -> None:
    for seed in SEEDS:
        tokens = random_tokens(seed)
        old, roll = (rows_of(tokens, x, level) for x in (tokens.old_logprob, tokens.engine_logprob))
        span = {"level": level, "low": 0.5, "high": 2.0}

        def found(name: str, tokens: Tokens = tokens, **options: Any) -> list[list[float]]:
            return rows_of(tokens, corrections[name].function(tokens.prepared(), **options).factor, level)

        check = np.testing.assert_allclose
        check(np.concatenate(found("mask", low=0.5, high=5.0)), np.concatenate(icepop.token_masked(old, roll)), atol=1e-9)
        check(np.concatenate(found("truncate")), np.concatenate(icepop.token_truncated(old, roll)), atol=1e-9)
        check([row[0] for row in found("mask", **span)], icepop.sequence_masked(old, roll), atol=1e-9)
        check([row[0] for row in found("truncate", level=level)], icepop.sequence_truncated(old, roll), atol=1e-9)


@pytest.mark.parametrize("over", ["turn", "trajectory"])
def test_spans_are_rejected_by_ratio_k2_and_k3(over: str) -> None:
    make = corrections["reject"].function
    seen = set()
    for seed in SEEDS:
        tokens = random_tokens(seed)
        old, roll = (rows_of(tokens, x, over) for x in (tokens.old_logprob, tokens.engine_logprob))

        def kept(tokens: Tokens = tokens, **options: Any) -> list[list[float]]:
            piece = make(**options)
            ready = prepared(tokens, piece)
            assert torch.equal(piece(ready).factor > 0, ~ready.extra["importance_rejected"])
            return rows_of(ready, piece(ready).factor, over)

        geometric = [row[0] > 0 for row in kept(over=over, ratio_low=0.9, ratio_high=1.1)]
        assert geometric == icepop.geometric_kept(old, roll, 0.9, 1.1)
        assert [row[0] > 0 for row in kept(over=over, k3_high=0.03)] == icepop.k3_kept(old, roll, 0.03)
        assert [row[0] > 0 for row in kept(over=over, k2_high=0.03)] == icepop.k2_kept(old, roll, 0.03)
        weighted = kept(over="token", ratio_low=0.5, truncate=1.5, normalise=True)
        plain = [[min(w, 1.5) if w >= 0.5 else 0.0 for w in row] for row in icepop.token_ratios(old, roll)]
        flat = np.concatenate(plain)
        np.testing.assert_allclose(np.concatenate(weighted), flat / flat[flat > 0].mean(), atol=1e-9)
        seen |= set(geometric)
    assert seen == {True, False}


def test_rejection_without_a_bound_or_without_tokens() -> None:
    with pytest.raises(TurnwiseError, match=r"set ratio_low, .*objective\.importance_options"):
        Loss("clip", importance="reject").made_correction()
    piece = corrections["reject"].function(k3_high=0.1, normalise=True)
    assert prepared(one_token(weight=0.0), piece).extra["importance_factor"].tolist() == [1.0]
    assert prepared(one_token(engine_logprob=-9.0), piece).extra["importance_factor"].tolist() == [0.0]
    with pytest.raises(TurnwiseError, match="prepared per mini-batch"):
        Loss("clip", importance="reject", importance_options={"k3_high": 0.1})(one_token())


LOSSES = {
    "clip_cov": Loss("clip_cov", {"fraction": 0.2, "cov_low": 0.0, "clip_high": 0.1}),
    "kl_cov": Loss("kl_cov", {"fraction": 0.2}),
    "holder": Loss("holder", {"start": 2.0}),
    "rejection": Loss(importance="reject", importance_options={"k3_high": 1.0, "truncate": 2.0, "normalise": True}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_token_budget_changes_neither_the_choice_of_tokens_nor_the_gradient(name: str) -> None:
    found = trajectories(8)
    values = credit.compute("gigpo", rollouts_of(found))
    results = []
    for budget in (40, 10_000):
        old = "learner" if name == "rejection" else "engine"
        settings = LearnerSettings(loss=LOSSES[name], tokens_per_batch=budget, optimiser=OptimiserSettings(lr=0.0), old_logprobs=old)
        run = GradientOf(Learner(tiny(), settings))
        results.append((run(credited(found, values)), run.metrics))
    assert_same(results[0][0], results[1][0])
    for metric in ("cov", "cov_dropped", "cov_held", "holder_p", "importance_rejected"):
        if metric in results[0][1]:
            assert results[0][1][metric] == pytest.approx(results[1][1][metric], rel=1e-5) and results[0][1][metric] != 0


def test_old_log_probs_are_computed_for_an_objective_that_needs_them_even_in_a_single_step() -> None:
    found = trajectories(8)
    learner = Learner(tiny(), LearnerSettings(loss=LOSSES["kl_cov"], optimiser=OptimiserSettings(lr=0.0)))
    metrics = learner.update(credited(found))
    assert "seconds_old_logprobs" in metrics and metrics["ratio"] == pytest.approx(1, abs=1e-5)


def test_progress_reaches_an_objective_before_each_update() -> None:
    learner = Learner(tiny(), LearnerSettings(loss=LOSSES["holder"], optimiser=OptimiserSettings(lr=0.0)))
    batch = credited(trajectories(8))
    assert [learner.update(batch, progress=share)["holder_p"] for share in (0.0, 0.5)] == pytest.approx([2.0, 0.5])
    assert learner.state()[1]["pieces"]["objective"]["state"] == {"updates": 2}
