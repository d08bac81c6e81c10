"""The credit that is chosen by what a batch looks like."""

from __future__ import annotations

import json

import numpy as np
import pytest

import turnwise as tw
from turnwise.credit import auto

KNOWN = {
    "repeats": {"family": "one", "features": [1.0, 2.0, 0.5, 0.5], "scores": {"grpo": 0.2, "gigpo": 0.6}},
    "single": {"family": "two", "features": [0.0, 2.0, 0.5, 0.5], "scores": {"grpo": 0.5, "gigpo": 0.4}},
    "hard": {"family": "two", "features": [0.1, 2.0, 0.5, 0.5], "scores": {"grpo": 0.02, "gigpo": 0.01}},
}


def batch(states: list[list[str]], won: list[bool]) -> tw.Rollouts:
    rows = [
        {"group": i // 2, "trajectory": i, "t": t, "reward": float(won[i] and t == len(path) - 1), "anchor": anchor}
        for i, path in enumerate(states)
        for t, anchor in enumerate(path)
    ]
    return tw.Rollouts.from_columns(**{name: [row[name] for row in rows] for name in rows[0]})


def test_features_are_those_of_the_batch_whatever_the_order_of_rows() -> None:
    r = batch([["a", "b", "a"], ["a", "c"], ["a"], ["b", "c"]], [True, False, True, True])
    # shared states: the a's of the first group, 3 of 8 turns; 8 turns of 4 attempts; one of two groups differs; 3 of 4 succeed
    expected = [3 / 8, np.log(2), 0.5, 0.75]
    np.testing.assert_allclose(auto.features(r), expected)
    np.testing.assert_allclose(auto.features(r.permuted([4, 0, 7, 2, 5, 1, 3, 6])), expected)


def test_the_nearest_regimes_decide() -> None:
    assert auto.best(np.array([0.9, 2.0, 0.5, 0.5]), KNOWN) == "gigpo"
    assert auto.best(np.array([0.05, 2.0, 0.5, 0.5]), KNOWN) == "grpo"
    assert auto.best(np.array([0.9, 60.0, 0.5, 0.5]), KNOWN) in ("grpo", "gigpo")  # far from all of them


def test_regret_is_that_of_a_choice_without_the_regimes_family() -> None:
    truth = {name: {"grpo": 0.3, "gigpo": 0.7} for name in KNOWN}
    regret = auto.left_out(KNOWN, truth)
    assert regret["repeats"] == ("grpo", pytest.approx(0.4)) and regret["hard"] == ("gigpo", 0.0)


def test_its_credit_is_that_of_the_chosen_one_and_the_choice_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    r = batch([["a", "b"], ["a", "c"], ["a", "b"], ["a", "d"]], [True, False, False, False])
    for name in ("grpo", "pooled_td"):
        monkeypatch.setattr(auto, "regimes", lambda name=name: {"one": {"features": [1, 0, 0, 0], "scores": {name: 1.0}}})
        np.testing.assert_array_equal(tw.credit.compute("auto", r, norm="none"), tw.credit.compute(name, r, norm="none"))
        assert tw.credit.observe("auto", {}, r, [0.0])["chosen"] == {name: 1.0}


def test_what_it_knows_is_complete() -> None:
    data = json.loads(auto.DATA.read_text())
    assert tuple(data["names"]) == auto.FEATURES and len(data["regimes"]) >= 6
    for regime in data["regimes"].values():
        assert len(regime["features"]) == len(auto.FEATURES) and set(regime["scores"]) <= set(tw.credit.algorithms.names())
