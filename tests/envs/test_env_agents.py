"""The table of agents: what random, scripted and expert agents score on a fixed panel of each environment."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.envs import registry
from turnwise.envs.agents import compare, compare_all
from turnwise.envs.base import Observation, Transition
from turnwise.envs.registry import Need, register


class Switch:
    """Three switches; the right one wins. It has no scripted rule, and breaks the rule that step() raises after the end."""

    max_turns = 4

    def reset(self, task: object, seed: int = 0) -> Observation:
        return Observation("Which?", actions=("left", "middle", "right"))

    def step(self, action: str) -> Transition:
        won = action == "right"
        return Transition(Observation("Well?", actions=("left", "middle", "right")), float(won), won, won)

    def expert_action(self) -> str:
        return "right"


@pytest.fixture
def only_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_specs", {})
    monkeypatch.setattr("turnwise.config.addons.ENVIRONMENTS", {})
    register("switch", Switch)
    register("absent", Switch, needs=[Need("a lamp", lambda: False, "buy one")])


def test_the_expert_wins_where_chance_mostly_does_not() -> None:
    row = compare("numberline", highest=12)
    scores = row["agents"]
    assert row["tasks"] == 31 and row["split"] == "valid" and row["contract"] == []
    assert scores["expert"]["success"] == 1.0 and scores["expert"]["reward"] == 1.0
    assert scores["random"]["success"] < 0.6 and scores["random"]["reward"] < 0
    assert scores["scripted"]["success"] < 0.7


def test_the_same_panel_and_the_same_chance_every_time() -> None:
    assert compare("blackjack", n=30) == compare("blackjack", n=30)


@pytest.mark.usefixtures("only_switch")
def test_what_is_missing_or_broken_is_in_the_table() -> None:
    absent, switch = compare_all(n=10)
    assert absent == {"name": "absent", "missing": ["a lamp"]}
    assert switch["agents"]["scripted"] is None and switch["agents"]["expert"]["turns"] == 1.0
    assert 0 < switch["agents"]["random"]["success"] <= 1 and switch["contract"]
    told = CliRunner().invoke(app, ["envs", "--check"])
    assert told.exit_code == 1 and "missing: a lamp" in told.output and "broken" in told.output
    machine = CliRunner().invoke(app, ["envs", "--check", "--json"])
    assert [row["name"] for row in json.loads(machine.stdout)] == ["absent", "switch"]


def test_a_warm_start_ends_an_example_where_chance_has_spoiled_the_task() -> None:
    from turnwise.agent import Agent, AgentSettings
    from turnwise.collect.warmstart import expert_trajectories
    from turnwise.learn.tiny import build_tiny_for

    options = {"size": 5, "least": 1}
    _, tokenizer = build_tiny_for("sokoban", options=options, sample=5, layers=1, hidden=16, heads=2)
    agent = Agent(tokenizer, AgentSettings(prompt="action"))
    found = expert_trajectories("sokoban", options, tw.tasks("sokoban", "train", n=40, **options), agent, max_turns=15, noise=0.5)
    assert any(trajectory.success for trajectory in found) and any(not trajectory.success for trajectory in found)
