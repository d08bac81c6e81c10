"""Credit and losses against what the authors' own functions returned, and the references against the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from authors_golden import golden
from references import clip_cov

import turnwise as tw
from turnwise import Trajectory, Turn
from turnwise.data.batch import Batch
from turnwise.methods.kinds_of_models import Heads
from turnwise.methods.resrl import normed, residuals
from turnwise.objectives import Loss, token_weights
from turnwise.objectives.tokens import Tokens

SINGLE = {"rtol": 1e-6, "atol": 2e-6}  # authors who compute in float32


def turns(n: int, tokens: list[int] | None = None, rewards: Any = 0.0) -> tw.Rollouts:
    """n trajectories of one turn."""
    more = {} if tokens is None else {"tokens": tokens}
    return tw.Rollouts.from_columns(
        group=[0] * n, trajectory=list(range(n)), t=[0] * n, reward=np.broadcast_to(rewards, n), anchor=[0] * n, **more
    )


@pytest.mark.parametrize("case", golden("vpr"))
def test_vpr_compares_candidates_as_the_authors_do(case: dict[str, Any]) -> None:
    r = turns(len(case["states"])).with_columns({"turn.choice": case["states"], "turn.score": case["scores"]})
    for mode, options in (("mean_then_batch_whiten", {}), ("group_whiten", {"norm": "std", "whiten": False})):
        found = tw.credit.assign("vpr", r, **options)
        np.testing.assert_allclose(found.values, case[mode], rtol=1e-4, atol=1e-6)  # they add 1e-8 to a deviation, we 1e-6
        np.testing.assert_array_equal(found.columns["turn.mask"], np.array(case["counts"]) > 0)


@pytest.mark.parametrize("case", golden("tcod"))
def test_distillation_credit_is_that_of_the_authors(case: dict[str, Any]) -> None:
    teacher, student, kept, expected = (np.array(case[name]) for name in ("teacher", "student", "mask", "advantage"))
    kept = kept > 0
    rows = [
        Trajectory(0, k, turns=[Turn("s", 0.0, response_ids=[1] * int(own.sum()), logprobs=student[k][own].tolist())])
        for k, own in enumerate(kept)
        if own.any()
    ]
    batch = Batch.of(rows).with_columns({"token.teacher_logprob": teacher[kept]})
    np.testing.assert_allclose(tw.credit.compute("tcod", batch.rollouts, coef=case["coef"]), expected[kept], atol=1e-12)


@pytest.mark.parametrize("case", golden("resrl"))
def test_tokens_of_failures_are_weighted_as_by_the_authors(case: dict[str, Any]) -> None:
    hidden, mask, won, wanted = (
        np.array(case["hidden"]),
        np.array(case["mask"]) > 0,
        np.array(case["success"]) > 0,
        np.array(case["weights"]),
    )
    good, bad = hidden[won][mask[won]], hidden[~won][mask[~won]]
    expected = np.where(np.repeat(won, mask.sum(1)), 0.1, wanted[mask])
    column = np.full(mask.sum(), np.nan)
    if len(good) >= 4:
        column[np.repeat(~won, mask.sum(1))] = residuals(normed(good), normed(bad), case["rank"])
    r = turns(len(won), mask.sum(1).tolist(), won.astype(float)).with_columns({"token.residual": column})
    found = tw.credit.assign("resrl", r).columns["token.residual_weight"]
    np.testing.assert_allclose(found, expected, **SINGLE)


class Said(dict[str, Any]):
    outputs: dict[str, torch.Tensor]


def head_loss(name: str, value: Any, target: Any, **options: Any) -> float:
    said = Said({f"turn.target_{name}": torch.tensor(target, dtype=torch.float64)})
    said.outputs = {name: torch.tensor(value, dtype=torch.float64)}
    return float(Heads(heads={name: "turn"}, weights={name: 2.0}, **options).loss(said)[0])


def policy_loss(advantages: Any, logprobs: list[list[float]], aggregation: str) -> float:
    """Of turns with these advantages, or one advantage per token."""
    turn = torch.tensor(np.repeat(np.arange(len(logprobs)), [len(row) for row in logprobs]))
    values = np.concatenate([np.broadcast_to(a, len(row)) for a, row in zip(advantages, logprobs, strict=True)])
    new, own = torch.tensor(np.concatenate(logprobs)), torch.tensor(values)
    weight = token_weights(turn, turn, aggregation, None, dtype=torch.float64)
    return float(Loss("reinforce")(Tokens(new, new, own, turn, turn, weight))[0])


@pytest.mark.parametrize("case", golden("step_hrl"))
def test_the_three_losses_of_step_hrl_are_those_of_the_authors(case: dict[str, Any]) -> None:
    rows = list(zip(*(case[name] for name in ("reward", "done", "next_value", "q", "v", "q_state", "logprobs")), strict=True))
    target = [reward + 0.99 * (1 - done) * later for reward, done, later, *_ in rows]
    assert head_loss("v", case["v"], case["q_state"], expectiles={"v": 0.05}) == pytest.approx(case["value_loss"], rel=1e-9)
    assert head_loss("q", case["q"], target) == pytest.approx(case["q_loss"], rel=1e-9)
    r = turns(len(rows)).with_columns({"turn.q": case["q"], "turn.v": case["v"], "turn.role": [1] * len(rows)})
    advantage = np.asarray(tw.credit.compute("step_hrl", r))
    assert policy_loss(advantage, case["logprobs"], "turn") == pytest.approx(case["actor_loss"], rel=1e-5)
    if len(rows) == 1:  # with more turns, the authors' line multiplies every advantage with every log-prob
        assert case["actor_loss_as_written"] == pytest.approx(case["actor_loss"])


@pytest.mark.parametrize("case", golden("archer"))
def test_the_losses_of_archer_are_those_of_the_authors(case: dict[str, Any]) -> None:
    names = ("q1", "q2", "v1", "v2")
    values = {name: case[name] for name in names}
    n = len(case["q1"])
    reward, goes_on = np.array(case["reward"]), 1.0 - np.array(case["done"])
    goals = {f"q{k}": reward + 0.9 * goes_on * case[f"target_v{k}"] for k in "12"} | {f"v{k}": case[f"target_q{k}"] for k in "12"}
    loss = sum(head_loss(name, values[name], goals[name]) for name in names)
    assert loss == pytest.approx(case["critic_loss"], rel=1e-6)
    columns = {f"turn.{name}": values[name] for name in names} | {"turn.critic_only": [0.0] * n}
    lengths = [len(row) for row in case["logprobs"]]
    r = turns(n, lengths).with_columns(columns)
    advantage = np.asarray(tw.credit.compute("archer", r))
    assert policy_loss(advantage, case["logprobs"], "turn_sum") == pytest.approx(case["actor_loss"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("case", golden("clip_cov"))
def test_the_reference_of_clip_cov_leaves_out_what_the_authors_function_does(case: dict[str, Any]) -> None:
    kept = np.array(case["mask"]) > 0
    old, new, advantages = ([np.array(case[name])[kept].tolist()] for name in ("old", "new", "advantages"))
    eligible, without = (np.array(case[name])[kept] > 0 for name in ("eligible", "without"))
    found = clip_cov.candidates(new, old, advantages, case["cov_low"], case["cov_high"], case["low"], case["high"])
    assert found == [(0, t) for t in np.flatnonzero(eligible)]
    assert without.sum() == min(clip_cov.number(len(eligible), case["fraction"]), eligible.sum())
    loss, _ = clip_cov.losses(new, old, advantages, {(0, int(t)) for t in np.flatnonzero(without)}, case["low"], case["high"])
    assert np.mean(loss[0]) == pytest.approx(case["loss"], rel=1e-9)


@pytest.mark.parametrize("case", golden("vineppo"))
def test_values_of_fresh_attempts_give_the_authors_advantages(case: dict[str, Any]) -> None:
    r = Batch.of([Trajectory(0, 0, turns=[Turn("s", reward) for reward in case["rewards"]])]).rollouts
    values = [np.nan if value is None else value for value in case["values"]]
    np.testing.assert_allclose(tw.credit.compute("vineppo", r.with_columns({"turn.mc_value": values})), case["advantages"], atol=1e-6)
