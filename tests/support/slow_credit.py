"""Credit written from the definitions, one turn at a time in Python floats: the oracle that the fast functions are compared with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EPS = 1e-6


@dataclass
class Row:
    group: int
    trajectory: int
    t: int
    reward: float
    anchor: str
    valid: bool
    value: float = 0.0
    token_values: list[float] = field(default_factory=list)


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs)


def deviation(xs: Sequence[float], ddof: int = 1) -> float:
    m = mean(xs)
    return math.sqrt(math.fsum((x - m) ** 2 for x in xs) / max(len(xs) - ddof, 1))


def against(x: float, xs: Sequence[float], norm: str, ddof: int = 1) -> float:
    if len(xs) < 2 or max(xs) == min(xs):
        return 0.0
    return (x - mean(xs)) / ((deviation(xs, ddof) + EPS) if norm == "std" else 1.0)


def trajectories(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.trajectory].append(row)
    return {key: sorted(found[key], key=lambda row: row.t) for key in found}


def episode_return(rows: list[Row], trajectory: int) -> float:
    return math.fsum(row.reward for row in rows if row.trajectory == trajectory)


def discounted(rows: list[Row], row: Row, gamma: float) -> float:
    return math.fsum(gamma ** (later.t - row.t) * later.reward for later in rows if later.trajectory == row.trajectory and later.t >= row.t)


def episode(rows: list[Row], norm: str, weighting: str, penalty: float, key: Callable[[Row], int] = lambda row: row.group) -> list[float]:
    credit = []
    for row in rows:
        peers = [other for other in rows if key(other) == key(row)]
        ids = {other.trajectory for other in peers}
        own, charge = episode_return(rows, row.trajectory), 0.0 if row.valid else penalty
        if weighting == "trajectory":
            credit.append(against(own, [episode_return(rows, i) for i in ids], norm) - charge)
        elif len(ids) == 1:
            credit.append(0.0)
        else:
            scores = [episode_return(rows, o.trajectory) - (0.0 if o.valid else penalty) for o in peers]
            credit.append(against(own - charge, scores, norm))
    return credit


def grpo(rows: list[Row], norm: str, weighting: str, penalty: float) -> list[float]:
    return episode(rows, norm, weighting, penalty)


def rloo(rows: list[Row], weighting: str, penalty: float) -> list[float]:
    credit = []
    for row in rows:
        charge = 0.0 if row.valid else penalty
        peers = [other for other in rows if other.group == row.group]
        ids = {other.trajectory for other in peers}
        if len(ids) == 1:
            credit.append(-charge if weighting == "trajectory" else 0.0)
        elif weighting == "trajectory":
            others = [episode_return(rows, i) for i in ids if i != row.trajectory]
            credit.append(episode_return(rows, row.trajectory) - mean(others) - charge)
        else:
            others = [episode_return(rows, o.trajectory) - (0.0 if o.valid else penalty) for o in peers if o is not row]
            credit.append(episode_return(rows, row.trajectory) - charge - mean(others))
    return credit


def loop(rows: list[Row], drop: float, penalty: float) -> list[float]:
    plain = rloo(rows, "trajectory", 0.0)
    return [a - (0.0 if row.valid else penalty) if abs(a) >= drop else 0.0 for a, row in zip(plain, rows, strict=True)]


def reinforce_pp(rows: list[Row], norm: str, weighting: str, penalty: float) -> list[float]:
    return episode(rows, norm, weighting, penalty, key=lambda row: 0)


def reinforce_pp_to_go(rows: list[Row], gamma: float, norm: str, penalty: float) -> list[float]:
    """weighting="step"."""
    scores = [discounted(rows, row, gamma) - (0.0 if row.valid else penalty) for row in rows]
    return [against(score, scores, norm) for score in scores]


def reinforce_pp_baseline(rows: list[Row], weighting: str, penalty: float) -> list[float]:
    if weighting == "step":
        centred = episode(rows, "none", "step", penalty)
        scale = math.sqrt(math.fsum(x * x for x in centred) / max(len(centred) - 1, 1)) + EPS
        return [x / scale for x in centred]
    ids = sorted({row.trajectory for row in rows})
    first = {i: next(row for row in rows if row.trajectory == i) for i in ids}
    centred_of = {i: episode([*rows], "none", "trajectory", 0.0)[rows.index(first[i])] for i in ids}
    scale = math.sqrt(math.fsum(x * x for x in centred_of.values()) / max(len(ids) - 1, 1)) + EPS
    return [centred_of[row.trajectory] / scale - (0.0 if row.valid else penalty) for row in rows]


def step(rows: list[Row], gamma: float, norm: str, penalty: float, once: bool = False) -> list[float]:
    score = {id(row): discounted(rows, row, gamma) - (0.0 if row.valid else penalty) for row in rows}
    credit = []
    for row in rows:
        peers = [other for other in rows if (other.group, other.anchor) == (row.group, row.anchor)]
        if not once:
            credit.append(against(score[id(row)], [score[id(o)] for o in peers], norm))
            continue
        visits = {i: sum(o.trajectory == i for o in peers) for i in {o.trajectory for o in peers}}
        values = [score[id(o)] for o in peers]
        if len(visits) == 1 or max(values) == min(values):
            credit.append(0.0)
            continue
        m = math.fsum(score[id(o)] / visits[o.trajectory] for o in peers) / len(visits)
        var = math.fsum((score[id(o)] - m) ** 2 / visits[o.trajectory] for o in peers) / (len(visits) - 1)
        credit.append((score[id(row)] - m) / (math.sqrt(var) + EPS if norm == "std" else 1.0))
    return credit


def gigpo(rows: list[Row], gamma: float, omega: float, norm: str, weighting: str, penalty: float, once: bool = False) -> list[float]:
    pairs = zip(episode(rows, norm, weighting, penalty), step(rows, gamma, norm, penalty, once), strict=True)
    return [e + omega * s for e, s in pairs]


def lambda_returns(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """What a critic should say along one trajectory, from the definition of the λ-return: the reward, then a mixture of the next value and
    of the next λ-return. Nothing follows the last step."""
    out: list[float] = []
    for k in reversed(range(len(rewards))):
        follows = k + 1 < len(rewards)
        out.append(rewards[k] + (gamma * ((1 - lam) * values[k + 1] + lam * out[-1]) if follows else 0.0))
    return out[::-1]


def turn_targets(rows: list[Row], gamma: float, lam: float, penalty: float) -> list[float]:
    found = {}
    for path in trajectories(rows).values():
        rewards = [row.reward - (0.0 if row.valid else penalty) for row in path]
        for row, target in zip(path, lambda_returns(rewards, [row.value for row in path], gamma, lam), strict=True):
            found[id(row)] = target
    return [found[id(row)] for row in rows]


def token_targets(rows: list[Row], gamma: float, lam: float, penalty: float) -> list[float]:
    """Every turn has a token; flat in row order."""
    found: dict[int, list[float]] = {}
    for path in trajectories(rows).values():
        rewards = [r for row in path for r in [0.0] * (len(row.token_values) - 1) + [row.reward - (0.0 if row.valid else penalty)]]
        flat = lambda_returns(rewards, [v for row in path for v in row.token_values], gamma, lam)
        for row in path:
            found[id(row)], flat = flat[: len(row.token_values)], flat[len(row.token_values) :]
    return [target for row in rows for target in found[id(row)]]


def bi_level_targets(rows: list[Row], gamma: float, lam: float, token_gamma: float, token_lam: float, penalty: float) -> list[float]:
    """The λ-return over the ends of turns is what the last token of a turn should be worth; the tokens before it look forward to that."""
    found: dict[int, list[float]] = {}
    for path in trajectories(rows).values():
        rewards = [row.reward - (0.0 if row.valid else penalty) for row in path]
        for row, at_end in zip(path, lambda_returns(rewards, [row.token_values[-1] for row in path], gamma, lam), strict=True):
            inside = [0.0] * (len(row.token_values) - 1) + [at_end]
            found[id(row)] = lambda_returns(inside, row.token_values, token_gamma, token_lam)
    return [target for row in rows for target in found[id(row)]]
