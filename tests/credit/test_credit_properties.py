"""Properties that every credit function has, on random rollouts, and equality with definitions written out in slow_credit.py."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import numpy as np
import pytest
import slow_credit as slow
from hypothesis import given
from hypothesis import strategies as st
from references import hgpo, pooled_td, verl

import turnwise as tw

ALONE = [entry for entry in tw.credit.algorithms if tw.credit.stands_alone(entry)]  # the others are tested with their signals
ALL = [entry.name for entry in ALONE]
GROUPED = [entry.name for entry in ALONE if "group.peers" in entry.needs]


def known(name: str, **options: object) -> dict[str, object]:
    """Those of the options that the algorithm has."""
    return {key: value for key, value in options.items() if key in tw.credit.algorithms[name].options}


def batches(max_reward: float = 10.0) -> st.SearchStrategy[list[slow.Row]]:
    """Hypothesis draws the number of groups, a few unusual numbers and a seed, by which they are dealt out to the turns: drawing every
    number of every turn takes ten times as long as the credit itself."""
    reward, value = st.floats(-max_reward, max_reward, width=32), st.floats(-2, 2, width=32)
    return st.builds(dealt, st.integers(1, 3), st.tuples(reward, reward), st.tuples(value, value), st.integers(0, 2**32 - 1))


def dealt(groups: int, rewards: tuple[float, ...], values: tuple[float, ...], seed: int) -> list[slow.Row]:
    """Groups of one to four trajectories of one to five turns, in any order; few numbers occur, so that many of them are equal."""
    random, rows = Random(seed), []
    occur = random.choices([0.0, 0.0, 1.0, 10.0, *rewards], k=random.randint(1, 5))
    for trajectory, group in enumerate(group for group in range(groups) for _ in range(random.randint(1, 4))):
        for t in range(random.randint(1, 5)):
            anchor, valid, token_values = f"s{random.randrange(3)}", random.random() < 0.5, random.choices(values, k=random.randint(1, 3))
            rows.append(slow.Row(group, trajectory, t, random.choice(occur), anchor, valid, random.choice(values), token_values))
    random.shuffle(rows)
    return rows


def rollouts(rows: list[slow.Row], **changes: object) -> tw.Rollouts:
    columns: dict[str, object] = {
        name: [getattr(row, name) for row in rows] for name in ("group", "trajectory", "t", "reward", "anchor", "valid", "value")
    }
    columns |= {"tokens": [len(row.token_values) for row in rows], "token_value": [v for row in rows for v in row.token_values]}
    return tw.Rollouts.from_columns(**(columns | changes))


def ordered(rows: list[slow.Row]) -> tuple[list[slow.Row], dict[str, list]]:
    """The rows as the references take them: by trajectory and time, and their columns."""
    rows = sorted(rows, key=lambda row: (row.trajectory, row.t))
    names = ("group", "trajectory", "anchor", "token_values")
    return rows, {name: [getattr(row, name) for row in rows] for name in names}


def check_close(name: str, rows: list[slow.Row], expected: list[float], **options: object) -> None:
    found = tw.credit.compute(name, rollouts(rows), **options)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


norms = st.sampled_from(["std", "none"])
weightings = st.sampled_from(["trajectory", "step"])
penalties = st.sampled_from([0.0, 0.1, 1.0])
discounts = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@given(batches(), norms, weightings, penalties)
def test_grpo_equals_its_definition(rows: list[slow.Row], norm: str, weighting: str, penalty: float) -> None:
    check_close("grpo", rows, slow.grpo(rows, norm, weighting, penalty), norm=norm, weighting=weighting, invalid_penalty=penalty)
    check_close("dr_grpo", rows, slow.grpo(rows, "none", weighting, penalty), weighting=weighting, invalid_penalty=penalty)


@given(batches(), discounts, st.sampled_from([0.0, 1.0, 2.5]), norms, penalties)
def test_pooled_td_equals_its_definition(rows: list[slow.Row], gamma: float, prior: float, norm: str, penalty: float) -> None:
    rows, _ = ordered(rows)
    expected = pooled_td.pooled_td(rows, gamma, prior, norm, penalty)
    check_close("pooled_td", rows, expected, gamma=gamma, prior=prior, norm=norm, invalid_penalty=penalty)


@given(batches(), weightings, penalties)
def test_rloo_and_loop_equal_their_definitions(rows: list[slow.Row], weighting: str, penalty: float) -> None:
    check_close("rloo", rows, slow.rloo(rows, weighting, penalty), weighting=weighting, invalid_penalty=penalty)
    check_close("loop", rows, slow.loop(rows, 0.01, penalty), invalid_penalty=penalty)


@given(batches(), norms, weightings, penalties, discounts)
def test_reinforce_pp_equals_its_definition(rows: list[slow.Row], norm: str, weighting: str, penalty: float, gamma: float) -> None:
    check_close(
        "reinforce_pp", rows, slow.reinforce_pp(rows, norm, weighting, penalty), norm=norm, weighting=weighting, invalid_penalty=penalty
    )
    to_go = slow.reinforce_pp_to_go(rows, gamma, norm, penalty)
    check_close("reinforce_pp", rows, to_go, returns="to_go", gamma=gamma, norm=norm, weighting="step", invalid_penalty=penalty)
    check_close(
        "reinforce_pp_baseline", rows, slow.reinforce_pp_baseline(rows, weighting, penalty), weighting=weighting, invalid_penalty=penalty
    )


@given(batches(), norms, weightings, penalties, discounts, st.booleans())
def test_gigpo_equals_its_definition(rows: list[slow.Row], norm: str, weighting: str, penalty: float, gamma: float, once: bool) -> None:
    expected = slow.gigpo(rows, gamma, 0.7, norm, weighting, penalty, once)
    check_close("gigpo", rows, expected, gamma=gamma, omega=0.7, norm=norm, weighting=weighting, invalid_penalty=penalty, once=once)


@given(batches(), norms, weightings, penalties, discounts, st.integers(0, 4), st.booleans(), st.booleans())
def test_hgpo_equals_its_authors_code_and_its_paper(
    rows: list[slow.Row], norm: str, weighting: str, penalty: float, gamma: float, history: int, paper: bool, episode: bool
) -> None:
    rows, of = ordered(rows)
    score = [slow.discounted(rows, row, gamma) - (0.0 if row.valid else penalty) for row in rows]
    level = slow.episode(rows, norm, weighting, penalty) if episode else None
    expected = hgpo.advantages(score, of["anchor"], of["group"], of["trajectory"], history, norm == "std", 1.5, level, paper)
    options = {"history": history, "alpha": 1.5, "gamma": gamma, "norm": norm, "weighting": weighting, "invalid_penalty": penalty}
    check_close("hgpo", rows, expected, weights="paper" if paper else "code", episode=episode, **options)


@given(batches(), penalties)
def test_reinforce_pp_counts_tokens_as_its_public_code_does(rows: list[slow.Row], penalty: float) -> None:
    rows, of = ordered(rows)
    charge = [0.0 if row.valid else penalty for row in rows]
    score = [slow.episode_return(rows, row.trajectory) - c for row, c in zip(rows, charge, strict=True)]
    centred = [a - c for a, c in zip(slow.episode(rows, "none", "trajectory", 0.0), charge, strict=True)]
    tokens = [len(values) for values in of["token_values"]]
    for name, scores in (("reinforce_pp", score), ("reinforce_pp_baseline", centred)):
        expected = verl.whitened_over_tokens(scores, tokens) if len(set(scores)) > 1 else [0.0] * len(rows)
        found = tw.credit.compute(name, rollouts(rows), weighting="token", invalid_penalty=penalty)
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ALL)
@given(batches(), st.integers(0, 2**32 - 1), penalties)
def test_a_permutation_of_the_rows_permutes_the_credit_bit_for_bit(name: str, rows: list[slow.Row], seed: int, penalty: float) -> None:
    order = list(range(len(rows)))
    Random(seed).shuffle(order)
    r = rollouts(rows)
    options = known(name, invalid_penalty=penalty)
    before, after = tw.credit.assign(name, r, **options), tw.credit.compute(name, r.permuted(order), **options)
    if before.level == "token":
        pieces = np.split(before.values, r.token_offsets[1:-1])
        np.testing.assert_array_equal(after, np.concatenate([pieces[i] for i in order]))
    else:
        np.testing.assert_array_equal(after, before.values[order])


@pytest.mark.parametrize("name", ALL)
@given(batches(max_reward=2.0**100), norms, penalties)
def test_credit_is_always_finite(name: str, rows: list[slow.Row], norm: str, penalty: float) -> None:
    assert np.isfinite(tw.credit.compute(name, rollouts(rows), **known(name, norm=norm, invalid_penalty=penalty))).all()


@pytest.mark.parametrize("name", GROUPED)
@given(batches(), norms, weightings, st.floats(-1e6, 1e6) | st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_constant_groups_give_exactly_zero_whatever_the_value(
    name: str, rows: list[slow.Row], norm: str, weighting: str, reward: float
) -> None:
    last = {row.trajectory: max(other.t for other in rows if other.trajectory == row.trajectory) for row in rows}
    rewards = [reward if row.t == last[row.trajectory] else 0.0 for row in rows]
    weigher = tw.credit.algorithms[name].parts.get("step")
    # step credit on something else than returns, such as a distance, may differ where the returns do not
    options = {weigher: 0.0} if weigher and "gamma" not in tw.credit.explaining(name, {}) else {}
    options |= {"gamma": 1.0} if "gamma" in tw.credit.algorithms[name].options else {}  # a discount by the distance to the end differs, too
    credit = tw.credit.compute(name, rollouts(rows, reward=rewards), **known(name, norm=norm, weighting=weighting), **options)
    assert (credit == 0).all()


@given(st.floats(-1e3, 1e3), st.integers(2, 6))
def test_equal_returns_that_were_summed_in_another_order_count_as_equal(reward: float, n: int) -> None:
    parts = [reward, 0.1, 0.2, 0.3]
    rewards = [part for i in range(n) for part in parts[i % 4 :] + parts[: i % 4]]
    r = tw.Rollouts.from_columns(
        group=[0] * 4 * n, trajectory=np.repeat(np.arange(n), 4), t=np.tile(np.arange(4), n), reward=rewards, anchor=[0] * 4 * n
    )
    assert (tw.credit.compute("grpo", r) == 0).all()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gigpo", "reinforce_pp", "reinforce_pp_baseline"])
@given(batches(), st.floats(-100, 100))
def test_adding_a_constant_to_every_return_changes_nothing(name: str, rows: list[slow.Row], shift: float) -> None:
    last = {row.trajectory: max(other.t for other in rows if other.trajectory == row.trajectory) for row in rows}
    moved = [row.reward + (shift if row.t == last[row.trajectory] else 0.0) for row in rows]
    options = {"gamma": 1.0} if name == "gigpo" else {}
    before, after = (tw.credit.compute(name, rollouts(rows, **c), norm="none", **options) for c in ({}, {"reward": moved}))
    np.testing.assert_allclose(after, before, atol=1e-3)


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "gigpo", "hgpo"])
@given(batches(), st.floats(0.1, 100))
def test_without_norm_credit_scales_with_the_rewards(name: str, rows: list[slow.Row], scale: float) -> None:
    before = tw.credit.compute(name, rollouts(rows), norm="none")
    after = tw.credit.compute(name, rollouts(rows, reward=[scale * row.reward for row in rows]), norm="none")
    np.testing.assert_allclose(after, scale * before, rtol=1e-3, atol=1e-3)


@given(batches(), norms)
def test_credit_adds_up_to_zero_where_the_definition_says_so(rows: list[slow.Row], norm: str) -> None:
    r = rollouts(rows)
    by_trajectory = {row.trajectory: index for index, row in enumerate(rows)}
    grpo, group = tw.credit.compute("grpo", r, norm=norm), np.array([row.group for row in rows])
    firsts = np.array(sorted(by_trajectory.values()))
    for g in set(group.tolist()):
        assert abs(grpo[firsts][group[firsts] == g].sum()) < 1e-3  # over trajectories
    rows_equal = tw.credit.compute("grpo", r, norm=norm, weighting="step")
    why = tw.credit.explain(r, norm=norm)
    for g in set(group.tolist()):
        assert abs(rows_equal[group == g].sum()) < 1e-3  # over turns
    for a in set(why["anchor_group"].tolist()):
        assert abs(why["step"][why["anchor_group"] == a].sum()) < 1e-3  # over the turns of an anchor group


def test_the_references_use_nothing_but_plain_python_and_numpy() -> None:
    allowed = {"__future__", "math", "statistics", "collections", "dataclasses", "typing", "itertools", "numpy"}
    for file in (Path(__file__).parents[1] / "references").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, file.name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] in allowed, file.name
