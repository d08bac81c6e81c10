"""Stages of a method in a run: plans, signals and what they need, from files of the user's own."""

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
from turnwise.methods.planning import Gathered, Plan

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

@methods.plan("counting")
class Counting(Plan):
    """Remembers how many attempts it has seen."""
    def __init__(self, *, skip: int = 0):
        self.seen, self.skip = 0, skip
    def gather(self, places, groups):
        places.used += self.skip
        found = yield places.groups(groups)
        self.seen += len(found)
        return Gathered(found, {"seen": float(self.seen)})
    def state(self):
        return {"seen": self.seen}
    def load_state(self, state):
        self.seen = state["seen"]
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


def test_the_state_of_a_plan_survives_a_resume(tmp_path: Path, pieces: str) -> None:
    plan = {"plan": {"name": f"{pieces}:Counting", "skip": 1}}
    whole = start(tmp_path / "a", iterations=4, **plan)
    first = start(tmp_path / "b", iterations=2, **plan)
    from turnwise.api import train

    train(resume=first.folder, iterations=4, quiet=True)
    seen = [[line.get("collect/seen") for line in Run.open(each.folder).metrics()] for each in (whole, first)]
    assert seen[0] == seen[1] and seen[0][-1] == 4 * seen[0][1]
    for n in (3, 4):
        one, other = (stored_batch(Run.open(each.folder), n) for each in (whole, first))
        assert [t.task for t in one.trajectories] == [t.task for t in other.trajectories]
