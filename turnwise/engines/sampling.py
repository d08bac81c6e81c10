"""What is reported about sampled tokens (`reports.py`), and the tokens themselves for engines on a CPU (`kernels/sample.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from turnwise.engines.base import Sampling
from turnwise.engines.reports import read_report, report_columns
from turnwise.kernels.sample import Columns, Sampled, sample, signed
from turnwise.util.errors import TurnwiseError

__all__ = ["Columns", "Noted", "Sampled", "measure", "reports_of", "sample", "signed"]


def reports_of(samplings: Iterable[Sampling]) -> tuple[str, ...]:
    """All reports that these rows ask for, each once."""
    return tuple(dict.fromkeys(name for sampling in samplings for name in sampling.report))


def measure(logits: Tensor, temperature: Tensor, reports: Sequence[str]) -> Tensor:
    """What is reported about the next token of every row of `logits` [rows, vocabulary]: float64 [rows, columns of the reports]."""
    logprobs = torch.log_softmax(logits.float() / temperature.float()[:, None], dim=-1)
    wanted = [read_report(name) for name in reports]
    most = max((report.count for report in wanted), default=0)
    top = logprobs.topk(min(most, logprobs.shape[-1]), dim=-1) if most else None
    columns: dict[str, Tensor] = {}
    for report in wanted:
        if report.kind == "entropy":
            columns["entropy"] = torch.special.entr(logprobs.exp()).sum(-1, dtype=torch.float64)
            continue
        assert top is not None
        if report.count > logprobs.shape[-1]:
            raise TurnwiseError(f"sampling: {report.count} most likely tokens were asked for, and the model has {logprobs.shape[-1]}")
        numbers = top.values if report.kind == "top_logprobs" else top.indices
        columns |= {name: numbers[:, place].double() for place, name in enumerate(report.columns)}
    return torch.stack(list(columns.values()), dim=1)


class Noted:
    """What was measured of a batch of rows, by row and column."""

    def __init__(self, reports: Sequence[str], values: Tensor):
        self._columns = report_columns(reports)
        self._values = values
        self._rows: list[list[float]] | None = None

    def into(self, columns: dict[str, list[float]], row: int, reports: Sequence[str]) -> None:
        """Append the columns that a row asked for to what it has."""
        if self._rows is None:
            self._rows = self._values.tolist()
        values = dict(zip(self._columns, self._rows[row], strict=True))
        for column in report_columns(reports):
            columns.setdefault(column, []).append(values[column])
