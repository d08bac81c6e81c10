"""Trajectories as a table that other tools read, and back: JSON lines, or Parquet (the extra `parquet`).

One row is one turn; docs/guides/trajectories.md explains the columns. Reading gives the trajectories that were written, whatever texts
they hold. Parquet stores UTF-8 only: if a text of a row is not UTF-8 (half a surrogate pair, which tokenizers can produce), all texts of
that row are written as JSON literals and its column `escaped` is true. Images are named by their hashes and not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from turnwise.data.rollouts import Trajectory
from turnwise.data.schema import IMAGES, INFO, LABEL, NUMBERS, TEXT, TOKEN_IDS, TRAJECTORY, TURN, Row, from_rows, to_rows
from turnwise.runs.folder import CONFIG, Run
from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.files import write_atomically, write_text_atomically
from turnwise.util.unpack import json_lines, read_parquet

TYPES = {field.name: field.type for field in (*TRAJECTORY, *TURN)}
TEXTS = ("anchor", "next_anchor", *(name for name, kind in TYPES.items() if kind in (TEXT, INFO)))
LABELS = ("trajectory", *(name for name, kind in TYPES.items() if kind is LABEL and name != "id"))  # numbers or texts


def write_trajectories(
    path: str | Path, trajectories: Iterable[Trajectory], *, tokens: bool = False, columns: Mapping[str, Any] | None = None
) -> Path:
    """Write one row per turn to `path` in the format of its suffix, .jsonl or .parquet. Atomic."""
    path = Path(path)
    kind = _kind(path)
    rows = to_rows(trajectories, tokens, columns)
    if kind == ".parquet":
        return _write_parquet(path, rows)
    return write_text_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """What `write_trajectories` wrote. `Rollouts.from_trajectories` makes columns of them."""
    path = Path(path)
    kind = _kind(path)
    if not path.is_file():
        raise TurnwiseError(f"{path}: no such file of trajectories")
    return from_rows(_read_parquet(path) if kind == ".parquet" else json_lines(path), str(path))


def _kind(path: Path) -> str:
    if path.suffix not in (".jsonl", ".parquet"):
        raise TurnwiseError(f"{path}: trajectories are kept as .jsonl or .parquet, not as {path.suffix or 'a file without an ending'}")
    return path.suffix


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("a Parquet file", "parquet") from None
    return pyarrow


def _write_parquet(path: Path, rows: list[Row]) -> Path:
    arrow = _pyarrow()
    names = [*(rows or to_rows([Trajectory(0, 0)]))[0], "escaped"]
    flat = [_flat(row) for row in rows]
    try:
        table = arrow.table({name: arrow.array([row[name] for row in flat], type=_type(arrow, name)) for name in names})
    except (arrow.ArrowException, OverflowError) as error:
        raise TurnwiseError(f"{path}: these trajectories do not fit a Parquet table ({error}); write .jsonl instead") from None
    return write_atomically(path, lambda file: arrow.parquet.write_table(table, file, compression="zstd"))


def _type(arrow: Any, name: str) -> Any:
    """The column's type if it cannot be inferred from the values: texts that are all missing, lists that are all empty."""
    lists = {TOKEN_IDS: arrow.int32(), NUMBERS: arrow.float64(), IMAGES: arrow.string()}
    if (item := lists.get(TYPES.get(name, INFO))) is not None:
        return arrow.list_(item)
    return arrow.string() if name in TEXTS or name.endswith("_key") else None


def _flat(row: Row) -> Row:
    """A row for Parquet: `info` as JSON, and all texts as JSON literals if one of them is not UTF-8."""
    flat = row | {"info": json.dumps(row["info"]), "escaped": False}
    texts = {name: flat[name] for name in (*TEXTS, *LABELS) if isinstance(flat[name], str)}
    try:
        "".join(texts.values()).encode()
    except UnicodeEncodeError:
        return flat | {name: json.dumps(text) for name, text in texts.items()} | {"escaped": True}
    return flat


def _read_parquet(path: Path) -> Iterable[Row]:
    for row in read_parquet(path):
        try:
            if row.pop("escaped", False):
                row |= {name: json.loads(row[name]) for name in (*TEXTS, *LABELS) if isinstance(row.get(name), str)}
            row["info"] = json.loads(row["info"])
        except (KeyError, TypeError, ValueError):
            raise TurnwiseError(
                f"{path}: not a table that `turnwise trajectories` writes: the column 'info' is missing or not JSON"
            ) from None
        yield row


def export_trajectories(
    run_folder: str | Path,
    out: str | Path,
    iteration: int | None = None,
    *,
    evals: bool = False,
    tokens: bool = False,
    trust: bool = False,
) -> tuple[Path, int]:
    """Write what a run keeps of one iteration (None: the last): the trajectories it trained on, with their credit, or those of its
    evaluation. Returns the path and how many trajectories it holds."""
    from turnwise.runs.reading import stored_trajectories

    run, part = Run.open(run_folder), "evals" if evals else "rollouts"
    if evals and tokens:
        raise TurnwiseError("an evaluation keeps texts and no tokens: leave --tokens out, or export the rollouts of an iteration")
    number = run.last_iteration(part) if iteration is None else iteration
    trajectories = stored_trajectories(run, number, part, tokens=tokens)
    turns = sum(len(trajectory.turns) for trajectory in trajectories)
    columns: dict[str, Any] = {"iteration": [number] * turns} | ({} if evals else credit_columns(run, number, trust))
    return write_trajectories(out, trajectories, tokens=tokens, columns=columns), len(trajectories)


def credit_columns(run: Run, iteration: int, trust: bool = False) -> dict[str, Any]:
    """The credit of every turn, as it was trained with, and its parts (`turnwise.credit.explain`)."""
    from turnwise import credit
    from turnwise.config import trust as trusting
    from turnwise.config.references import is_reference
    from turnwise.runs.reading import stored_batch

    recipe = run.recipe()
    section = recipe.get("credit")
    if not isinstance(section, dict) or "name" not in section:
        raise TurnwiseError(
            f"{run.folder / CONFIG} does not say by which credit.name the run was trained; the file was damaged after it was written"
        )
    options = {str(key): value for key, value in section.items() if key != "name"}
    rollouts, name = stored_batch(run, iteration).rollouts, str(section["name"])
    stored = credit.credit_of(rollouts)
    if stored is None:  # a run of an earlier Turnwise kept no advantages
        if is_reference(name):  # the user's own code, or third-party code: the user is asked before it runs
            trusting.require(run.folder, recipe, trust=trust)
        stored = credit.assign(name, rollouts, **options)
    return {"credit": stored.by_turn(rollouts), **credit.explain(rollouts, **credit.explaining(name, options))}
