"""Credit for a table of turns: a list of dicts, a pandas or polars frame, an Arrow table, or a .jsonl or .parquet file.

    credit = tw.credit.of_table("gigpo", rows, columns={"group": "task", "trajectory": "attempt", "anchor": "state"})
    credit.column         # one number per turn, in the order of the rows, as a column of the same kind of table
    credit.diagnosis      # how often states repeat, what share of turns has step credit, which groups are constant
    credit.table()        # the table with the new column

`columns` says what the table calls each of these; a name that is not in it is the table's own:

    group, trajectory      the task, and the attempt at it; attempts of different tasks may share a name
    reward                 of this turn; or `outcome`: the reward of the whole attempt, repeated on its turns
    anchor                 the state that the turn started from; missing: `observation`, the text that the agent saw
    t                      the turn's index in its attempt; missing: rows of an attempt are in order of time
    valid, success, value, next_anchor                  as in `Rollouts.from_columns`
    tokens, token_value, token_logprob, token.NAME      how many tokens a response has; a list of numbers per turn
    turn.NAME              further columns that an algorithm needs
    observation, action, response                       texts, for signals that read them
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.diagnose import observe
from turnwise.credit.registry import Credit, assign, parts
from turnwise.credit.spans import last_turns, turn_numbers
from turnwise.data.batch import Batch
from turnwise.data.columns import bad
from turnwise.data.rollouts import ADVANTAGE, Rollouts, Trajectory, Turn
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.unpack import json_lines, read_parquet

Signal = Callable[[Batch, Any], Mapping[str, Any]]
Columns = dict[str, Sequence[Any]]
BUILT_IN = ("reward", "anchor", "valid", "next_anchor", "success", "value", "tokens")
PER_TOKEN = ("token_value", "token_logprob")
TEXTS = ("observation", "action", "response")
KNOWN = ("group", "trajectory", "t", "outcome", *BUILT_IN, *PER_TOKEN, *TEXTS)


@dataclass(frozen=True, eq=False)
class TableCredit:
    """What `of_table` returns. `values` has one number per row, in the order of the table, and so have `rollouts`; `credit` is the
    algorithm's own result, which may have one number per token."""

    values: NDArray[np.float32]
    diagnosis: dict[str, Any]
    credit: Credit
    rollouts: Rollouts
    source: Any = field(repr=False)

    @property
    def tokens(self) -> list[NDArray[np.float32]]:
        """The credit of each row's tokens: of a per-token algorithm each token's own, otherwise the turn's number on each."""
        ends = self.rollouts.token_offsets[1:]
        flat = self.credit.values if self.credit.level == "token" else np.repeat(self.credit.values, np.diff(self.rollouts.token_offsets))
        return np.split(flat, ends[:-1])

    @property
    def column(self) -> Any:
        """The credit as a column of the same kind of table: a Series with the frame's index, an Arrow array, or a list of numbers."""
        library = _library(self.source)
        module: Any = sys.modules.get(library)  # whoever has a table of it has imported it
        if library == "pandas":
            return module.Series(self.values, index=self.source.index, name=ADVANTAGE)
        if library == "polars":
            return module.Series(ADVANTAGE, self.values)
        return self.values.tolist() if module is None else module.array(self.values)

    def table(self, name: str = ADVANTAGE) -> Any:
        """A new table: the caller's, with the credit as its last column."""
        library = _library(self.source)
        if library == "pandas":
            return self.source.assign(**{name: self.column})
        if library == "polars":
            return self.source.with_columns(self.column.alias(name))
        if library == "pyarrow":
            return self.source.append_column(name, self.column)
        return [{**row, name: value} for row, value in zip(self.source, self.column, strict=True)]


def of_table(
    name: str | Callable[..., Any], table: Any, *, columns: Mapping[str, str] | None = None, signals: Sequence[Signal] = (), **options: Any
) -> TableCredit:
    """The credit of every turn of a table, by an algorithm with its options. `signals` run first and add columns: those that need no
    model, such as `tw.methods.signals["dpepo"].make({}, "signal")`."""
    source = _read(table)
    given = _columns(source, columns or {})
    if isinstance(name, str) and "step" in parts(name) and "anchor" not in given:
        raise _missing("anchor", f"{name} compares turns that start from the same state", given)
    rollouts = _rollouts(given)
    if signals:
        rollouts = _signalled(rollouts, given, signals)
    credit = assign(name, rollouts, **options)
    values = credit.by_turn(rollouts).astype(np.float32)
    diagnosis = observe(name, options, rollouts, credit.values) if isinstance(name, str) else {}
    return TableCredit(values, diagnosis, credit, rollouts, source)


def _library(table: Any) -> Literal["pandas", "polars", "pyarrow", ""]:
    """The library that a table is of; empty for a list of rows."""
    library = type(table).__module__.partition(".")[0]
    return library if library in ("pandas", "polars", "pyarrow") else ""  # type: ignore[return-value]


def _read(table: Any) -> Any:
    """A frame, an Arrow table, or a list of rows; a file is read."""
    if not isinstance(table, str | Path):
        lazy = _library(table) == "polars" and type(table).__name__ == "LazyFrame"
        return table.collect() if lazy else table if _library(table) else list(table)
    path = Path(table)
    if not path.is_file():
        raise TurnwiseError(f"{path}: no such file")
    if path.suffix not in (".jsonl", ".parquet"):
        raise TurnwiseError(f"{path}: a file of turns ends in .jsonl or .parquet")
    return list(json_lines(path)) if path.suffix == ".jsonl" else read_parquet(path)


def _columns(source: Any, names: Mapping[str, str]) -> Columns:
    """The table's columns by our names: those that `names` lists, and those that the table calls as we do."""
    library = _library(source)
    if not library:
        for row, values in enumerate(source):
            if not isinstance(values, Mapping):
                raise TurnwiseError(f"row {row} of the table: a dict is needed, got {type(values).__name__}")
        has = list(dict.fromkeys(chain.from_iterable(source)))
    else:
        has = list(map(str, source.column_names if library == "pyarrow" else source.columns))
    wanted = {name: name for name in KNOWN if name in has} | dict(names)
    result: Columns = {}
    for name, column in wanted.items():
        if name not in KNOWN and name.partition(".")[0] not in ("turn", "token"):
            raise unknown_name("column of a table of turns:", name, (*KNOWN, "turn.NAME", "token.NAME"))
        if column not in has:
            raise unknown_name("column of the table:", column, has)
        if not library:
            result[name] = [row.get(column) for row in source]
        else:
            result[name] = source[column].to_pylist() if library == "pyarrow" else source[column].to_list()
    for name in ("group", "trajectory"):
        if name not in result:
            raise _missing(name, f"one column names the {'task' if name == 'group' else 'attempt'} of each turn", has)
    if "anchor" not in result and "observation" in result:
        result["anchor"] = result["observation"]
    if "reward" not in result and "outcome" not in result:
        raise _missing("reward", "one column has the reward of each turn, or `outcome` that of the whole attempt", has)
    return result


def _missing(name: str, why: str, has: Any) -> TurnwiseError:
    return TurnwiseError(
        f'the table has no column {name!r}: {why}. Name it with columns={{"{name}": "…"}}. The table has: {", ".join(has) or "none"}'
    )


def _rollouts(given: Columns) -> Rollouts:
    """The rows as rollouts, in their order. A trajectory is a pair of group and trajectory; its turns are numbered in order of `t`."""
    numbers: dict[Any, int] = {}
    try:
        trajectory = [numbers.setdefault(pair, len(numbers)) for pair in zip(given["group"], given["trajectory"], strict=True)]
    except TypeError:
        raise TurnwiseError("columns 'group' and 'trajectory': names or numbers are needed, got lists or other objects") from None
    times: NDArray[Any] = _times(given["t"]) if "t" in given else np.arange(len(trajectory))
    order = np.lexsort((times, np.asarray(trajectory)))
    t = np.empty(len(order), np.int64)
    t[order] = turn_numbers(np.asarray(trajectory)[order])
    reward: Any = given.get("reward")
    if reward is None:
        reward = np.where(last_turns(trajectory, t), np.asarray(given["outcome"], np.float64), 0.0)
    extra = {name.removeprefix("turn."): values for name, values in given.items() if name.startswith("turn.")}
    flat = {name: list(chain.from_iterable(values)) for name, values in given.items() if name in PER_TOKEN or name.startswith("token.")}
    tokens = given.get("tokens")
    if tokens is None and flat:
        tokens = [len(values) for values in given[next(iter(flat))]]
    return Rollouts.from_columns(
        **{name: given[name] for name in BUILT_IN if name in given} | {"reward": reward, "tokens": tokens},
        **{name: flat.pop(name) for name in PER_TOKEN if name in flat},
        **({} if "anchor" in given else {"anchor": np.arange(len(t))}),
        group=[str(label) for label in given["group"]],
        trajectory=trajectory,
        t=t,
        extra=extra,
        token_extra={name.removeprefix("token."): values for name, values in flat.items()},
    )


def _times(values: Sequence[Any]) -> NDArray[Any]:
    """What orders the turns of an attempt: numbers, dates, or texts that sort as dates do."""
    times = np.asarray(values)
    if times.dtype.kind == "O":
        row = next((row for row, value in enumerate(values) if value is None), 0)
        raise bad("t", row, f"a number or a time is needed, got {values[row]!r}")
    return times


def _signalled(rollouts: Rollouts, given: Columns, signals: Sequence[Signal]) -> Rollouts:
    """The rollouts with the columns that signals add. Signals see a batch: rows by trajectory and time, with their texts."""
    order = np.lexsort((rollouts.t, rollouts.trajectory))
    texts = {name: given.get(name) or [""] * len(order) for name in TEXTS}
    ordered = rollouts.permuted(order)
    trajectories = []
    for number, rows in groupby(order.tolist(), rollouts.trajectory.__getitem__):
        trajectory = Trajectory("", int(number))
        for row in rows:
            trajectory.group = trajectory.task = given["group"][row]
            seen, action, response = (str(texts[name][row] or "") for name in TEXTS)
            turn = Turn(seen, float(rollouts.reward[row]), bool(rollouts.valid[row]), seen, action=action, response=response)
            trajectory.turns.append(turn)
            trajectory.success = rollouts.success is not None and bool(rollouts.success[row])
        trajectories.append(trajectory)
    batch = Batch(tuple(trajectories), ordered)
    for signal in signals:
        batch = batch.with_columns(signal(batch, {}))
    return batch.rollouts.permuted(np.argsort(order))
