"""T-STAR: equal steps merged into a tree."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from formulas import t_star as slow
from method_cases import collected, line_of, make, trained

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.methods import signals
from turnwise.objectives.tokens import Tokens
from turnwise.runs.reading import stored_batch
from turnwise_experiments.t_star import action_codes, pairs_of


def walk(group: int, number: int, path: str, reward: float) -> Trajectory:
    """A path like "a:go b:look b:wait c": states and the actions between them; the reward is that of the last turn."""
    *steps, last = path.split()
    turns = [Turn(step.partition(":")[0], action=step.partition(":")[2], prompt_ids=[7], response_ids=[1, 2]) for step in steps]
    turns[-1].reward = reward
    return Trajectory(group, number, turns=turns, final_anchor=last)


def random_walks(seed: int, equal: bool = False, alone: bool = False) -> list[Trajectory]:
    """Walks over three places; two actions move, two do not."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(1 if alone else 10):
        place, path = 0, []
        for _ in range(int(rng.integers(1, 6))):
            action = int(rng.integers(4))
            path.append(f"s{place}:act{action}")
            place = (place + 1 + action) % 3 if action < 2 else place
        found.append(walk(number % 2, number, " ".join([*path, f"s{place}"]), 1.0 if equal else float(rng.normal())))
    return found


def keys_of(trajectory: Trajectory) -> list[tuple[Any, ...]]:
    """What makes two steps equal, by the words of the definition: the state, and the state-changing actions before and with it."""
    anchors = [turn.anchor for turn in trajectory.turns] + [trajectory.final_anchor]
    keys, past = [], ()
    for k, turn in enumerate(trajectory.turns):
        before = past
        past = (*past, turn.action) if anchors[k + 1] != anchors[k] else past
        keys.append((turn.anchor, before, past))
    return keys


def tree_batch(trajectories: list[Trajectory], **columns: Any) -> Batch:
    batch = Batch.of(trajectories)
    models = SimpleNamespace(policy=Scores(0.0), reference=Scores(0.0))
    return batch.with_columns(signals["t_star"].function(batch, models, **columns))


class Scores:
    """A model that gives every token the same log-prob, or a turn's number of it."""

    def __init__(self, value: float | list[float]):
        self.value = value

    def score(self, batch: Batch) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.value, float), int(batch.rollouts.token_offsets[-1])).copy()


@pytest.mark.parametrize("case", ["0", "1", "2", "equal", "alone"])
def test_t_star_equals_its_reference(case: str) -> None:
    trajectories = random_walks(int(case) if case.isdigit() else 7, equal=case == "equal", alone=case == "alone")
    batch = tree_batch(trajectories)
    found = tw.credit.assign("t_star", batch.rollouts)
    seen: dict[Any, int] = {}
    for group in {trajectory.group for trajectory in trajectories}:
        own = [k for k, trajectory in enumerate(batch.trajectories) if trajectory.group == group]
        nodes = [[seen.setdefault((group, key), len(seen)) for key in keys_of(batch.trajectories[k])] for k in own]
        expected = slow.advantages(nodes, [batch.trajectories[k].reward for k in own])
        for k, row in zip(own, expected, strict=True):
            np.testing.assert_allclose(found.values[list(batch.rows(k))], row, atol=1e-6)
    numbers = [seen[trajectory.group, key] for trajectory in batch.trajectories for key in keys_of(trajectory)]
    merged = found.columns["turn.node"].tolist()
    assert len(set(zip(numbers, merged, strict=True))) == len(set(numbers)) == len(set(merged))


def test_steps_are_one_only_after_the_same_state_changing_actions() -> None:
    one = walk(0, 0, "a:go b:look b:take c", 1.0)
    two = walk(0, 1, "a:Go b:take c", 0.0)  # the same, without the look
    three = walk(0, 2, "a:run b:take c", 0.5)  # the same place by another way
    batch = tree_batch([one, two, three])
    a = tw.credit.compute("t_star", batch.rollouts)
    assert a[0] == a[2] == a[3] == a[4] == 0.0  # go and take: the mean of 1 and 0, which is that of the group
    assert a[1] == pytest.approx((1 - 0.5) / 0.5, rel=1e-4)  # the look: only the first attempt took it
    assert a[5] == a[6] == 0.0  # its own return is the mean too


def test_states_that_the_policy_answers_alike_are_one_if_asked_for() -> None:
    class Answers(Scores):
        def logprobs(self, prompts: Any, continuations: Any) -> list[np.ndarray]:
            return [np.full(2, -1.0 - 0.3 * (prompt[0] == 9 and said[0] != 9)) for prompt, said in zip(prompts, continuations, strict=True)]

    def walks(prompt: int) -> list[Trajectory]:
        made = [walk(0, 0, "a:go b:take c", 1.0), walk(0, 1, "a:go b2:take c", 0.0)]
        made[1].turns[1].prompt_ids, made[1].turns[1].response_ids = [prompt], [9, 2]
        return made

    for prompt, nodes in ((8, 2), (9, 3)):  # the second prompt changes the answers: KL about 0.15
        batch = Batch.of(walks(prompt))
        models = SimpleNamespace(policy=Answers(0.0), reference=Scores(0.0))
        columns = signals["t_star"].function(batch, models, kl=0.1)
        found = tw.credit.assign("t_star", batch.with_columns(columns).rollouts)
        assert len(set(found.columns["turn.node"].tolist())) == nodes


def test_the_preference_is_the_gradient_of_the_pair_loss_and_its_turns_are_those_of_a_fork() -> None:
    trajectories = [walk(0, 0, "a:go b:take c", 1.0), walk(0, 1, "a:stay2 d", 0.0), walk(0, 2, "a:go b:drop e", 1.0)]
    batch = Batch.of(trajectories)
    policy, reference = np.random.default_rng(0).normal(size=(2, 10))
    models = SimpleNamespace(policy=Scores(policy.tolist()), reference=Scores(reference.tolist()))
    columns = signals["t_star"].function(batch, models, beta=0.7, weight=2.0)
    ratio = (policy - reference).reshape(5, 2).sum(1)
    _, slope = slow.preference_loss(ratio[0], ratio[2], beta=0.7)
    expected = [-2 * slope, 0, 2 * slope, 0, 0]  # rows 0 and 2: the two ways on from a
    np.testing.assert_allclose(columns["turn.preference"], expected, atol=1e-9)

    logprob = torch.tensor(policy, requires_grad=True)
    turn = torch.arange(10) // 2
    tokens = Tokens(
        logprob, logprob.detach(), torch.zeros(10), turn, turn, torch.full((10,), 0.1),
        extra={"preference": torch.tensor(np.repeat(columns["turn.preference"], 2))},
    )  # fmt: skip
    tw.objectives.compute("t_star", tokens)[0].backward()
    found = logprob.grad
    good, bad = (logprob[[2 * k, 2 * k + 1]].detach().clone().requires_grad_() for k in (0, 2))
    difference = (good - torch.tensor(reference[0:2])).sum() - (bad - torch.tensor(reference[4:6])).sum()
    (-2.0 * torch.nn.functional.logsigmoid(0.7 * difference)).backward()
    assert found is not None and good.grad is not None and bad.grad is not None
    torch.testing.assert_close(found[[0, 1, 4, 5]], 0.1 * torch.cat([good.grad, bad.grad]), atol=1e-6, rtol=1e-5, check_dtype=False)
    assert not found[[2, 3, 6, 7, 8, 9]].any()


def test_forks_are_those_of_the_reference() -> None:
    for seed in range(6):
        batch = Batch.of([t for t in random_walks(seed) if t.group == 0])
        states: dict[Any, dict[Any, list[float]]] = {}
        for trajectory in batch.trajectories:
            for key in set(keys_of(trajectory)):
                states.setdefault(key[:2], {}).setdefault(key[2], []).append(trajectory.reward)
        std = np.std([t.reward for t in batch.trajectories], ddof=1) + 1e-6
        spread = {state: [np.mean(own) for own in steps.values()] for state, steps in states.items()}
        wide = {state: max(q) - min(q) for state, q in spread.items() if max(q) - min(q) >= 0.8 * std}
        keys = [key for trajectory in batch.trajectories for key in keys_of(trajectory)]
        better, worse, difference = pairs_of(batch.rollouts, action_codes(batch.trajectories), 0.8)
        assert {keys[row][:2] for row in better} == {keys[row][:2] for row in worse} == set(wide)
        np.testing.assert_allclose(sorted(difference * std), sorted(wide.values()), atol=1e-6)


def test_the_policy_answers_again_at_the_widest_fork_and_the_corrected_turn_takes_the_place_of_the_better_one() -> None:
    found = collected(make("t_star", corrections=1, gap=0.1), groups=3, size=4)
    batch = Batch.of(found.trajectories)
    fork = batch.column("turn.fork")
    assert found.counts["forks"] >= found.counts["corrections"] >= 1
    extra = [k for k, trajectory in enumerate(batch.trajectories) if int(trajectory.group) < 0]
    assert len(extra) == found.counts["corrections"] and len(batch.trajectories) == 12 + len(extra)
    for k in extra:
        [row] = batch.rows(k)
        [worse] = np.flatnonzero(fork == -fork[row])
        assert fork[row] > 0 and batch.rollouts.anchor[row] == batch.rollouts.anchor[worse]
        turn = batch.trajectories[k].turns[0]
        assert "You have been here before" in turn.info["hint"]
    assert sorted(fork[fork > 0]) == sorted(-fork[fork < 0]) == list(range(1, int(found.counts["forks"]) + 1))


def test_a_run_with_t_star_merges_steps_and_trains_on_pairs(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"method": {"name": "t_star", "gap": 0.1, "weight": 0.5}, "collect.group_size": 4}
    changes |= {"agent.max_prompt_tokens": 400, "model.tiny.max_length": 512}  # the hint is long in letters
    run = trained(tmp_path, "t_star", **changes)
    batch, line = stored_batch(run, 1), line_of(run)
    node = batch.column("turn.node")
    assert len(set(node.tolist())) < len(batch) and line["collect/forks"] >= line["collect/corrections"] >= 1
    assert line["learner/preferred"] > 0 and line["learner/dispreferred"] > 0 and line["collect/lost_branches"] == 0
    preference = batch.column("turn.preference")
    assert (preference > 0).sum() == (preference < 0).sum() == line["collect/forks"]
    np.testing.assert_allclose(preference[preference > 0].sum(), -preference[preference < 0].sum(), rtol=1e-6)
