"""What a critic learns: the targets come from the credit function itself, whatever its discounts, and from nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import slow_credit as slow
from hypothesis import given
from learn_cases import credited, tiny
from test_credit_properties import batches, discounts, norms, penalties, rollouts

import turnwise as tw
from turnwise import credit
from turnwise.config.options import Registry
from turnwise.credit.columns import targets_of
from turnwise.credit.registry import apply
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, ValueSettings
from turnwise.recipe.schema import Config
from turnwise.setup.parts import build_credit
from turnwise.util.errors import TurnwiseError


def turns(*tokens: int, reward: float, group: int = 0) -> list[slow.Row]:
    """One trajectory with so many tokens in its turns, a critic that says 0, and a reward at the end."""
    last = len(tokens) - 1
    return [slow.Row(group, group, t, reward if t == last else 0.0, f"s{t}", True, 0.0, [0.0] * n) for t, n in enumerate(tokens)]


@given(batches(), discounts, discounts, norms, penalties)
def test_targets_are_the_returns_that_the_algorithm_itself_looks_forward_to(
    rows: list[slow.Row], gamma: float, lam: float, norm: str, penalty: float
) -> None:
    r, shared = rollouts(rows), {"norm": norm, "invalid_penalty": penalty}
    found = {
        "turn": credit.assign("gae", r, level="turn", gamma=gamma, lam=lam, **shared),
        "token": credit.assign("gae", r, level="token", gamma=gamma, lam=lam, **shared),
        "both": credit.assign("bi_level_gae", r, gamma=0.9, lam=lam, token_gamma=gamma, token_lam=0.8, **shared),
    }
    expected = {
        "turn": slow.turn_targets(rows, gamma, lam, penalty),
        "token": slow.token_targets(rows, gamma, lam, penalty),
        "both": slow.bi_level_targets(rows, 0.9, lam, gamma, 0.8, penalty),
    }
    for name, given_ in found.items():
        np.testing.assert_allclose(given_.targets, expected[name], atol=1e-9, err_msg=name)
        assert given_.level == ("turn" if name == "turn" else "token")


@pytest.mark.parametrize(("tokens", "reward"), [(100, 10.0), (200, 1.0)])
def test_the_discount_of_turns_does_not_act_between_the_tokens_of_a_turn(tokens: int, reward: float) -> None:
    given_ = credit.assign("bi_level_gae", rollouts(turns(tokens, reward=reward)))
    np.testing.assert_array_equal(given_.targets, np.full(tokens, reward))


def test_across_turns_the_discount_acts_once_per_turn() -> None:
    given_ = credit.assign("bi_level_gae", rollouts(turns(30, 50, 20, reward=1.0)), gamma=0.9)
    np.testing.assert_allclose(given_.targets, [0.81] * 30 + [0.9] * 50 + [1.0] * 20, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("bi_level_gae", "token", [10.0] * 100),
        ("gae", "turn", [10.0]),
        ("gigpo", "token", [10.0] * 100),  # no critic of its own: what is still to come, the same on all tokens of a turn
        ("grpo", "turn", [10.0]),
    ],
)
def test_a_run_teaches_its_critic_the_targets_of_its_credit(name: str, level: str, expected: list[float]) -> None:
    r = rollouts(turns(100, reward=10.0))
    config = Config.model_validate(
        {"model": {"tiny": {"max_length": 4096}}, "credit": {"name": name}, "learner": {"value": {"level": level}}}
    )
    batch, _ = build_credit(config)(Batch((), r))
    assert batch.column(f"{level}.target").tolist() == expected


def test_a_discount_that_is_not_per_turn_is_not_taken_for_one() -> None:
    r = rollouts(turns(1, 1, 1, reward=1.0))
    for name, options, expected in [
        ("graph_gpo", {"gamma": 0.1}, [1.0, 1.0, 1.0]),
        ("gigpo", {"gamma": 0.5}, [0.25, 0.5, 1.0]),
        ("grpo", {}, [1.0, 1.0, 1.0]),
    ]:
        entry = credit.algorithms[name]
        given_ = credit.assign(name, r, **options)
        assert targets_of(given_, r, entry, entry.bind(options, "credit"), "token").tolist() == expected
        mixed = r.permuted([2, 0, 1])
        moved = targets_of(credit.assign(name, mixed, **options), mixed, entry, entry.bind(options, "credit"), "turn")
        assert moved.tolist() == [expected[2], expected[0], expected[1]]


def test_a_critic_of_another_level_is_an_error_that_says_which_is_right() -> None:
    r = rollouts(turns(3, 2, reward=1.0))
    entry = credit.algorithms["gae"]
    with pytest.raises(TurnwiseError, match=r"learner\.value\.level=.turn"):
        targets_of(credit.assign("gae", r), r, entry, entry.bind({}, "credit"), "token")


def test_the_critic_of_a_bi_level_run_learns_the_reward_on_every_token() -> None:
    attempt = Trajectory("g", "x", turns=[Turn("a", 2.0, prompt_ids=[1, 2], response_ids=[5 + i % 7 for i in range(40)])])
    settings = LearnerSettings(optimiser=OptimiserSettings(lr=0.0), value=ValueSettings(level="token", lr=0.05))
    learner = Learner(tiny(), settings)
    metrics: dict[str, float] = {}
    for seed in range(40):
        annotated = learner.annotate(Batch.of([attempt]))
        metrics = learner.update(credited(annotated, credit.assign("bi_level_gae", annotated.rollouts, norm="none")), seed)
    assert metrics["value_target"] == pytest.approx(2.0) and metrics["value"] == pytest.approx(2.0, abs=0.2)


def test_extra_columns_of_tokens_are_declared_and_stay_so_in_a_file(tmp_path: Any) -> None:
    columns: dict[str, Any] = {
        "group": [0] * 3,
        "trajectory": [0] * 3,
        "t": [0, 1, 2],
        "reward": [0.0, 0.0, 1.0],
        "anchor": ["a", "b", "c"],
    }
    r = Rollouts.from_columns(**columns, tokens=[0, 3, 0], extra={"turn": [1, 2, 3]}, token_extra={"token": [4, 5, 6]})
    moved = r.permuted([2, 1, 0])
    assert moved.extra["turn"].tolist() == [3, 2, 1] and moved.token_extra["token"].tolist() == [4, 5, 6]
    again = Rollouts.load(moved.save(tmp_path / "r.npz"))
    assert list(again.extra) == ["turn"] and list(again.token_extra) == ["token"]
    assert again.need("token", "test").tolist() == [4, 5, 6]
    with pytest.raises(TurnwiseError, match="token_extra="):
        Rollouts.from_columns(**columns, tokens=[1, 3, 0], extra={"gain": [1, 2, 3, 4]})
    with pytest.raises(TurnwiseError, match="'tokens'"):
        Rollouts.from_columns(**columns, token_extra={"gain": [1, 2, 3]})
    with pytest.raises(TurnwiseError, match="choose one"):
        Rollouts.from_columns(**columns, tokens=[1, 1, 1], extra={"gain": [1, 2, 3]}, token_extra={"gain": [1, 2, 3]})


def test_a_file_from_before_levels_were_declared_keeps_what_a_learner_added_per_token(tmp_path: Any, monkeypatch: Any) -> None:
    import turnwise.data.columns

    columns: dict[str, Any] = {"group": [0] * 2, "trajectory": [0] * 2, "t": [0, 1], "reward": [0.0, 1.0], "anchor": ["a", "b"]}
    r = Rollouts.from_columns(**columns, tokens=[0, 2], token_extra={"old_logprob": [-1.0, -2.0]})
    plain = turnwise.data.columns.json.dumps
    monkeypatch.setattr(turnwise.data.columns.json, "dumps", lambda header: plain({k: v for k, v in header.items() if k != "token_extra"}))
    again = Rollouts.load(r.save(tmp_path / "old.npz"))
    assert again.token_extra["old_logprob"].tolist() == [-1.0, -2.0] and not again.extra


def test_targets_move_with_their_rows() -> None:
    rows = turns(3, 1, 2, reward=1.0) + turns(2, 2, reward=5.0, group=1)
    r = rollouts(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    for name, options in [("gae", {"level": "turn"}), ("gae", {"level": "token"}), ("bi_level_gae", {})]:
        before, after = credit.assign(name, r, **options), credit.assign(name, r.permuted(order), **options)
        assert before.targets is not None and after.targets is not None
        straight = replace(r.permuted(order), extra={}, token_extra={}).in_order()
        assert straight.is_in_order
        if before.level == "turn":
            np.testing.assert_array_equal(after.targets, before.targets[order])
        else:
            pieces = np.split(before.targets, r.token_offsets[1:-1])
            np.testing.assert_array_equal(after.targets, np.concatenate([pieces[i] for i in order]))


def test_targets_of_a_wrong_shape_name_the_algorithm() -> None:
    own: Registry[Any] = Registry("credit algorithm")

    @own.register("wrong_targets")
    def wrong_targets(r: tw.Rollouts) -> credit.PerTurn:
        """Its targets are one too few."""
        return credit.PerTurn(np.zeros(len(r)), targets=np.zeros(len(r) - 1))

    with pytest.raises(TurnwiseError, match="'wrong_targets' returned targets of shape"):
        apply(own["wrong_targets"], rollouts(turns(1, 1, reward=1.0)), {})
