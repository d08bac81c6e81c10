"""Faults planted into attempts at real environments are among the first findings; where nothing decides, there are none."""

import json

import planted
import pytest

from turnwise.logs.findings import diagnose


@pytest.mark.parametrize("kind", planted.FAULTS)
@pytest.mark.parametrize("name", ["numberline", "search"])
def test_a_planted_fault_is_among_the_first_findings(name, kind):
    trajectories, turns, _ = planted.played(3, (24, 10), name, kind)
    rank = planted.rank_of(diagnose(trajectories), turns)
    assert rank is not None and rank <= 10


def test_where_nothing_decides_there_is_rarely_a_finding():
    trajectories, _, _ = planted.played(4, (12, 12), "numberline", "none")
    false = 0
    for seed in range(40):
        planted.decided_by_nothing(trajectories, seed, "shuffled" if seed % 2 else "coin")
        false += bool(diagnose(trajectories).findings)
    assert false <= 5, "the 97.5 % bound of 40 draws at 5 %"


def test_the_recorded_measurement_is_of_200_sets_on_seeds_of_its_own():
    measured = json.loads((planted.HERE / "planted.json").read_text())
    assert measured["seeds"] == [700, 900] and len(measured["sets"]) == 200
    assert measured["summary"] == json.loads(json.dumps(planted.summary(measured["sets"])))
    assert measured["summary"]["first ten, 200 attempts and more"]["share"] >= 0.8
    assert all(measured["summary"][f"false, {way}"]["share"] <= 0.05 for way in ("shuffled", "coin"))
