"""The credit functions against recorded outputs of their authors' code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import DATA

import turnwise as tw

GOLDEN = DATA.parent / "reference" / "golden"
CASES = sorted(GOLDEN.glob("*.json"))
MODES = {"mean": "none", "mean_std": "std"}


def load(path: Path) -> tuple[dict, tw.Rollouts]:
    case = json.loads(path.read_text())
    columns = {name: case[name] for name in ("group", "trajectory", "t", "reward", "anchor", "valid")}
    return case, tw.Rollouts.from_columns(**columns)


def ours(case: dict, r: tw.Rollouts) -> dict[str, np.ndarray]:
    shared = {"gamma": case["gamma"], "invalid_penalty": case["invalid_penalty"], "weighting": "step"}
    plain = {"invalid_penalty": case["invalid_penalty"], "weighting": "step"}
    found = {"grpo/mean_std/weighting=step": tw.credit.compute("grpo", r, norm="std", **plain)}
    found["rloo/weighting=step"] = tw.credit.compute("rloo", r, **plain)
    for mode, norm in MODES.items():
        why = tw.credit.explain(r, norm=norm, omega=case["omega"], **shared)
        found["step_return"] = why["step_return"]
        found[f"episode/{mode}/weighting=step"] = why["episode"]
        found[f"step/{mode}"] = why["step"]
        found[f"gigpo/{mode}/weighting=step"] = tw.credit.compute("gigpo", r, norm=norm, omega=case["omega"], **shared)
        found[f"hgpo/{mode}/history=2/weights=2,3,4"] = tw.credit.compute("hgpo", r, norm=norm, history=2, weights="code", **shared)
    return found


def excluded(case: dict, name: str, why: dict[str, np.ndarray]) -> np.ndarray:
    """Rows where the reference is known to differ: groups whose values are all equal (it leaves float noise there) and episode
    groups of one row (it gives the raw score)."""
    group = np.array(case["group"])
    charge = case["invalid_penalty"] * ~np.array(case["valid"])
    scores = (
        np.array([sum(r for r, j in zip(case["reward"], case["trajectory"], strict=True) if j == i) for i in case["trajectory"]]) - charge
    )
    steps = why["step_return"] - charge
    flat_episode = np.array([np.ptp(scores[group == g]) < 1e-9 for g in group])
    flat_step = np.array([np.ptp(steps[why["anchor_group"] == a]) < 1e-6 for a in why["anchor_group"]])
    if name == "step_return":
        return np.zeros(len(group), bool)
    if name.startswith(("episode", "grpo", "rloo")):
        return flat_episode
    return flat_episode | flat_step if name.startswith("gigpo") else flat_step


@pytest.mark.skipif(not CASES, reason=f"{GOLDEN} is absent: set TURNWISE_DATA to the folder with the benchmark data")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_equals_the_reference_to_1e_5(path: Path) -> None:
    case, r = load(path)
    found, why = ours(case, r), tw.credit.explain(r, gamma=case["gamma"])
    assert set(found) == set(case["expected"])
    compared = 0
    for name, expected in case["expected"].items():
        skip = excluded(case, name, why)
        np.testing.assert_allclose(found[name][~skip], np.array(expected)[~skip], atol=1e-5, rtol=0, err_msg=name)
        compared += int((~skip).sum())
    assert compared > 0.5 * len(r) * len(found)


@pytest.mark.skipif(not CASES, reason=f"{GOLDEN} is absent: set TURNWISE_DATA to the folder with the benchmark data")
def test_constant_groups_of_the_reference_cases_are_exactly_zero() -> None:
    seen = 0
    for path in CASES:
        case, r = load(path)
        why = tw.credit.explain(r, gamma=case["gamma"], invalid_penalty=case["invalid_penalty"], weighting="step")
        for name in ("step", "episode"):
            skip = excluded(case, f"{name}/x", tw.credit.explain(r, gamma=case["gamma"]))
            assert (why[name][skip] == 0).all()
            seen += int(skip.sum())
    assert seen > 0


# -- recorded with the authors' functions; each file says which ----------------------------------------------------------------------

AUTHORS = Path(__file__).parents[1] / "golden"


def recorded(name: str) -> list[dict]:
    return json.loads((AUTHORS / f"{name}.json").read_text())["cases"]


def columns(case: dict) -> dict:
    """The columns of turns; those of a trajectory stand in time order."""
    trajectory = case["trajectory"]
    names = ("group", "trajectory", "anchor", "reward", "valid", "next_anchor")
    return {name: case[name] for name in names if name in case} | {"t": [trajectory[:i].count(k) for i, k in enumerate(trajectory)]}


@pytest.mark.parametrize("case", recorded("hgpo"))
def test_hgpo_with_the_codes_weights_is_its_public_code(case: dict) -> None:
    found = tw.credit.compute(
        "hgpo", tw.Rollouts.from_columns(**columns(case)), weights="code", gamma=0.0, weighting="step", **case["options"]
    )
    np.testing.assert_allclose(found, case["advantage"], atol=2e-6)


@pytest.mark.parametrize("case", recorded("graph_gpo"))
def test_graph_gpo_over_turns_is_its_public_code(case: dict) -> None:
    found = tw.credit.compute("graph_gpo", tw.Rollouts.from_columns(**columns(case)), weighting="step", **case["options"])
    np.testing.assert_allclose(found, case["advantage"], atol=2e-5)


def single_turns(case: dict, scores: str) -> tw.Rollouts:
    """Attempts of one turn with these returns."""
    n = len(case["group"])
    return tw.Rollouts.from_columns(
        group=case["group"], trajectory=list(range(n)), t=[0] * n, reward=case[scores], anchor=[0] * n, tokens=case.get("tokens")
    )


@pytest.mark.parametrize("case", recorded("verl"))
def test_rloo_dr_grpo_and_both_reinforce_pp_are_those_of_verl(case: dict) -> None:
    r = single_turns(case, "score")
    for name, options in (
        ("rloo", {}),
        ("dr_grpo", {}),
        ("reinforce_pp", {"weighting": "token"}),
        ("reinforce_pp_baseline", {"weighting": "token"}),
    ):
        np.testing.assert_allclose(tw.credit.compute(name, r, **options), case[name], atol=2e-6, err_msg=name)


def test_a_group_of_one_has_no_credit_where_verl_gives_the_raw_score() -> None:
    r = single_turns({"group": [0, 0, 1], "score": [1.0, 0.0, 7.0], "tokens": [2, 3, 4]}, "score")
    for name in ("rloo", "dr_grpo", "reinforce_pp_baseline"):
        assert tw.credit.compute(name, r)[2] == 0.0
    assert tw.credit.compute("snr_weighted", r, norm="std")[2] == 0.0


@pytest.mark.parametrize("case", recorded("gae"))
def test_gae_over_turns_over_tokens_and_over_both_is_that_of_public_code(case: dict) -> None:
    names = ("trajectory", "t", "reward", "value", "tokens", "token_value")
    r = tw.Rollouts.from_columns(group=[0] * len(case["t"]), anchor=[0] * len(case["t"]), **{name: case[name] for name in names})
    for level in ("turn", "token"):
        found = tw.credit.assign("gae", r, level=level, gamma=case["gamma"], lam=case["lam"])
        np.testing.assert_allclose(found.values, case[level], atol=1e-5, err_msg=level)
        np.testing.assert_allclose(found.targets, case[f"{level}_target"], atol=2e-6, err_msg=level)
    both = {"gamma": 0.9, "lam": case["lam"], "token_gamma": case["gamma"], "token_lam": case["lam"]}
    np.testing.assert_allclose(tw.credit.compute("bi_level_gae", r, **both), case["two_levels"], atol=1e-5)


@pytest.mark.parametrize("case", recorded("snr_weighted"))
def test_soft_weights_on_grpo_are_those_of_ragen(case: dict) -> None:
    found = tw.credit.compute("snr_weighted", single_turns(case, "returns"), norm=case["norm"])
    np.testing.assert_allclose(found, case["advantage"], atol=5e-6)
