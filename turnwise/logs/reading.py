"""From files of logs to trajectories: which format they have, how each attempt ended, which attempts belong together."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from turnwise.data.rollouts import Trajectory
from turnwise.logs import chat, harbor, langfuse, langsmith, otel, runs, verifiers
from turnwise.logs.attempts import Attempt, look_up, outcome_of, score_of, trajectory_of
from turnwise.logs.files import Reader, Record, find_files
from turnwise.logs.grouping import encoder, group_tasks, name_states
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.printable import counted
from turnwise.util.unpack import packed_lines

FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Iterator[Record]], Iterator[Attempt]]]] = {  # the first that fits a record
    "otel": (otel.is_otlp, otel.read),
    "harbor": (harbor.is_trajectory, harbor.read),
    "turnwise": (runs.is_turn, runs.read),
    "verifiers": (verifiers.is_episode, verifiers.read),
    "langsmith": (langsmith.is_run, langsmith.read),
    "langfuse": (langfuse.is_export, langfuse.read),
    "messages": (chat.is_chat, chat.read),
}
EVERY = 200  # attempts between two reports of progress
Progress = Callable[[int], None]


@dataclass
class Logs:
    """What was read. `notes` say what was left out, and why; `attempts` are the messages behind the trajectories, if asked for."""

    trajectories: list[Trajectory] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)


def read_logs(
    names: Sequence[str | Path],
    *,
    format: str | None = None,
    task: str | None = None,
    outcome: str | None = None,
    outcomes: str | Path | None = None,
    won_at: float = 1.0,
    similar_tasks: float | None = None,
    similar_states: float | None = None,
    embed: str | None = None,
    keep_attempts: bool = False,
    progress: Progress = lambda count: None,
) -> Logs:
    """Read logs: files, folders and patterns.

    format: of `FORMATS`; by default, each record's own. task, outcome: the names (or paths, with dots) of the task's id and of the outcome;
    outcomes: a CSV file with an id and an outcome in each row. won_at: the score from which on an attempt is won. similar_tasks,
    similar_states: the similarity from which on two tasks, or states of a task, are one; embed: the model of sentences that measures it.
    """
    logs, counts = Logs(), Counter[str]()
    scores = _outcomes(Path(outcomes)) if outcomes is not None else None
    ids = Counter[str]()
    for attempt in _attempts([str(name) for name in names], format, logs, counts):
        if task is not None and (named := look_up(attempt.fields, task)) is not None:
            attempt.task = str(named)
        score = scores.get(attempt.id) if scores is not None else outcome_of(attempt, outcome)
        counts["read"] += 1
        if not counts["read"] % EVERY:
            progress(counts["read"])
        if score is None:
            counts["without an outcome"] += 1
            names_seen = sorted({*attempt.outcomes, *attempt.fields})[:20]
            continue
        ids[attempt.id] += 1
        if ids[attempt.id] > 1:
            attempt.id += f" ({ids[attempt.id]})"
        trajectory = trajectory_of(attempt, score, won_at)
        if not trajectory.turns:
            counts["without a turn of the agent"] += 1
            continue
        logs.trajectories.append(trajectory)
        if keep_attempts:
            logs.attempts.append(attempt)
    if not logs.trajectories:
        raise _nothing(counts, names_seen if counts["without an outcome"] else [], outcome)
    encode = encoder(embed) if embed is not None else None
    group_tasks(logs.trajectories, similar_tasks, encode)
    name_states(logs.trajectories, similar_states, encode)
    logs.notes += [
        f"{counted(counts[why], 'attempt')} {why} left out" for why in ("without an outcome", "without a turn of the agent") if counts[why]
    ]
    return logs


def _attempts(names: list[str], form: str | None, logs: Logs, counts: Counter[str]) -> Iterator[Attempt]:
    """The attempts of all files. Records of one format are read together: a service may keep observations and scores in different files."""
    if form is not None and form not in FORMATS:
        raise unknown_name("format of logs", form, FORMATS)
    folders = [name for name in names if runs.is_run(Path(name))]
    for folder in folders:
        logs.formats.append("turnwise")
        yield from runs.read_run(Path(folder))
    if len(folders) == len(names):
        return
    reader = Reader()
    records = chain.from_iterable(reader.records(path) for path in find_files([name for name in names if name not in folders]))
    waiting: dict[str, list[Record]] = {}
    yield from _streams(records, form, waiting, counts)
    logs.formats += list(waiting)
    counts["broken"] = reader.broken
    logs.notes += reader.notes
    logs.notes += [f"{counted(reader.broken, 'line')} left out: not JSON"] if reader.broken else []
    logs.notes += [f"{counted(counts['unknown'], 'record')} left out: of no known format"] if counts["unknown"] else []


def _streams(records: Iterator[Record], form: str | None, waiting: dict[str, list[Record]], counts: Counter[str]) -> Iterator[Attempt]:
    """The records of the first format are read as they come, so that a log of one format is never in memory as a whole; others wait."""

    def known() -> Iterator[tuple[str, Record]]:
        for record in records:
            name = _form_of(record) if form is None else form
            if name is None:
                counts["unknown"] += 1
            else:
                yield name, record

    pairs = known()
    main, first = next(pairs, ("", None))
    if first is None:
        return
    waiting[main] = []

    def of_main() -> Iterator[Record]:
        yield first
        for name, record in pairs:
            if name == main:
                yield record
            else:
                waiting.setdefault(name, []).append(record)

    yield from FORMATS[main][1](of_main())
    for name in [name for name in waiting if name != main]:
        yield from FORMATS[name][1](iter(waiting[name]))


def _form_of(record: Record) -> str | None:
    return next((name for name, (fits, _) in FORMATS.items() if fits(record.value)), None)


def _outcomes(path: Path) -> dict[str, float]:
    """Outcomes by the ids of attempts, from a CSV file: the first two columns, or those called `id` and `outcome`."""
    if not path.is_file():
        raise TurnwiseError(f"{path}: no such file of outcomes")
    try:
        rows = list(csv.reader(io.StringIO(b"".join(packed_lines(path)).decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise TurnwiseError(f"{path}: not a CSV file in UTF-8 ({error})") from None
    heading = [name.strip().lower() for name in rows[0]] if rows else []
    at = (heading.index("id"), heading.index("outcome")) if {"id", "outcome"} <= set(heading) else (0, 1)
    pairs = [(row[at[0]].strip(), score_of(row[at[1]])) for row in rows if len(row) > max(at)]
    scores = {name: score for name, score in pairs if score is not None}
    if not scores:
        raise TurnwiseError(f"{path}: no row has an id and an outcome. Write two columns, id and outcome: true, false or a number")
    return scores


def _nothing(counts: Counter[str], names: list[str], outcome: str | None) -> TurnwiseError:
    if counts["without an outcome"]:
        called = f"is called {outcome!r}" if outcome else "says how it ended"
        return TurnwiseError(
            f"of {counted(counts['read'], 'attempt')}, none has a value that {called}. Name it with --outcome KEY (there are: "
            f"{', '.join(names) or 'none'}), or give --outcomes FILE.csv with the columns id and outcome"
        )
    if counts["read"]:
        return TurnwiseError(f"of {counted(counts['read'], 'attempt')}, none has a turn of the agent. Are the messages logged at all?")
    there = [f"{counted(counts['unknown'], 'record')} of unknown form"] if counts["unknown"] else []
    there += [f"{counted(counts['broken'], 'line')} of no JSON"] if counts["broken"] else []
    return TurnwiseError(
        f"no attempts: {' and '.join(there) or 'the files are empty'}. Known formats: {', '.join(FORMATS)}; --format takes one for granted"
    )
