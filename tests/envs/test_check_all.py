"""Several environments at once: they keep the rules, refuse options that cannot be, and a table shows what is missing or broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from turnwise.cli.app import app
from turnwise.envs import make, registry
from turnwise.envs.base import Observation, Transition
from turnwise.envs.check import check, check_all
from turnwise.envs.registry import Need, register
from turnwise.util.errors import TurnwiseError

CONTRACT: list[tuple[str, dict[str, Any]]] = [
    ("household", {"anchor": "state"}),
    *((name, {"observe": "both"}) for name in ("sokoban", "numberline", "ezpoints", "points24", "blackjack")),
    *(("gymnasium", {"id": name}) for name in ("FrozenLake-v1", "CliffWalking-v1", "Blackjack-v1")),
]


@pytest.mark.parametrize(("name", "options"), CONTRACT)
def test_the_contract_is_kept(name: str, options: dict[str, Any]) -> None:
    if name == "gymnasium":
        pytest.importorskip("gymnasium", reason="needs gymnasium: pip install gymnasium")
    report = check(name, **options)
    assert report.ok, report.problems


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("household", {"size": "smal"}, "Did you mean 'small'"),
        ("household", {"receptacles": 2}, "receptacles must be 3 to"),
        ("household", {"receptacles": "many"}, "integer or a pair"),
        ("household", {"receptacles": [9, 5]}, "the first number must not be larger"),
        ("household", {"distractors": -1}, "distractors must be at least 0"),
        ("household", {"copies": 0}, "copies must be at least 1"),
        ("household", {"task_types": "pick_and_place"}, "Did you mean 'pick_and_place_simple'"),
        ("household", {"task_types": []}, "at least one task type"),
        ("household", {"rooms": ["attic"]}, "unknown room"),
        ("household", {"rooms": "bathroom", "task_types": "pick_heat_then_place_in_recep"}, "needs a kitchen"),
        ("household", {"receptacles": 50, "task_types": "look_at_obj_in_light"}, "ask for fewer receptacles"),
        ("household", {"anchor": "text"}, "unknown anchor"),
        ("household", {"recepticles": 5}, "Did you mean 'receptacles'"),
        ("household", {"expert_knows": "nothing"}, "expert_knows"),
        ("household", {"furniture": ["desk", "throne"]}, "throne"),
        ("household", {"furniture": ["desk", "drawer"]}, "at least 3"),
        ("household", {"furniture": ["desk", "drawer", "bed"], "receptacles": 4}, "3 to 3"),
        ("household", {"furniture": ["toilet", "fridge", "bed"]}, "toilet"),
        ("sokoban", {"size": 3}, "size"),
        ("sokoban", {"size": [6]}, "size"),
        ("sokoban", {"size": "6"}, "size"),
        ("sokoban", {"boxes": 0}, "boxes"),
        ("sokoban", {"boxes": 9}, "takes 1 to 4"),
        ("sokoban", {"depth": 2, "least": 5}, "least"),
        ("sokoban", {"observe": "sound"}, "observe"),
        ("sokoban", {"anchor": "place"}, "anchor"),
        ("sokoban", {"tile": 1}, "tile"),
        ("numberline", {"highest": 1}, "highest"),
        ("ezpoints", {"rewards": "none"}, "rewards"),
        ("blackjack", {"scale": 0}, "scale"),
        ("points24", {"observe": "smell"}, "observe"),
        ("points24", {"anchor": "x"}, "anchor"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_the_reason(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        make(name, **options)


# The checker on all of them


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
