"""Packing: which tokens become one sequence, where each is predicted from, and how batches are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_cases import rollouts_of, trajectories

from turnwise.credit import Credit
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn.minibatch import sequences_of, spread
from turnwise.learn.packing import microbatches, pack
from turnwise.methods.steps import cut
from turnwise.util.errors import TurnwiseError


def turn(prompt: list[int], response: list[int], logprobs: tuple[float, ...] = ()) -> Turn:
    return Turn(anchor="x", prompt_ids=prompt, response_ids=response, logprobs=logprobs)


def described(packed: object, rollouts: object) -> set[tuple[object, ...]]:
    """Every response token by what identifies it and what the model will see: label, turn, place, id, all ids before it."""
    found = set()
    sequence = np.searchsorted(packed.offsets, packed.source, side="right") - 1  # type: ignore[attr-defined]
    for i, source in enumerate(packed.source.tolist()):  # type: ignore[attr-defined]
        start = packed.offsets[sequence[i]]  # type: ignore[attr-defined]
        row = packed.turn[i]  # type: ignore[attr-defined]
        label = rollouts.trajectory_labels[rollouts.trajectory[row]]  # type: ignore[attr-defined]
        place = packed.index[i] - rollouts.token_offsets[row]  # type: ignore[attr-defined]
        before = tuple(packed.ids[start : source + 1].tolist())  # type: ignore[attr-defined]
        found.add((str(label), int(rollouts.t[row]), int(place), int(packed.target[i]), before, float(packed.engine_logprob[i])))  # type: ignore[attr-defined]
    return found


def expected(found: list[Trajectory]) -> set[tuple[object, ...]]:
    """The same, straight from the turns."""
    return {
        (trajectory.id, t, place, token, (*one.prompt_ids, *one.response_ids[:place]), one.logprobs[place])
        for trajectory in found
        for t, one in enumerate(trajectory.turns)
        for place, token in enumerate(one.response_ids)
    }


@pytest.mark.parametrize("context", ["window", "full"])
def test_every_response_token_is_predicted_from_exactly_what_the_engine_saw(context: str) -> None:
    found = trajectories(3, context=context)
    rollouts = rollouts_of(found)
    assert described(pack(found, rollouts), rollouts) == expected(found)


@pytest.mark.parametrize("kinds", [(tuple,), (np.array,), (list, np.array), (np.array, list), (list, tuple)])
@pytest.mark.parametrize("context", ["window", "full"])
def test_lists_tuples_and_arrays_of_ids_are_packed_alike(context: str, kinds: tuple[Callable[[Any], Any], ...]) -> None:
    found = trajectories(3, context=context)
    expected = pack(found)
    for trajectory in found:
        for t, one in enumerate(trajectory.turns):
            kind = kinds[t % len(kinds)]
            one.prompt_ids, one.response_ids = kind(list(one.prompt_ids)), kind(list(one.response_ids))
    packed = pack(found)
    for name in ("ids", "offsets", "source", "turn", "trajectory", "index", "turn_source"):
        assert np.array_equal(getattr(packed, name), getattr(expected, name)) and getattr(packed, name).dtype == np.int64


def test_a_wrong_id_late_in_a_dialogue_is_named() -> None:
    with pytest.raises(TurnwiseError, match=r"trajectory 0, turn 1.*integers"):
        pack([Trajectory(0, 0, turns=[turn([1, 2], [3]), turn([1, 2, 3, -4], [5])])])


def test_a_prompt_that_does_not_continue_starts_a_sequence_of_its_own() -> None:
    same = Trajectory(0, 0, turns=[turn([1, 2], [3]), turn([1, 2, 3, 4], [5]), turn([1, 2, 9, 4, 5, 6], [7]), turn([1, 2, 9], [8])])
    packed = pack([same])
    assert packed.lengths.tolist() == [5, 7, 4]
    assert packed.position.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3]
    assert packed.turn_source.tolist() == [1, 3, 10, 14]
    assert packed.target.tolist() == [3, 5, 7, 8]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), context=st.sampled_from(["window", "full"]))
def test_the_order_of_trajectories_changes_no_token_and_columns_land_on_their_own(seed: int, context: str) -> None:
    rng = np.random.default_rng(seed)
    found = trajectories(seed, context=context)
    shuffled = [found[i] for i in rng.permutation(len(found))]
    for batch in (Batch.of(found), Batch.of(shuffled)):
        rollouts = batch.rollouts
        packed = pack(batch.trajectories, rollouts)
        assert described(packed, rollouts) == expected(found)
        assert rollouts.tokens is not None
        for level, size in (("turn", len(rollouts)), ("token", int(rollouts.tokens.sum()))):
            values = rng.normal(size=size)
            place = packed.turn if level == "turn" else packed.index
            assert np.array_equal(spread(f"{level}.x", values, packed, batch), values[place])
        owner = spread("trajectory.x", np.arange(len(rollouts.trajectory_labels)), packed, batch)
        assert np.array_equal(owner, rollouts.trajectory[packed.turn])
        assert np.array_equal(spread("group.x", np.arange(len(rollouts.group_labels)), packed, batch), rollouts.group[packed.turn])


def test_taking_sequences_moves_everything_that_belongs_to_them() -> None:
    found = trajectories(5)
    rollouts = rollouts_of(found)
    packed = pack(found, rollouts).with_columns(mark=np.arange(sum(len(t.response_ids) for x in found for t in x.turns)))
    order = np.random.default_rng(0).permutation(len(packed))
    part = packed.take(order).take(np.arange(len(order))[::2])
    assert part.lengths.tolist() == packed.lengths[order[::2]].tolist()
    assert described(part, rollouts) <= expected(found)
    assert part.target.tolist() == packed.target[part.columns["mark"]].tolist()
    assert [int(part.ids[s]) for s in part.turn_source] == [int(list(found_turn(found, rollouts, r).prompt_ids)[-1]) for r in part.turn_row]


def found_turn(found: list[Trajectory], rollouts: object, row: int) -> Turn:
    label = rollouts.trajectory_labels[rollouts.trajectory[row]]  # type: ignore[attr-defined]
    return next(x for x in found if x.id == label).turns[rollouts.t[row]]  # type: ignore[attr-defined]


def test_a_turn_without_a_response_keeps_its_state_and_has_no_token() -> None:
    packed = pack([Trajectory(0, 0, turns=[turn([1, 2], []), turn([1, 2, 3], [4]), turn([], [])])])
    assert packed.ids.tolist() == [1, 2, 3, 4]
    assert packed.turn_row.tolist() == [0, 1]
    assert packed.turn_source.tolist() == [1, 2]


def test_engine_logprobs_are_given_for_all_tokens_or_not_at_all() -> None:
    partly = [Trajectory(0, 0, turns=[turn([1], [2, 3], (-0.5, -0.25)), turn([4], [5])])]
    assert pack(partly).engine_logprob is None
    partly[0].turns[1].logprobs = (-1.0,)
    assert pack(partly).engine_logprob.tolist() == [-0.5, -0.25, -1.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([turn([], [3])], "without a prompt"),
        ([turn([1], [2, 3], (-0.5,))], "1 log-probs for 2"),
        ([turn([1], [-2])], "integers"),
        ([turn([1.5], [2])], "integers"),  # type: ignore[list-item]
    ],
)
def test_turns_that_cannot_be_trained_on_are_named(turns: list[Turn], words: str) -> None:
    with pytest.raises(TurnwiseError, match=words) as error:
        pack([Trajectory(0, "here", turns=turns)])
    assert "'here', turn 0" in str(error.value)


def test_rollouts_that_do_not_match_the_trajectories_are_refused() -> None:
    found = trajectories(2)
    rollouts = rollouts_of(found)
    with pytest.raises(TurnwiseError, match="of different batches"):
        pack([*found, Trajectory(0, "stranger", turns=[turn([1], [2])])], rollouts)
    with pytest.raises(TurnwiseError, match="rows and turns have one order"):
        pack(found[::-1], rollouts)
    with pytest.raises(TurnwiseError, match="rows and turns have one order"):
        pack(found, rollouts.permuted(np.arange(len(rollouts))[::-1]))
    found[1].turns[0].response_ids = [*found[1].turns[0].response_ids, 1]
    found[1].turns[0].logprobs = ()
    with pytest.raises(TurnwiseError, match="column 'tokens', row"):
        pack(found, rollouts)


def test_columns_of_a_wrong_length_level_or_kind_are_refused() -> None:
    batch = Batch.of(trajectories(2))
    packed, size = pack(batch.trajectories, batch.rollouts), len(batch.rollouts)
    for name, values, words in [
        ("turn.x", np.zeros(size + 1), "one number per turn"),
        ("token.x", np.zeros(size), "one number per token"),
        ("turn.x", np.full(size, "word"), "one number per turn"),
        ("place.x", np.zeros(size), "the level one of group, trajectory, turn, token"),
    ]:
        with pytest.raises(TurnwiseError, match=words):
            spread(name, values, packed, batch)


def test_the_level_of_a_column_is_its_name_and_not_told_from_its_length() -> None:
    batch = Batch.of([Trajectory("g", "x", turns=[turn([1], []), turn([2], [5, 6, 7]), turn([3], [])])])  # three turns, three tokens
    packed, numbers = pack(batch.trajectories, batch.rollouts), np.array([1.0, 2.0, 3.0], np.float32)
    assert spread("turn.advantage", numbers, packed, batch).tolist() == [2.0, 2.0, 2.0]
    assert spread("token.advantage", numbers, packed, batch).tolist() == [1.0, 2.0, 3.0]
    assert Credit(numbers, "token").by_turn(batch.rollouts).tolist() == [0.0, 2.0, 0.0]
    assert Credit(numbers).by_turn(batch.rollouts).tolist() == [1.0, 2.0, 3.0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 60), whole=st.booleans())
def test_micro_batches_hold_each_sequence_once_and_respect_the_budget(seed: int, budget: int, whole: bool) -> None:
    packed = pack(trajectories(seed))
    order = np.random.default_rng(seed).permutation(len(packed))
    parts = microbatches(packed, order, budget, whole)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(packed)))
    owner = packed.sequence_trajectory if whole else np.arange(len(packed))
    for part in parts:
        assert packed.lengths[part].sum() <= budget or len(set(owner[part].tolist())) == 1
    buffers = [set(owner[part].tolist()) for part in parts]
    assert sum(map(len, buffers)) == len(set().union(*buffers))  # nothing that must stay whole is cut


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 20), unit=st.sampled_from(["trajectory", "turn"]))
def test_mini_batches_are_of_nearly_equal_size(seed: int, size: int, unit: str) -> None:
    packed = pack(trajectories(seed, groups=3))
    parts = cut(sequences_of(packed), unit, seed, size=size)  # type: ignore[arg-type]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(packed)))
    owner = packed.sequence_trajectory if unit == "trajectory" else np.arange(len(packed))
    sizes = [len(set(owner[part].tolist())) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(set(owner.tolist()))
    assert len(parts) == min(sum(sizes), max(1, round(sum(sizes) / size)))


def test_mini_batches_follow_the_seed_and_the_number_of_steps() -> None:
    packed = pack(trajectories(1, groups=4))
    as_lists = [[part.tolist() for part in cut(sequences_of(packed), "trajectory", (seed, 0), steps=3)] for seed in (1, 1, 2)]
    assert as_lists[0] == as_lists[1] != as_lists[2]
    assert len(as_lists[0]) == 3
    assert len(cut(sequences_of(packed), "turn", 0)) == 1
