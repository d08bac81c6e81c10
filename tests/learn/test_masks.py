"""Turns that a branch shares with its parent are learned from once, or as often as they are shared."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from learn_cases import tiny

from turnwise.data.batch import Batch
from turnwise.data.masks import masked, own_turns
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn import Learner
from turnwise.recipe.schema import Config
from turnwise.setup.parts import build_credit


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Lengths, parents and first own turns of trajectories: a parent comes before its branches, and may lie outside the batch (-1)."""
    lengths, parents, branches = [], [], []
    for number in range(draw(st.integers(1, 8))):
        parent = draw(st.integers(-1, number - 1))
        shared = draw(st.integers(0, lengths[parent])) if parent >= 0 else draw(st.integers(0, 2))
        lengths.append(shared + draw(st.integers(1, 4)))
        parents.append(parent)
        branches.append(shared)
    return lengths, parents, branches


def slow(lengths: list[int], parents: list[int], branches: list[int]) -> list[bool]:
    """Turn by turn: left out where the parent is here and has the same turn."""
    found = []
    for number, length in enumerate(lengths):
        for t in range(length):
            has_parent = parents[number] != -1
            found.append(not (has_parent and t < branches[number]))
    return found


@given(tree=trees(), seed=st.integers(0, 2**16))
def test_own_turns_are_those_that_no_parent_holds_in_any_order_of_rows(tree: tuple[list[int], list[int], list[int]], seed: int) -> None:
    lengths, parents, branches = tree
    trajectory = np.repeat(np.arange(len(lengths)), lengths)
    t = np.concatenate([np.arange(length) for length in lengths])
    order = np.random.default_rng(seed).permutation(len(t))
    assert own_turns(trajectory[order], t[order], parents, branches).tolist() == np.array(slow(*tree))[order].tolist()


def branched() -> Batch:
    def turns(count: int) -> list[Turn]:
        return [Turn(anchor=t, prompt_ids=[1, t + 1], response_ids=[3, 4]) for t in range(count)]

    stem = Trajectory("g", "stem", turns=turns(3))
    branch, twig = Trajectory("g", "branch", turns=turns(4)), Trajectory("g", "twig", turns=turns(5))
    branch.parent, branch.branch_t = "stem", 2
    twig.parent, twig.branch_t = "branch", 3
    return Batch.of([stem, branch, twig])


def test_a_batch_of_branches_is_masked_by_the_rule() -> None:
    batch = branched()
    assert masked(batch, "each") is batch
    once = masked(batch, "once")
    assert once.column("turn.mask").tolist() == [True] * 3 + [False] * 2 + [True] * 2 + [False] * 3 + [True] * 2
    given_mask = np.arange(len(batch)) != 0
    both = masked(batch.with_columns({"turn.mask": given_mask}), "once")
    assert both.column("turn.mask").tolist() == [False, *once.column("turn.mask").tolist()[1:]]


def test_branches_of_a_parent_outside_the_batch_learn_from_its_turns_once() -> None:
    def branch(name: str, shared: int, length: int, first: int = 1) -> Trajectory:
        turns = [Turn(anchor=t, prompt_ids=[1, t + first if t < shared else 9], response_ids=[3]) for t in range(length)]
        return Trajectory("g", name, turns=turns, parent="gone", branch_t=shared)

    batch = Batch.of([branch("short", 1, 3), branch("long", 2, 3), branch("same", 2, 4), branch("other", 1, 2, first=5)])
    mask = masked(batch, "once").column("turn.mask").tolist()
    assert mask == [False, True, True, *[True] * 3, False, False, True, True, *[True] * 2]


def test_a_recipe_says_how_often_a_shared_prefix_is_learned_from() -> None:
    for rule, learned in (("once", 7), ("each", 12)):
        config = Config.load(None, {"collect.shared_prefix": rule, "credit.name": "grpo", "agent.max_prompt_tokens": 100})
        batch, _ = build_credit(config)(branched())
        assert batch.has("turn.advantage")
        learner = Learner(tiny())
        assert learner.update(batch)["turns"] == learned


def test_a_batch_without_branches_needs_no_mask() -> None:
    batch = Batch.of([Trajectory("g", i, turns=[Turn(anchor=0, prompt_ids=[1], response_ids=[2])]) for i in range(2)])
    assert masked(batch, "once") is batch
