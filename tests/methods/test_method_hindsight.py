"""Methods that look back: SERL, ResRL and ReBel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from method_cases import FATED, OTHER_GAME, Letters, ids, in_drawers, resumes_alike, rollouts, start, train
from method_tokens import tokens_of
from references import serl as slow_serl

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.envs.household.tracking import facts
from turnwise.methods.rebel import Belief, belief_in, consistency, key_of
from turnwise.methods.resrl import EXACT, directions, evenly, residual
from turnwise.methods.serl import hindsight
from turnwise.objectives import algorithms as objectives
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

# -- SERL -------------------------------------------------------------------------------------------------------------------------


class Teacher(Letters):
    """Remembers what it was asked, and how often it was renewed."""

    renewed = 0

    def follow(self, other: Any) -> None:
        self.renewed += 1

    def logprobs(self, prompts: Any, continuations: Any) -> list[np.ndarray]:
        self.prompts = [self.decode(prompt) for prompt in prompts]
        return [np.full(len(c), -float(len(p))) for p, c in zip(prompts, continuations, strict=True)]


def looking_back(version: int) -> tuple[Teacher, dict[str, Any]]:
    seen = [("a door", "<x>open</x>", "open"), ("it is shut", "hm", "")]
    turns = [
        tw.Turn("s", observation=o, prompt_ids=ids(f"{o} now:"), response_ids=ids(r), response=r, action=a, version=version)
        for o, r, a in seen
    ]
    teacher = Teacher()
    batch = Batch.of([tw.Trajectory(0, 0, turns=turns, final_anchor="dark")])
    return teacher, dict(hindsight(batch, Both(teacher), form="[{}]"))


class Both(dict[str, Any]):
    policy = None

    def __init__(self, teacher: Teacher):
        super().__init__(hindsight=teacher)


def test_the_copy_reads_the_feedback_after_the_observation_and_scores_the_response() -> None:
    teacher, found = looking_back(0)
    assert teacher.prompts == ["a door[it is shut] now:", "it is shut[dark] now:"]
    assert found["token.action"].tolist() == [3 <= place < 7 for place in range(11)] + [False] * 2
    assert found["token.hindsight_logprob"].tolist() == [-23.0] * 11 + [-21.0] * 2


@pytest.mark.parametrize(("version", "share", "renewed"), [(0, 0.5, 0), (10, 0.4, 1), (15, 0.35, 0), (60, 0.0, 1)])
def test_the_share_of_hindsight_falls_and_the_copy_is_renewed(version: int, share: float, renewed: int) -> None:
    teacher, found = looking_back(version)
    np.testing.assert_allclose(found["turn.hindsight_share"], share)
    assert teacher.renewed == renewed


@pytest.mark.parametrize("seed", range(4))
def test_the_objective_of_serl_is_its_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    now, teacher = [(-rng.random(20) * 3).tolist()], (-rng.random(20) * 3)
    advantage = rng.normal(size=20) * (rng.random(20) > 0.2)  # some are 0
    action, share = rng.random(20) > 0.4, slow_serl.mixing(20)
    columns = {"hindsight_logprob": teacher, "action": action, "hindsight_share": np.full(20, share)}
    loss = objectives["serl"].make({"distil": 0.0}, "objective")(tokens_of(now, now, advantage, **columns)).loss
    slow = slow_serl.advantages(advantage.tolist(), teacher.tolist(), now[0], action.tolist(), share)
    np.testing.assert_allclose(-loss.detach(), slow, rtol=1e-6, atol=1e-6)  # the ratio is 1
    idle = tokens_of(now, now, np.zeros(20), **columns)
    objectives["serl"].make({"distil": 0.5, "most": 1.5}, "objective")(idle).loss.sum().backward()
    pull = -0.5 * share * np.exp(teacher - now[0]).clip(max=1.5)  # without credit, only the distillation of actions is left
    np.testing.assert_allclose(idle.logprob.grad, np.where(action, pull, 0.0), rtol=1e-6, atol=1e-6)


def test_serl_weighs_tokens_of_actions_and_goes_on_after_a_stop_with_the_same_copy(tmp_path: Path) -> None:
    changes = {"method.name": "serl", "method.every": 2, "method.horizon": 8}
    whole = train(tmp_path / "whole", **changes)
    batches = [stored_batch(Run.open(whole.folder), n) for n in (1, 2)]
    np.testing.assert_allclose([batch.column("turn.hindsight_share")[0] for batch in batches], [0.5, 0.4375])
    assert batches[1].column("token.action").any()
    assert all(0.8 <= line["learner/hindsight_weight"] <= 1.2 and line["learner/hindsight_gap"] != 0 for line in whole.metrics[1:])
    resumes_alike(tmp_path / "stopped", whole, 2, **changes)


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


@pytest.mark.parametrize("sft", [{}, {"sft": None}])
def test_a_model_that_is_never_shown_a_belief_is_refused_before_it_is_taught(tmp_path: Path, sft: dict[str, Any]) -> None:
    with pytest.raises(tw.TurnwiseError, match=r"reads <belief> out of responses.*sft\.file"):
        start(tmp_path, **{"method.name": "rebel", **sft})
    assert not any(tmp_path.rglob("*.safetensors"))


def test_a_tracker_that_does_not_exist_is_refused_before_the_run_starts(tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match="nowhere"):
        in_drawers(tmp_path, **{"method.name": "rebel", "method.tracker": f"{ROOT}/tests/support/belief_env.py:nowhere"})
