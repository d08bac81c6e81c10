"""Methods that look back: ResRL and ReBel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT
from method_cases import FATED, OTHER_GAME, in_drawers, rollouts, start

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.envs.household.tracking import facts
from turnwise.methods.rebel import Belief, belief_in, consistency, key_of
from turnwise.methods.resrl import EXACT, directions, evenly, residual
from turnwise.runs.reading import stored_batch

# -- ResRL ------------------------------------------------------------------------------------------------------------------------


def test_tokens_like_those_of_successes_have_no_residual() -> None:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(8, 3)))[0]

    class Policy:
        def hidden(self, batch: Batch, at: str, *, layer: int) -> np.ndarray:
            assert (at, layer) == ("token", -2)
            inside = rng.normal(size=(len(batch.rollouts.token_extra["kind"]), 3)) @ basis.T
            return np.where(np.asarray(batch.column("token.kind"))[:, None] == 2, rng.normal(size=inside.shape), inside)

    won = [tw.Turn("s", reward=1.0, response_ids=[1] * 20)]
    lost = [tw.Turn("s", response_ids=[1] * 6)]
    made = [tw.Trajectory(0, 0, turns=won, success=True), tw.Trajectory(0, 1, turns=lost), tw.Trajectory(1, 2, turns=lost)]
    kinds = [0] * 20 + [1, 2] * 3 + [1] * 6
    batch = Batch.of(made).with_columns({"token.kind": np.array(kinds)})
    found = residual(batch, SimpleNamespace(policy=Policy()), rank=4)["token.residual"]
    assert np.isnan(found[:20]).all() and np.isnan(found[26:]).all()  # successes, and a group without any
    assert found[20:26:2].max() < 1e-2 < found[21:26:2].min()


def test_large_subspaces_are_found_by_iteration() -> None:
    rng = np.random.default_rng(0)
    size = EXACT + 8
    x = rng.normal(size=(size, 3)) @ rng.normal(size=(3, size)) * 10 + rng.normal(size=(size, size)) * 0.01
    v = directions(x - x.mean(0), 3)
    assert v.shape == (size, 3)
    centred = x - x.mean(0)
    assert ((centred - centred @ v @ v.T) ** 2).mean() < 2e-4
    assert evenly(10, 4).tolist() == [0, 3, 6, 9] and evenly(3, 4).tolist() == [0, 1, 2]


def test_resrl_trains_on_weights_from_hidden_states(tmp_path: Path) -> None:
    fate = {**OTHER_GAME, "env.name": FATED, "env.own_seeds": True, "env.tasks": 8, "sft": None}
    run = start(tmp_path, **fate, **{"method.name": "resrl", "method.rank": 4})
    batch = stored_batch(run, 1)
    weight, known = batch.column("token.residual_weight"), ~np.isnan(batch.column("token.residual"))
    won = np.repeat(batch.rollouts.spread("trajectory.success", "turn"), batch.rollouts.tokens)
    assert known.any() and won.any() and not (known & won).any()
    assert (weight[won] == 0.1).all() and np.ptp(weight[known]) > 0.5 and (weight[~won & ~known] == 1).all()
    base = np.repeat(tw.credit.compute("grpo", batch.rollouts), batch.rollouts.tokens)
    np.testing.assert_allclose(batch.column("token.advantage"), base * weight, atol=1e-5)


# -- ReBel ------------------------------------------------------------------------------------------------------------------------


def test_a_belief_is_read_from_a_response_and_anything_else_is_none() -> None:
    assert belief_in('<belief>1</belief> so <belief>{"task": {}}</belief> go') == {"task": {}}
    for text in ("", "<belief>", "<belief>{</belief>", "</belief><belief>", "<belief>[1]</belief>", "<belief>" + "[" * 9999 + "</belief>"):
        assert belief_in(text) is None


def test_beliefs_that_agree_in_phase_target_and_hand_are_one() -> None:
    mug = {"task": {"phase": "Find", "target": "the Mug!"}, "state": {"objects": {"mug 1": "desk 1"}}, "prediction": "x"}
    same = {"task": {"phase": "find ", "target": "a mug"}, "state": {"objects": {"pen 2": "bed 1"}}}
    held = {**same, "state": {"objects": {"mug 1": "in_hand"}}}
    hot = {**same, "state": {"states": {"mug 1": "hot"}}}
    assert key_of(mug, {}) == key_of(same, {}) and len({key_of(belief, {}) for belief in (mug, held, hot)}) == 3
    assert key_of(mug, {"phase": "place"}) != key_of(mug, {})  # the tracker knows the phase better
    assert key_of({"task": 3, "state": ["x"]}, {}) == key_of({}, {})


def test_a_belief_is_rewarded_for_facts_phase_and_prediction() -> None:
    known = {"phase": "place", "objects": {"mug 1": "in_hand", "pen 1": "desk 1"}, "states": {"mug 1": "hot"}}
    belief = {
        "task": {"phase": "place"},
        "state": {"objects": {"Mug 1": "in_hand", "pen 1": "bed 1"}, "states": {}},
        "prediction": "I see a coffeetable and bottle",
    }
    found = consistency(belief, known, "On the coffeetable 1, you see a pan 1.", True)
    assert found == pytest.approx({"state": 1 / 3, "task": 1.0, "prediction": 1 / 2, "form": 0.01})
    assert consistency(belief, known, "", False)["form"] == pytest.approx(-0.01)
    assert consistency(None, known, "", True) == {"form": -0.05}
    assert consistency(belief, {}, "", True)["state"] == 0.0


def test_the_household_tracker_knows_what_the_texts_said() -> None:
    texts = [
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 1.\n\nYour task is to: heat some mug.",
        "You arrive at cabinet 1. The cabinet 1 is open. In it, you see a bowl 2, and a mug 1.",
        "You pick up the mug 1 from the cabinet 1.",
        "You heat the mug 1 using the microwave 1.",
        "You move the mug 1 to the countertop 1.",
        "You arrive at desk 1. On the desk 1, you see nothing.",
    ]
    found = facts(tw.Trajectory(0, 0, turns=[tw.Turn("s", observation=text) for text in texts]))
    assert [one["phase"] for one in found] == ["find", "find", "place", "place", "find", "find"]
    assert found[0]["objects"] == {} and found[1]["objects"] == {"bowl 2": "cabinet 1", "mug 1": "cabinet 1"}
    assert found[3] == {"phase": "place", "objects": {"bowl 2": "cabinet 1", "mug 1": "in_hand"}, "states": {"mug 1": "hot"}}
    assert found[5]["objects"]["mug 1"] == "countertop 1"


def test_turns_without_a_belief_have_no_step_credit_and_a_batch_without_any_is_refused() -> None:
    r = rollouts(0)
    columns = {"turn.belief": np.full(len(r), -1), "turn.consistency": np.random.default_rng(0).normal(size=len(r))}
    np.testing.assert_array_equal(tw.credit.compute("rebel", r.with_columns(columns)), tw.credit.compute("dr_grpo", r))
    with pytest.raises(tw.TurnwiseError, match="no response of this batch states a belief"):
        Belief()(Batch.of([tw.Trajectory(0, 0, turns=[tw.Turn("s", response="go")])]), None)


def test_rebel_compares_turns_of_one_belief(tmp_path: Path) -> None:
    env = ROOT / "tests" / "support" / "belief_env.py"
    changes = {"env.name": f"{env}:Lift", "env.options": {}, "env.max_turns": 4, "sft.tasks": 12, "sft.steps": 60, "engine.max_tokens": 32}
    run = start(tmp_path, **changes, **{"method.name": "rebel", "method.tracker": f"{env}:tracker", "model.tiny.hidden": 64})
    batch = stored_batch(run, 1)
    belief, reward = batch.column("turn.belief"), batch.column("turn.consistency")
    assert (belief >= 0).mean() > 0.5 and len(np.unique(belief[belief >= 0])) == 2  # the tracker's phases: low and high
    right = [
        f'"{"low" if int(turn.observation.split()[1]) < 2 else "high"}"' in turn.response for t in batch.trajectories for turn in t.turns
    ]
    assert reward[np.array(right) & (belief >= 0)].min() > reward[~np.array(right)].max(initial=-1.0)
    step = batch.column("turn.advantage") - tw.credit.compute("dr_grpo", batch.rollouts)
    assert np.abs(step).max() > 1e-3 and (step[belief < 0] == 0).all()


def test_a_tracker_that_does_not_exist_is_refused_before_the_run_starts(tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match="nowhere"):
        in_drawers(tmp_path, **{"method.name": "rebel", "method.tracker": f"{ROOT}/tests/support/belief_env.py:nowhere"})
