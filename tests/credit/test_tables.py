"""Credit for tables of turns: whatever holds the rows, credit is that of the same rollouts, in the caller's order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnwise as tw

NAMES = {"group": "task", "trajectory": "attempt", "anchor": "state"}


def rows_of(seed: int, tokens: bool = False) -> list[dict[str, Any]]:
    """Turns of three tasks, in any order; attempts of different tasks share their names."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for task in ("wash", "boil", "sweep"):
        for attempt in range(int(random.integers(1, 5))):
            for t in range(int(random.integers(1, 6))):
                row = {"task": task, "attempt": attempt, "t": t, "state": f"s{random.integers(3)}", "reward": float(random.normal())}
                row["valid"] = bool(random.random() < 0.8)
                if tokens:
                    row["token_value"] = random.normal(size=int(random.integers(1, 4))).tolist()
                rows.append(row)
    return [rows[i] for i in random.permutation(len(rows))]


def expected(rows: list[dict[str, Any]], name: str, **options: Any) -> Any:
    """The credit of the same turns, as columns that were written by hand."""
    counts = [len(row.get("token_value", ())) for row in rows]
    values = [value for row in rows for value in row.get("token_value", ())]
    rollouts = tw.Rollouts.from_columns(
        group=[row["task"] for row in rows],
        trajectory=[f"{row['task']} {row['attempt']}" for row in rows],
        t=[row["t"] for row in rows],
        reward=[row["reward"] for row in rows],
        anchor=[row["state"] for row in rows],
        valid=[row["valid"] for row in rows],
        tokens=counts if any(counts) else None,
        token_value=values or None,
    )
    return tw.credit.assign(name, rollouts, **options)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["gigpo", "grpo", "rloo", "hgpo"]))
def test_rows_in_any_order_get_the_credit_of_their_columns(seed: int, name: str) -> None:
    rows = rows_of(seed)
    result = tw.credit.of_table(name, rows, columns=NAMES)
    np.testing.assert_allclose(result.values, expected(rows, name).values, rtol=0, atol=1e-6)
    assert [row["advantage"] for row in result.table()] == result.column == result.values.tolist()
    assert result.diagnosis["anchor_groups"] >= 1
    assert 0 <= result.diagnosis["constant_group_share"] <= 1


def test_every_kind_of_table_gives_a_column_of_its_own_kind(tmp_path: Path) -> None:
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    rows = rows_of(3)
    wanted = expected(rows, "gigpo").values
    frame = pandas.DataFrame(rows, index=[f"row {i}" for i in range(len(rows))])
    series = tw.credit.of_table("gigpo", frame, columns=NAMES).column
    assert list(series.index) == list(frame.index)
    lines = tmp_path / "turns.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    stored = tmp_path / "turns.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), stored)
    tables = [polars.DataFrame(rows), polars.LazyFrame(rows), arrow.Table.from_pylist(rows), lines, str(stored)]
    columns = [series, *(tw.credit.of_table("gigpo", table, columns=NAMES).column for table in tables)]
    assert [type(column).__name__ for column in columns] == ["Series", "Series", "Series", "FloatArray", "list", "list"]
    for column in columns:
        np.testing.assert_allclose(np.asarray(column), wanted, rtol=0, atol=1e-6)
    for table in (frame, polars.DataFrame(rows)):
        given = tw.credit.of_table("gigpo", table, columns=NAMES).table("credit")
        assert list(given.columns) == [*table.columns, "credit"]
        assert "credit" not in table.columns


def test_a_per_token_algorithm_gives_each_token_its_own_number() -> None:
    rows = rows_of(5, tokens=True)
    result = tw.credit.of_table("bi_level_gae", rows, columns=NAMES)
    assert [len(tokens) for tokens in result.tokens] == [len(row["token_value"]) for row in rows]
    np.testing.assert_allclose(np.concatenate(result.tokens), expected(rows, "bi_level_gae").values, rtol=0, atol=1e-6)
    np.testing.assert_allclose(result.values, [tokens.mean() for tokens in result.tokens], atol=1e-6)


def test_turns_may_be_numbered_by_any_times_and_the_outcome_may_be_that_of_the_attempt() -> None:
    rows = rows_of(7)
    plain = expected([row | {"reward": 0.0} for row in rows], "grpo")
    assert not plain.values.any()
    outcome = {(row["task"], row["attempt"]): (len(row["task"]) + 3 * row["attempt"]) % 5 for row in rows}
    last = {key: max(row["t"] for row in rows if (row["task"], row["attempt"]) == key) for key in outcome}
    timed = []
    for row in rows:
        key = row["task"], row["attempt"]
        timed.append({"task": row["task"], "attempt": row["attempt"], "t": f"2026-01-0{row['t'] + 1}", "state": row["state"]})
        timed[-1] |= {"outcome": float(outcome[key]), "valid": row["valid"]}
        row["reward"] = float(outcome[key]) if row["t"] == last[key] else 0.0
    result = tw.credit.of_table("gigpo", timed, columns=NAMES)
    np.testing.assert_allclose(result.values, expected(rows, "gigpo").values, rtol=0, atol=1e-6)


def test_a_signal_without_a_model_sees_the_texts_in_order_and_adds_its_columns() -> None:
    rows = rows_of(11)

    def length(batch: Any, models: Any) -> dict[str, Any]:
        """The length of the action, and the turn's place in its trajectory as the batch has it."""
        turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
        assert [t for trajectory in batch.trajectories for t in range(len(trajectory.turns))] == batch.column("turn.t").tolist()
        return {"turn.length": [len(turn.action) for turn in turns]}

    def by_length(r: Any) -> Any:
        """Credit that is the length of the action."""
        return r.need("turn.length", "the test")

    texts = [row | {"action": "x" * i} for i, row in enumerate(rows)]
    result = tw.credit.of_table(by_length, texts, columns=NAMES, signals=[length])
    assert result.values.tolist() == list(range(len(rows)))
    diversity = tw.methods.signals["dpepo"].make({}, "signal")
    scored = tw.credit.of_table("dpepo", [row | {"success": False} for row in texts], columns=NAMES, signals=[diversity])
    assert scored.rollouts.has("turn.diversity")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {"group": "task", "trajectory": "attempt"}}, "no column 'anchor': gigpo compares turns"),
        ({"columns": NAMES | {"group": "tusk"}}, "unknown column of the table: 'tusk'. Did you mean 'task'"),
        ({"columns": NAMES | {"grup": "task"}}, "unknown column of a table of turns: 'grup'. Did you mean 'group'"),
        ({"columns": {"anchor": "state", "group": "task"}}, "no column 'trajectory'"),
        ({"rows": [{"task": "a", "attempt": 0, "state": "s"}]}, "no column 'reward'"),
        ({"rows": [{"task": "a", "attempt": 0, "state": "s", "reward": 0.0, "t": None}]}, "column 't', row 0: a number or a time"),
        ({"rows": ["task"]}, "row 0 of the table: a dict is needed, got str"),
        ({"rows": "missing.jsonl"}, "missing.jsonl: no such file"),
    ],
)
def test_a_table_that_cannot_be_read_says_what_is_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.TurnwiseError) as error:
        tw.credit.of_table("gigpo", change.get("rows", rows_of(1)), columns=change.get("columns", NAMES))
    assert message in str(error.value)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_credit_lands_on_the_tokens_of_its_turn_and_nowhere_else(seed: int) -> None:
    random = np.random.default_rng(seed)
    mask = random.random((int(random.integers(1, 6)), int(random.integers(1, 20)))) < 0.6
    sequence, start, length = tw.credit.spans_of(mask)
    if not len(start):
        return
    t = np.concatenate([np.arange(count) for count in np.bincount(sequence) if count])
    rollouts = tw.Rollouts.from_columns(
        group=np.zeros(len(t), int), trajectory=sequence, t=t, reward=random.normal(size=len(t)), anchor=random.integers(0, 3, len(t))
    )
    tokens, metrics = tw.credit.on_tokens("gigpo", rollouts, start, length, mask.shape)
    turns = tw.credit.compute("gigpo", rollouts)
    for row in range(len(mask)):  # an oracle that walks through each row
        number = -1
        of_row = np.flatnonzero(sequence == row)
        for position in range(mask.shape[1]):
            number += bool(mask[row, position] and (position == 0 or not mask[row, position - 1]))
            assert tokens[row, position] == (turns[of_row[number]] if mask[row, position] else 0.0)
    assert metrics["size"] == pytest.approx(np.abs(turns).mean())


def test_a_row_without_marks_is_a_turn_without_tokens_in_its_place() -> None:
    from turnwise.credit.spans import turns_of

    rows, starts, lengths = turns_of([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
    assert (rows.tolist(), starts.tolist(), lengths.tolist()) == ([0, 0, 1, 2], [1, 4, 5, 10], [2, 1, 0, 1])


def test_spans_outside_of_the_array_are_named() -> None:
    rollouts = tw.Rollouts.from_columns(group=[0, 0], trajectory=[0, 1], t=[0, 0], reward=[0.0, 1.0], anchor=["a", "a"])
    with pytest.raises(tw.TurnwiseError, match="turn 1: tokens 5 to 8 are not inside an array of 6 tokens"):
        tw.credit.on_tokens("grpo", rollouts, [0, 5], [2, 3], (2, 3))
    with pytest.raises(tw.TurnwiseError, match="one start and one length per turn \\(2\\)"):
        tw.credit.on_tokens("grpo", rollouts, [0], [2], (2, 3))
