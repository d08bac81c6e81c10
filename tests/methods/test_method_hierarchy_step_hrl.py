"""STEP-HRL: an environment in three roles, rewards and critics per role against the slow reference, a buffer, and a small run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from collect_cases import numbered
from information_cases import rollouts, start
from order_runs import attempt, gathers
from references import step_hrl
from safetensors.torch import load_file as load_tensors
from slow_objectives import random_tokens
from test_method_objectives_losses import rows

import turnwise as tw
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.learn import checkpoint
from turnwise.learn.auxiliary.model import heads_of
from turnwise.methods.kinds_of_models import Heads
from turnwise.methods.planning import Places, gathered
from turnwise.methods.registry import plans
from turnwise.methods.step_hrl import HEADS, ROLES, step_roles, step_values
from turnwise.objectives import Loss, token_weights
from turnwise.runs.reading import stored_batch

TASK = tw.Task("t", data={"start": 1, "target": 5})


def turn(role: str, reward: float = 0.0, ends: bool = False, completed: bool = False, valid: bool = True) -> tw.Turn:
    step = {"role": role, "ends": ends, "completed": completed}
    return tw.Turn("s", reward, valid, response_ids=[1], logprobs=[-1.0], prompt_ids=[1], info={"env": {"step": step}})


def random_batch(seed: int, attempts: int) -> Batch:
    """Attempts as the environment plays them: subtasks of 1 to 3 actions, cut anywhere."""
    rng = np.random.default_rng(seed)
    made = []
    for k in range(attempts):
        turns: list[tw.Turn] = []
        for _ in range(int(rng.integers(1, 4))):
            turns.append(turn("subtask"))
            actions = int(rng.integers(1, 4))
            for t in range(actions):
                ends, completed = t == actions - 1, bool(t == actions - 1 and rng.random() < 0.7)
                turns.append(turn("action", float(rng.normal()), ends, completed, bool(rng.random() < 0.8)))
                turns.append(turn("progress", 0.0, ends, completed))
        made.append(tw.Trajectory(0, k, turns=turns[: int(rng.integers(1, len(turns) + 1))]))
    return Batch.of(made)


# -- the environment ----------------------------------------------------------------------------------------------------------------


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
        said = env.expert_action()  # type: ignore[attr-defined]
        found = env.step(said)
        roles.append(found.info["step"]["role"])
        if found.done:
            break
        assert other.restore(env.snapshot()) == found.observation  # type: ignore[attr-defined]
        assert other.expert_action() == env.expert_action()  # type: ignore[attr-defined]
    assert found.success and set(roles) == set(ROLES) and roles.count("action") == 4
    for wrong in (-1, True):
        with pytest.raises(tw.TurnwiseError, match="subtasks is the largest number of actions"):
            tw.make("numberline", subtasks=wrong)
    with pytest.raises(tw.TurnwiseError, match="subtasks are shown as text"):
        tw.make("numberline", subtasks=2, observe="image").reset(TASK)
    assert type(tw.make("numberline", subtasks=0)) is type(tw.make("numberline"))


def test_an_experts_plan_becomes_subtasks_of_three_actions() -> None:
    class Planned:
        def expert(self, task: tw.Task) -> list[str]:
            return list("abcd")

    from turnwise.methods.step_hrl import SubtasksEnv

    assert SubtasksEnv(Planned(), 9)._expert(TASK) == ["c", "a", "a", "b", "a, b", "c; done", "a, b, c", "d", "d; done"]


# -- rewards, targets, losses ---------------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("attempts", [1, 5])
def test_targets_come_from_the_same_role_of_the_target_critics_which_follow_first(seed: int, attempts: int) -> None:
    batch, rng = random_batch(seed, attempts), np.random.default_rng(seed)
    batch = batch.with_columns(dict(step_roles(batch, None)))
    said, later = ({name: rng.normal(size=len(batch)) for name in HEADS} for _ in range(2))
    followed = []
    critic = SimpleNamespace(outputs=lambda _: said)
    target = SimpleNamespace(outputs=lambda _: later, follow=lambda other, share: followed.append((other, share)))
    found = step_values(batch, {"critic": critic, "critic_target": target}, gamma=0.8, tau=0.3)
    assert followed == [(critic, 0.3)]
    role, ends, reward = (np.asarray(batch.column(f"turn.{name}")) for name in ("role", "role_ends", "role_reward"))
    for k in range(len(batch.trajectories)):
        own = list(batch.rows(k))
        for place, row in enumerate(own):
            name = ROLES[role[row]]
            after = next((later[f"v_{name}"][other] for other in own[place + 1 :] if role[other] == role[row]), 0.0)
            expected = step_hrl.q_target(reward[row], bool(ends[row]), after, 0.8)
            assert found[f"turn.target_q_{name}"][row] == pytest.approx(expected, abs=1e-6)
            assert found[f"turn.target_v_{name}"][row] == later[f"q_{name}"][row]
            assert (found["turn.q"][row], found["turn.v"][row]) == (said[f"q_{name}"][row], said[f"v_{name}"][row])
            assert all(np.isnan(found[f"turn.target_{head}"][row]) for head in HEADS if not head.endswith(name))


class Said(dict[str, Any]):
    outputs: dict[str, torch.Tensor]


@pytest.mark.parametrize("low", [True, False])
def test_v_learns_an_expectile_and_q_the_mean(low: bool) -> None:
    rng = np.random.default_rng(1)
    value, target = torch.tensor(rng.normal(size=7), requires_grad=True), torch.tensor(rng.normal(size=7))
    target[-1] = value[-1].detach()  # no error at all
    for expectiles in ({"v": 0.05 if low else 0.95}, None):
        kind = Heads(heads={"v": "turn"}, weights={"v": 2.0}, expectiles=expectiles)
        said = Said({"turn.target_v": target})
        said.outputs = {"v": value}
        loss, _ = kind.loss(said)
        [gradient] = torch.autograd.grad(loss, value)
        pairs = zip(value.tolist(), target.tolist(), strict=True)
        each = [step_hrl.value_loss(v, q, 0.95, low) if expectiles else step_hrl.q_loss(v, q) for v, q in pairs]
        assert loss.item() == pytest.approx(np.mean([one[0] for one in each]), abs=1e-9)
        np.testing.assert_allclose(gradient, [one[1] / 7 for one in each], atol=1e-9)
    for wrong, words in (({"v": 1.0}, "between 0 and 1"), ({"w": 0.5}, "expectiles")):
        with pytest.raises(tw.TurnwiseError, match=words):
            Heads(heads={"v": "turn"}, expectiles=wrong)


@pytest.mark.parametrize("case", [{}, {"groups": 1, "size": 1, "turns": 1}])
def test_credit_is_q_minus_v_and_roles_weigh_the_same(case: dict[str, int]) -> None:
    r, rng = rollouts(1, **case), np.random.default_rng(3)
    columns: dict[str, Any] = {
        "turn.q": rng.normal(size=len(r)),
        "turn.v": rng.normal(size=len(r)),
        "turn.role": rng.integers(0, 3, len(r)),
    }
    own = np.array([-step_hrl.actor_loss(q, v, 1.0)[0] for q, v in zip(columns["turn.q"], columns["turn.v"], strict=True)])
    plain = tw.credit.assign("step_hrl", r.with_columns(columns), balance=False)
    np.testing.assert_allclose(plain.values, own, atol=1e-6)
    balanced = tw.credit.assign("step_hrl", r.with_columns(columns)).values
    means = [own[columns["turn.role"] == role].mean() for role in set(columns["turn.role"].tolist())]
    assert balanced.mean() == pytest.approx(np.mean(means), abs=1e-6)
    masked = tw.credit.assign("step_hrl", r.with_columns(columns | {"turn.critic_only": np.ones(len(r))}))
    assert not masked.columns["turn.mask"].any() and not masked.values.any()
    equal = tw.credit.assign("step_hrl", r.with_columns(columns | {"turn.v": columns["turn.q"]}))
    assert not equal.values.any()


@pytest.mark.parametrize("seed", range(3))
def test_the_policys_loss_is_a_mean_over_tokens_and_over_turns(seed: int) -> None:
    tokens = random_tokens(seed, "turn", gaps=False)
    tokens = replace(tokens, weight=token_weights(tokens.turn, tokens.trajectory, "turn", None, dtype=torch.float64))
    loss, _ = Loss("reinforce")(tokens)
    pairs = zip(rows(tokens, tokens.advantage), rows(tokens, tokens.logprob.detach()), strict=True)
    each = [step_hrl.actor_loss(own[0], 0.0, float(np.mean(logprobs)))[0] for own, logprobs in pairs]
    assert loss.item() == pytest.approx(np.mean(each), abs=1e-6)


def test_heads_may_have_hidden_layers_which_start_the_same_in_the_target() -> None:
    first, second = (heads_of(Heads(heads={"q": "turn_end"}, layers=2), 8, "here")[1] for _ in range(2))
    weights = dict(first.named_parameters())
    assert len(weights) == 6 and not any(weights[name].any() for name in ("q.4.weight", "q.4.bias")) and weights["q.0.weight"].any()
    assert all(torch.equal(weight, weights[name]) for name, weight in second.named_parameters())
    assert not torch.equal(weights["q.0.weight"], weights["q.2.weight"])


# -- the plan and a run ---------------------------------------------------------------------------------------------------------------


def played(planned: Start) -> tw.Trajectory:
    found = attempt(planned, 1.0, ("go", "+", "up"))
    for one, role in zip(found.turns, ROLES, strict=True):
        one.info = {"env": {"step": {"role": role, "ends": False, "completed": False}}}
    return found


def test_the_policy_also_learns_from_earlier_attempts_and_later_from_them_alone() -> None:
    options = {"size": 3, "replays": 2, "warmup": 1, "collects": 2}
    plan, places = plans["step_hrl"].make(options, "plan"), Places(numbered(9), 0, 2)
    first, _ = gathers(plan, places, 1, played)
    assert all(one.notes == {"replayed": 0.0, "critic_only": 1.0} for own in first.trajectories for one in own.turns)  # warm-up
    again, same = plans["step_hrl"].make(options, "plan"), Places(places.tasks, 0, 2, used=places.used)
    again.load_state(plan.state())
    seen = []
    for own, used in ((plan, places), (again, same)):
        second, _ = gathers(own, used, 2, played)
        notes = [one.turns[0].notes for one in second.trajectories]
        assert notes == [{"replayed": 0.0, "critic_only": 0.0}] * 4 + [{"replayed": 1.0, "critic_only": 0.0}] * 2
        assert second.counts["replayed"] == 2 and second.counts["buffer"] == 3 and second.counts["subtasks"] == 1
        third = gathered(own, used, 2, lambda starts: pytest.fail("nothing is collected any more"))
        assert [one.turns[0].notes["replayed"] for one in third.trajectories] == [1.0, 1.0]
        seen.append([list(one.turns[0].response_ids) for one in (*second.trajectories, *third.trajectories)])
    assert seen[0] == seen[1]


def test_a_run_plays_roles_trains_its_critics_and_continues_after_a_resume(tmp_path: Path) -> None:
    own = {"method.name": "step_hrl", "method.replays": 2, "method.critic_lr": 1e-3, "method.longest": 2, "method.tau": 0.5}
    size = {"agent.max_prompt_tokens": 240, "model.tiny.max_length": 256, "engine.max_tokens": 8, "env.max_turns": 6, "eval.n": 1}
    changes = {**own, **size, "iterations": 2, "method.collects": 1, "collect.groups": 1, "collect.group_size": 3, "sft": None}
    run = start(tmp_path / "whole", **changes)
    batch = stored_batch(run, 1)
    texts = [one.observation for trajectory in batch.trajectories for one in trajectory.turns]
    role = np.asarray(batch.column("turn.role"))
    asked = [[f"Say the {word}" in text for text in texts] for word in ("next subtask", "next action", "progress")]
    assert all((role == number).tolist() == told for number, told in enumerate(asked)) and set(role.tolist()) == {0, 1, 2}
    for number, name in enumerate(ROLES):
        known = np.isfinite(np.asarray(batch.column(f"turn.target_q_{name}"), np.float64))
        assert (known == (role == number)).all()
    lines = run.metrics()
    assert [(line["collect/replayed"], line["collect/trajectories"]) for line in lines[1:]] == [(0, 3), (2, 2)]
    assert lines[1]["collect/subtasks"] > 1 and all(np.isfinite(lines[-1][f"model/critic/loss_{name}"]) for name in HEADS)
    stopped = start(tmp_path / "stopped", **{**changes, "iterations": 1})
    resumed = tw.train(resume=stopped.folder, iterations=2, quiet=True).folder
    ends = [checkpoint.latest_good(folder / "checkpoints") for folder in (run.folder, resumed)]
    for name in ("weights", "model_critic", "model_critic_target"):
        whole, parts = (load_tensors(found.path / f"{name}.safetensors") if found else {} for found in ends)
        assert whole and all(torch.equal(whole[key], parts[key]) for key in whole)
