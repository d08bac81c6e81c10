"""ARPO: half of a group's attempts branch off from others after observations that surprised the policy.

    dH(t) = h(answer to the observation before turn t) − h(first turn)        h: entropy of the first 20 tokens, from the 10 most likely
    branch at t if clip(u − w · dH, 0, 1) ≤ p,  u uniform in [0, 1]           so the probability is p + w · dH, clipped

A group starts with some of its attempts. Round r looks at the attempts that are still going after their r-th turn, in the order in which
they were made, and asks the rule for each whether another attempt starts there. If none is still going and attempts are missing, one more
starts from the beginning. The group is complete when it has as many attempts as `collect.group_size`.

The authors decide while the attempts run. Here an attempt is played to its end first, and the rounds are gone through afterwards: what
the rule reads is what the engine reported at the turn, later turns of an attempt do not depend on the decision, and the branches of a
round are played before the next round is decided. The trees have the same distribution, in every environment whose states can be
restored or replayed. AEPO grows its trees in the same way, with another rule.

The advantage A(τ) is GRPO's over all attempts of the group, branches included. Turns that several attempts share: *soft* trains every copy
with the advantage of its attempt, *hard* trains them once (`collect.shared_prefix = "once"`) with the mean of A(τ) over the attempts τ that
contain this very turn. A branch contains the turns of its parent up to where it starts, and through it those of the parent's parent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import Norm, Penalty, Weighting, relative, segment_count, segment_first, segment_sum, shared_turns
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Floats, Rollouts, Trajectory, Turn
from turnwise.methods.authors import kl_loss
from turnwise.methods.planning import Gathered, Places, Plan, Rounds, by_group
from turnwise.methods.registry import Brings, method, plan
from turnwise.util.seeds import derive

PAPER = "Dong et al. 2025, ARPO, arXiv 2507.19849"
TOP = 10  # most likely tokens that an entropy is computed from
NEEDS = (f"token.top_logprob_{TOP}", "env.snapshot?", "group.peers")
Initial = Annotated[int | None, Help("attempts per group from the start; none: half of collect.group_size", low=1)]
Beam = Annotated[int, Help("an attempt that is still going starts at most this many minus one branches per round", low=1)]
Weight = Annotated[float, Help("weight of the rise in entropy in the branch rule", low=0)]
Probability = Annotated[float, Help("threshold of the branch rule", low=0, high=1)]
First = Annotated[int, Help("tokens at the start of a turn whose entropy is measured", low=1)]
Over = Annotated[Literal["sum", "mean"], Help("the entropy of a segment is the sum over its tokens (the public code) or their mean")]
Measured = Annotated[
    Literal["answer", "call"],
    Help("the turn whose entropy is compared: the answer to the observation (the paper) or the turn that led to it (the public code)"),
]


@dataclass
class Tree:
    """The attempts of one group. `spare` are those from the start that were not made yet; `begun` says, by number of an attempt, after how
    many rounds its first turn was taken; `streak` counts the rounds in a row that had a branch."""

    spare: list[Start]
    chance: np.random.Generator
    initial: int
    budget: int
    begun: dict[int | str, int] = field(default_factory=dict)
    members: list[Trajectory] = field(default_factory=list)
    made: int = 0
    streak: int = 0

    def fresh(self, n: int, after: int) -> list[Start]:
        """n further attempts from the start."""
        starts, self.spare = self.spare[:n], self.spare[n:]
        self.begun |= {start.number: after for start in starts}
        self.made += len(starts)
        return starts

    def going(self, after: int) -> list[tuple[Trajectory, int]]:
        """The attempts that are still going after a round, each with its next turn."""
        places = [(member, after - self.begun[member.id]) for member in self.members]
        return [(member, t) for member, t in places if t < len(member.turns)]


class Surprise(Plan, ABC):
    """The rounds. A method says with `branches` when an attempt branches, and may look at the groups first (`survey`)."""

    def __init__(self, initial: int | None, beam: int, weight: float, probability: float, first: int, over: str, measured: str):
        self.initial, self.beam, self.weight, self.probability = initial, beam, weight, probability
        self.first, self.over, self.measured = first, over, measured

    @abstractmethod
    def branches(self, tree: Tree, rise: float, u: float) -> bool:
        """The rule: whether an attempt branches, by the rise of its entropy and a number drawn from 0 to 1."""

    def survey(self, trees: Sequence[Tree], places: Places) -> Generator[Sequence[Start], list[Trajectory], dict[str, float]]:
        """Look at the groups before their attempts are made; returns counts for the log."""
        yield from ()
        return {}

    def gather(self, places: Places, groups: int) -> Rounds:
        trees = {group: self._tree(starts, places) for group, starts in by_group(places.groups(groups)).items()}
        counts = {"fresh": 0.0} | (yield from self.survey(list(trees.values()), places))
        wanted = [start for tree in trees.values() for start in tree.fresh(tree.initial, 0)]
        rounds = 0
        while wanted or any(tree.made < tree.budget for tree in trees.values()):
            for trajectory in (yield wanted) if wanted else []:
                trees[trajectory.group].members.append(trajectory)
            rounds += 1
            wanted = [start for tree in trees.values() for start in self._grow(tree, rounds, places)]
            counts["fresh"] += sum(start.branch is None for start in wanted)
        return Gathered([trajectory for tree in trees.values() for trajectory in tree.members], counts)

    def _tree(self, starts: list[Start], places: Places) -> Tree:
        initial = math.ceil(len(starts) / 2) if self.initial is None else min(self.initial, len(starts))
        seed = derive(places.seed, type(self).__name__, starts[0].group)
        return Tree(starts, np.random.default_rng(seed), initial, len(starts))

    def _grow(self, tree: Tree, rounds: int, places: Places) -> list[Start]:
        """The attempts that a group starts after a round."""
        if tree.made >= tree.budget:
            return []
        going = tree.going(rounds)
        if not going:
            tree.streak = 0
            return tree.fresh(1, rounds)
        starts: list[Start] = []
        for trajectory, t in going:
            rise = self.rise(trajectory, t, places.vocabulary)
            for _ in range(min(self.beam - 1, tree.budget - tree.made - len(starts))):
                if self.branches(tree, rise, tree.chance.random()):
                    starts += places.branch(trajectory, t)
                    tree.begun[starts[-1].number] = tree.begun[trajectory.id]
        tree.made += len(starts)
        tree.streak = tree.streak + 1 if starts else 0
        return starts

    def rise(self, trajectory: Trajectory, t: int, vocabulary: int) -> float:
        """The entropy before or after the observation of turn t, minus that of the attempt's first turn. The public code takes the first
        turn that the attempt has made itself: of a branch, the one after the branch."""
        answer = self.measured == "answer"
        now, first = (t, 0) if answer else (t - 1, trajectory.branch_t)
        return self.entropy(trajectory.turns[now], vocabulary) - self.entropy(trajectory.turns[first], vocabulary)

    def entropy(self, turn: Turn, vocabulary: int) -> float:
        """The entropy of a turn's first tokens, from the most likely tokens that the engine reported."""
        value = segment_entropy([turn.reports[f"top_logprob_{place}"][: self.first] for place in range(1, TOP + 1)], vocabulary)
        return value / max(1, min(self.first, len(turn.response_ids))) if self.over == "mean" else value


def segment_entropy(logprobs: object, vocabulary: int = 0) -> float:
    """−Σ p log p over all reported log-probs, divided by the logarithm of the size of the vocabulary (0: not divided)."""
    known = np.asarray(logprobs, np.float64).ravel()
    known = known[known > -np.inf]
    return float(-(np.exp(known) * known).sum() / (math.log(vocabulary) if vocabulary > 1 else 1.0)) if len(known) else 0.0


@plan("arpo", paper=PAPER, needs=NEEDS)
class Arpo(Surprise):
    """Some attempts from the start, then branches after observations at which the policy's entropy rose."""

    def __init__(
        self,
        *,
        initial: Initial = None,
        beam: Beam = 2,
        weight: Weight = 0.2,
        probability: Probability = 0.5,
        first: First = 20,
        over: Over = "sum",
        measured: Measured = "answer",
    ):
        super().__init__(initial, beam, weight, probability, first, over, measured)

    def branches(self, tree: Tree, rise: float, u: float) -> bool:
        return arpo_branches(u, rise, self.weight, self.probability)


def arpo_branches(u: float, rise: float, weight: float, probability: float) -> bool:
    """The rule of the public code."""
    return min(max(u - weight * rise, 0.0), 1.0) <= probability


@credit.register("arpo", paper="Dong et al. 2025, ARPO, arXiv 2507.19849", needs=("group.peers",))
def arpo_credit(r: Rollouts, *, norm: Norm = "std", weighting: Weighting = "trajectory", invalid_penalty: Penalty = 0.0) -> Floats:
    """GRPO's credit; a turn that several attempts share gets the mean of their credits."""
    credit = episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    turn, size = shared_turns(r)
    mean = segment_sum(relative(credit, turn, size), turn, size) / segment_count(turn, size)
    shared: Floats = (segment_first(credit, turn, size).astype(np.float64) + mean)[turn]
    return shared


@method(
    "arpo",
    paper=PAPER,
    changes="collection, credit",
    costs="no extra rollouts; shared turns are generated once; the engine reports 10 log-probs per token",
    evidence="code (rollout); notes (hard and soft)",
)
def arpo(
    *,
    attribution: Annotated[
        Literal["soft", "hard"], Help("shared turns: every copy with its own advantage, or once with the mean advantage")
    ] = "soft",
) -> dict[str, Any]:
    """Attempts branch after surprising observations, and GRPO compares all of them."""
    hard = attribution == "hard"
    own = {"plan.name": "arpo", "credit.name": "arpo" if hard else "grpo", "collect.shared_prefix": "once" if hard else "each"}
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.entropy_coef": 0.0, "credit.norm": "std"}
    return Brings(own, authors | kl_loss(0.0))
