"""ARPO and AEPO: trees that grow where entropy rose, credit of shared turns, and an advantage and a clip that look at entropy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from method_cases import QUICK, gathers, line_of, start, turn_of
from references import aepo as slow_aepo
from references import arpo as slow_arpo

import turnwise as tw
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.methods.arpo import Aepo, Arpo, Surprise, aepo_initial, aepo_loss, segment_entropy
from turnwise.methods.planning import TaskSlots
from turnwise.objectives.tokens import Tokens
from turnwise.runs.reading import stored_batch

TASKS = tw.tasks("numberline", highest=5)


# -- the formulas -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 7, 20, 33])
def test_the_entropy_of_a_segment_is_that_of_its_first_tokens(tokens: int) -> None:
    turn = turn_of(np.random.default_rng(tokens), tokens)
    tops = [[turn.reports[f"top_logprob_{place}"][t] for place in range(1, 11)] for t in range(tokens)]
    whole = segment_entropy(tops[:20], 48)  # the authors' numbers: test_authors_plans.py
    assert Arpo(over="sum").entropy(turn, 48) == pytest.approx(whole, abs=1e-9)
    assert Arpo(over="mean").entropy(turn, 48) == pytest.approx(whole / min(tokens, 20), abs=1e-9)
    assert segment_entropy([], 48) == segment_entropy([[0.0, -np.inf]], 48) == 0.0


def forest(rng: np.random.Generator, constant: bool = False, branches: bool = True) -> list[tw.Trajectory]:
    """Groups of attempts with branches of branches."""
    found: list[tw.Trajectory] = []
    for group in range(3):
        first = len(found)
        for member in range(int(rng.integers(1, 7))):
            parent = int(rng.integers(first, len(found))) if branches and member and rng.random() < 0.7 else None
            turns = [turn_of(rng, int(rng.integers(1, 4)), reward=0.0 if constant else float(rng.integers(0, 3))) for _ in range(3)]
            branch_t = 0
            if parent is not None:
                branch_t = int(rng.integers(1, len(found[parent].turns) + 1))
                turns = [*found[parent].turns[:branch_t], *turns]
            made = tw.Trajectory(group, f"{group}-{member}", turns=turns)
            made.parent, made.branch_t = None if parent is None else found[parent].id, branch_t
            found.append(made)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["branches", "constant", "none"])
def test_a_shared_turn_gets_the_mean_advantage_of_all_that_share_it(seed: int, kind: str) -> None:
    found = forest(np.random.default_rng(seed), kind == "constant", kind != "none")
    credit = tw.credit.compute("arpo", Batch.of(found).rollouts)
    np.testing.assert_allclose(credit, np.concatenate(slow_arpo.hard(found)), atol=1e-6)
    if kind == "constant":
        assert not credit.any()
    if kind == "none":
        np.testing.assert_array_equal(credit, tw.credit.compute("grpo", Batch.of(found).rollouts))


@pytest.mark.parametrize("seed", range(4))
def test_the_advantage_of_a_token_grows_with_its_entropy(seed: int) -> None:
    found = forest(np.random.default_rng(seed))
    batch = Batch.of(found)
    of_turns = tw.credit.compute("grpo", batch.rollouts)
    turns = [turn for trajectory in found for turn in trajectory.turns]
    expected = slow_aepo.weighted(
        [[float(a)] * len(turn.response_ids) for a, turn in zip(of_turns, turns, strict=True)],
        [list(turn.reports["entropy"]) for turn in turns],
    )
    np.testing.assert_allclose(tw.credit.compute("aepo", batch.rollouts), [a for row in expected for a in row], atol=1e-6)
    flat = batch.with_columns({"token.entropy": np.full(len(batch.column("token.entropy")), 0.3)})
    np.testing.assert_allclose(tw.credit.compute("aepo", flat.rollouts), np.repeat(of_turns, batch.rollouts.tokens))


def test_tokens_above_the_upper_bound_keep_a_gradient() -> None:
    rng = np.random.default_rng(3)
    old, moved, advantage = -rng.random(200) * 3, rng.normal(size=200) * 0.8, rng.choice([-1.5, 0.0, 2.0], 200)
    logprob = torch.tensor(old + moved, requires_grad=True)
    place = torch.arange(200)
    tokens = Tokens(logprob, torch.tensor(old), torch.tensor(advantage), place, place, torch.ones(200, dtype=torch.float64))
    for options, dual in (({"clip_high": 0.28, "dual_clip": 3.0}, 3.0), ({"clip_high": 0.28}, None)):
        loss, metrics = aepo_loss(tokens, **options)
        (slope,) = torch.autograd.grad(loss.sum(), logprob)
        value, gradient = slow_aepo.losses([(old + moved).tolist()], [old.tolist()], [advantage.tolist()], dual=dual)
        np.testing.assert_allclose(loss.detach().numpy(), value[0], atol=1e-6)
        np.testing.assert_allclose(slope.numpy(), gradient[0], atol=1e-6)
        above = metrics["clip_high"].numpy()
        assert above.any() and (slope.numpy()[above] != 0).all()


# -- the plans --------------------------------------------------------------------------------------------------------------------


def played(start: Start) -> tw.Trajectory:
    """An attempt whose length, and what the engine reports about it, follow from its seeds."""
    rng = np.random.default_rng(start.policy_seed)
    shared = list(start.branch.trajectory.turns[: start.branch.t]) if start.branch is not None else []
    turns = shared + [turn_of(rng, int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 5)))]
    made = tw.Trajectory(start.group, start.number, task=start.task.id, turns=turns)
    if start.branch is not None:
        made.parent, made.branch_t = start.branch.trajectory.id, start.branch.t
    return made


@pytest.mark.parametrize(("probability", "branches"), [(1.0, True), (0.0, False)])
def test_missing_attempts_are_branches_or_start_afresh(probability: float, branches: bool) -> None:
    found, asked = gathers(Arpo(weight=0.0, probability=probability, initial=2), TaskSlots(TASKS, 1, 6), 4, played)
    assert list(Counter(t.group for t in found.trajectories).values()) == [6] * 4 and len(asked[0]) == 8
    assert any(t.parent is not None for t in found.trajectories) is branches
    assert found.counts["fresh"] == sum(t.parent is None for t in found.trajectories) - 8 > (-1 if branches else 15)


def test_a_pilot_divides_the_budget_and_is_not_learned_from() -> None:
    slots = TaskSlots(TASKS, 5, 8, vocabulary=48)
    found, asked = gathers(Aepo(beta=5.0), slots, 3, played)
    assert len(asked[0]) == 3 and {start.group for start in asked[0]} == {t.group for t in found.trajectories}
    pilots = [played(start) for start in asked[0]]
    wanted = [aepo_initial(8, [Aepo().entropy(turn, 48) for turn in pilot.turns], 5.0) for pilot in pilots]
    assert [sum(start.group == pilot.group for start in asked[1]) for pilot in pilots] == wanted
    assert found.counts["pilots"] == 3 and found.counts["initial"] == pytest.approx(np.mean(wanted))
    assert len(found.trajectories) == 24
    _, without = gathers(Aepo(pilot=False, initial=3), TaskSlots(TASKS, 5, 8), 3, played)
    assert len(without[0]) == 9


# -- a run ------------------------------------------------------------------------------------------------------------------------


def test_a_run_branches_and_trains_shared_turns_once_with_their_mean_advantage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, rise = set(), Surprise.rise
    monkeypatch.setattr(Surprise, "rise", lambda plan, attempt, t, vocabulary: known.add(vocabulary) or rise(plan, attempt, t, vocabulary))
    run = start(tmp_path, **QUICK, **{"method.name": "arpo", "method.attribution": "hard", "collect.group_size": 6})
    batch, line = stored_batch(run, 1), line_of(run)
    parent, branch_t = batch.column("trajectory.parent"), batch.column("trajectory.branch_t")
    assert (parent >= 0).sum() == line["collect/branches"] > 0 and line["collect/lost_branches"] == 0
    assert len(batch.trajectories) == 18 and min(known) > 10  # entropies are divided by the logarithm of the vocabulary's size
    rollouts = batch.rollouts
    taken = (parent[rollouts.trajectory] >= 0) & (rollouts.t < branch_t[rollouts.trajectory])
    np.testing.assert_array_equal(batch.column("turn.mask"), ~taken)
    expected = np.concatenate(slow_arpo.hard(batch.trajectories))
    np.testing.assert_allclose(batch.column("turn.advantage"), expected, atol=1e-6, rtol=1e-6)


def test_soft_attribution_trains_every_copy_and_entropies_scale_the_advantage_of_tokens(tmp_path: Path) -> None:
    run = start(tmp_path, **QUICK, **{"method.name": "aepo", "collect.groups": 2, "method.faithful": True})
    batch, line = stored_batch(run, 1), line_of(run)
    assert line["collect/pilots"] == 2 and line["collect/branches"] > 0 and not batch.has("turn.mask")
    of_turns = np.repeat(tw.credit.compute("grpo", batch.rollouts), batch.rollouts.tokens)
    entropy = batch.column("token.entropy").astype(float)
    z = (entropy - entropy.mean()) / entropy.std(ddof=1)
    np.testing.assert_allclose(batch.column("token.advantage"), of_turns * (1 + 0.2 * z), atol=1e-6, rtol=1e-6)
    assert "learner/clip_dual" in line  # AEPO's objective, with the authors' bound
