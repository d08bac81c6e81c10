"""Credit functions: contracts that examples show best, options and their errors, similar anchors, diagnosis, own algorithms, parts."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from page_runs import group

import turnwise as tw
from turnwise import Rollouts, TurnwiseError
from turnwise.config.options import Help
from turnwise.credit.gae import gae_advantages
from turnwise.credit.similar import similar_groups
from turnwise.data.rollouts import Floats
from turnwise.report.warnings import compares_states


def make(lengths: list[int], rewards: list[float], anchors: list[Any] | None = None, **more: Any) -> Rollouts:
    """One group; a trajectory per length with its reward on the last turn."""
    trajectory = np.repeat(np.arange(len(lengths)), lengths)
    t = np.concatenate([np.arange(n) for n in lengths])
    reward = np.zeros(len(t))
    reward[np.cumsum(lengths) - 1] = rewards
    columns = {"group": np.zeros(len(t), int), "anchor": list(range(len(t))) if anchors is None else anchors} | more
    return Rollouts.from_columns(trajectory=trajectory, t=t, reward=reward, **columns)


def test_a_short_winner_among_long_losers_weighs_as_each_weighting_says() -> None:
    r = make([5] + [50] * 7, [10.0] + [0.0] * 7)
    by_trajectory = tw.credit.compute("grpo", r)
    by_turn = tw.credit.compute("grpo", r, weighting="step")
    assert by_trajectory[0] == pytest.approx(2.4749, abs=1e-3) and by_trajectory[-1] == pytest.approx(-0.3536, abs=1e-3)
    assert by_turn[0] == pytest.approx(8.36, abs=0.02) and by_turn[-1] == pytest.approx(-0.12, abs=0.005)
    plain = tw.credit.compute("grpo", r, norm="none")
    assert plain[0] == 8.75 and plain[-1] == -1.25


def test_one_invalid_turn_in_a_group_where_all_fail_does_not_explode() -> None:
    valid = [True] * 8
    valid[3] = False
    r = make([2] * 4, [0.0] * 4, valid=valid)
    credit = tw.credit.compute("grpo", r, invalid_penalty=0.1)
    assert credit[3] == np.float32(-0.1) and (np.delete(credit, 3) == 0).all()
    exploded = tw.credit.compute("grpo", r, invalid_penalty=0.1, weighting="step")
    assert exploded[3] < -2  # what the public code does, and why it is not the default


def test_pooled_td_sees_whether_a_text_stands_for_two_states() -> None:
    """From a good and from a bad place one reads the same text. If the place decides, the step from the bad one is no gain; if luck does,
    it is as good as any."""
    anchors = ["bad", "text"] * 4 + ["good", "text"] * 4
    decided = tw.credit.compute("pooled_td", make([2] * 8, [0.0] * 4 + [1.0] * 4, anchors), gamma=1.0, norm="none")
    assert decided[0] == pytest.approx(-0.1) and decided[8] == pytest.approx(0.1)  # B: (4 · 0 + 0.5) / 5, and (4 · 1 + 0.5) / 5
    luck = tw.credit.compute("pooled_td", make([2] * 8, [0.0, 1.0] * 4, anchors), gamma=1.0, norm="none")
    assert (luck[::2] == 0).all() and luck[1::2] == pytest.approx([-0.5, 0.5] * 4)


def test_a_group_of_one_trajectory_gets_no_episode_credit() -> None:
    r = make([3], [10.0], valid=[True, False, True])
    for name in ("grpo", "rloo", "dr_grpo", "loop"):
        assert (tw.credit.compute(name, r, weighting="step", invalid_penalty=0.0) == 0).all()
        if name != "loop":  # which drops it
            assert tw.credit.compute(name, r, invalid_penalty=0.5).tolist() == [0.0, -0.5, 0.0]
    assert (tw.credit.compute("grpo", r, weighting="step", invalid_penalty=0.5) == 0).all()


def test_without_repeated_states_gigpo_is_grpo() -> None:
    r = make([3, 4, 2], [1.0, 0.0, 5.0])
    np.testing.assert_array_equal(tw.credit.compute("gigpo", r), tw.credit.compute("grpo", r))


def test_step_credit_tells_the_good_action_from_the_bad_one_in_the_same_state() -> None:
    r = make([2, 2, 2, 2], [10.0, 0.0, 10.0, 0.0], anchors=["s", "a", "s", "b", "s", "a", "s", "b"])
    why = tw.credit.explain(r, gamma=1.0, norm="none")
    assert why["step"].tolist() == [5.0, 0.0, -5.0, 0.0, 5.0, 0.0, -5.0, 0.0]
    assert why["anchor_size"].tolist() == [4, 2, 4, 2, 4, 2, 4, 2]


def test_a_looping_trajectory_cannot_fill_an_anchor_group_when_each_counts_once() -> None:
    r = make([4, 1], [0.0, 1.0], anchors=["s", "s", "s", "s", "s"])
    usual = tw.credit.explain(r, gamma=1.0, norm="none")["step"]
    once = tw.credit.explain(r, gamma=1.0, norm="none", once=True)["step"]
    np.testing.assert_allclose(usual, [-0.2, -0.2, -0.2, -0.2, 0.8])
    np.testing.assert_allclose(once, [-0.5, -0.5, -0.5, -0.5, 0.5])
    alone = make([4, 1], [3.0, 1.0], anchors=["s", "s", "s", "s", "other"])
    assert (tw.credit.explain(alone, once=True)["step"] == 0).all()
    assert (tw.credit.explain(alone)["step"] != 0).any()


def test_the_same_anchor_in_two_task_groups_is_two_states() -> None:
    r = Rollouts.from_columns(group=[0, 1], trajectory=[0, 1], t=[0, 0], reward=[1.0, 0.0], anchor=["s", "s"])
    assert tw.credit.diagnose(r)["singleton_share"] == 1.0


def test_bootstrapping_crosses_turns_and_a_turn_without_tokens_loses_no_reward() -> None:
    r = make([2], [1.0], value=[0.25, 0.5], tokens=[2, 0], token_value=[0.0, 0.0])
    assert gae_advantages(r, level="turn", gamma=1.0, lam=0.0).tolist() == [0.25, 0.5]
    assert tw.credit.compute("gae", r, level="token", lam=1.0, norm="none").tolist() == [1.0, 1.0]
    with pytest.raises(TurnwiseError, match="trajectory 0 has no token"):
        tw.credit.compute("gae", make([1, 1], [0.0, 0.0], tokens=[0, 1], token_value=[0.0]), level="token")


def test_per_token_credit_of_uneven_turns_is_not_mistaken_for_per_turn_credit() -> None:
    r = make([2], [1.0], tokens=[2, 0], token_value=[0.5, 0.0]).permuted([1, 0])
    assert tw.credit.compute("gae", r, level="token", lam=0.0, norm="none").tolist() == [-0.5, 1.0]


def test_a_function_is_credit_wherever_a_name_is() -> None:
    def half(rollouts: Rollouts, *, share: float = 0.5) -> Any:
        return rollouts.reward * share

    r = make([2], [1.0])
    assert tw.credit.compute(half, r).tolist() == (r.reward / 2).tolist()
    assert tw.credit.compute(half, r, share=2).tolist() == (r.reward * 2).tolist()
    assert tw.credit.compute(tw.credit.algorithms["gigpo"].function, r).tolist() == tw.credit.compute("gigpo", r).tolist()
    assert tw.credit.split(half, r) == {}
    with pytest.raises(TurnwiseError, match=r"'half': 'shar'. Did you mean 'share'"):
        tw.credit.compute(half, r, shar=2)
    with pytest.raises(TurnwiseError, match="a credit algorithm is a name or a function, not int"):
        tw.credit.compute(3, r)  # type: ignore[arg-type]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(TurnwiseError, match=r"gae with level=turn needs the column 'value'"):
        tw.credit.compute("gae", make([2], [1.0]))
    with pytest.raises(TurnwiseError, match=r"'token_value'"):
        tw.credit.compute("bi_level_gae", make([2], [1.0]))


def test_graph_distance_credits_a_failed_attempt_for_the_good_part_of_its_way() -> None:
    anchors = ["s", "a", "b", "s", "a", "x", "s", "c"]
    r = make([3, 3, 2], [1.0, 0.0, 0.0], anchors=anchors, next_anchor=["a", "b", None, "a", "x", "s", "c", None])
    step = tw.credit.compute("graph_gpo", r, gamma=0.5, norm="none", episode_weight=0.0)
    np.testing.assert_allclose(step[[0, 3]], 10 / 3 * (0.25 - 0.03125), rtol=1e-6)  # both went s → a, whoever won in the end
    assert step[1] > 0 > step[4] and step[6] < 0


def test_graph_gpo_uses_the_success_column_where_there_is_one() -> None:
    r = make([2, 2], [1.0, 1.0], anchors=["s", "a", "s", "b"], success=[True, True, False, False])
    step = tw.credit.compute("graph_gpo", r, episode_weight=0.0, norm="none")
    assert step[0] > 0 > step[2]


def test_unknown_names_point_to_the_nearest() -> None:
    r = make([1, 1], [0.0, 1.0])
    with pytest.raises(TurnwiseError, match=r"unknown credit algorithm 'gigop'. Did you mean 'gigpo'"):
        tw.credit.compute("gigop", r)
    with pytest.raises(TurnwiseError, match=r"option of credit algorithm 'gigpo': 'gama'. Did you mean 'gamma'"):
        tw.credit.compute("gigpo", r, gama=0.9)
    with pytest.raises(TurnwiseError, match=r"'stdd'. Did you mean 'std'"):
        tw.credit.compute("grpo", r, norm="stdd")


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 1.5},
        {"gamma": "high"},
        {"gamma": float("nan")},
        {"gamma": True},
        {"omega": -1},
        {"once": 1},
        {"norm": 3},
        {"threshold": 2},
    ],
)
def test_an_option_of_the_wrong_kind_says_what_it_takes(options: dict[str, Any]) -> None:
    with pytest.raises(TurnwiseError, match=f"option {next(iter(options))} takes"):
        tw.credit.compute("gigpo", make([1, 1], [0.0, 1.0]), **options)


def test_every_algorithm_explains_itself() -> None:
    for entry in tw.credit.algorithms:
        assert entry.paper and entry.summary.endswith(".")
        assert all(option.help.text for option in entry.options.values()), entry.name
        assert "invalid_penalty" not in entry.options or entry.options["invalid_penalty"].default == 0


@pytest.fixture
def own_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    tw.credit.algorithms.names()
    monkeypatch.setattr(tw.credit.algorithms, "_entries", dict(tw.credit.algorithms._entries))


@pytest.mark.usefixtures("own_algorithms")
def test_an_algorithm_of_ones_own_is_one_decorated_function() -> None:
    @tw.credit.register("first_turn_only")
    def first_turn_only(r: Rollouts, *, scale: Annotated[float, Help("factor", low=0)] = 1.0) -> Any:
        """All credit to the first turn."""
        return scale * (r.t == 0) * r.reward.sum()

    r = make([2, 2], [1.0, 2.0]).permuted([3, 2, 1, 0])
    assert tw.credit.compute("first_turn_only", r, scale=2).tolist() == [0.0, 6.0, 0.0, 6.0]
    with pytest.raises(TurnwiseError, match="already registered"):
        tw.credit.register("gigpo")(first_turn_only)


@pytest.mark.usefixtures("own_algorithms")
@pytest.mark.parametrize("wrong", [lambda r, **_: np.zeros(3), lambda r, **_: np.full(len(r), np.nan)])
def test_an_own_algorithm_that_returns_nonsense_is_named(wrong: Any) -> None:
    def nonsense(r: Rollouts) -> Any:
        """Nonsense."""
        return wrong(r)

    tw.credit.register("nonsense")(nonsense)
    with pytest.raises(TurnwiseError, match="'nonsense' returned"):
        tw.credit.compute("nonsense", make([2, 2], [1.0, 2.0]))


def test_similar_anchors_survive_texts_with_frequent_characters() -> None:
    """A matcher that drops frequent characters of long texts calls these half different."""
    rng = random.Random(1)
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=600))
    assert similar_groups([text, text[:300] + "xy" + text[300:]], 0.95).tolist() == [0, 0]


def test_similar_anchors_need_texts_and_rapidfuzz(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TurnwiseError, match=r"row 0: anchors=similar compares texts"):
        tw.credit.compute("gigpo", make([1, 1], [0.0, 1.0]), anchors="similar")
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    with pytest.raises(TurnwiseError, match=r"\[similar\]"):
        similar_groups(["a", "b"], 0.5)


def test_diagnosis_counts_what_it_says() -> None:
    anchors = ["s", "a", "a", "a", "s", "b", "c", "s"]
    r = make([4, 3, 1], [1.0, 0.0, 1.0], anchors=anchors, valid=[True] * 7 + [False])
    found = tw.credit.diagnose(r, gamma=1.0)
    assert found["anchor_groups"] == 4 and found["anchor_size_max"] == 3
    assert found["anchor_size_histogram"] == {"1": 2 / 8, "2-3": 6 / 8, "4-7": 0, "8-15": 0, "16-31": 0, "32-63": 0, "64+": 0}
    assert found["singleton_share"] == 2 / 8 and found["singleton_group_share"] == 2 / 4
    assert found["one_trajectory_share"] == 3 / 8
    assert found["step_credit_share"] == 3 / 8  # the three visits of s; the loop in a is constant at gamma 1
    assert found["constant_group_share"] == 0 and found["invalid_share"] == 1 / 8
    assert found["step_to_episode"] == pytest.approx(4 / 11)  # 4 and 11 times 1/√3


def test_diagnosis_of_a_group_where_all_fail() -> None:
    found = tw.credit.diagnose(make([2, 2], [0.0, 0.0], anchors=["s", "a", "s", "a"]))
    assert found["constant_group_share"] == 1 and found["step_credit_share"] == 0 and found["step_to_episode"] == 0


def test_a_return_that_is_above_zero_by_rounding_alone_is_no_success() -> None:
    columns = {"group": [0] * 4, "trajectory": [0, 0, 0, 1], "t": [0, 1, 2, 0], "anchor": ["s", "x", "y", "s"]}
    r = Rollouts.from_columns(reward=[0.1, 0.2, -0.3, 0.0], **columns)
    assert sum([0.1, 0.2, -0.3]) > 0
    assert (tw.credit.compute("graph_gpo", r, episode_weight=0.0, norm="none") == 0).all()


ROLLOUTS = Rollouts.from_trajectories([*group(0, "a"), *group(1, "b")])
WITH_PARTS = [entry.name for entry in tw.credit.algorithms if entry.parts and tw.credit.stands_alone(entry)]


@pytest.mark.parametrize("name", WITH_PARTS)
def test_parts_add_up_to_the_credit(name: str) -> None:
    weighed = {option: 0.5 + number for number, option in enumerate(tw.credit.algorithms[name].parts.values()) if option is not None}
    total = tw.credit.compute(name, ROLLOUTS, **weighed)
    parts = tw.credit.split(name, ROLLOUTS, **weighed)
    assert tuple(parts) == tw.credit.parts(name) and np.abs(total).sum() > 0
    np.testing.assert_allclose(sum(weight * column for column, weight in parts.values()), total, rtol=1e-5, atol=1e-6)
    assert [weight for _, weight in parts.values()] == (list(weighed.values()) or [1.0])


def test_the_parts_of_gigpo_are_those_that_explain_tells() -> None:
    why, parts = tw.credit.explain(ROLLOUTS, gamma=0.9), tw.credit.split("gigpo", ROLLOUTS, gamma=0.9, omega=3.0)
    for name in ("episode", "step"):
        np.testing.assert_allclose(parts[name][0], why[name], rtol=1e-5, atol=1e-6)


def test_algorithms_that_compare_whole_attempts_have_no_step_credit() -> None:
    assert "step" in tw.credit.parts("gigpo") and "step" not in tw.credit.parts("grpo")
    assert tw.credit.parts("nobody knows this one") == ()
    assert compares_states("gigpo") and not compares_states("grpo") and not compares_states("nobody knows this one")


@pytest.fixture
def mine() -> Iterator[str]:
    @tw.credit.register("mine_by_state", parts={"step": None})
    def mine_by_state(r: Rollouts) -> Floats:
        """A test's own."""
        return np.zeros(len(r))

    yield "mine_by_state"
    tw.credit.algorithms._entries.pop("mine_by_state")


def test_an_algorithm_of_ones_own_says_what_it_compares(mine: str) -> None:
    assert compares_states(mine) and tw.credit.split(mine, ROLLOUTS)["step"][1] == 1.0
