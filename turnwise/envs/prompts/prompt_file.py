"""A file of prompts or tasks: one line of JSON each, an id from its line number, and a split that depends only on the content."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.hub import data_files
from turnwise.util.unpack import read_parquet

SHARES = {"train": range(8), "valid": range(8, 9), "test": range(9, 10)}  # of ten, by the hash of a prompt


def read_rows(file: str | Sequence[Any], what: str = "prompts", column: str = "prompt") -> list[dict[str, Any]]:
    """The rows of a data set (a JSONL or Parquet file, a folder of such, a name on a hub), or those that were passed in, each with an `id`
    and its other fields. Rows that are `what="prompts"` have a prompt in `column`; `"tasks"` of a program may have
    anything."""
    if not isinstance(file, str):
        return _checked(
            [_row(row, f"{what[:-1]} {number}", number, what, column) for number, row in enumerate(file, 1)], f"the list of {what}", what
        )
    paths = [path.absolute() for path in data_files(file, what)]  # links of a cache lose their endings where they lead
    return _read_files(file, what, column, tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths))


@lru_cache(maxsize=8)
def _read_files(file: str, what: str, column: str, stamped: tuple[tuple[Path, int, int], ...]) -> list[dict[str, Any]]:
    """Every attempt has a separate environment; the files are read once for all of them."""
    rows: list[dict[str, Any]] = []
    for path, _, _ in stamped:
        for number, where, given in _given(path, file if len(stamped) == 1 else path.name):
            rows.append(_row(given, where, number if len(stamped) == 1 else len(rows) + 1, what, column))
    return _checked(rows, file, what)


def _given(path: Path, name: str) -> Iterator[tuple[int, str, Any]]:
    """Each row with its number, and with its place in words."""
    if path.suffix == ".parquet":
        yield from ((number, f"{name}, row {number}", row) for number, row in enumerate(read_parquet(path), 1))
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TurnwiseError(f"{name} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, f"{name}, line {number}", _parsed(line, f"{name}, line {number}")


def _checked(rows: list[dict[str, Any]], where: str, what: str) -> list[dict[str, Any]]:
    if not rows:
        raise TurnwiseError(f'{where} has no {what}: one line of JSON for each is needed, as {{"prompt": "2 + 2 =", "answer": "4"}}')
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        if seen.setdefault(row["id"], number) != number:
            raise TurnwiseError(f"{where}: rows {seen[row['id']]} and {number} have the same id {row['id']!r}")
    return rows


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise TurnwiseError(f'{where}: not JSON ({error}). Each line is one row, as {{"prompt": "…", "answer": "…"}}') from None


def _row(given: Any, where: str, number: int, what: str, column: str) -> dict[str, Any]:
    if isinstance(given, str) and what == "prompts":
        given = {"prompt": given}
    if not isinstance(given, Mapping):
        wanted = "a row is an object with a prompt" if what == "prompts" else "a task is an object with what the program needs"
        raise TurnwiseError(f"{where}: {wanted}, not {type(given).__name__}")
    row = {str(key): value for key, value in given.items()}
    if what == "prompts":
        row["prompt"] = _prompt(row if column == "prompt" else {"prompt": row.get(column)}, where)
    row["id"] = str(row.get("id", number))
    return row


def _prompt(row: Mapping[str, Any], where: str) -> str:
    """The prompt's text. It, or `messages`, may be one message of the user: what comes before it belongs to the recipe."""
    if isinstance(messages := row.get("prompt", row.get("messages")), list):
        single = messages[0] if len(messages) == 1 and isinstance(messages[0], Mapping) else {}
        if single.get("role") != "user" or not isinstance(single.get("content"), str):
            raise TurnwiseError(
                f"{where}: messages may hold one message of the user. Write a longer dialogue as one prompt; a system message for all "
                "prompts is agent.system, and later messages come from a reply function"
            )
        return str(single["content"])
    if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
        raise TurnwiseError(f'{where}: a row needs a "prompt" that is text and not empty; it has {", ".join(map(repr, row)) or "nothing"}')
    return str(row["prompt"])


def place_of(prompt: str) -> int:
    """A number from 0 to 9 that depends only on the prompt: it is always in the same split, regardless of the rest of the file."""
    return int.from_bytes(blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") % 10


def tasks_of_split(
    name: str, rows: Sequence[Mapping[str, Any]], split: str, place: Callable[[Mapping[str, Any]], int], n: int | None = None
) -> TaskSet:
    """The first `n` tasks of a split: the rows that name it, and of those that name none the rows whose place, 0 to 9, belongs to it."""
    known = tuple(dict.fromkeys([*SHARES, *(str(row["split"]) for row in rows if "split" in row)]))
    if split not in known:
        raise unknown_name(f"split of environment {name!r}:", split, known)
    chosen = [row for row in rows if (str(row["split"]) == split if "split" in row else place(row) in SHARES.get(split, ()))]
    if not chosen:
        raise TurnwiseError(f'none of the {len(rows)} tasks is in the split {split!r}: give rows a "split", or more tasks')
    return TaskSet([_task(row["id"], split, row, ("id", "split")) for row in chosen[:n]], f"{name}/{split}")


def split_rows(rows: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]] | None, split: str) -> list[Mapping[str, Any]]:
    """The rows of a split: of one file by the hash of their prompts, or `train` and `valid` as two files have them."""
    known = tuple(SHARES) if held_out is None else ("train", "valid")
    if split not in known:
        raise unknown_name("split of environment 'prompts':", split, known)
    if held_out is None:
        return [row for row in rows if place_of(row["prompt"]) in SHARES[split]]
    both = {row["prompt"] for row in rows} & {row["prompt"] for row in held_out}
    if both:
        raise TurnwiseError(
            f"{len(both)} prompts of valid_file are in file too (the first: {min(both)[:80]!r}): results on them would not count"
        )
    return list(rows if split == "train" else held_out)


def as_task(row: Mapping[str, Any], split: str, apart: bool) -> Task:
    """A row as a task; rows of a second file have separate ids."""
    return _task(f"{split}-{row['id']}" if apart and split != "train" else row["id"], split, row, ("id",))


def _task(name: str, split: str, row: Mapping[str, Any], left_out: Sequence[str]) -> Task:
    """`cluster` of a row says what it is a variant of."""
    cluster = str(row["cluster"]) if isinstance(row.get("cluster"), str | int) else None
    return Task(name, split, {key: value for key, value in row.items() if key not in left_out}, cluster)
