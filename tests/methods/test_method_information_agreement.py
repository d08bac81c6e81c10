"""Methods of information and hindsight against slow references that were written from the formulas alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from information_cases import paths, rollouts
from references import a2tgpo as slow_a2tgpo
from references import igpo as slow_igpo
from references import infopo as slow_infopo
from references import serl as slow_serl

import turnwise as tw
from turnwise.credit import algorithms
from turnwise.objectives import algorithms as objectives
from turnwise.objectives.tokens import Tokens

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def constant(r: tw.Rollouts) -> tw.Rollouts:
    """The same with equal returns: 1 at the end of each trajectory."""
    last = np.append(np.diff(r.trajectory) != 0, True)
    return r.with_columns({"turn.reward": last.astype(float)})


CASES = {
    **{f"random {seed}": rollouts(seed) for seed in range(6)},
    "one trajectory": rollouts(10, groups=1, size=1),
    "one trajectory per group": rollouts(11, groups=3, size=1),
    "one turn each": rollouts(12, turns=1),
    "equal returns": constant(rollouts(13)),
    "one token each": rollouts(14).with_columns({"turn.tokens": np.ones(len(rollouts(14)), np.int64)}),
}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> tw.Rollouts:
    found: tw.Rollouts = CASES[request.param]
    return found


def fast(name: str, r: tw.Rollouts, **options: Any) -> Any:
    """The credit function itself, in float64."""
    return algorithms[name].make(options, "credit")(r)


def per_path(r: tw.Rollouts, column: Any) -> list[list[float]]:
    return [np.asarray(column)[rows].tolist() for rows in paths(r)]


def returns(r: tw.Rollouts) -> tuple[list[float], list[int]]:
    """Return and group of each trajectory, in the order of the rows."""
    return [float(r.reward[rows].sum()) for rows in paths(r)], [int(r.group[rows[0]]) for rows in paths(r)]


def numbers(r: tw.Rollouts, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=len(r))


@pytest.mark.parametrize("how", ["joint", "separate"])
@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_igpo_is_its_reference(case: tw.Rollouts, how: str, gamma: float) -> None:
    outcomes, groups = returns(case)
    known = per_path(case, np.random.default_rng(1).random(len(case)))
    gain = [np.append(np.diff(p), np.nan) for p in known]
    r = case.with_columns({"turn.information_gain": np.concatenate(gain)})
    rewards = [slow_igpo.turn_rewards(p, outcome, len(p)) for p, outcome in zip(known, outcomes, strict=True)]
    slow = slow_igpo.paper_advantages(rewards, groups, gamma, how)
    np.testing.assert_allclose(fast("igpo", r, gamma=gamma, normalise=how, version="first"), np.concatenate(slow), **CLOSE)


@pytest.mark.parametrize("zeros", ["count", "skip"])
@pytest.mark.parametrize("how", ["joint", "separate"])
@pytest.mark.parametrize(("gamma", "weights"), [(1.0, (1.0, 1.0)), (0.7, (1.0, 1.0)), (0.9, (0.6, 0.9))])
def test_igpo_is_the_authors_rewrite(case: tw.Rollouts, how: str, gamma: float, weights: tuple[float, float], zeros: str) -> None:
    outcomes, groups = returns(case)
    column = numbers(case) * (np.random.default_rng(2).random(len(case)) > 0.3)  # some turns found out nothing
    gains = [row[:-1] for row in per_path(case, column)]
    r = case.with_columns({"turn.information_gain": np.concatenate([[*row, np.nan] for row in gains])})
    if weights != (1.0, 1.0):
        count = len(r.trajectory_labels)
        r = r.with_columns({"trajectory.outcome_weight": np.full(count, weights[0]), "trajectory.gain_weight": np.full(count, weights[1])})
    zero = "keep" if zeros == "count" else "skip"
    slow = slow_igpo.advantages(gains, outcomes, groups, how, gamma, True, *weights, zero=zero)
    np.testing.assert_allclose(fast("igpo", r, gamma=gamma, normalise=how, zeros=zeros), np.concatenate(slow), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("how", ["joint", "separate"])
def test_igpo_without_gold_answers_is_its_reference_for_the_outcomes_alone(case: tw.Rollouts, how: str) -> None:
    outcomes, groups = returns(case)
    r = case.with_columns({"turn.information_gain": np.full(len(case), np.nan)})
    alone = slow_igpo.paper_advantages([[outcome] for outcome in outcomes], groups, how=how)
    slow = [[own[0] * 0.5**k for k in reversed(range(len(rows)))] for own, rows in zip(alone, paths(case), strict=True)]
    np.testing.assert_allclose(fast("igpo", r, gamma=0.5, normalise=how, version="first"), np.concatenate(slow), **CLOSE)
    alone = slow_igpo.advantages([[] for _ in outcomes], outcomes, groups, how)
    slow = [own * len(rows) for own, rows in zip(alone, paths(case), strict=True)]
    np.testing.assert_allclose(fast("igpo", r, gamma=0.5, normalise=how), np.concatenate(slow), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_a2tgpo_is_its_reference(case: tw.Rollouts, gamma: float) -> None:
    outcomes, groups = returns(case)
    column = numbers(case)
    gains = [row[:-1] for row in per_path(case, column)]
    found = fast("a2tgpo", case.with_columns({"turn.information_gain": column}), gamma=gamma)
    slow = slow_a2tgpo.advantages(gains, outcomes, groups, gamma=gamma)
    np.testing.assert_allclose(found["turn.advantage"], np.concatenate(slow), **CLOSE)
    np.testing.assert_allclose(found["turn.clip_scale"], np.concatenate(slow_a2tgpo.clip_scales(gains, groups)), **CLOSE)


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def tokens_of(rows: list[list[float]], old: list[list[float]], advantage: Any, **extra: Any) -> Tokens:
    """Rows are turns; the columns of `extra` have one entry per token."""
    turn = torch.tensor([k for k, row in enumerate(rows) for _ in row])
    ones = torch.ones(len(turn), dtype=torch.float64)
    logprob = flat(rows).requires_grad_()
    given = torch.as_tensor(np.asarray(advantage), dtype=torch.float64)
    return Tokens(logprob=logprob, old_logprob=flat(old), advantage=given, turn=turn, trajectory=turn, weight=ones, extra=extra)


@pytest.mark.parametrize("seed", range(4))
def test_the_objective_of_a2tgpo_is_its_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, 12)
    old = [(-rng.random(n) * 3).tolist() for n in lengths]
    now = [(np.array(row) + rng.normal(size=len(row)) * 0.006).tolist() for row in old]
    advantage, scale = rng.normal(size=12), 1 + 0.3 * np.tanh(rng.normal(size=12))
    tokens = tokens_of(now, old, np.repeat(advantage, lengths), clip_scale=torch.as_tensor(np.repeat(scale, lengths)))
    loss = objectives["a2tgpo"].make({}, "objective")(tokens).loss
    loss.sum().backward()
    slow_loss, slow_gradient = slow_a2tgpo.losses(now, old, advantage.tolist(), scale.tolist())
    np.testing.assert_allclose(loss.detach(), flat(slow_loss), **CLOSE)
    np.testing.assert_allclose(tokens.logprob.grad, flat(slow_gradient), **CLOSE)


def test_infopo_is_its_reference(case: tw.Rollouts) -> None:
    outcomes, groups = returns(case)
    column = numbers(case) * (np.random.default_rng(2).random(len(case)) > 0.2)  # some turns told nothing
    last = [rows[-1] for rows in paths(case)]
    column[last] = 0.0
    lengths = [[int(n) for n in row] for row in per_path(case, case.tokens)]
    slow = slow_infopo.advantages([row[:-1] for row in per_path(case, column)], lengths, outcomes, groups)
    found = fast("infopo", case.with_columns({"turn.feedback_gain": column}))
    np.testing.assert_allclose(found, [turn[0] for row in slow for turn in row], **CLOSE)
    assert all(len(set(turn)) == 1 for row in slow for turn in row)  # all tokens of a turn are alike


@pytest.mark.parametrize("seed", range(4))
def test_serl_is_its_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    now, teacher = [(-rng.random(20) * 3).tolist()], (-rng.random(20) * 3)
    advantage = rng.normal(size=20) * (rng.random(20) > 0.2)  # some are 0
    action, share = rng.random(20) > 0.4, slow_serl.mixing(20)
    columns = {"hindsight_logprob": teacher, "action": action, "hindsight_share": np.full(20, share)}
    tokens = tokens_of(now, now, advantage, **{name: torch.as_tensor(column) for name, column in columns.items()})
    loss = objectives["serl"].make({"distil": 0.0}, "objective")(tokens).loss
    slow = slow_serl.advantages(advantage.tolist(), teacher.tolist(), now[0], action.tolist(), share)
    np.testing.assert_allclose(-loss.detach(), slow, **CLOSE)  # the ratio is 1

    idle = tokens_of(now, now, np.zeros(20), **tokens.extra)
    objectives["serl"].make({"distil": 0.5, "most": 1.5}, "objective")(idle).loss.sum().backward()
    pull = -0.5 * share * np.exp(teacher - now[0]).clip(max=1.5)  # without credit, only the distillation of actions is left
    np.testing.assert_allclose(idle.logprob.grad, np.where(action, pull, 0.0), **CLOSE)
