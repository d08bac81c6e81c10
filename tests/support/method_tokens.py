"""Tokens for tests of objectives of methods: made from rows, and read back as rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from turnwise.objectives import Tokens


def tokens_of(rows: Any, old: Any, advantage: Any, **extra: Any) -> Tokens:
    """Rows of log-probs are turns, which are trajectories as well; the advantage and the columns of `extra` have one entry per token."""
    turn = torch.tensor(np.repeat(np.arange(len(rows)), [len(row) for row in rows]))
    flat = [torch.tensor(np.concatenate([np.asarray(row, np.float64) for row in column])) for column in (rows, old)]
    given = torch.as_tensor(np.asarray(advantage), dtype=torch.float64)
    columns = {name: torch.as_tensor(column) for name, column in extra.items()}
    return Tokens(flat[0].requires_grad_(), flat[1], given, turn, turn, torch.ones(len(turn), dtype=torch.float64), extra=columns)


def one_token(**columns: float) -> Tokens:
    number = torch.tensor([0])
    given = {"logprob": -1.0, "old_logprob": -1.1, "advantage": 0.5, "engine_logprob": -1.1, "weight": 1.0} | columns
    return Tokens(turn=number, trajectory=number, **{name: torch.tensor([value], dtype=torch.float64) for name, value in given.items()})


def rows_of(tokens: Tokens, column: Any, span: str = "turn") -> list[list[float]]:
    """A column as one list per turn or trajectory, tokens that count alone."""
    numbers, values = getattr(tokens, span)[tokens.kept], torch.as_tensor(column)[tokens.kept]
    return [values[numbers == number].tolist() for number in dict.fromkeys(numbers.tolist())]


def prepared(tokens: Tokens, piece: Any) -> Tokens:
    """Tokens with what an objective or a correction prepares for the mini-batch."""
    columns = {name: column.detach().numpy() for name, column in tokens.columns().items()}
    return replace(tokens, extra={name: torch.from_numpy(np.asarray(column)) for name, column in piece.prepare(columns).items()})


def close(tokens: Tokens, loss: torch.Tensor, losses: Any, slopes: Any, span: str = "turn") -> None:
    """The losses of tokens that count, and the derivatives of their sum, are these rows."""
    np.testing.assert_allclose(np.concatenate(rows_of(tokens, loss.detach(), span)), np.concatenate(losses), atol=1e-9)
    (gradient,) = torch.autograd.grad(loss[tokens.kept].sum(), tokens.logprob)
    np.testing.assert_allclose(np.concatenate(rows_of(tokens, gradient, span)), np.concatenate(slopes), atol=1e-9)
