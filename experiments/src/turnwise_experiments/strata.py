"""StraTA: the policy writes a strategy before an attempt, all actions of the attempt are conditioned on it, and both are learned.

    per task: `factor` × `strategies` texts are sampled, and `strategies` of them chosen that differ most (farthest-point sampling)
    the attempts of the group are shared out among the strategies; each is shown its strategy in every prompt
    afterwards a judge flags turns that neither followed the strategy nor advanced the task

A strategy becomes a trajectory of one turn in the group of its task, so that its tokens are learned from too.

Credit compares strategies with strategies, and actions with actions under the same strategy:

    R(z)   = mean of the best ⌈delta · M⌉ returns of the M attempts with strategy z
    A(z)   = (R(z) − mean) / (std + 1e-6)              over the strategies of a task; for the turn that wrote the strategy
    R(a_t) = R(τ) − kappa · [turn t is flagged]
    A(a_t) = (R(a_t) − mean) / (std + 1e-6)            over the attempts with the same strategy; for all other turns

The columns come from the plan `strata`: `turn.strategy` (a number that is unique in the group), `turn.writes` (1 for the turn that wrote
it) and `turn.flagged` (1 for a turn that is charged).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import (
    EPSILON,
    deviation,
    episode_returns,
    is_constant,
    pair,
    segment_count,
    segment_first,
    segment_sum,
    standardise,
)
from turnwise.data.anchors import Ints
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Floats, Rollouts, Trajectory, Turn
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, summary
from turnwise.methods.registry import method, plan
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive
from turnwise_experiments.strategies import note, shown, writing, written

EMBED = Kind("embedding", takes=("texts",), example="def mine(texts): return vectors")
JUDGE = Kind("judge", takes=("strategy", "turns"), gives=("list", "sequence", "tuple"), example="def mine(strategy, turns) -> list[int]")
ASK = "{task}\n\nDo not act yet. Write a strategy for this task in a few sentences: what to do first, what next, what to avoid."
SHOW = "Your strategy for this task: {text}"
GRAM = 3  # characters per gram
LINE = 160  # characters of an action in the question to the judge
Strategies = Annotated[int, Help("strategies per task; the attempts of a group are shared out among them", low=1)]
PAPER = "StraTA, arXiv 2605.06642"
COLUMNS = ("turn.strategy", "turn.writes", "turn.flagged")
Pool = Annotated[
    Literal["turns", "trajectories"],
    Help("what counts once in the statistics of a strategy: each turn (long attempts weigh more), or each attempt"),
]


@plan("strata", paper=PAPER, needs=("group.peers",), gives=COLUMNS)
@dataclass(kw_only=True, eq=False)
class Strata(Plan):
    """Every group once, its attempts shared out among strategies that the policy has written before."""

    strategies: Strategies = 4
    factor: Annotated[int, Help("candidates per strategy that is chosen", low=1)] = 8
    judge: Annotated[str, Help('who flags turns: "policy", "none", or your own function of (strategy, turns): path/to/file.py:NAME')] = (
        "policy"
    )
    embed: Annotated[str, Help('how texts are compared: "grams" (counts of three characters), or your own: path/to/file.py:NAME')] = "grams"
    ask: Annotated[str, Help("how a strategy is asked for; {task} stands for the goal and the first observation")] = ASK
    show: Annotated[str, Help("how a strategy is shown in prompts; {text} stands for it")] = SHOW

    def __post_init__(self) -> None:
        self.vectors: Callable[[Sequence[str]], Any] = grams if self.embed == "grams" else load_reference(self.embed, EMBED)
        own_judge = self.judge not in ("policy", "none")
        self.flags: Callable[[str, Sequence[Turn]], Sequence[int]] | None = load_reference(self.judge, JUDGE) if own_judge else None

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        starts = slots.groups(groups)
        size, firsts = slots.group_size, starts[:: slots.group_size]
        number, seed = min(self.strategies, size), derive(slots.seed, "strata", firsts[0].group)
        candidates = written(slots, firsts, self.ask, self.factor * number, seed)
        chosen = [[turns[k] for k in self.different(turns, number)] for turns in candidates]
        own = {start.number: (n // size, n % number) for n, start in enumerate(starts)}  # the task and the strategy of each attempt
        turn_of = {attempt: chosen[task][z] for attempt, (task, z) in own.items()}
        finished = yield [replace(start, hint=shown(turn_of[start.number], self.show)) for start in starts]
        flagged = self.judged(slots, finished, [turn_of[int(one.id)] for one in finished], derive(seed, "judge"))
        attempts: dict[tuple[int, int], list[Trajectory]] = {}
        for trajectory in finished:
            place = own[int(trajectory.id)]
            note(trajectory.turns, {"strategy": place[1], "writes": 0.0, "flagged": 0.0})
            attempts.setdefault(place, []).append(trajectory)
        note(flagged, {"flagged": 1.0})
        texts = []
        for (task, z), tried in attempts.items():
            if len((turn := chosen[task][z]).response_ids):
                note([turn], {"strategy": z, "writes": 1.0, "flagged": 0.0})
                texts.append(writing(slots, firsts[task], turn, tried))
        return Gathered([*finished, *texts], {**summary(finished), "strategies": len(texts), "flagged": len(flagged)})

    def different(self, turns: Sequence[Turn], number: int) -> list[int]:
        """Which of these texts are chosen."""
        if len(turns) <= number:
            return list(range(len(turns)))
        vectors = np.asarray(self.vectors([turn.action for turn in turns]), np.float64)
        if vectors.ndim != 2 or len(vectors) != len(turns) or not np.isfinite(vectors).all():
            raise TurnwiseError(
                f"strata: embed returned shape {vectors.shape} for {len(turns)} texts; one vector of numbers per text is needed"
            )
        return farthest(vectors, number)

    def judged(self, slots: TaskSlots, attempts: Sequence[Trajectory], strategies: Sequence[Turn], seed: int) -> list[Turn]:
        """The turns that are flagged."""
        if self.judge == "none" or not attempts:
            return []
        pairs = list(zip((strategy.action for strategy in strategies), attempts, strict=True))
        if self.flags is not None:
            items = [set(self.flags(text, attempt.turns)) for text, attempt in pairs]
        else:
            answers = slots.answers([question(text, attempt) for text, attempt in pairs], seed)
            items = [{int(number) - 1 for number in re.findall(r"[0-9]{1,6}", answer)} for answer in answers]
        return [turn for attempt, flagged in zip(attempts, items, strict=True) for t, turn in enumerate(attempt.turns) if t in flagged]

    def evaluation(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        """Every attempt with one strategy of its own."""
        texts = written(slots, starts, self.ask, 1, derive(slots.seed, "strata", "evaluation"))
        return [replace(start, hint=shown(turn, self.show)) for start, [turn] in zip(starts, texts, strict=True)]


def question(strategy: str, attempt: Trajectory) -> str:
    """What the policy is asked about an attempt that is over."""
    lines = [f"{t}. {' '.join(turn.action.split())[:LINE]}" for t, turn in enumerate(attempt.turns, 1)]
    ended = "It succeeded." if attempt.success else "It failed."
    ask = "Which of these steps neither followed the strategy nor advanced the task? Answer with their numbers alone, or with: none"
    return "\n".join([f"Goal: {attempt.goal}", f"Strategy: {strategy}", "Steps of the attempt:", *lines, ended, ask])


def grams(texts: Sequence[str]) -> Any:
    """Texts as vectors of unit length: how often each run of three characters occurs in them."""
    counts = [Counter(text[k : k + GRAM] for k in range(max(len(text) - GRAM + 1, 1))) for text in texts]
    place = {gram: k for k, gram in enumerate(dict.fromkeys(gram for count in counts for gram in count))}
    vectors = np.zeros((len(texts), len(place)))
    for row, count in zip(vectors, counts, strict=True):
        row[[place[gram] for gram in count]] = list(count.values())
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def farthest(vectors: Any, number: int, first: int = 0) -> list[int]:
    """Farthest-point sampling: `first`, then again and again the one whose largest inner product with those chosen is smallest. Of equals
    the earlier."""
    points = np.asarray(vectors, np.float64)
    products = np.round(points @ points.T, 9)  # the same choice on every processor
    chosen, nearest = [first], products[first].copy()
    while len(chosen) < min(number, len(points)):
        nearest[chosen] = np.inf
        chosen.append(int(np.argmin(nearest)))
        nearest = products[chosen].max(axis=0)
    return chosen


@credit.register("strata", paper=PAPER, needs=(*COLUMNS, "group.peers"))
def strata_credit(
    r: Rollouts,
    *,
    delta: Annotated[float, Help("share of a strategy's attempts, the best ones, that its return is the mean of", low=0, high=1)] = 0.5,
    kappa: Annotated[float, Help("subtracted from the return for a flagged turn", low=0)] = 0.1,
    pool: Pool = "turns",
    weight: Annotated[float, Help("factor of the credit of strategies", low=0)] = 1.0,
) -> Floats:
    """Credit of a strategy against the task's other strategies, and of actions against other attempts with the same strategy."""
    number, writes, flagged = (r.need(name, "strata") for name in COLUMNS)
    strategy, size = pair(r.group, np.asarray(number, np.int64))
    acts = np.asarray(writes) == 0
    charge = kappa * np.where(acts, flagged, 0.0)
    score = episode_returns(r)
    attempts = np.unique(r.trajectory[acts])
    of_attempt = segment_first(strategy, r.trajectory, len(score)).astype(np.int64)[attempts]

    value, tried = best_mean(score[attempts], of_attempt, size, delta), segment_count(of_attempt, size) > 0
    task = segment_first(r.group, strategy, size).astype(np.int64)
    of_strategy = np.zeros(size)
    of_strategy[tried] = standardise(value[tried], task[tried], len(r.group_labels), "std")

    credit = weight * of_strategy[strategy]
    if pool == "turns":
        credit[acts] = standardise((score[r.trajectory] - charge)[acts], strategy[acts], size, "std")
        return credit
    centred = np.zeros(len(score))
    centred[attempts] = standardise(score[attempts], of_attempt, size, "none")
    spread = deviation(score[attempts], of_attempt, size) + EPSILON
    by_attempt = np.where(
        is_constant(score[attempts], of_attempt, size)[strategy], 0.0, (centred[r.trajectory] - charge) / spread[strategy]
    )
    credit[acts] = by_attempt[acts]
    return credit


def best_mean(values: Floats, segment: Ints, size: int, share: float) -> Floats:
    """The mean of the largest ⌈share · n⌉ of the n values of each segment, at least of one; 0 for an empty segment."""
    order = np.lexsort((-values, segment))
    count = segment_count(segment, size)
    rank = np.arange(len(values)) - (np.cumsum(count) - count)[segment[order]]
    most = np.maximum(np.ceil(share * count - 1e-9), 1.0)
    kept = order[rank < most[segment[order]]]
    first = segment_first(values[order], segment[order], size).astype(np.float64)  # the largest: equal values have exactly this mean
    means: Floats = first + segment_sum(values[kept] - first[segment[kept]], segment[kept], size) / most
    return means


@method(
    "strata",
    paper=PAPER,
    changes="plan, prompts, credit",
    costs="`factor` × `strategies` short generations per task, one per attempt for the judge; longer prompts",
    evidence="notes; embedding, prompts and the statistics over turns are ours",
    options={Strata: "factor judge embed", strata_credit: "delta kappa pool"},
)
def strata(
    *,
    strategies: Strategies = 4,
    attempts: Annotated[int, Help("attempts per strategy: sets collect.group_size, unless the recipe does", low=1)] = 8,
) -> dict[str, Any]:
    """The policy writes strategies and acts by them: strategies are compared with strategies, actions with actions under the same one."""
    plan = {"plan.name": "strata", "plan.strategies": strategies}
    return {**plan, "credit.name": "strata", "collect.group_size": strategies * attempts}
