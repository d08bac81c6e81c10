"""benchmarks/budget.py: one budget, split between the warm start and reinforcement."""

from __future__ import annotations

import pytest
from conftest import ROOT

from turnwise.config.loading import load_file

budget = load_file(ROOT / "benchmarks" / "budget.py")
LOG = [
    {"sft/steps": 20.0, "sft/turns": 100.0, "sft/epochs": 2.0, "sft/seconds_update": 4.0},
    {"time/iteration": 3.0, "collect/turns": 300.0},
    {"time/iteration": 5.0, "collect/turns": 100.0},
]


def test_costs_are_those_of_the_pilot_in_either_unit() -> None:
    assert budget.costs(LOG, "seconds") == (0.2, 4.0) and budget.costs(LOG, "samples") == (10.0, 200.0)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_split_buys_no_more_than_the_budget_and_wastes_less_than_one_of_each(share: float) -> None:
    bought = budget.split(1000.0, share, 10.0, 200.0)
    spent = 10.0 * bought["sft.steps"] + 200.0 * bought["iterations"]
    assert 1000.0 - 210.0 < spent <= 1000.0
    assert (bought["sft.steps"] == 0) == (share == 0) and (bought["iterations"] == 0) == (share > 0.8)


def test_a_share_of_nothing_has_no_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    class Result:
        metrics = LOG

    def train(recipe: str, **changes: object) -> Result:
        asked.append(changes)
        return Result()

    monkeypatch.setattr(budget.tw, "train", train)
    budget.measure("r.toml", {"sft.steps": 0, "iterations": 5}, "out")
    budget.measure("r.toml", {"sft.steps": 7, "iterations": 1}, "out")
    assert asked[0]["sft"] is None and not any(key.startswith("sft.") for key in asked[0])
    assert asked[1]["sft.steps"] == 7 and asked[1]["sft.at_least"] is None
