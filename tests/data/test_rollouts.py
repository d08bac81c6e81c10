"""Rollouts: what is accepted, what is refused and how the error reads, order, saving and loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnwise as tw
from turnwise import Rollouts, Stop, Trajectory, Turn, TurnwiseError
from turnwise.data.anchors import UNKNOWN


def columns(**changes: Any) -> dict[str, Any]:
    base = {
        "group": [0, 0, 0, 1, 1],
        "trajectory": [5, 5, 7, 9, 9],
        "t": [0, 1, 0, 0, 1],
        "reward": [0.0, 1.0, 0.0, 0.0, 2.0],
        "anchor": ["a", "b", "a", "a", "c"],
        "valid": [True, True, False, True, True],
    }
    return base | changes


def test_ids_and_anchors_become_dense_integers_and_keep_their_labels() -> None:
    r = Rollouts.from_columns(**columns(group=["x", "x", "x", "b", "b"]))
    assert r.group_labels.tolist() == ["b", "x"]
    assert r.group.tolist() == [1, 1, 1, 0, 0]
    assert r.trajectory_labels[r.trajectory].tolist() == [5, 5, 7, 9, 9]
    assert [r.anchor_table.texts[code] for code in r.anchor] == ["a", "b", "a", "a", "c"]
    assert "5 turns, 3 trajectories, 2 groups, 3 distinct anchors" in repr(r)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"anchor": ["a"] * 6}, ["'anchor'", "6 entries", "row 5"]),
        ({"reward": [0.0, 0.0, 0.0, float("-inf"), 0.0]}, ["'reward'", "row 3", "-inf"]),
        ({"reward": [0.0, 0.0, None, 0.0, 0.0]}, ["'reward'", "row 2"]),
        ({"t": [1, 2, 0, 0, 1]}, ["'t'", "row 0", "trajectory 5", "no t=0"]),
        ({"trajectory": [5, 5, 9, 9, 9], "t": [0, 1, 0, 1, 2]}, ["'trajectory'", "row 3", "9", "group 0", "group 1"]),
        ({"group": [0, 0, 0, None, 1]}, ["'group'", "row 3"]),
        ({"anchor": ["a", "b", 1.5, "a", "c"]}, ["'anchor'", "row 2", "float"]),
    ],
)
def test_bad_input_names_the_column_and_the_first_bad_row(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(TurnwiseError) as caught:
        Rollouts.from_columns(**columns(**changes))
    for word in words:
        assert word in str(caught.value)


GOOD: dict[str, Any] = {
    "group": [0, 0, 0],
    "trajectory": [5, 5, 7],
    "t": [0, 1, 0],
    "reward": [0.0, 1.0, 0.0],
    "anchor": ["hall", "kitchen", "hall"],
}
MESSAGES = [
    ("reward=[0.0, 1.0]", "column 'reward' has 2 entries and column 'group' has 3: row 2 is the first without a partner"),
    ("reward=1.0", "column 'reward': one value per turn is required, got a single float"),
    ("reward=[[0.0], [1.0], [0.0]]", "column 'reward': one value per turn is required, got an array of shape (3, 1)"),
    ("group=[], trajectory=[], t=[], reward=[], anchor=[]", "column 'group' is empty: rollouts need at least one turn"),
    ('reward=[0.0, "lots", 0.0]', "column 'reward', row 1: a number is required, got 'lots'"),
    ('reward=[0.0, float("nan"), 0.0]', "column 'reward', row 1: a finite number is required, got nan"),
    ("value=[0.0, None, 0.0]", "column 'value', row 1: a finite number is required, got nan"),
    ("reward=[0.0, 1e200, 0.0]", "column 'reward', row 1: 1e+200 is beyond ±1e+150; scale the rewards down"),
    ("t=[0, 0.5, 0]", "column 't', row 1: an integer is required, got 0.5"),
    ("t=[0, -1, 0]", "column 't', row 1: turns are numbered from 0, got -1"),
    ("t=[0, 0, 0]", "column 't', row 1: trajectory 5 has t=0 twice (first in row 0)"),
    ("t=[0, 2, 0]", "column 't', row 1: trajectory 5 has t=2 but no t=1: a gap (turns are numbered from 0)"),
    ("valid=[1, 2, 1]", "column 'valid', row 1: true or false is required, got 2"),
    (
        "success=[True, False, True]",
        "column 'success', row 1: trajectory 5 has both true and false; success applies to the whole trajectory",
    ),
    ("group=[0, 1, 0]", "column 'trajectory', row 1: trajectory 5 is in group 0 and in group 1"),
    ('trajectory=[5, "5", 7]', "column 'trajectory', row 1: ids must be all integers or all text, got '5' after 5"),
    ("trajectory=[5.0, 5.0, 7.0]", "column 'trajectory', row 0: ids must be all integers or all text, got 5.0"),
    ("group=[[0], [0], [0]]", "column 'group', row 0: ids must be all integers or all text, got [0]"),
    ('anchor=["hall", None, "hall"]', "column 'anchor', row 1: an anchor must be text, bytes, an integer or an image, not NoneType"),
    ("tokens=[1, -1, 2]", "column 'tokens', row 1: must be at least 0, got -1"),
    ("token_value=[0.0]", "column 'token_value' has one entry per token, so the column 'tokens' (tokens of each turn) is required too"),
    ("tokens=[1, 1, 2], token_value=[0.0]", "column 'token_value' has 1 entries; the column 'tokens' adds up to 4"),
    ('extra={"gain": [1.0]}', "column 'gain': an array of numbers or text with 3 entries (one per turn) is needed, got float64 (1,)"),
    ('extra={"reward": [0.0, 0.0, 0.0]}', "extra column 'reward' has the name of a built-in column: pass it as reward=…"),
]


@pytest.mark.parametrize(("given", "message"), MESSAGES, ids=lambda text: text)
def test_every_error_of_bad_columns_reads_in_full(given: str, message: str) -> None:
    with pytest.raises(TurnwiseError) as caught:
        Rollouts.from_columns(**(GOOD | eval(f"dict({given})", {})))
    assert str(caught.value) == message


def test_later_errors_say_what_is_missing_or_wrong(tmp_path: Path) -> None:
    r = Rollouts.from_columns(**(GOOD | {"anchor": [1, 2, 1]}))
    good = r.save(tmp_path / "good.npz")
    header = np.array(json.dumps({"schema": "turnwise.rollouts", "version": 2}))
    np.savez(tmp_path / "newer.npz", header=header)
    np.savez(tmp_path / "foreign.npz", x=np.zeros(1))
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:100])
    asked: list[tuple[Callable[[], Any], str]] = [
        (lambda: r.permuted([0, 0, 1]), "'order' must contain each row number from 0 to 2 once"),
        (lambda: r.token_offsets, "these rollouts have no column 'tokens' (the number of response tokens of each turn)"),
        (lambda: tw.credit.compute("gae", r), "gae with level=turn needs the column 'value', which these rollouts do not have"),
        (
            lambda: tw.credit.compute("gigpo", r, anchors="similar"),
            "column 'anchor', row 0: anchors=similar compares texts, and this anchor is not text; use anchors=exact",
        ),
        (lambda: Rollouts.load(tmp_path / "absent.npz"), "no such rollouts file"),
        (lambda: Rollouts.load(tmp_path / "foreign.npz"), "not a Turnwise rollouts file (it has no header)"),
        (lambda: Rollouts.load(tmp_path / "cut.npz"), "damaged, or not a Turnwise rollouts file"),
        (lambda: Rollouts.load(tmp_path / "newer.npz"), "written with a newer schema (version 2); this Turnwise reads version 1."),
    ]
    for ask, message in asked:
        with pytest.raises(TurnwiseError) as caught:
            ask()
        assert message in str(caught.value)


def test_the_first_bad_row_is_the_first_in_row_order() -> None:
    with pytest.raises(TurnwiseError, match="row 1:"):
        Rollouts.from_columns(**columns(trajectory=[9, 9, 7, 5, 5], t=[0, 3, 0, 0, 4], group=[0, 0, 0, 1, 1]))


def test_tensors_and_ranges_are_read_as_arrays() -> None:
    import torch

    plain = Rollouts.from_columns(**columns(anchor=[0, 1, 0, 0, 2]))
    tensors = {name: torch.tensor(values) for name, values in columns(anchor=[0, 1, 0, 0, 2]).items()}
    again = Rollouts.from_columns(**tensors)
    for name in ("group", "trajectory", "t", "reward", "anchor", "valid"):
        np.testing.assert_array_equal(getattr(again, name), getattr(plain, name))
    one_each = Rollouts.from_columns(group=[0] * 3, trajectory=range(3), t=(0, 0, 0), reward=range(3), anchor=range(3))
    assert one_each.trajectory_labels.tolist() == [0, 1, 2] and len(one_each.anchor_table) == 3


def test_anchors_of_every_kind_are_told_apart_by_kind_and_content() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    kinds = ["1", b"1", 1, image, image.copy(), image + 1, image.astype(np.int32), np.int64(1), 2**70, "\ud800 broken"]
    n = len(kinds)
    r = Rollouts.from_columns(group=[0] * n, trajectory=range(n), t=[0] * n, reward=[0] * n, anchor=kinds)
    same = {(i, j) for i in range(n) for j in range(i) if r.anchor[i] == r.anchor[j]}
    assert same == {(4, 3), (7, 2)}


def test_integer_anchors_have_the_same_hash_whatever_the_container() -> None:
    numbers = [3, -1, 2**40, 3]
    made = [
        Rollouts.from_columns(group=[0] * 4, trajectory=range(4), t=[0] * 4, reward=[0] * 4, anchor=anchor)
        for anchor in (numbers, np.array(numbers), np.array(numbers, dtype=object))
    ]
    for other in made[1:]:
        np.testing.assert_array_equal(other.anchor_table.hashes[other.anchor], made[0].anchor_table.hashes[made[0].anchor])
        np.testing.assert_array_equal(other.anchor, made[0].anchor)


def test_a_stack_of_images_is_one_anchor_a_row() -> None:
    images = np.zeros((3, 4, 4, 3), np.uint8)
    images[1] += 1
    r = Rollouts.from_columns(group=[0] * 3, trajectory=range(3), t=[0] * 3, reward=[0] * 3, anchor=images)
    assert r.anchor[0] == r.anchor[2] != r.anchor[1]


def test_anchor_codes_do_not_depend_on_the_order_of_rows() -> None:
    r = Rollouts.from_columns(**columns())
    order = [4, 2, 0, 3, 1]
    again = Rollouts.from_columns(**{name: [values[i] for i in order] for name, values in columns().items()})
    np.testing.assert_array_equal(again.anchor, r.anchor[order])
    np.testing.assert_array_equal(again.anchor_table.hashes, r.anchor_table.hashes)


def test_next_anchor_shares_the_table_and_may_be_unknown() -> None:
    r = Rollouts.from_columns(**columns(next_anchor=["b", None, "new", "c", None]))
    assert r.next_anchor is not None
    assert r.next_anchor[1] == r.next_anchor[4] == UNKNOWN
    assert r.next_anchor[0] == r.anchor[1] and r.next_anchor[3] == r.anchor[4]
    assert "new" in r.anchor_table.texts


def test_per_token_columns_move_with_their_rows() -> None:
    r = Rollouts.from_columns(
        **columns(tokens=[2, 0, 1, 3, 1], token_value=range(7), extra={"per_turn": range(5)}, token_extra={"per_token": range(7)})
    )
    moved = r.permuted([3, 1, 4, 0, 2])
    assert moved.token_value is not None
    assert moved.token_value.tolist() == [3, 4, 5, 6, 0, 1, 2]
    assert moved.token_extra["per_token"].tolist() == [3, 4, 5, 6, 0, 1, 2]
    assert moved.extra["per_turn"].tolist() == [3, 1, 4, 0, 2]
    assert moved.in_order().token_value.tolist() == list(range(7))


def test_from_trajectories_gives_the_same_columns() -> None:
    def turn(anchor: str, reward: float, valid: bool = True) -> Turn:
        return Turn(anchor, reward, valid, response_ids=[1, 2], logprobs=[-0.5, -0.25])

    made = Rollouts.from_trajectories(
        [
            Trajectory(0, 5, turns=[turn("a", 0.0), turn("b", 1.0)], success=True, final_anchor="end"),
            Trajectory(0, 7, turns=[turn("a", 0.0, False)], stop=Stop.STEP_LIMIT),
            Trajectory(1, 9, turns=[turn("a", 0.0), turn("c", 2.0)]),
            Trajectory(1, 11, turns=[], stop=Stop.ENVIRONMENT_FAULT),
        ]
    )
    plain = Rollouts.from_columns(**columns())
    for name in ("group", "trajectory", "t", "reward", "valid"):
        np.testing.assert_array_equal(getattr(made, name), getattr(plain, name))
    assert made.success is not None and made.success.tolist() == [True, True, False, False, False]
    assert made.token_offsets.tolist() == [0, 2, 4, 6, 8, 10]
    assert made.next_anchor is not None and made.next_anchor[0] == made.anchor[1]


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    r = Rollouts.from_columns(
        **columns(
            anchor=["a", "ünï\ud800", "", "a", "c" * 1000],
            group=["x", "x", "x", "y", "y"],
            next_anchor=["b", None, "b", "c", None],
            tokens=[2, 0, 1, 3, 1],
            token_logprob=np.linspace(-1, 0, 7),
            value=range(5),
            success=[True, True, False, False, False],
            extra={"gain": [0.5] * 5, "note": ["p", "q", "r", "s", "t"]},
        )
    )
    loaded = Rollouts.load(r.save(tmp_path / "deep" / "r.npz"))
    for name in ("group", "trajectory", "t", "reward", "anchor", "valid", "next_anchor", "tokens", "token_logprob", "value", "success"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(r, name))
    assert loaded.anchor_table.texts == r.anchor_table.texts
    assert loaded.group_labels.tolist() == ["x", "y"] and loaded.token_value is None
    assert loaded.extra["note"].tolist() == ["p", "q", "r", "s", "t"]
    np.testing.assert_array_equal(tw.credit.compute("gigpo", loaded), tw.credit.compute("gigpo", r))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["r.npz"]


def test_a_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    r = Rollouts.from_columns(**columns())
    content = r.save(tmp_path / "good.npz").read_bytes()
    noticed = 0
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 0xFF
        (tmp_path / "flipped.npz").write_bytes(bytes(flipped))
        try:
            loaded = Rollouts.load(tmp_path / "flipped.npz")
        except TurnwiseError as error:
            assert "flipped.npz" in str(error)
            noticed += 1
        else:  # a byte that carries nothing, such as a file's time in the archive
            np.testing.assert_array_equal(loaded.reward, r.reward)
            np.testing.assert_array_equal(loaded.anchor, r.anchor)
    assert noticed > 100
