"""ARPO and AEPO: attempts branch off from others after observations that surprised the policy.

ARPO starts half of a group's attempts in this way:

    dH(t) = h(answer to the observation before turn t) − h(first turn)        h: entropy of the first 20 tokens, from the 10 most likely
    branch at t if clip(u − w · dH, 0, 1) ≤ p,  u uniform in [0, 1]           so the probability is p + w · dH, clipped

A group starts with some of its attempts. Round r looks at the attempts that are still going after their r-th turn, in the order in which
they were made, and asks the rule for each whether another attempt starts there. If none is still going and attempts are missing, one more
starts from the beginning. The group is complete when it has as many attempts as `collect.group_size`.

The authors decide while the attempts run. Here an attempt is played to its end first, and the rounds are gone through afterwards: what
the rule reads is what the engine reported at the turn, later turns of an attempt do not depend on the decision, and the branches of a
round are played before the next round is decided. The trees have the same distribution, in every environment whose states can be
restored or replayed.

The advantage A(τ) is GRPO's over all attempts of the group, branches included. Turns that several attempts share: *soft* trains every copy
with the advantage of its attempt, *hard* trains them once (`collect.shared_prefix = "once"`) with the mean of A(τ) over the attempts τ that
contain this very turn. A branch contains the turns of its parent up to where it starts, and through it those of the parent's parent.

AEPO: ARPO's trees with a balanced budget, plus an objective and an advantage that keep tokens of high entropy alive.

    pilot    one attempt per task that is only measured: H_root = entropy of its first turn, H_tool = mean entropy of its turns
    initial  m = clip(floor(k · sigmoid(β · (H_root − H_tool))) + 1, 1, k) attempts from the start, k = collect.group_size
    branch   if clip((u + w · dH) · max(0, 1 − penalty · c), 0, 1) ≥ p,  c = rounds in a row in which this group has branched

The advantage is GRPO's, larger on tokens that were drawn from wide distributions:

    A(token) = A(τ) · (1 + a · z),   z = (H − mean H) / std H        H: the token's entropy, as the engine reported it

Mean and standard deviation are over all tokens of the batch that are learned from. Where all entropies are equal, z is 0.

The clip of the objective lets a token above the upper bound keep a gradient, of the size that it has at the bound:

    upper bound = (1 + ε_high) · ρ / sg(ρ)        its value is 1 + ε_high, its gradient that of (1 + ε_high) · log π

PPO drops the gradient of tokens whose probability has grown beyond the bound. Many of them are tokens of high entropy, at which the policy
explores. The lower bound and the dual clip are PPO's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import Norm, Penalty, Weighting, relative, segment_count, segment_first, segment_sum, shared_turns
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Floats, Rollouts, Trajectory, Turn, alike
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, by_group
from turnwise.methods.registry import Brings, kl_loss, method, plan
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss
from turnwise.util.seeds import derive

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

PAPER = "Dong et al. 2025, ARPO, arXiv 2507.19849"
AEPO = "Dong et al. 2025, AEPO, arXiv 2510.14545"
TOP = 10  # most likely tokens that an entropy is computed from
NEEDS = (f"token.top_logprob_{TOP}", "env.snapshot?", "group.peers")


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
        positions = [(member, after - self.begun[member.id]) for member in self.members]
        return [(member, t) for member, t in positions if t < len(member.turns)]


@dataclass(kw_only=True, eq=False)
class Surprise(Plan, ABC):
    """The rounds. A method says with `branches` when an attempt branches, and may look at the groups first (`survey`)."""

    initial: Annotated[int | None, Help("attempts per group from the start; none: half of collect.group_size", low=1)] = None
    beam: Annotated[int, Help("an attempt that is still going starts at most this many minus one branches per round", low=1)] = 2
    weight: Annotated[float, Help("weight of the rise in entropy in the branch rule", low=0)] = 0.2
    probability: Annotated[float, Help("threshold of the branch rule", low=0, high=1)] = 0.5
    first: Annotated[int, Help("tokens at the start of a turn whose entropy is measured", low=1)] = 20
    over: Annotated[Literal["sum", "mean"], Help("the entropy of a segment is the sum over its tokens (the public code) or their mean")] = (
        "sum"
    )
    measured: Annotated[
        Literal["answer", "call"],
        Help("the turn whose entropy is compared: the answer to the observation (the paper) or the turn that led to it (the public code)"),
    ] = "answer"

    @abstractmethod
    def branches(self, tree: Tree, rise: float, u: float) -> bool:
        """The rule: whether an attempt branches, by the rise of its entropy and a number drawn from 0 to 1."""

    def survey(self, trees: Sequence[Tree], slots: TaskSlots) -> Generator[Sequence[Start], list[Trajectory], dict[str, float]]:
        """Look at the groups before their attempts are made; returns counts for the log."""
        yield from ()
        return {}

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        trees = {group: self._tree(starts, slots) for group, starts in by_group(slots.groups(groups)).items()}
        counts = {"fresh": 0.0} | (yield from self.survey(list(trees.values()), slots))
        wanted = [start for tree in trees.values() for start in tree.fresh(tree.initial, 0)]
        rounds = 0
        while wanted or any(tree.made < tree.budget for tree in trees.values()):
            for trajectory in (yield wanted) if wanted else []:
                trees[trajectory.group].members.append(trajectory)
            rounds += 1
            wanted = [start for tree in trees.values() for start in self._grow(tree, rounds, slots)]
            counts["fresh"] += sum(start.branch is None for start in wanted)
        return Gathered([trajectory for tree in trees.values() for trajectory in tree.members], counts)

    def _tree(self, starts: list[Start], slots: TaskSlots) -> Tree:
        initial = math.ceil(len(starts) / 2) if self.initial is None else min(self.initial, len(starts))
        seed = derive(slots.seed, type(self).__name__, starts[0].group)
        return Tree(starts, np.random.default_rng(seed), initial, len(starts))

    def _grow(self, tree: Tree, rounds: int, slots: TaskSlots) -> list[Start]:
        """The attempts that a group starts after a round."""
        if tree.made >= tree.budget:
            return []
        going = tree.going(rounds)
        if not going:
            tree.streak = 0
            return tree.fresh(1, rounds)
        starts: list[Start] = []
        for trajectory, t in going:
            rise = self.rise(trajectory, t, slots.vocabulary)
            for _ in range(min(self.beam - 1, tree.budget - tree.made - len(starts))):
                if self.branches(tree, rise, tree.chance.random()):
                    starts += slots.branch(trajectory, t)
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
@dataclass(kw_only=True, eq=False)
class Arpo(Surprise):
    """Some attempts from the start, then branches after observations at which the policy's entropy rose."""

    def branches(self, tree: Tree, rise: float, u: float) -> bool:
        return min(max(u - self.weight * rise, 0.0), 1.0) <= self.probability


@credit.register("arpo", paper=PAPER, needs=("group.peers",))
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


@plan("aepo", paper=AEPO, needs=NEEDS)
@dataclass(kw_only=True, eq=False)
class Aepo(Surprise):
    """A measured pilot divides each group between attempts from the start and branches, which pause after many in a row."""

    pilot: Annotated[bool, Help("measure one attempt per task first; without it `initial` decides")] = True
    beta: Annotated[float, Help("how much the pilot's entropies change the number of attempts from the start", low=0)] = 0.5
    penalty: Annotated[float, Help("taken off the branch rule per round in a row with a branch", low=0, high=1)] = 0.05

    def branches(self, tree: Tree, rise: float, u: float) -> bool:
        return min(max((u + self.weight * rise) * max(0.0, 1.0 - self.penalty * tree.streak), 0.0), 1.0) >= self.probability

    def survey(self, trees: Sequence[Tree], slots: TaskSlots) -> Generator[Sequence[Start], list[Trajectory], dict[str, float]]:
        if not self.pilot:
            return {}
        pilots = [replace(tree.spare[0], policy_seed=derive(slots.seed, "pilot", tree.spare[0].group)) for tree in trees]
        played = {trajectory.group: trajectory for trajectory in (yield pilots)}
        for tree in trees:
            seen = played.get(tree.spare[0].group)
            entropies = [0.0] if seen is None else [self.entropy(turn, slots.vocabulary) for turn in seen.turns]
            tree.initial = aepo_initial(tree.budget, entropies, self.beta)
        return {"pilots": len(played), "initial": sum(tree.initial for tree in trees) / len(trees)}


def aepo_initial(budget: int, entropies: Sequence[float], beta: float) -> int:
    """How many attempts of a group start from the beginning, by the entropies of the pilot's turns."""
    gap = beta * (entropies[0] - sum(entropies) / len(entropies))
    return max(1, min(budget, math.floor(budget * (0.5 + 0.5 * math.tanh(gap / 2))) + 1))


@credit.register("aepo", paper=AEPO, needs=("token.entropy", "group.peers"))
def aepo_credit(
    r: Rollouts,
    *,
    strength: Annotated[float, Help("how much an entropy one standard deviation above the mean adds to the advantage", low=0)] = 0.2,
    norm: Norm = "std",
    weighting: Weighting = "trajectory",
    invalid_penalty: Penalty = 0.0,
) -> dict[str, Any]:
    """GRPO's credit per token, scaled by the token's entropy relative to the batch."""
    of_turns = episode_credit(r, norm=norm, weighting=weighting, invalid_penalty=invalid_penalty)
    of_token = np.repeat(np.arange(len(r)), np.diff(r.token_offsets))
    counts = np.ones(len(of_token), np.bool_) if not r.has("turn.mask") else r.column("turn.mask")[of_token]
    counts = counts & r.column("token.mask") if r.has("token.mask") else counts
    return {"token.advantage": of_turns[of_token] * (1 + strength * deviations(r.column("token.entropy"), counts))}


def deviations(values: Any, counts: Any) -> Floats:
    """Values minus their mean, in sample standard deviations; the statistics are of those that count. 0 if these are all equal."""
    exact = np.asarray(values, np.float64)
    known = exact[counts]
    if len(known) < 2 or alike(known):
        return np.zeros(len(exact))
    result: Floats = (exact - known.mean()) / known.std(ddof=1)
    return result


@objectives.register("aepo", paper=AEPO)
def aepo_loss(
    tokens: Tokens,
    *,
    clip_low: Annotated[float, Help("the ratio is clipped below at 1 − this", low=0, high=1)] = 0.2,
    clip_high: Annotated[float, Help("the ratio is bounded above at 1 + this, and keeps its gradient", low=0)] = 0.2,
    dual_clip: Annotated[float | None, Help("bound on the ratio if the advantage is negative", low=1)] = None,
) -> TokenLoss:
    """PPO's clipped ratio whose upper bound stops the value and not the gradient."""
    import torch

    advantage, ratio = tokens.advantage, tokens.ratio
    above = ratio > 1 + clip_high
    bounded = torch.where(above, (1 + clip_high) / ratio.detach() * ratio, ratio.clamp(min=1 - clip_low))
    loss = torch.maximum(-advantage * ratio, -advantage * bounded)
    metrics = {"clip_low": (advantage < 0) & (ratio < 1 - clip_low), "clip_high": (advantage > 0) & above}
    if dual_clip is not None:
        worst = (advantage < 0) & (ratio > dual_clip)
        loss = torch.where(worst, -advantage * dual_clip, loss)
        metrics["clip_dual"] = worst
    return TokenLoss(loss, metrics)


@method(
    "aepo",
    paper=AEPO,
    changes="collection, credit, objective",
    costs="one pilot rollout per task that is not learned from; the engine reports entropies and 10 log-probs per token",
    evidence="code (a downstream copy); pilot in the paper's form from notes",
)
def aepo() -> dict[str, Any]:
    """ARPO's branching with a balanced budget, an entropy-aware advantage, and an upper clip that keeps gradients."""
    own = {"plan.name": "aepo", "credit.name": "aepo", "objective.name": "aepo", "collect.shared_prefix": "each"}
    authors = {"objective.aggregation": "token", "objective.dual_clip": 3.0, "objective.entropy_coef": 0.0, "credit.norm": "std"}
    return Brings(own, authors | kl_loss(0.0))
