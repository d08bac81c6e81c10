"""Credit, penalties and rejection against what the authors' own functions returned on random batches (tests/references/golden)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import turnwise as tw
from turnwise.methods.dpepo import weights as diversity
from turnwise.methods.epo import Epo
from turnwise.objectives import Loss
from turnwise.objectives.registry import corrections
from turnwise.objectives.tokens import Tokens, token_weights

GOLDEN = Path(__file__).parents[1] / "references" / "golden"
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def cases(name: str, key: str = "cases") -> list[Any]:
    found: list[Any] = json.loads((GOLDEN / f"{name}.json").read_text())[key]
    assert found
    return found


def rows_of(group: Any, trajectory: Any, reward: Any, **columns: Any) -> tuple[tw.Rollouts, Any]:
    """Rollouts of turns that stand in time order, with further columns; and the numbers of the turns in their order."""
    seen: dict[Any, int] = {}
    t = []
    for one in trajectory:
        seen[one] = seen.get(one, -1) + 1
        t.append(seen[one])
    r = tw.Rollouts.from_columns(group=group, trajectory=trajectory, t=t, reward=reward, anchor=[0] * len(t))
    return r.with_columns(columns), np.array(t)


def at_end(trajectory: Any, returns: Any) -> Any:
    """A reward for each turn: the attempt's return on its last turn, and 0 before."""
    last = {one: row for row, one in enumerate(trajectory)}
    return np.array([returns[row] if last[one] == row else 0.0 for row, one in enumerate(trajectory)])


@pytest.mark.parametrize("case", cases("ui_s1"))
def test_ui_s1_is_the_authors_function(case: Any) -> None:
    own = {"turn.score": np.array(case["reward"]), "turn.match": np.array(case["matched"], float)}
    r, t = rows_of(case["group"], case["trajectory"], case["reward"], **own)
    assert t.tolist() == case["step"]
    found = tw.credit.assign("ui_s1", r, gamma=case["gamma"], norm="std" if case["std"] else "none", least=0.0)
    np.testing.assert_allclose(found.columns["turn.later_score"], case["returns"], **CLOSE)
    several = np.array([case["group"].count(one) > 1 for one in case["group"]])
    np.testing.assert_allclose(found.values[several], np.array(case["advantage"])[several], **CLOSE)


@pytest.mark.parametrize("case", cases("dpepo", "advantages"))
def test_dpepo_is_the_authors_function(case: Any) -> None:
    reward = at_end(case["trajectory"], case["score"])
    r, _ = rows_of(case["group"], case["trajectory"], reward, **{"turn.diversity": np.array(case["weight"])})
    weighting = "step" if case["over"] == "turns" else "trajectory"
    found = tw.credit.compute("dpepo", r, outcome="return", weighting=weighting)
    members = case["group"] if weighting == "step" else [g for g, _ in set(zip(case["group"], case["trajectory"], strict=True))]
    several = np.array([members.count(one) > 1 for one in case["group"]])
    np.testing.assert_allclose(found[several], np.array(case["advantage"])[several], **CLOSE)


@pytest.mark.parametrize("case", [case for case in cases("dpepo", "weights") if set(case["actions"]) <= set("1234")])
def test_the_diversity_of_a_turn_is_the_authors(case: Any) -> None:
    longest = max(map(len, case["histories"].values()), default=0)
    acts = [
        {copy: own[k - longest + len(own)] for copy, own in case["histories"].items() if k >= longest - len(own)} for k in range(longest)
    ]
    turns = [tw.Turn("s", info={"env": {"acts": own}}) for own in [*acts, case["actions"]]]
    assert diversity(tw.Trajectory(0, 0, turns=turns), 0.8, 0.95, 0.95, 0.8, 0.5)[-1] == pytest.approx(case["alfworld"], abs=5.1e-5)


UNWEIGHTED = [
    case for case in cases("igpo") if case["std"] and case["zero"] == "keep" and case["outcome_weight"] == case["gain_weight"] == 1
]


@pytest.mark.parametrize("case", UNWEIGHTED)
def test_igpo_is_the_authors_function(case: Any) -> None:
    trajectory = [k for k, row in enumerate(case["gains"]) for _ in range(len(row) + 1)]
    gain = np.concatenate([[*row, np.nan] for row in case["gains"]])
    reward = np.concatenate([[0.0] * len(row) + [outcome] for row, outcome in zip(case["gains"], case["outcome"], strict=True)])
    group = [case["group"][k] for k in trajectory]
    r, _ = rows_of(group, trajectory, reward, **{"turn.information_gain": gain})
    found = tw.credit.compute("igpo", r, gamma=case["gamma"], normalise=case["mode"])
    np.testing.assert_allclose(found, np.concatenate(case["advantage"]), **CLOSE)


@pytest.mark.parametrize("case", [case for case in cases("rebel") if not case["std"]])
def test_rebel_is_the_authors_function_also_with_rewards_before_the_end(case: Any) -> None:
    belief = np.unique([str(one) for one in case["belief_group"]], return_inverse=True)[1]
    own = {"turn.belief": belief, "turn.consistency": np.array(case["belief_reward"])}
    attempts = set(zip(case["group"], case["trajectory"], strict=True))
    several = np.array([sum(g == one for g, _ in attempts) > 1 for one in case["group"]])
    share = np.array([1 / case["trajectory"].count(one) for one in case["trajectory"]])
    for reward in (at_end(case["trajectory"], case["returns"]), share * case["returns"]):
        r, _ = rows_of(case["group"], case["trajectory"], reward, **own)
        found = tw.credit.compute("rebel", r, gamma=case["gamma"], weight=case["step_weight"])
        np.testing.assert_allclose(found[several], np.array(case["advantage"])[several], **CLOSE)


@pytest.mark.parametrize("case", cases("epo"))
def test_the_penalty_of_epo_is_the_authors_and_moves_no_weight(case: Any) -> None:
    lengths = [len(row) for row in case["entropy"]]
    flat, turn = np.concatenate(case["entropy"]), np.repeat(np.arange(len(lengths)), lengths)
    entropy = torch.tensor(flat, requires_grad=True)
    zeros, ones = torch.zeros(len(flat), dtype=torch.float64), torch.ones(len(flat), dtype=torch.float64)
    history = torch.tensor(np.array(case["past"])[case["step"]][turn])
    ids = torch.as_tensor(turn)
    tokens = Tokens(zeros, zeros, zeros, ids, ids, ones, entropy=entropy, extra={"history": history})
    objective = Epo(low=case["low"], high=case["high"], penalty=case["alpha"], bonus=0.5, decay=None)
    loss = objective(tokens).loss
    np.testing.assert_allclose(loss.detach().numpy() / 0.5 + flat, np.concatenate(case["penalty"]), atol=1e-7)
    (slope,) = torch.autograd.grad(loss.sum(), entropy)
    assert torch.equal(slope, -0.5 * ones)


def loop_batch(group: Any, returns: Any) -> tw.Rollouts:
    return tw.Rollouts.from_columns(
        group=group, trajectory=np.arange(len(group)), t=[0] * len(group), reward=returns, anchor=[0] * len(group)
    )


@pytest.mark.parametrize("case", cases("loop"))
def test_loop_is_the_authors_functions(case: Any) -> None:
    found = tw.credit.assign("loop", loop_batch(case["group"], case["returns"]))
    kept = found.columns["turn.mask"]
    if np.abs(case["advantage"]).max() >= 0.01:  # of attempts that are all silent, the authors keep one per process
        assert kept.tolist() == [bool(one) for one in case["kept"]]
    np.testing.assert_allclose(found.values[kept], np.array(case["advantage"])[kept], **CLOSE)
    for k in np.flatnonzero(kept):
        new, old = (torch.tensor(case[name][k], dtype=torch.float64) for name in ("new", "old"))
        ids = torch.zeros(len(new), dtype=torch.int64)
        advantage = torch.full_like(new, float(found.values[k]))
        tokens = Tokens(new, old, advantage, ids, ids, token_weights(ids, ids, "trajectory"))
        options = {"clip_low": 0.1 / 1.1, "clip_high": 0.1}
        assert Loss("clip", options)(tokens)[0].item() == pytest.approx(case["loss"][k], rel=1e-4, abs=1e-5)


def levels() -> list[Any]:
    over = {"token": "token", "segment": "turn", "geometric": "trajectory"}
    return [pytest.param(case, over[case["level"]], id=str(k)) for k, case in enumerate(cases("ipa_reject")) if case["level"] in over]


@pytest.mark.parametrize(("case", "over"), levels())
def test_rejected_tokens_are_the_authors_and_so_is_the_mean_after_rejection(case: Any, over: str) -> None:
    mask = np.array(case["mask"]) > 0
    row, place = np.nonzero(mask)
    turn = np.cumsum((np.diff(row, prepend=-1) != 0) | (np.diff(place, prepend=-2) != 1)) - 1  # runs of response tokens
    low, high = case.get("low", 0.8), case.get("high", 1.2)
    difference = None if case["diff"] is None else case["diff"][1]
    reject = corrections["reject"].make({"over": over, "ratio_low": low, "ratio_high": high, "difference": difference}, "correction")
    columns = {name: np.array(case[key])[mask] for name, key in (("old_logprob", "old"), ("engine_logprob", "inference"))}
    rejected = reject.prepare({**columns, "weight": np.ones(len(row)), "turn": turn, "trajectory": row})["importance_rejected"]
    kept = np.array(case["kept"])[mask] > 0
    assert (~rejected).tolist() == kept.tolist()
    weights = token_weights(turn, row, "trajectory", mask=~rejected)
    assert float((weights.numpy() * np.array(case["loss"])[mask]).sum()) == pytest.approx(case["row_mean"], abs=2e-6)
