"""ArCHer: targets, advantages and losses against the slow reference, a buffer that survives a stop, and a small run."""

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
from references import archer
from safetensors.torch import load_file as load_tensors
from slow_objectives import random_tokens
from test_method_objectives_losses import rows

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.learn import checkpoint
from turnwise.learn.auxiliary.model import heads_of
from turnwise.methods.archer import archer_values
from turnwise.methods.kinds_of_models import Heads
from turnwise.methods.planning import Places
from turnwise.methods.registry import plans
from turnwise.objectives import Loss, token_weights
from turnwise.runs.reading import stored_batch

NAMES = ("q1", "q2", "v1", "v2")
HEADS = {"q1": "turn_end", "q2": "turn_end", "v1": "turn", "v2": "turn"}


def random_batch(seed: int, attempts: int) -> Batch:
    rng = np.random.default_rng(seed)
    made = []
    for k in range(attempts):
        notes = {"replayed": float(k % 3 == 0), "critic_only": float(k % 3 == 0)}
        turns = [tw.Turn("s", float(rng.normal()), response_ids=[1], logprobs=[-1.0], notes=notes) for _ in range(int(rng.integers(1, 5)))]
        made.append(tw.Trajectory(0, k, turns=turns))
    return Batch.of(made)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("attempts", [1, 5])
def test_targets_come_from_the_target_critics_which_follow_first(seed: int, attempts: int) -> None:
    batch, rng = random_batch(seed, attempts), np.random.default_rng(seed)
    said, later = ({name: rng.normal(size=len(batch)) for name in NAMES} for _ in range(2))
    followed = []
    critic = SimpleNamespace(outputs=lambda _: said)
    target = SimpleNamespace(outputs=lambda _: later, follow=lambda other, share: followed.append((other, share)))
    found = archer_values(batch, {"critic": critic, "critic_target": target}, gamma=0.8, tau=0.3)
    assert followed == [(critic, 0.3)] and all((found[f"turn.{name}"] == said[name]).all() for name in NAMES)
    for k, one in enumerate(batch.trajectories):
        own = list(batch.rows(k))
        for place, row in enumerate(own):
            done = place == len(own) - 1
            after = (0.0, 0.0) if done else (later["v1"][own[place + 1]], later["v2"][own[place + 1]])
            q = archer.q_targets(one.turns[place].reward, done, after, 0.8)
            v = archer.v_targets((later["q1"][row], later["q2"][row]))
            expected = (*q, *((np.nan, np.nan) if k % 3 == 0 else v))  # V only where the current policy has acted
            np.testing.assert_allclose([found[f"turn.target_{name}"][row] for name in NAMES], expected, atol=1e-9)


def test_the_critics_loss_is_the_sum_of_four_mean_squared_errors() -> None:
    rng = np.random.default_rng(1)
    values, targets = ({name: torch.tensor(rng.normal(size=6)) for name in NAMES} for _ in range(2))

    class Said(dict[str, Any]):
        outputs = values

    kind = Heads(heads=HEADS, weights=dict.fromkeys(HEADS, 2.0))
    loss, _ = kind.loss(Said({f"turn.target_{name}": targets[name] for name in NAMES}))
    each = [
        archer.critic_loss(*([side[name][i].item() for name in pair] for side in (values, targets) for pair in (NAMES[:2], NAMES[2:])))
        for i in range(6)
    ]
    assert loss.item() == pytest.approx(np.mean(each), abs=1e-9)


def test_credit_is_the_careful_advantage_and_earlier_turns_are_masked() -> None:
    for r in (rollouts(1), rollouts(2, groups=1, size=1, turns=1)):
        rng = np.random.default_rng(3)
        columns = {f"turn.{name}": rng.normal(size=len(r)) for name in NAMES} | {
            "turn.critic_only": (rng.random(len(r)) < 0.3).astype(float)
        }
        found = tw.credit.assign("archer", r.with_columns(columns))
        q1, q2, v1, v2 = (columns[f"turn.{name}"] for name in NAMES)
        expected = [archer.advantage((q1[i], q2[i]), (v1[i], v2[i])) for i in range(len(r))]
        kept = columns["turn.critic_only"] == 0
        np.testing.assert_allclose(found.values, np.where(kept, expected, 0.0), atol=1e-6)
        np.testing.assert_array_equal(found.columns["turn.mask"], kept)


@pytest.mark.parametrize("seed", range(3))
def test_the_policys_loss_is_a_sum_over_tokens_and_a_mean_over_turns(seed: int) -> None:
    tokens = random_tokens(seed, "turn_sum", gaps=False)
    tokens = replace(tokens, weight=token_weights(tokens.turn, tokens.trajectory, "turn_sum", None, dtype=torch.float64))
    loss, _ = Loss("reinforce")(tokens)
    own = [row[0] for row in rows(tokens, tokens.advantage)]
    assert loss.item() == pytest.approx(archer.actor_loss(rows(tokens, tokens.logprob.detach()), own), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_token_baseline_is_subtracted_and_learns_the_advantage(seed: int) -> None:
    r, rng = rollouts(seed), np.random.default_rng(seed)
    n, tokens = len(r), int(r.token_offsets[-1])
    columns = {f"turn.{name}": rng.normal(size=n) for name in NAMES} | {"turn.critic_only": (rng.random(n) < 0.3).astype(float)}
    baseline, logprobs = rng.normal(size=tokens), rng.normal(size=tokens)
    with pytest.raises(tw.TurnwiseError, match=r"token\.baseline"):
        tw.credit.assign("archer", r.with_columns(columns), baseline=True)
    found = tw.credit.assign("archer", r.with_columns(columns | {"token.baseline": baseline}), baseline=True)
    kept = columns["turn.critic_only"] == 0
    own = [range(*r.token_offsets[row : row + 2]) for row in range(n)]
    each = [archer.advantage(*((columns[f"turn.{kind}1"][row], columns[f"turn.{kind}2"][row]) for kind in "qv")) for row in range(n)]
    learned = np.flatnonzero(kept)
    said, below = ([[column[k] for k in own[row]] for row in learned] for column in (logprobs, baseline))
    expected = archer.actor_loss(said, [each[row] for row in learned], below)
    assert -np.sum(found.values * logprobs) / len(learned) == pytest.approx(expected, abs=1e-6)
    target = found.columns["token.target_baseline"]
    for row in range(n):
        np.testing.assert_allclose(target[list(own[row])], each[row] if kept[row] else np.nan, atol=1e-6)


def test_two_heads_start_apart_and_the_same_in_the_target() -> None:
    for spread, apart in ((0.0, False), (0.1, True)):
        first, second = (heads_of(Heads(heads=HEADS, spread=spread), 8, "here")[1] for _ in range(2))
        weights = {name: dict(first.named_parameters())[f"{name}.weight"] for name in NAMES}
        assert (not torch.equal(weights["q1"], weights["q2"])) == apart == bool(weights["v1"].any())
        assert all(torch.equal(weights[name], dict(second.named_parameters())[f"{name}.weight"]) for name in NAMES)


def test_earlier_attempts_come_back_for_the_critics_and_the_buffer_is_kept() -> None:
    options = {"size": 3, "replays": 2, "warmup": 1}
    plan, places = plans["archer"].make(options, "plan"), Places(numbered(9), 0, 2)
    first, _ = gathers(plan, places, 1, attempt)
    assert all(turn.notes == {"replayed": 0.0, "critic_only": 1.0} for one in first.trajectories for turn in one.turns)  # warm-up
    again, same = plans["archer"].make(options, "plan"), Places(places.tasks, 0, 2, used=places.used)
    again.load_state(plan.state())
    seen = []
    for own, used in ((plan, places), (again, same)):
        second, _ = gathers(own, used, 2, attempt)
        notes = [one.turns[0].notes for one in second.trajectories]
        assert notes == [{"replayed": 0.0, "critic_only": 0.0}] * 4 + [{"replayed": 1.0, "critic_only": 1.0}] * 2
        assert second.counts["replayed"] == 2 and second.counts["buffer"] == 3
        assert len({one.id for one in second.trajectories}) == 6
        seen.append([list(one.turns[0].response_ids) for one in second.trajectories])
    assert seen[0] == seen[1]


def test_a_run_trains_its_critics_on_old_turns_and_the_policy_on_new_ones_also_after_a_resume(tmp_path: Path) -> None:
    own = {"method.name": "archer", "method.replays": 4, "method.warmup": 1, "method.critic_lr": 1e-3, "method.critic_epochs": 1}
    own |= {"method.baseline": True}
    changes = {**own, "iterations": 3, "method.tau": 0.5, "sft": None, "env.max_turns": 3, "collect.groups": 2, "collect.group_size": 2}
    run = start(tmp_path / "whole", **changes)
    first, last = stored_batch(run, 1), stored_batch(run, 3)
    assert not first.column("turn.mask").any() and not np.asarray(first.column("token.advantage")).any()
    old = np.asarray(last.column("turn.replayed")) > 0
    assert old.any() and (last.column("turn.mask") == ~old).all() and np.asarray(last.column("token.baseline")).any()
    advantage = np.split(np.asarray(last.column("token.advantage")), last.rollouts.token_offsets[1:-1])
    assert [bool(np.any(values)) for values in advantage] == (~old).tolist()
    assert not np.allclose(last.column("turn.q1"), last.column("turn.q2"))
    lines = run.metrics()
    assert [line["collect/replayed"] for line in lines[1:]] == [0, 4, 4]
    assert all(np.isfinite(lines[-1][f"model/critic/loss_{name}"]) for name in (*NAMES, "baseline"))
    stopped = start(tmp_path / "stopped", **{**changes, "iterations": 2})
    resumed = tw.train(resume=stopped.folder, iterations=3, quiet=True).folder
    ends = [checkpoint.latest_good(folder / "checkpoints") for folder in (run.folder, resumed)]
    for name in ("weights", "model_critic", "model_critic_target"):
        whole, parts = (load_tensors(found.path / f"{name}.safetensors") if found else {} for found in ends)
        assert whole and all(torch.equal(whole[key], parts[key]) for key in whole)
