"""The credit functions against recorded outputs of the reference implementation."""

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
