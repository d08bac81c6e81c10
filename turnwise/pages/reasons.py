"""Why a turn got its credit, as text."""

from __future__ import annotations

import math

from turnwise.pages.batch import Batch, Credit, States


def why(batch: Batch, row: int) -> list[str]:
    """Sentences about one turn's credit: its sum, its step part, its episode part."""
    credit, states = batch.credit, batch.states
    if credit.total is None or states is None:
        return [f"Its credit is not known here: {credit.problem}"] if credit.problem else []
    if not credit.split:
        return [*_whole(batch, credit, row), *_state(states, row)]
    told = {"step": lambda: _step(batch, credit, states, row), "episode": lambda: _episode(batch, credit, row)}
    return [_sum(credit, row), *(told[name]() for name in told if name in credit.parts)]


def signed(value: float) -> str:
    """A number with its sign, as people write it: +0.42, −0.42, 0."""
    short = _two_digits(value) if abs(value) >= 0.005 else f"{abs(value):.1g}"
    return "0" if value == 0 else f"{'−' if value < 0 else '+'}{short}"


def short_number(value: float) -> str:
    """A return: two digits, or three significant ones if it is small."""
    short = _two_digits(value) if abs(value) >= 0.01 or value == 0 else f"{abs(value):.3g}"
    return f"{'−' if value < 0 else ''}{short}"


def _two_digits(value: float) -> str:
    """Halves are rounded up, as in the numbers that a browser writes next to these texts."""
    return f"{math.floor(100 * abs(value) + 0.5) / 100:.2f}"


def _sum(credit: Credit, row: int) -> str:
    assert credit.total is not None
    parts = [
        f"{name} {signed(float(column[row]))}" + ("" if weight == 1 else f" × {weight:g}")
        for name, (column, weight) in sorted(credit.parts.items(), reverse=True)
    ]
    return f"Credit {signed(float(credit.total[row]))}: {' and '.join(parts)}."


def _step(batch: Batch, credit: Credit, states: States, row: int) -> str:
    assert batch.columns is not None
    state, step = states.of_turn[row], float(credit.parts["step"][0][row])
    visits, attempts = int(states.visits[state]), int(states.attempts[state])
    head = f"Step credit {signed(step)}"
    if visits == 1:
        return f"{head}: no other turn of the group started from this state, so there is nothing to compare it with."
    once = bool(credit.options.get("once"))
    if once and attempts == 1:
        return f"{head}: only this attempt came to this state, {visits} times, so there is nothing to compare it with."
    if not states.compared:
        return f"{head}: what {credit.algorithm} scores here, compared over {visits} visits of this state."
    if step == 0:
        return f"{head}: the {visits} visits of this state all came to {short_number(float(states.score[row]))}, so none was better."
    penalty = float(credit.options.get("invalid_penalty", 0.0))
    charged = f" (after {penalty:g} for a response that could not be read)" if penalty and not batch.columns.valid[row] else ""
    over = f"{visits} visits of this state"
    if once and attempts < visits:
        over = f"the {attempts} attempts that came to this state, {visits} visits in all"
    mean, gap = float(states.mean[state]), float(states.score[row] - states.mean[state])
    words = f"{head}: return {short_number(float(states.score[row]))}{charged} against {short_number(mean)} on average over {over}"
    return words + (f", in units of their spread, {short_number(abs(gap / step))}." if credit.options.get("norm") == "std" else ".")


def _episode(batch: Batch, credit: Credit, row: int, name: str = "Episode credit") -> str:
    assert batch.columns is not None
    returns, groups, means, counts = batch.episodes
    group, value = batch.columns.group[row], float(credit.parts["episode"][0][row])
    own, attempts = float(returns[batch.columns.trajectory[row]]), int(counts[group])
    head = f"{name} {signed(value)}"
    if attempts == 1:
        return f"{head}: this task was attempted once, so there is nothing to compare it with."
    if (returns[groups == group] == own).all():
        return f"{head}: all {attempts} attempts at this task came to {short_number(own)}."
    mean = short_number(float(means[group]))
    words = f"{head}: the attempt came to {short_number(own)} against {mean} on average over {attempts} attempts at this task"
    penalty = float(credit.options.get("invalid_penalty", 0.0))
    charged = f", and {penalty:g} was taken off because the response could not be read" if penalty and not batch.columns.valid[row] else ""
    unit = ", in units of their spread" if credit.options.get("norm") == "std" else ""
    return f"{words}{unit}{charged}."


def _whole(batch: Batch, credit: Credit, row: int) -> list[str]:
    assert credit.total is not None
    if tuple(credit.parts) == ("episode",):
        return [_episode(batch, credit, row, "Credit"), "It is the same for all turns of the attempt."]
    return [f"Credit {signed(float(credit.total[row]))}, by {credit.algorithm}."]


def _state(states: States, row: int) -> list[str]:
    """The outcome of other visits of the same state; these algorithms may not use it, but it helps the reader."""
    state = states.of_turn[row]
    visits, own = int(states.visits[state]), short_number(float(states.returns[row]))
    if visits == 1:
        return [f"Return from here {own}. No other turn of the group started from this state."]
    mean = short_number(float(states.mean[state]))
    return [f"Return from here {own}; the {visits} visits of this state came to {mean} on average."]
