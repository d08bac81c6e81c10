"""Methods with learned or shaped rewards: iStar, EAPO, VSPO, MICA, Flow-GRPO."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from context_cases import make, seen, text
from method_cases import BANDIT, OTHER_GAME, QUICK, paths, per_path, resumes_alike, returns_of, rollouts, start, train
from references import eapo, flow_grpo, istar, mica, vspo

import turnwise as tw
from turnwise.agent.base import Parsed
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop
from turnwise.methods.istar import OutcomePairs, implicit_reward, pairs
from turnwise.methods.mica import Potential
from turnwise.methods.vspo import share_out, staged_reward
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

GAME: dict[str, Any] = {**OTHER_GAME, "env.name": BANDIT, "sft": None}


def batch_of(*lengths: tuple[int, ...]) -> Batch:
    """One group; a trajectory for each entry, whose turns have so many tokens. Every second one succeeds."""
    made = [
        tw.Trajectory(0, k, "task", turns=[tw.Turn("s", response_ids=[1] * n, logprobs=[-1.0] * n) for n in turns], success=k % 2 == 0)
        for k, turns in enumerate(lengths)
    ]
    return Batch.of(made, [tw.Task("task")])


# -- agreement with slow references ----------------------------------------------------------------------------------------------

# credit function, its options, and the reference of (returns, groups, lengths, one list of random numbers per trajectory)
REFERENCES: list[tuple[str, dict[str, Any], Any]] = [
    ("istar", {}, lambda r, g, n, x: istar.advantages(r, x, g)),
    ("istar", {"weight": 0.3, "baseline": "mean_std"}, lambda r, g, n, x: istar.advantages(r, x, g, weight=0.3, how="std")),
    ("istar", {"baseline": "mean"}, lambda r, g, n, x: istar.advantages(r, x, g, how="mean")),
    ("eapo", {"gamma": 0.8}, lambda r, g, n, x: eapo.advantages(r, n, g, gamma=0.8)),
    ("mica", {"gamma": 0.9}, lambda r, g, n, x: mica.advantages(potentials(x), g, gamma=0.9)),
    (
        "mica",
        {"mix": 0.5, "gamma": 1.0, "peers": "depth"},
        lambda r, g, n, x: mica.advantages(potentials(x), g, mix=0.5, gamma=1.0, peers="turn"),
    ),
    ("grpo", {"weighting": "step"}, lambda r, g, n, x: flow_grpo.advantages(r, n, g)),
    ("grpo", {"weighting": "trajectory"}, lambda r, g, n, x: flow_grpo.advantages(r, n, g, over="trajectories")),
]


def potentials(gains: list[list[float]]) -> list[list[float]]:
    return [[0.0, *np.cumsum(row)] for row in gains]


@pytest.mark.parametrize("kind", ["random", "constant", "alone"])
@pytest.mark.parametrize(("name", "options", "reference"), REFERENCES)
def test_credit_is_that_of_its_formula(name: str, options: dict[str, Any], reference: Any, kind: str) -> None:
    for seed in range(4):
        r, rng = rollouts(seed, size=1 if kind == "alone" else 4), np.random.default_rng(seed)
        noise = rng.normal(size=len(r)) if kind != "constant" else np.full(len(r), 0.25)
        if kind == "constant":
            r = replace(r, reward=np.where(np.append(r.trajectory[1:] != r.trajectory[:-1], True), 0.7, 0.0))
        columns = {"turn.implicit_reward": noise, "turn.potential_gain": noise}
        found = tw.credit.compute(name, r.with_columns(columns), **options)
        slow = reference(*returns_of(r), [len(rows) for rows in paths(r)], per_path(r, noise))
        np.testing.assert_allclose(found, np.concatenate(slow), atol=1e-6, rtol=1e-6)


def test_the_value_of_a_group_and_the_copies_follow_the_formula() -> None:
    for seed in range(6):
        r = rollouts(seed, groups=7, size=3)
        found = tw.credit.assign("vspo", r)
        returns = [[x for x, g in zip(*returns_of(r), strict=True) if g == group] for group in range(7)]
        np.testing.assert_allclose(found.columns["group.value"], [vspo.value(x) for x in returns], atol=1e-9)
        copies = np.asarray(found.columns["group.uses"]) - 1
        wanted = np.array(vspo.shares(returns)) * sum(map(vspo.dead, returns))
        assert copies.sum() == round(wanted.sum()) and (np.abs(copies - wanted) < 1).all()


# -- iStar ------------------------------------------------------------------------------------------------------------------------


def test_the_implicit_reward_of_a_turn_is_the_log_ratio_of_its_tokens() -> None:
    batch = batch_of((2, 1), (3,))
    policy = SimpleNamespace(score=lambda _: np.full(6, -1.0, np.float32))
    prm = SimpleNamespace(score=lambda _: np.array([0, -1, -3, -1, -1, -0.5], np.float32))
    models = type("Models", (dict,), {"policy": policy})(prm=prm)
    found = implicit_reward(batch, models, beta=0.1)
    np.testing.assert_allclose(found["turn.implicit_reward"], [0.1, -0.2, 0.05], atol=1e-7)


def test_each_success_is_paired_with_a_failure_of_its_own_group() -> None:
    success, group = np.array([1, 0, 1, 0, 1, 1, 0]) > 0, np.array([0, 0, 0, 1, 2, 2, 2])
    assert pairs(success, group) == ([0, 2, 4, 5], [1, 1, 6, 6])
    assert pairs(np.array([True, True]), np.array([0, 0])) == ([], [])


def test_the_loss_ranks_successes_above_failures_and_skips_a_batch_without_pairs() -> None:
    logprob = torch.tensor([0.5, -1.0, 0.0], requires_grad=True)
    rows = SimpleNamespace(path=lambda low, high: np.zeros(2, np.int64))

    def said(success: list[float]) -> Any:
        columns = {"token.sampling_logprob": torch.zeros(3), "trajectory.success": torch.tensor(success)}

        class Said(dict[str, Any]):
            def sum(self, values: Any, low: str, high: str) -> Any:
                return torch.stack([values[:2].sum(), values[2]])

        found = Said(columns)
        found.logprob, found.rows = logprob, rows  # type: ignore[attr-defined]
        return found

    kind = OutcomePairs(beta=2.0)
    result = kind.loss(said([1.0, 0.0]))
    assert result is not None
    loss, metrics = result
    assert loss.item() == pytest.approx(np.log1p(np.exp(1.0)), rel=1e-6)  # −log sigmoid(2 · −0.5 − 0)
    loss.backward()
    assert logprob.grad is not None and (logprob.grad[:2] < 0).all() and logprob.grad[2] > 0 and metrics["accuracy"] == 0
    assert kind.loss(said([1.0, 1.0])) is None


def test_istar_trains_its_model_and_rewards_turns_by_it_after_a_resume_too(tmp_path: Path) -> None:
    changes = GAME | {"method": {"name": "istar", "lr": 1e-3, "beta": 0.5}}
    whole = train(tmp_path / "whole", **changes)
    first, second = (stored_batch(Run.open(whole.folder), n).column("turn.implicit_reward") for n in (1, 2))
    assert np.abs(first).max() < 1e-5 < np.abs(second).max()  # a copy at first, another model after its first update
    assert whole.metrics[1]["model/prm/pairs"] > 0 and np.isfinite(whole.metrics[1]["model/prm/loss"])
    resumes_alike(tmp_path / "stopped", whole, 2, **changes)


# -- EAPO -------------------------------------------------------------------------------------------------------------------------


def test_a_shorter_success_is_worth_more_and_failures_are_all_alike() -> None:
    r = tw.Rollouts.from_columns(
        group=[0] * 6, trajectory=[0, 1, 1, 1, 2, 2], t=[0, 0, 1, 2, 0, 1], reward=[1, 0, 0, 1, 0, 0], anchor=[0] * 6
    )
    credit = tw.credit.compute("eapo", r, gamma=0.5)
    assert credit[0] == pytest.approx(credit[3]) and credit[0] > credit[2] > credit[1] > credit[4] == credit[5]


def test_the_workspace_shows_the_last_report_and_the_last_turn_only() -> None:
    agent = make(context="workspace", show_actions=False)
    context = agent.context()
    context.start(tw.Task("t"), seen(0))
    assert "report so far" not in text(agent, context.prompt())
    roles = context.prompt().ids.count(agent.chat.tokenizer.convert_tokens_to_ids("<|im_start|>"))
    for turn, said in enumerate(
        ["<report>key is <|im_start|>red</report>", "no report", "<report>a</report><report>door open</report>"], 1
    ):
        context.record(agent.write(said), Parsed(f"act {turn}", "", True), seen(turn))
        shown = text(agent, context.prompt())
        assert ("key is" in shown) == (turn < 3) and ("door open" in shown) == (turn == 3)
        assert context.prompt().ids.count(agent.chat.tokenizer.convert_tokens_to_ids("<|im_start|>")) == roles
        assert f"act {turn}" in shown and f"act {turn - 1}" not in shown


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
    batch = batch_of((1, 1, 1), (2,))
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


# -- Flow-GRPO --------------------------------------------------------------------------------------------------------------------


def test_the_outcome_goes_to_every_turn_by_statistics_over_turns(tmp_path: Path) -> None:
    batch = stored_batch(start(tmp_path, **QUICK, **{"method.name": "flow_grpo", "method.faithful": True}), 1)
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("grpo", batch.rollouts, weighting="step"), atol=1e-6)
    r = rollouts(3)
    assert not np.allclose(tw.credit.compute("grpo", r, weighting="step"), tw.credit.compute("grpo", r))
