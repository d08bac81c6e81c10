"""Negative controls keep what makes updates large, and lose what a method knows."""

from __future__ import annotations

import numpy as np
import pytest

import turnwise as tw
from turnwise.arena import controls


def batch(seed: int = 0, groups: int = 3, attempts: int = 6, turns: int = 4) -> tw.Rollouts:
    rng = np.random.default_rng(seed)
    count = groups * attempts * turns
    return tw.Rollouts.from_columns(
        group=np.repeat(np.arange(groups), attempts * turns),
        trajectory=np.repeat(np.arange(groups * attempts), turns),
        t=np.tile(np.arange(turns), groups * attempts),
        reward=rng.random(count).round(1),
        anchor=rng.integers(3, size=count),
    )


def by_group(r: tw.Rollouts, values: np.ndarray) -> list[list[float]]:
    return [sorted(values[r.group == group].round(5).tolist()) for group in range(len(r.group_labels))]


@pytest.mark.parametrize("base", ["gigpo", "grpo", "rloo"])
def test_shuffled_credit_is_the_methods_credit_on_other_turns_of_the_group(base):
    r = batch()
    theirs, ours = tw.credit.compute(base, r), tw.credit.compute(controls.shuffled, r, base=base)
    assert by_group(r, ours) == by_group(r, theirs)
    assert (ours != theirs).mean() > 0.5


def test_random_anchors_leave_the_credit_of_attempts_and_change_that_of_steps():
    r = batch()
    assert (tw.credit.compute(controls.random_anchors, r, base="grpo") == tw.credit.compute("grpo", r)).all()
    assert (tw.credit.compute(controls.random_anchors, r, base="gigpo") != tw.credit.compute("gigpo", r)).any()


def test_constant_credit_is_one_number_of_the_methods_size_and_flipped_credit_its_negative():
    r = batch()
    theirs = tw.credit.compute("gigpo", r, gamma=0.9)
    constant = tw.credit.compute(controls.constant, r, gamma=0.9)
    assert len(set(constant.tolist())) == 1 and constant[0] == pytest.approx(np.abs(theirs).mean())
    assert (tw.credit.compute(controls.flipped, r, gamma=0.9) == -theirs).all()


@pytest.mark.parametrize("control", controls.CONTROLS)
def test_controls_are_pure_and_do_not_depend_on_the_order_of_rows(control):
    r = batch()
    function = getattr(controls, control)
    order = np.random.default_rng(1).permutation(len(r))
    assert (tw.credit.compute(function, r) == tw.credit.compute(function, r)).all()
    assert (tw.credit.compute(function, r.permuted(order)) == tw.credit.compute(function, r)[order]).all()
