"""IPA: returns, ratios and masks per turn against the slow reference, starts inside an expert's trajectory, and small runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from collect_cases import numbered
from information_cases import paths, rollouts
from order_runs import attempt, gathers, plan_state, train
from references import ipa
from slow_objectives import random_tokens
from test_method_objectives_losses import one_token, prepared, rows

import turnwise as tw
from turnwise import Task, Trajectory, Turn
from turnwise.data.attempts import Start
from turnwise.methods.planning import Places
from turnwise.methods.registry import plans
from turnwise.objectives import Tokens, algorithms, corrections
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_credit_of_a_turn_is_the_return_discounted_to_it(seed: int, gamma: float) -> None:
    for r in (rollouts(seed), rollouts(seed, groups=1, size=1), rollouts(seed, turns=1)):
        plain, shifted = tw.credit.compute("ipa", r, gamma=gamma), tw.credit.compute("ipa", r, gamma=gamma, neutral=0.5)
        for own in paths(r):
            rewards = r.reward[own].tolist()
            assert plain[own] == pytest.approx(ipa.chunk_returns(rewards, gamma), abs=1e-6)
            assert shifted[own] == pytest.approx(ipa.chunk_returns([*rewards[:-1], rewards[-1] - 0.5], gamma), abs=1e-6)


def with_returns(tokens: Tokens, seed: int) -> Tokens:
    won = torch.from_numpy(np.random.default_rng(seed).integers(-1, 2, int(tokens.trajectory.max()) + 1).astype(np.float64))
    return replace(tokens, extra={"return": won[tokens.trajectory]})


@pytest.mark.parametrize("seed", range(6))
def test_successes_have_weight_one_failures_their_bounded_ratio_and_mismatched_turns_none(seed: int) -> None:
    tokens, most = with_returns(random_tokens(seed), seed), 1.05
    reject = corrections["reject"].make({"over": "turn", "ratio_high": most}, "importance correction")
    masked = replace(tokens, extra={**tokens.extra, **prepared(tokens, reject).extra})
    loss = algorithms["ipa"].make({}, "objective")(masked.prepared()).loss * reject(masked.prepared()).factor
    logprobs, old, roll = (rows(tokens, x) for x in (tokens.logprob.detach(), tokens.old_logprob, tokens.engine_logprob))
    returns, positive = ([row[0] for row in rows(tokens, x)] for x in (tokens.advantage, tokens.extra["return"] > 0))
    kept = [ipa.kept(a, b, most) for a, b in zip(old, roll, strict=True)]
    losses, slopes = ipa.losses(logprobs, old, returns, positive, kept)
    np.testing.assert_allclose(np.concatenate(rows(tokens, loss.detach())), np.concatenate(losses), atol=1e-9)
    found = torch.autograd.grad(loss[tokens.kept].sum(), tokens.logprob)[0]
    np.testing.assert_allclose(np.concatenate(rows(tokens, found)), np.concatenate(slopes), atol=1e-9)


def test_a_token_alone_is_a_turn_and_a_return_at_the_border_is_negative() -> None:
    tokens = replace(one_token(logprob=-1.0, old_logprob=-0.5), extra={"return": torch.tensor([0.5], dtype=torch.float64)})
    objective = algorithms["ipa"].make({"above": 0.5}, "objective")
    assert objective(tokens).metrics["topr_weight"].item() == pytest.approx(np.exp(-0.5))
    assert algorithms["ipa"].make({}, "objective")(tokens).metrics["topr_weight"].item() == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_turns_that_the_expert_played_are_imitated_by_their_probability(seed: int) -> None:
    tokens = with_returns(random_tokens(seed, gaps=False), seed)
    given = torch.from_numpy(np.random.default_rng(seed).integers(0, 2, int(tokens.turn.max()) + 1).astype(np.float64))[tokens.turn]
    told = replace(tokens, extra={**tokens.extra, "given": given})
    loss = algorithms["ipa"].make({"imitation": 0.7}, "objective")(told).loss
    plain = algorithms["ipa"].make({}, "objective")(tokens).loss
    slope = torch.autograd.grad(loss.sum(), tokens.logprob, retain_graph=True)[0]
    for k in range(len(given)):
        gain, logprob = float(tokens.advantage[k]), float(tokens.logprob[k].detach())
        [expected], [steep] = ipa.imitation([logprob], gain, 0.7)
        assert loss[k].item() == pytest.approx(expected if given[k] else plain[k].item(), abs=1e-9)
        assert not given[k] or slope[k].item() == pytest.approx(steep, abs=1e-9)


def expert(tasks: list[Task]) -> list[Trajectory]:
    return [Trajectory(0, "expert", task.id, [Turn(f"{t}") for t in range(4)], success=True) for task in tasks]


def given(starts: list[Start]) -> list[int]:
    return [start.branch.t if start.branch is not None else 0 for start in starts]


def test_the_start_moves_back_as_the_policy_succeeds_and_that_is_kept() -> None:
    places, plan = Places(numbered(1), 0, 2, expert=expert), plans["ipa_rollback"].make({"success": 0.5}, "plan")
    seen = []
    for reward in (0.0, 1.0, 1.0, 0.0, 1.0, 1.0):
        if len(seen) == 3:  # killed and resumed
            state, plan = plan.state(), plans["ipa_rollback"].make({"success": 0.5}, "plan")
            plan.load_state(state)
        seen.append(given(gathers(plan, places, 1, lambda start, won=reward: attempt(start, won))[1][0]))  # type: ignore[misc]
    assert seen == [[t, t] for t in (3, 3, 2, 1, 1, 0)]


def test_parallel_starts_are_spread_over_the_experts_turns_and_a_failed_expert_is_not_followed() -> None:
    plan = plans["ipa_rollback"].make({"order": "parallel"}, "plan")
    assert given(gathers(plan, Places(numbered(1), 0, 4, expert=expert), 1, attempt)[1][0]) == [0, 1, 2, 3]
    lost = Places(numbered(1), 0, 4, expert=lambda tasks: [Trajectory(0, 0, task.id) for task in tasks])
    assert given(gathers(plan, lost, 1, attempt)[1][0]) == [0, 0, 0, 0]


def test_ipa_imitates_what_the_expert_played_once_per_group(tmp_path: Path) -> None:
    own = {"method.name": "ipa", "method.starts": "sequential", "method.imitation": 0.5, "env.tasks": 2, "iterations": 1}
    batch = stored_batch(Run.open((run := train(tmp_path, **own)).folder), 1)
    given, mask = np.asarray(batch.column("turn.given")) > 0, np.asarray(batch.column("turn.mask")) > 0
    assert (given & mask).any() and (given & ~mask).any() and mask[~given].all()  # shared turns are learned from in one attempt
    assert 0 < run.metrics[-1]["learner/given"] < 1


def test_ipa_trains_from_the_experts_last_turns_and_keeps_the_starts(tmp_path: Path) -> None:
    own = {
        "method.name": "ipa",
        "method.gamma": 0.95,
        "method.starts": "sequential",
        "method.neutral": 0.5,
        "method.success": 0.0,
        "env.tasks": 2,
    }
    whole = train(tmp_path / "whole", **own)
    batch = stored_batch(Run.open(whole.folder), 1)
    assert 0 < batch.column("turn.mask").sum() < len(batch)
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("ipa", batch.rollouts, gamma=0.95, neutral=0.5), atol=1e-6)
    lines = whole.metrics[1:]
    assert lines[0]["collect/given_turns"] > lines[1]["collect/given_turns"] and plan_state(whole.folder)["given"]
    assert all(0 <= line["learner/topr_weight"] <= 1 + 1e-6 and 0 <= line["learner/importance_rejected"] <= 1 for line in lines)
