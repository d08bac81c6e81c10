"""ArCHer and STEP-HRL: critics that learn towards target critics, a buffer that survives a stop, an environment in roles, small runs.
(What the losses are is compared with the authors' own numbers: tests/credit/test_authors_credit.py.)"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from collect_cases import gathered, numbered
from method_cases import attempt, gathers, make, resumes_alike, rollouts, train

import turnwise as tw
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.learn.auxiliary.model import heads_of
from turnwise.methods.archer import archer_values
from turnwise.methods.kinds_of_models import Heads
from turnwise.methods.planning import TaskSlots
from turnwise.methods.step_hrl import HEADS, ROLES, SubtasksEnv, step_roles, step_values
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

NAMES = ("q1", "q2", "v1", "v2")
CRITICS = {"q1": "turn_end", "q2": "turn_end", "v1": "turn", "v2": "turn"}
TASK = tw.Task("t", data={"start": 1, "target": 5})


class Critic:
    """Says random values, and remembers whom it followed."""

    def __init__(self, rng: np.random.Generator, heads: Any, size: int):
        self.values = {name: rng.normal(size=size) for name in heads}
        self.followed: list[Any] = []

    def outputs(self, batch: Batch) -> dict[str, Any]:
        return self.values

    def follow(self, other: Any, share: float) -> None:
        self.followed.append((other, share))


def critics(rng: np.random.Generator, heads: Any, size: int) -> tuple[Critic, Critic, dict[str, Critic]]:
    critic, target = (Critic(rng, heads, size) for _ in range(2))
    return critic, target, {"critic": critic, "critic_target": target}


# -- ArCHer -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 5])
def test_targets_come_from_the_target_critics_which_follow_first(attempts: int) -> None:
    rng = np.random.default_rng(attempts)
    made = []
    for k in range(attempts):
        notes = {"replayed": float(k % 3 == 0), "critic_only": float(k % 3 == 0)}
        turns = [tw.Turn("s", float(rng.normal()), response_ids=[1], logprobs=[-1.0], notes=notes) for _ in range(int(rng.integers(1, 5)))]
        made.append(tw.Trajectory(0, k, turns=turns))
    batch = Batch.of(made)
    critic, target, models = critics(rng, NAMES, len(batch))
    found, later = archer_values(batch, models, gamma=0.8, tau=0.3), target.values
    assert target.followed == [(critic, 0.3)] and all((found[f"turn.{name}"] == critic.values[name]).all() for name in NAMES)
    for k, one in enumerate(batch.trajectories):
        own = list(batch.rows(k))
        for place, row in enumerate(own):
            after = [0.0 if row == own[-1] else later[name][row + 1] for name in ("v1", "v2")]
            q = [one.turns[place].reward + 0.8 * value for value in after]
            v = [np.nan if k % 3 == 0 else later[name][row] for name in ("q1", "q2")]  # V only where the current policy has acted
            np.testing.assert_allclose([found[f"turn.target_{name}"][row] for name in NAMES], [*q, *v], atol=1e-9)


def test_turns_for_the_critics_alone_are_masked() -> None:
    r, rng = rollouts(1), np.random.default_rng(3)
    columns = {f"turn.{name}": rng.normal(size=len(r)) for name in NAMES} | {"turn.critic_only": (rng.random(len(r)) < 0.3).astype(float)}
    kept = columns["turn.critic_only"] == 0
    q1, q2, v1, v2 = (columns[f"turn.{name}"] for name in NAMES)
    found = tw.credit.assign("archer", r.with_columns(columns))
    np.testing.assert_allclose(found.values, np.where(kept, np.minimum(q1, q2) - np.minimum(v1, v2), 0.0), atol=1e-6)
    np.testing.assert_array_equal(found.columns["turn.mask"], kept)
    earlier = tw.credit.assign("archer", r.with_columns(columns), baseline=False)  # as the record of an earlier run has it
    np.testing.assert_array_equal(earlier.values, found.values)
    with pytest.raises(tw.TurnwiseError, match="no option 'baseline' any more: remove it"):
        tw.credit.assign("archer", r.with_columns(columns), baseline=True)


def test_two_heads_start_apart_and_the_same_in_the_target() -> None:
    for spread, apart in ((0.0, False), (0.1, True)):
        first, second = (heads_of(Heads(heads=CRITICS, spread=spread), 8, "here")[1] for _ in range(2))
        weights = {name: dict(first.named_parameters())[f"{name}.weight"] for name in NAMES}
        assert (not torch.equal(weights["q1"], weights["q2"])) == apart == bool(weights["v1"].any())
        assert all(torch.equal(weights[name], dict(second.named_parameters())[f"{name}.weight"]) for name in NAMES)
    deep, same = (dict(heads_of(Heads(heads={"q": "turn_end"}, layers=2), 8, "here")[1].named_parameters()) for _ in range(2))
    assert len(deep) == 6 and not any(deep[name].any() for name in ("q.4.weight", "q.4.bias")) and deep["q.0.weight"].any()
    assert all(torch.equal(weight, deep[name]) for name, weight in same.items())
    assert not torch.equal(deep["q.0.weight"], deep["q.2.weight"])
    for wrong, words in (({"v": 1.0}, "between 0 and 1"), ({"w": 0.5}, "expectiles")):
        with pytest.raises(tw.TurnwiseError, match=words):
            Heads(heads={"v": "turn"}, expectiles=wrong)


def in_roles(planned: Start) -> tw.Trajectory:
    found = attempt(planned, 1.0, ("go", "+", "up"))
    for one, role in zip(found.turns, ROLES, strict=True):
        one.info = {"env": {"step": {"role": role, "ends": False, "completed": False}}}
    return found


@pytest.mark.parametrize("name", ["archer", "step_hrl"])
def test_earlier_attempts_come_back_and_the_buffer_is_kept(name: str) -> None:
    """For ArCHer's critics alone; STEP-HRL's policy learns from them too, and later from them alone."""
    options = {"size": 3, "replays": 2, "warmup": 1} | ({"collects": 2} if name == "step_hrl" else {})
    plan, slots = make(name, **options), TaskSlots(numbered(9), 0, 2)
    first, _ = gathers(plan, slots, 1, in_roles)
    assert all(turn.notes == {"replayed": 0.0, "critic_only": 1.0} for one in first.trajectories for turn in one.turns)  # warm-up
    again, same = make(name, **options), TaskSlots(slots.tasks, 0, 2, used=slots.used)
    again.load_state(plan.state())
    seen = []
    for own, used in ((plan, slots), (again, same)):
        second, _ = gathers(own, used, 2, in_roles)
        notes = [one.turns[0].notes for one in second.trajectories]
        assert notes == [{"replayed": 0.0, "critic_only": 0.0}] * 4 + [{"replayed": 1.0, "critic_only": float(name == "archer")}] * 2
        assert second.counts["replayed"] == 2 and second.counts["buffer"] == 3 and len({one.id for one in second.trajectories}) == 6
        learned = second.trajectories
        if name == "step_hrl":
            third = gathered(own, used, 2, lambda starts: pytest.fail("nothing is collected any more"))
            assert [one.turns[0].notes["replayed"] for one in third.trajectories] == [1.0, 1.0] and second.counts["subtasks"] == 1
            learned = [*learned, *third.trajectories]
        seen.append([list(one.turns[0].response_ids) for one in learned])
    assert seen[0] == seen[1]


def test_a_run_of_archer_trains_critics_on_old_turns_and_the_policy_on_new_ones_also_after_a_stop(tmp_path: Path) -> None:
    own = {"name": "archer", "replays": 4, "warmup": 1, "critic_lr": 1e-3, "critic_epochs": 1, "tau": 0.5}
    changes = {"method": own, "iterations": 3, "collect.group_size": 2}
    whole = train(tmp_path / "whole", **changes)
    first, last = (stored_batch(Run.open(whole.folder), n) for n in (1, 3))
    assert not first.column("turn.mask").any() and not np.asarray(first.column("turn.advantage")).any()
    old = np.asarray(last.column("turn.replayed")) > 0
    assert old.any() and (last.column("turn.mask") == ~old).all()
    np.testing.assert_array_equal(np.asarray(last.column("turn.advantage")) != 0, ~old)
    assert not np.allclose(last.column("turn.q1"), last.column("turn.q2"))
    assert [line["collect/replayed"] for line in whole.metrics[1:]] == [0, 4, 4]
    assert all(np.isfinite(whole.metrics[-1][f"model/critic/loss_{name}"]) for name in NAMES)
    resumes_alike(tmp_path / "stopped", whole, 3, **changes)


# -- STEP-HRL: the environment ------------------------------------------------------------------------------------------------------


def test_one_agent_plays_three_roles_and_only_actions_reach_the_environment() -> None:
    env = tw.make("numberline", highest=9, subtasks=2)
    said = env.reset(TASK)
    assert "Say the next subtask." in said.text and "Current: 1" in said.text and said.actions is None
    first = env.step("walk up")
    assert "Subtask: walk up" in first.observation.text and first.info["step"] == {"role": "subtask", "ends": False, "completed": False}
    acted = env.step("+ ; Done")
    assert "Current: 2" in acted.observation.text and "Action: +" in acted.observation.text and acted.observation.actions is None
    assert acted.info["step"] == {"role": "action", "ends": True, "completed": True}
    noted = env.step("went up once")
    assert noted.info["step"] == {"role": "progress", "ends": True, "completed": True} and noted.reward == 0
    assert "Subtasks so far: walk up\nLast progress: went up once" in noted.observation.text
    env.step("further")
    assert not env.step("+").info["step"]["ends"]
    assert "Progress: one more" in env.step("one more").observation.text
    assert env.step("+").info["step"] == {"role": "action", "ends": True, "completed": False}  # two actions are the most
    env.step("here")
    env.step("last")
    won = env.step("+")
    assert won.done and won.success and won.info["step"] == {"role": "action", "ends": True, "completed": True}
    with pytest.raises(tw.TurnwiseError, match="reset"):
        env.step("+")


def test_the_expert_plays_all_roles_and_the_state_can_be_restored() -> None:
    env, other = (tw.make("numberline", highest=9, subtasks=5) for _ in range(2))
    env.reset(TASK)
    roles = []
    for _ in range(30):
        found = env.step(env.expert_action())  # type: ignore[attr-defined]
        roles.append(found.info["step"]["role"])
        if found.done:
            break
        assert other.restore(env.snapshot()) == found.observation  # type: ignore[attr-defined]
        assert other.expert_action() == env.expert_action()  # type: ignore[attr-defined]
    assert found.success and set(roles) == set(ROLES) and roles.count("action") == 4
    planned = SubtasksEnv(SimpleNamespace(expert=lambda task: list("abcd")), 9)
    assert planned._expert(TASK) == ["c", "a", "a", "b", "a, b", "c; done", "a, b, c", "d", "d; done"]


# -- STEP-HRL: rewards, targets, a run ------------------------------------------------------------------------------------------------


def turn(role: str, reward: float = 0.0, ends: bool = False, completed: bool = False, valid: bool = True) -> tw.Turn:
    step = {"role": role, "ends": ends, "completed": completed}
    return tw.Turn("s", reward, valid, response_ids=[1], logprobs=[-1.0], prompt_ids=[1], info={"env": {"step": step}})


def test_rewards_and_ends_belong_to_roles() -> None:
    turns = [turn("subtask"), turn("action", 2.0), turn("progress"), turn("action", 3.0, True, True), turn("progress", 0.0, True, True)]
    turns += [turn("subtask"), turn("action", 5.0, valid=False), turn("progress"), turn("action", 7.0)]
    batch = Batch.of([tw.Trajectory(0, 0, turns=turns)])
    found = step_roles(batch, None)
    assert found["turn.role"].tolist() == [0, 1, 2, 1, 2, 0, 1, 2, 1]
    assert found["turn.role_reward"].tolist() == [5, 0, 0, 1, 1, 12, -1, -1, 0]
    assert found["turn.role_ends"].tolist() == [False, False, False, True, True, True, False, True, True]
    own = step_roles(batch, None, rewarded="environment")
    assert own["turn.role_reward"].tolist() == [5, 2, 2, 3, 3, 12, 5, 5, 7]
    with pytest.raises(tw.TurnwiseError, match=r"env\.options\.subtasks"):
        step_roles(Batch.of([tw.Trajectory(0, 0, turns=[tw.Turn("s")])]), None)


@pytest.mark.parametrize("seed", range(4))
def test_targets_come_from_the_same_role_of_the_target_critics_which_follow_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = []
    for k in range(4):  # subtasks of 1 to 3 actions, cut anywhere
        turns: list[tw.Turn] = []
        for _ in range(int(rng.integers(1, 4))):
            turns.append(turn("subtask"))
            actions = int(rng.integers(1, 4))
            for t in range(actions):
                ends, completed = t == actions - 1, bool(t == actions - 1 and rng.random() < 0.7)
                turns += [turn("action", float(rng.normal()), ends, completed), turn("progress", 0.0, ends, completed)]
        made.append(tw.Trajectory(0, k, turns=turns[: int(rng.integers(1, len(turns) + 1))]))
    batch = Batch.of(made)
    batch = batch.with_columns(dict(step_roles(batch, None)))
    critic, target, models = critics(rng, HEADS, len(batch))
    found, said, later = step_values(batch, models, gamma=0.8, tau=0.3), critic.values, target.values
    assert target.followed == [(critic, 0.3)]
    role, ends, reward = (np.asarray(batch.column(f"turn.{name}")) for name in ("role", "role_ends", "role_reward"))
    for k in range(len(batch.trajectories)):
        own = list(batch.rows(k))
        for place, row in enumerate(own):
            name = ROLES[role[row]]
            after = next((later[f"v_{name}"][other] for other in own[place + 1 :] if role[other] == role[row]), 0.0)
            assert found[f"turn.target_q_{name}"][row] == pytest.approx(reward[row] + (0.0 if ends[row] else 0.8 * after), abs=1e-6)
            assert found[f"turn.target_v_{name}"][row] == later[f"q_{name}"][row]
            assert (found["turn.q"][row], found["turn.v"][row]) == (said[f"q_{name}"][row], said[f"v_{name}"][row])
            assert all(np.isnan(found[f"turn.target_{head}"][row]) for head in HEADS if not head.endswith(name))


@pytest.mark.parametrize("case", [{}, {"groups": 1, "size": 1, "turns": 1}])
def test_credit_is_q_minus_v_and_roles_weigh_the_same(case: dict[str, int]) -> None:
    r, rng = rollouts(1, **case), np.random.default_rng(3)
    q, v, role = rng.normal(size=len(r)), rng.normal(size=len(r)), rng.integers(0, 3, len(r))
    columns = {"turn.q": q, "turn.v": v, "turn.role": role}
    np.testing.assert_allclose(tw.credit.assign("step_hrl", r.with_columns(columns), balance=False).values, q - v, atol=1e-6)
    balanced = tw.credit.assign("step_hrl", r.with_columns(columns)).values
    assert balanced.mean() == pytest.approx(np.mean([(q - v)[role == number].mean() for number in set(role.tolist())]), abs=1e-6)
    masked = tw.credit.assign("step_hrl", r.with_columns(columns | {"turn.critic_only": np.ones(len(r))}))
    assert not masked.columns["turn.mask"].any() and not masked.values.any()
    assert not tw.credit.assign("step_hrl", r.with_columns(columns | {"turn.v": q})).values.any()


def test_a_run_of_step_hrl_plays_roles_trains_its_critics_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    own = {"name": "step_hrl", "replays": 2, "critic_lr": 1e-3, "longest": 2, "tau": 0.5, "collects": 1}
    size = {"agent.max_prompt_tokens": 240, "model.tiny.max_length": 256, "engine.max_tokens": 8, "env.max_turns": 6}
    changes = {"method": own, **size, "collect.groups": 1, "collect.group_size": 3}
    whole = train(tmp_path / "whole", **changes)
    batch = stored_batch(Run.open(whole.folder), 1)
    texts = [one.observation for trajectory in batch.trajectories for one in trajectory.turns]
    role = np.asarray(batch.column("turn.role"))
    asked = [[f"Say the {word}" in text for text in texts] for word in ("next subtask", "next action", "progress")]
    assert all((role == number).tolist() == told for number, told in enumerate(asked)) and set(role.tolist()) == {0, 1, 2}
    for number, name in enumerate(ROLES):
        known = np.isfinite(np.asarray(batch.column(f"turn.target_q_{name}"), np.float64))
        assert (known == (role == number)).all()
    lines = whole.metrics[1:]
    assert [(line["collect/replayed"], line["collect/trajectories"]) for line in lines] == [(0, 3), (2, 2)]
    assert lines[0]["collect/subtasks"] > 1 and all(np.isfinite(lines[-1][f"model/critic/loss_{name}"]) for name in HEADS)
    resumes_alike(tmp_path / "stopped", whole, 2, **changes)
