"""The checker on all environments: which of them keep the rules, and what the others lack."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from turnwise.cli.app import app
from turnwise.envs import registry
from turnwise.envs.base import Observation, Transition
from turnwise.envs.check import check_all
from turnwise.envs.registry import Need, register


class Switch:
    """Three switches; the right one wins. It breaks the rule that step() raises after the end."""

    max_turns = 4

    def reset(self, task: object, seed: int = 0) -> Observation:
        return Observation("Which?", actions=("left", "middle", "right"))

    def step(self, action: str) -> Transition:
        won = action == "right"
        return Transition(Observation("Well?", actions=("left", "middle", "right")), float(won), won, won)


@pytest.fixture
def only_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.discover()
    monkeypatch.setattr(registry, "_specs", {})
    monkeypatch.setattr("turnwise.config.addons.ENVIRONMENTS", {})
    register("switch", Switch)
    register("absent", Switch, needs=[Need("a lamp", lambda: False, "buy one")])


@pytest.mark.usefixtures("only_switch")
def test_what_is_missing_or_broken_is_in_the_table() -> None:
    absent, switch = check_all()
    assert absent == {"name": "absent", "missing": ["a lamp"]}
    assert "step() after the end raises EpisodeOver" in switch["contract"]
    told = CliRunner().invoke(app, ["envs", "--check"])
    assert told.exit_code == 1 and "missing: a lamp" in told.output and "broken" in told.output
    machine = CliRunner().invoke(app, ["envs", "--check", "--json"])
    assert [row["name"] for row in json.loads(machine.stdout)] == ["absent", "switch"]
