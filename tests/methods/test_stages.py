"""Stages of a method in a run: signals, credit and what they need, from files of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_cases import start

from turnwise import TurnwiseError
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

PIECES = '''
import numpy as np
from turnwise import credit, methods

def length(batch, models, *, scale: float = 1.0):
    """Tokens of each response."""
    return {"turn.length": scale * batch.rollouts.tokens}

@methods.signal("twice_as_long", needs=("turn.length",), gives=("turn.double",))
def twice(batch, models):
    """Twice the length."""
    return {"turn.double": 2 * batch.column("turn.length")}

@methods.signal("given_length", gives=("turn.length",))
def given_length(batch, models):
    """Tokens of each response."""
    return {"turn.length": batch.rollouts.tokens}

@methods.signal("nothing")
def nothing(batch, models):
    """Forgets to return."""

@credit.register("by_entropy", needs=("token.entropy",))
def by_entropy(rollouts):
    """Credit of a token is its entropy."""
    return {"token.advantage": rollouts.column("token.entropy"), "group.seen": np.arange(len(rollouts.group_labels))}

@credit.register("by_answer", needs=("task.answer",))
def by_answer(rollouts):
    """Needs an answer that no task has."""
    return rollouts.reward

@credit.register("by_teacher", needs=("model.teacher", "turn.gold"))
def by_teacher(rollouts):
    """Needs a teacher and a column."""
    return rollouts.reward
'''


@pytest.fixture
def pieces(tmp_path: Path) -> str:
    path = tmp_path / "pieces.py"
    path.write_text(PIECES)
    return str(path)


def signals(*names: str) -> dict[str, Any]:
    return {"signal": [{"name": name} for name in names]}


def test_signals_add_columns_in_their_order_and_a_run_keeps_them(tmp_path: Path, pieces: str) -> None:
    run = Run.open(start(tmp_path, iterations=1, **signals(f"{pieces}:length", f"{pieces}:twice")).folder)
    batch = stored_batch(run, 1)
    assert (batch.column("turn.double") == 2 * batch.rollouts.tokens).all()


def test_a_run_is_refused_before_it_starts_where_a_need_is_not_met(tmp_path: Path, pieces: str) -> None:
    start(tmp_path, iterations=0, **signals(f"{pieces}:length"))  # the file is known now, and its names with it
    with pytest.raises(TurnwiseError, match=r"signal\.0\.name=twice_as_long needs turn\.length: .*\[\[signal\]\] .*given_length"):
        start(tmp_path, iterations=1, **signals("twice_as_long"))
    start(tmp_path, iterations=1, **signals("given_length", "twice_as_long"))
    with pytest.raises(TurnwiseError, match=r"by_answer needs task\.answer: the tasks of .* have no such data"):
        start(tmp_path, iterations=1, **{"credit.name": "by_answer"})
    with pytest.raises(TurnwiseError, match=r"\[models\.teacher\]"):
        start(tmp_path, iterations=1, **{"credit.name": "by_teacher"})


def test_what_an_engine_can_report_is_asked_for_by_itself(tmp_path: Path, pieces: str) -> None:
    run = Run.open(start(tmp_path, iterations=1, **{"credit.name": f"{pieces}:by_entropy"}).folder)
    batch = stored_batch(run, 1)
    entropy = batch.column("token.entropy")
    assert (entropy >= 0).all() and entropy.max() > 0
    assert np.allclose(batch.column("token.advantage"), entropy, atol=1e-6) and batch.column("group.seen").tolist() == [0, 1]


def test_a_signal_that_returns_no_columns_is_named(tmp_path: Path, pieces: str) -> None:
    with pytest.raises(TurnwiseError, match="returned NoneType; a dictionary of columns is needed"):
        start(tmp_path, iterations=1, **signals(f"{pieces}:nothing"))
