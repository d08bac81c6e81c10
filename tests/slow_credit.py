"""Credit written from the definitions, one turn at a time in Python floats: the oracle that the fast functions are compared with."""

from __future__ import annotations

import math
from collections import defaultdict, deque
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


def hgpo(
    rows: list[Row], history: int, alpha: float, gamma: float, norm: str, penalty: float, weights: str, with_episode: bool
) -> list[float]:
    """With weighting="trajectory" at the episode level."""
    by_trajectory = trajectories(rows)

    def past(row: Row, k: int) -> tuple[int, tuple[str, ...]] | None:
        return (row.group, tuple(by_trajectory[row.trajectory][row.t - i].anchor for i in range(k + 1))) if row.t >= k else None

    score = {id(row): discounted(rows, row, gamma) - (0.0 if row.valid else penalty) for row in rows}
    episodes = episode(rows, norm, "trajectory", penalty)
    credit = []
    for index, row in enumerate(rows):
        top = bottom = 0.0
        for k in range(history + 1):
            peers = [score[id(o)] for o in rows if past(row, k) is not None and past(o, k) == past(row, k)]
            a = against(score[id(row)], peers, norm, ddof=0)
            if (a != 0) if weights == "code" else len(peers) > 1:
                w = (k + (2 if weights == "code" else 1)) ** alpha
                top, bottom = top + w * a, bottom + w
        if with_episode and (weights == "paper" or episodes[index] != 0):
            top, bottom = top + episodes[index], bottom + 1.0
        credit.append(top / (bottom + EPS) if weights == "code" else top / bottom if bottom else 0.0)
    return credit


def graph_gpo(rows: list[Row], gamma: float, scale: float, relative: bool, norm: str, penalty: float) -> list[float]:
    """With success = return above 0, unknown ends, weighting="trajectory"."""
    by_trajectory = trajectories(rows)
    score: dict[int, float] = {}
    for group in {row.group for row in rows}:
        members = [row for row in rows if row.group == group]

        def target(row: Row) -> object:
            path = by_trajectory[row.trajectory]
            if row.t + 1 < len(path):
                return path[row.t + 1].anchor
            return ("success",) if episode_return(rows, row.trajectory) > 0 else ("dead end", row.trajectory)

        into: dict[object, list[str]] = defaultdict(list)
        for row in members:
            into[target(row)].append(row.anchor)
        distance: dict[object, int] = {("success",): 0}
        queue: deque[object] = deque([("success",)])
        while queue:
            node = queue.popleft()
            for source in into[node]:
                if source not in distance:
                    distance[source] = distance[node] + 1
                    queue.append(source)
        far = max(distance.values()) + 1
        for row in members:
            there, here = distance.get(target(row), far), distance.get(row.anchor, far)
            exponent = there - here + 1 if relative else there
            score[id(row)] = scale * gamma**exponent - (0.0 if row.valid else penalty)
    credit = []
    for row, e in zip(rows, episode(rows, norm, "trajectory", penalty), strict=True):
        peers = [score[id(o)] for o in rows if (o.group, o.anchor) == (row.group, row.anchor)]
        credit.append(e + against(score[id(row)], peers, norm))
    return credit


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """One trajectory."""
    advantage, out, following = 0.0, [], 0.0
    for r, v in zip(reversed(rewards), reversed(values), strict=True):
        advantage = r + gamma * following - v + gamma * lam * advantage
        following = v
        out.append(advantage)
    return out[::-1]


def turn_gae(rows: list[Row], gamma: float, lam: float, penalty: float) -> list[float]:
    credit = {}
    for path in trajectories(rows).values():
        rewards = [row.reward - (0.0 if row.valid else penalty) for row in path]
        for row, a in zip(path, gae(rewards, [row.value for row in path], gamma, lam), strict=True):
            credit[id(row)] = a
    return [credit[id(row)] for row in rows]


def token_gae(rows: list[Row], gamma: float, lam: float) -> list[float]:
    """Every turn has a token; flat in row order."""
    credit: dict[int, list[float]] = {}
    for path in trajectories(rows).values():
        values = [v for row in path for v in row.token_values]
        rewards = [r for row in path for r in [0.0] * (len(row.token_values) - 1) + [row.reward]]
        flat = gae(rewards, values, gamma, lam)
        for row in path:
            credit[id(row)], flat = flat[: len(row.token_values)], flat[len(row.token_values) :]
    return [a for row in rows for a in credit[id(row)]]


def bi_level_gae(rows: list[Row], gamma: float, lam: float, token_gamma: float, token_lam: float) -> list[float]:
    credit: dict[int, list[float]] = {}
    for path in trajectories(rows).values():
        ends = [row.token_values[-1] for row in path]
        for row, a, v in zip(path, gae([row.reward for row in path], ends, gamma, lam), ends, strict=True):
            rewards = [0.0] * (len(row.token_values) - 1) + [a + v]
            credit[id(row)] = gae(rewards, row.token_values, token_gamma, token_lam)
    return [a for row in rows for a in credit[id(row)]]


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
