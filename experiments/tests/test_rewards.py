"""Credit and rewards: EAPO, MICA, VSPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formulas import eapo, mica, vspo
from method_cases import BANDIT, OTHER_GAME, agrees_with, returns_of, rollouts, start

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop
from turnwise.runs.reading import stored_batch
from turnwise_experiments.mica import Potential
from turnwise_experiments.vspo import share_out, staged_reward

GAME: dict[str, Any] = {**OTHER_GAME, "env.name": BANDIT, "sft": None}

# credit function, its options, and the reference
REFERENCES: list[tuple[str, dict[str, Any], Any]] = [
    ("eapo", {"gamma": 0.8}, lambda r, g, n, x: eapo.advantages(r, n, g, gamma=0.8)),
    ("mica", {"gamma": 0.9}, lambda r, g, n, x: mica.advantages(potentials(x), g, gamma=0.9)),
    (
        "mica",
        {"mix": 0.5, "gamma": 1.0, "peers": "depth"},
        lambda r, g, n, x: mica.advantages(potentials(x), g, mix=0.5, gamma=1.0, peers="turn"),
    ),
]


def potentials(gains: list[list[float]]) -> list[list[float]]:
    return [[0.0, *np.cumsum(row)] for row in gains]


@pytest.mark.parametrize("kind", ["random", "constant", "alone"])
@pytest.mark.parametrize(("name", "options", "reference"), REFERENCES)
def test_credit_is_that_of_its_formula(name: str, options: dict[str, Any], reference: Any, kind: str) -> None:
    agrees_with(reference, name, options, kind)


def test_a_shorter_success_is_worth_more_and_failures_are_all_alike() -> None:
    r = tw.Rollouts.from_columns(
        group=[0] * 6, trajectory=[0, 1, 1, 1, 2, 2], t=[0, 0, 1, 2, 0, 1], reward=[1, 0, 0, 1, 0, 0], anchor=[0] * 6
    )
    credit = tw.credit.compute("eapo", r, gamma=0.5)
    assert credit[0] == pytest.approx(credit[3]) and credit[0] > credit[2] > credit[1] > credit[4] == credit[5]


def test_the_value_of_a_group_and_the_copies_follow_the_formula() -> None:
    for seed in range(6):
        r = rollouts(seed, groups=7, size=3)
        found = tw.credit.assign("vspo", r)
        returns = [[x for x, g in zip(*returns_of(r), strict=True) if g == group] for group in range(7)]
        np.testing.assert_allclose(found.columns["group.value"], [vspo.value(x) for x in returns], atol=1e-9)
        copies = np.asarray(found.columns["group.uses"]) - 1
        wanted = np.array(vspo.shares(returns)) * sum(map(vspo.dead, returns))
        assert copies.sum() == round(wanted.sum()) and (np.abs(copies - wanted) < 1).all()


# -- VSPO -------------------------------------------------------------------------------------------------------------------------


def test_copies_go_to_groups_where_a_success_is_rare_and_possible() -> None:
    rewards = [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0]
    r = tw.Rollouts.from_columns(group=np.repeat(range(4), 4), trajectory=range(16), t=[0] * 16, reward=rewards, anchor=[0] * 16)
    plain = tw.credit.compute("grpo", r)
    found = tw.credit.assign("vspo", r, smoothing=0.0)
    np.testing.assert_array_equal(found.columns["group.uses"], [1, 1, 3, 1])
    np.testing.assert_allclose(found.values, plain * np.repeat([1, 1, 3, 1], 4), rtol=1e-6)
    np.testing.assert_allclose(tw.credit.compute("vspo", r, smoothing=1.0), plain)
    assert share_out(np.array([1.0, 1.0, 0.0]), 3).tolist() == [2, 1, 0] and share_out(np.zeros(3), 2).tolist() == [0, 0, 0]


def test_the_outcome_counts_once_all_turns_can_be_parsed_and_the_attempt_ends_by_itself() -> None:
    def attempt(k: int, valid: list[bool], stop: Stop) -> tw.Trajectory:
        turns = [tw.Turn("s", valid=ok, reward=1.0 if n == len(valid) - 1 else 0.0, response_ids=[1]) for n, ok in enumerate(valid)]
        return tw.Trajectory(0, k, "task", turns=turns, stop=stop)

    made = [attempt(0, [True, False], Stop.DONE), attempt(1, [True, True], Stop.STEP_LIMIT), attempt(2, [True, True], Stop.DONE)]
    found = staged_reward(Batch.of(made), None)
    np.testing.assert_allclose(found["turn.reward"], [0, 0.05, 0, 0.1, 0, 1.2])
    assert found["trajectory.stage"].tolist() == [0, 1, 2]


def test_vspo_trains_and_its_copies_are_stored(tmp_path: Path) -> None:
    batch = stored_batch(start(tmp_path, **GAME, **{"method.name": "vspo", "collect.groups": 6, "collect.group_size": 2}), 1)
    uses = np.asarray(batch.column("group.uses"))
    returns = [sum(turn.reward for turn in t.turns) for t in batch.trajectories]
    assert uses.sum() > len(uses) or len({*returns}) == 1
    assert set(np.unique(batch.column("trajectory.stage"))) <= {0, 1, 2}


# -- MICA -------------------------------------------------------------------------------------------------------------------------

JUDGE = '''
def progress(task, turns) -> float:
    """Half a point per turn."""
    return 0.5 * len(turns) + (turns[-1].reward if turns else 0.0)
'''


def test_the_gain_in_potential_is_the_reward_of_a_turn(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    turns = [[tw.Turn("s", response_ids=[1]) for _ in range(n)] for n in (3, 1)]
    batch = Batch.of([tw.Trajectory(0, k, "task", turns=own) for k, own in enumerate(turns)], [tw.Task("task")])
    found = Potential(judge=f"{tmp_path / 'judge.py'}:progress")(batch, None)
    np.testing.assert_allclose(found["turn.potential_gain"], [0.5, 0.5, 0.5, 0.5])
    with pytest.raises(tw.TurnwiseError, match=r"needs a judge.*method\.judge="):
        start(tmp_path / "run", **GAME, **{"method.name": "mica"})


def test_mica_trains_with_the_judge_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    run = start(tmp_path / "run", **GAME, **{"method.name": "mica", "method.judge": f"{tmp_path / 'judge.py'}:progress"})
    batch = stored_batch(run, 1)
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("mica", batch.rollouts, gamma=0.9), atol=1e-6)
    assert np.ptp(batch.column("turn.potential_gain")) > 0
