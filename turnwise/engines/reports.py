"""What an engine can report about the tokens that it samples: `Sampling(report=("entropy", "top_logprobs:5"))`.

A report is a name, or a name with a number. It gives one column or several: numbers per response token, which become the columns
`token.<column>` of a batch. All of them describe the distribution that the token was drawn from, at the temperature of the draw (1 if the
draw is greedy) and before top-k, top-p and min-p.

| report | columns | meaning |
|---|---|---|
| `entropy` | `entropy` | the entropy of the distribution, in nats |
| `top_logprobs:K` | `top_logprob_1` … `top_logprob_K` | the log-probs of the K most likely tokens, the most likely first |
| `top_tokens:K` | `top_token_1` … `top_token_K` | the ids of these tokens |

The arithmetic is in `sampling.py`; names are read here, where no torch is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from turnwise.util.errors import TurnwiseError, unknown_name

COLUMNS = {"entropy": "entropy", "top_logprobs": "top_logprob", "top_tokens": "top_token"}  # report -> column, numbered if it is counted
COUNTED = ("top_logprobs", "top_tokens")
MOST = 100  # columns of one report


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was asked for; `count` is 0 for one without a number."""

    kind: str
    count: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        column = COLUMNS[self.kind]
        return tuple(f"{column}_{place}" for place in range(1, self.count + 1)) if self.count else (column,)


def read_report(name: str) -> Report:
    """A report by its name; an error that says what it takes."""
    kind, separator, number = name.partition(":")
    if kind not in COLUMNS:
        raise unknown_name("report of an engine", kind, COLUMNS)
    if kind not in COUNTED:
        if separator:
            raise TurnwiseError(f"sampling: the report {kind!r} takes no number, got {name!r}")
        return Report(kind)
    if not number.isdecimal() or not 1 <= int(number) <= MOST:
        raise TurnwiseError(f"sampling: the report {kind!r} takes a number from 1 to {MOST}, as in '{kind}:5', got {name!r}")
    return Report(kind, int(number))


def report_columns(names: Iterable[str]) -> tuple[str, ...]:
    """The columns that these reports give, in order, each once."""
    return tuple(dict.fromkeys(column for name in names for column in read_report(name).columns))


def report_of(column: str) -> str | None:
    """The report that gives a token column, or None if no engine reports it: `entropy` for entropy, `top_logprobs:3` for top_logprob_3."""
    for kind, base in COLUMNS.items():
        if kind not in COUNTED and column == base:
            return kind
        found = re.fullmatch(rf"{base}_([1-9][0-9]*)", column) if kind in COUNTED else None
        if found and int(found[1]) <= MOST:
            return f"{kind}:{found[1]}"
    return None


def check_names(names: object) -> None:
    """An error for anything but a tuple of reports."""
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise TurnwiseError(f"sampling: report takes a tuple of names, as in ('entropy', 'top_logprobs:5'), not {names!r}")
    for name in names:
        read_report(name)


def refuse(names: Iterable[str], given: Iterable[str], engine: str) -> None:
    """An error if an engine that gives only some kinds of reports is asked for another."""
    kinds = tuple(given)
    for name in names:
        if read_report(name).kind not in kinds:
            can = f"it reports {', '.join(kinds)}" if kinds else "it reports nothing"
            raise TurnwiseError(
                f"{engine} cannot report {name!r}: {can}. Use an engine in this process (engine.name native or transformers), "
                "or leave out what needs this report"
            )
