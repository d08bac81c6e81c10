"""IPA, and UI-S1, which acts along an expert's trajectory. (The authors' numbers: test_published.py.)"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collect_cases import numbered
from method_cases import attempt, expert_of, failed_expert, gathers, line_of, make, paths, rollouts, start, train
from method_tokens import close, one_token, prepared, rows_of
from references import forms, ipa
from slow_objectives import random_tokens

import turnwise as tw
from turnwise import Turn
from turnwise.methods.planning import TaskSlots
from turnwise.methods.ui_s1 import score
from turnwise.objectives import algorithms, corrections
from turnwise.recipe.schema import Config
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

# -- IPA --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_the_credit_of_a_turn_is_the_return_discounted_to_it(gamma: float) -> None:
    for r in (rollouts(1), rollouts(2), rollouts(1, groups=1, size=1), rollouts(1, turns=1)):
        plain, shifted = tw.credit.compute("ipa", r, gamma=gamma), tw.credit.compute("ipa", r, gamma=gamma, neutral=0.5)
        for own in paths(r):
            rewards = r.reward[own].tolist()
            assert plain[own] == pytest.approx(forms.discounted(rewards, gamma), abs=1e-6)
            assert shifted[own] == pytest.approx(forms.discounted([*rewards[:-1], rewards[-1] - 0.5], gamma), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_successes_have_weight_one_failures_their_bounded_ratio_and_mismatched_turns_none(seed: int) -> None:
    tokens = random_tokens(seed)
    won = torch.from_numpy(np.random.default_rng(seed).integers(-1, 2, int(tokens.trajectory.max()) + 1).astype(np.float64))
    tokens, most = replace(tokens, extra={"return": won[tokens.trajectory]}), 1.05
    reject = corrections["reject"].make({"over": "turn", "ratio_high": most}, "importance correction")
    masked = replace(tokens, extra={**tokens.extra, **prepared(tokens, reject).extra})
    loss = algorithms["ipa"].make({}, "objective")(masked.prepared()).loss * reject(masked.prepared()).factor
    logprobs, old, roll = (rows_of(tokens, x) for x in (tokens.logprob.detach(), tokens.old_logprob, tokens.engine_logprob))
    returns, positive = ([row[0] for row in rows_of(tokens, x)] for x in (tokens.advantage, tokens.extra["return"] > 0))
    kept = [ipa.chunk_ratio(a, b) <= most for a, b in zip(old, roll, strict=True)]
    close(tokens, loss, *ipa.losses(logprobs, old, returns, positive, kept))


def test_a_token_alone_is_a_turn_and_a_return_at_the_border_is_negative() -> None:
    tokens = replace(one_token(logprob=-1.0, old_logprob=-0.5), extra={"return": torch.tensor([0.5], dtype=torch.float64)})
    objective = algorithms["ipa"].make({"above": 0.5}, "objective")
    assert objective(tokens).metrics["topr_weight"].item() == pytest.approx(np.exp(-0.5))
    assert algorithms["ipa"].make({}, "objective")(tokens).metrics["topr_weight"].item() == 1.0


def test_ipa_trains_with_bounded_weights(tmp_path: Path) -> None:
    whole = train(tmp_path, method={"name": "ipa", "gamma": 0.95, "neutral": 0.5})
    batch, lines = stored_batch(Run.open(whole.folder), 1), whole.metrics[1:]
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("ipa", batch.rollouts, gamma=0.95, neutral=0.5), atol=1e-6)
    assert all(0 <= line["learner/topr_weight"] <= 1 + 1e-6 and 0 <= line["learner/importance_rejected"] <= 1 for line in lines)


def test_starts_inside_an_experts_trajectory_are_refused_and_records_of_others_are_read() -> None:
    assert Config.load({"method": {"name": "ipa", "starts": "beginning", "success": 0.5}}).plan is None
    for wrong in ({"method": {"name": "ipa", "starts": "sequential"}}, {"plan": {"name": "ipa_rollback"}}):
        with pytest.raises(tw.TurnwiseError, match="tcod_b2f"):
            Config.load(wrong)


# -- UI-S1 ------------------------------------------------------------------------------------------------------------------------


def test_eight_equal_attempts_are_filtered_however_much_the_turns_of_an_attempt_differ() -> None:
    n, size = 5, 8
    labels = {"group": [0] * n * size, "trajectory": np.repeat(np.arange(size), n), "t": np.tile(np.arange(n), size)}
    r = tw.Rollouts.from_columns(**labels, reward=[1.0] * n * size, anchor=[0] * n * size)
    scores, match = np.ones(len(r)), np.ones(len(r))
    found = tw.credit.assign("ui_s1", r.with_columns({"turn.score": scores, "turn.match": match}))
    assert np.std(found.columns["turn.later_score"], ddof=1) > 0.3 and not found.columns["turn.mask"].any()
    scores[0] = 0.0  # the first turn of one attempt: 0.33 deviate from 1.94 by less than 0.4
    columns = {"turn.score": scores, "turn.match": match}
    masks = [tw.credit.assign("ui_s1", r.with_columns(columns), least=least).columns["turn.mask"] for least in (0.3, 0.4, 0.0)]
    assert [bool(mask.all()) for mask in masks] == [True, False, True]


def test_turns_without_a_score_are_left_out() -> None:
    r, rng = rollouts(1), np.random.default_rng(1)
    scores = rng.random(len(r))
    scores[3] = np.nan
    found = tw.credit.assign("ui_s1", r.with_columns({"turn.score": scores, "turn.match": rng.integers(0, 2, len(r))}), least=0.0)
    assert found.values[3] == 0 and not found.columns["turn.mask"][3] and found.columns["turn.mask"].sum() == len(r) - 1


def test_a_turn_is_scored_by_format_kind_and_exact_action() -> None:
    expert = Turn("s", action="go to Fridge 1")
    cases = (("go to  fridge 1", True, 1.0), ("go to fridge 2", True, 0.55), ("open fridge 1", True, 0.19), ("go to fridge 1", False, 0.0))
    for action, valid, expected in cases:
        assert score(Turn("s", action=action, valid=valid), expert) == pytest.approx(expected)


def test_tasks_without_an_expert_and_lost_attempts_are_left_out() -> None:
    none, _ = gathers(make("ui_s1"), TaskSlots(numbered(2), 0, 2, expert=failed_expert), 1, attempt)
    assert none.trajectories == [] and none.counts["without_expert"] == 2
    rounds: Any = make("ui_s1").gather(TaskSlots(numbered(2), 0, 2, expert=expert_of("+++++")), 1)
    next(rounds)
    with pytest.raises(StopIteration) as end:
        rounds.send([])
    assert end.value.value.trajectories == []


def test_a_run_learns_along_the_experts_trajectories(tmp_path: Path) -> None:
    run = start(tmp_path, **{"method.name": "ui_s1", "method.least": 0.0, "env.max_turns": 6})
    batch, line = stored_batch(run, 1), line_of(run)
    patched = np.asarray(batch.column("turn.patched"))
    assert patched.sum() == line["collect/patched"] > 0 and line["collect/faults"] == 0 and line.get("collect/lost_branches", 0) == 0
    wrong, last = np.asarray(batch.column("turn.match")) == 0, {batch.rows(k)[-1] for k in range(len(batch.trajectories))}
    goes_on = [patched[row] > 0 for row in np.flatnonzero(wrong) if row not in last]
    assert goes_on and all(goes_on)  # an attempt goes on behind a wrong action only where it was patched
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("ui_s1", batch.rollouts, least=0.0), atol=1e-5)
