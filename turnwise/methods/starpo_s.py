"""StarPO-S: trajectory filtering, a critic as baseline, no KL and a higher upper clip bound, under one name.

The plan `filtered` goes around any other plan: only the groups with the most signal are learned from. The score of a group is the sample
standard deviation of its returns:

    top_k   keeps a share of all groups
    top_p   keeps the shortest prefix that holds a share of the total score (mass="linear") or of its softmax (mass="softmax")
    min_p   keeps all groups with at least a share of the best score

If no group is kept, the iteration has no update. Several such iterations in a row end the run.

The credit function `snr_weighted` is the soft form of the filter, for any other algorithm:

    A' = A · σ_g / max σ        σ_g: sample standard deviation of the returns of group g

A group that nearly always ends the same way has a small signal and the noise of any other group; its weight is small. Divided by σ_g in the
base algorithm already (norm="std"), the weight would only undo that, so the default is norm="none".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.registry import algorithms, assign
from turnwise.credit.segments import Norm, Penalty, deviation, episode_returns, trajectory_groups
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Ints, Rollouts, alike
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, by_group
from turnwise.methods.registry import RAGEN, Brings, method, plan, plans, section
from turnwise.util.errors import TurnwiseError

Strategy = Literal["top_k", "top_p", "min_p"]
Mass = Literal["linear", "softmax"]
Keeping = Annotated[Strategy, Help("which groups are kept: a share of groups, of the total score, or of the best score")]
Share = Annotated[float, Help("that share", low=0, high=1)]
MassOf = Annotated[Mass, Help("with top_p: shares of the scores themselves, or of their softmax")]
Zero = Annotated[bool, Help("whether groups with a score of 0 can be kept")]
TINY = 1e-10  # scores up to this count as 0
METRIC = {"metric": ("reward_std", "remove it: groups are scored by the spread of their returns")}


@plan("filtered", former=METRIC | {"prefer": ("largest", "remove it: the largest scores are kept")})
@dataclass(kw_only=True, eq=False)
class Filtered(Plan):
    """Keep only the groups with the best score of what another plan collects, by top-k, top-p or min-p."""

    base: Annotated[str, Help("the plan that collects")] = "plain"
    options: Annotated[dict[str, Any] | None, Help("its options")] = None
    strategy: Keeping = "top_p"
    keep: Share = 0.9
    mass: MassOf = "linear"
    zero: Zero = False
    slack: Annotated[float, Help("with top_p and linear: the prefix may fall short of its share by this much score", low=0)] = 0.01
    patience: Annotated[int, Help("end the run after this many iterations in a row in which no group was kept", low=1)] = 5

    def __post_init__(self) -> None:
        self.inner: Plan = plans[self.base].make(self.options or {}, plans.kind)  # type: ignore[assignment]
        self.empty = 0

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        gathered = yield from self.inner.gather(slots, groups)
        members = list(by_group(gathered.trajectories).values())
        returns = [[one.reward for one in group] for group in members]
        scores = [0.0 if alike(own) else float(np.std(own, ddof=1)) for own in returns]
        chosen = select(scores, self.strategy, self.keep, self.mass, self.zero, self.slack)
        self.empty = 0 if len(chosen) else self.empty + 1
        if self.empty >= self.patience:
            raise TurnwiseError(
                f"plan 'filtered': no group was kept in {self.empty} iterations in a row, the last one had {len(members)}. All attempts of "
                "a group end alike: use easier tasks, larger groups (collect.group_size) or a longer warm start, or keep such groups "
                "(plan.zero = true)"
            )
        counts = {"groups_scored": len(members), "groups_kept": len(chosen), "empty_in_a_row": self.empty}
        return Gathered([trajectory for number in chosen for trajectory in members[number]], {**gathered.counts, **counts})

    def evaluated(self, start: Start) -> Start:
        return self.inner.evaluated(start)

    def evaluation(self, slots: TaskSlots, starts: Sequence[Start]) -> list[Start]:
        return self.inner.evaluation(slots, starts)

    def state(self) -> dict[str, Any]:
        return {"empty": self.empty, "base": self.inner.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.empty = int(state["empty"])
        self.inner.load_state(state["base"])

    @staticmethod
    def needs_of(options: Mapping[str, Any]) -> tuple[str, ...]:
        """What the other plan needs."""
        return plans[options["base"]].needed(options.get("options") or {})


def select(
    scores: Sequence[float],
    strategy: Strategy = "top_p",
    keep: float = 0.9,
    mass: Mass = "linear",
    zero: bool = False,
    slack: float = 0.01,
) -> Ints:
    """The numbers of the groups that are kept, in order. Of equal scores the earlier groups come first."""
    values = np.asarray(scores, np.float64)
    left = np.flatnonzero(zero | (np.abs(values) > TINY))
    if not len(left):
        return left
    if strategy == "min_p":
        return np.asarray(left[values[left] >= keep * values[left].max() - TINY])
    ordered = left[np.argsort(-values[left], kind="stable")]
    if strategy == "top_k":
        count = max(1, int(keep * len(values)))
    elif keep >= 1:
        count = len(left)
    elif mass == "softmax":
        share = np.exp(values[ordered] - values[ordered].max())
        count = int(np.searchsorted(np.cumsum(share / share.sum()), keep)) + 1
    else:
        # as many as add up to the threshold; scores of 0 and below never help, and none is kept if it is out of reach
        positive = np.cumprod(values[ordered] > 0).sum()
        sums = np.concatenate([np.zeros(1), np.cumsum(values[ordered][:positive])])
        reached = np.flatnonzero(sums >= keep * values[left].sum() - slack)
        count = int(reached[0]) if len(reached) else 0
    return np.sort(ordered[:count])


@credit.register("snr_weighted", paper="Wang et al. 2025, RAGEN, arXiv 2504.20073", needs=("group.peers",))
def snr_weighted_credit(
    r: Rollouts,
    *,
    base: Annotated[str, Help("the credit algorithm that is weighted")] = "grpo",
    options: Annotated[dict[str, Any] | None, Help("further options of it")] = None,
    norm: Norm = "none",
    invalid_penalty: Penalty = 0.0,
) -> dict[str, Any]:
    """Credit of another algorithm times the spread of the group's returns, relative to the largest spread of the batch."""
    known = algorithms[base].options
    own = {"norm": norm, "invalid_penalty": invalid_penalty}
    result = assign(base, r, **({name: value for name, value in own.items() if name in known} | (options or {})))
    spread = deviation(episode_returns(r), trajectory_groups(r), len(r.group_labels))
    largest = spread.max(initial=0.0)
    weight = spread / largest if largest > 0 else spread
    of_turns = weight[r.group]
    values = result.values * (of_turns if result.level == "turn" else np.repeat(of_turns, np.diff(r.token_offsets)))
    columns = {**result.columns, f"{result.level}.advantage": values, "group.snr": weight}
    return columns if result.targets is None else columns | {f"{result.level}.target": result.targets}


def credit_needs(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What the weighted algorithm needs."""
    if options["base"] == "snr_weighted":
        raise TurnwiseError("credit algorithm 'snr_weighted' cannot weight itself: set credit.base to another one")
    return algorithms[options["base"]].needed(options.get("options") or {})


snr_weighted_credit.needs_of = credit_needs  # type: ignore[attr-defined]


@method(
    "starpo_s",
    paper="Wang et al. 2025, RAGEN, arXiv 2504.20073",
    changes="plan, credit, objective",
    costs="groups that are collected and not learned from; a value head",
    evidence="code",
    former=METRIC,
)
def starpo_s(
    *,
    strategy: Keeping = "top_k",
    keep: Share = 0.25,
    mass: MassOf = "linear",
    zero: Zero = False,
    soft: Annotated[bool, Help("weight the credit of groups by their spread instead of dropping groups")] = False,
    critic: Annotated[bool, Help("GAE over tokens with a value head; false: GRPO")] = True,
) -> dict[str, Any]:
    """Only the groups whose attempts differ the most are learned from, with a critic, without KL and with a higher upper clip bound."""
    settings: dict[str, Any] = {"objective.name": "clip", "objective.clip_high": 0.28, "objective.kl": "off"}
    authors = dict(RAGEN)
    if critic:
        credit: dict[str, Any] = {"name": "gae", "level": "token", "gamma": 1.0, "lam": 1.0}
        settings |= {"learner.value.level": "token"}
    else:
        credit = {"name": "grpo"}
        authors |= {"credit.norm": "none"}
        del authors["learner.value.clip"]
    if soft:
        base = credit.pop("name")
        credit = {"name": "snr_weighted", "base": base, "options": credit, "norm": "none"}
    else:
        credit |= {"norm": "std"} if critic else {}
        settings |= section("plan", name="filtered", strategy=strategy, keep=keep, mass=mass, zero=zero)
    return Brings(settings | section("credit", **credit), authors)
