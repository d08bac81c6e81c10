"""IPA: the unit of credit and of importance is the interaction, one turn. Attempts may start where an expert was.

The plan `ipa_rollback` is the initialised resampling:

    sequential   the expert plays the first f of its L turns; f starts at L − 1 and falls by one when a group succeeds often enough
    parallel     attempt i of a group of N starts at f = L · i // N

What the expert played is part of the prompts, and not learned from.

Credit of a turn is what follows it, shared by all of its tokens:

    G_k = r_k + γ · G_{k+1}          with a reward only at the end: γ^(turns to the end) · R

No baseline is subtracted. `neutral` is taken from the last reward, so that a failure with a return of 0 has a negative G.

The objective imitates the positive part as it is, and unlearns the negative part as far as the policy still does it (TOPR):

    positive trajectory   −G · log π
    negative trajectory   −min(ρ, 1) · G · log π        ρ = exp( mean over the turn's tokens of log π − log π_old ), no gradient

G is the credit of the turn. A trajectory is positive if its return is above `above`. Turns on which engine and learner disagree are left
out by the importance correction `reject`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import TurnDiscount, last_turns, reverse_scan
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Floats, Rollouts, Trajectory
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, by_group
from turnwise.methods.registry import Brings, RecipeDiscount, method, plan, section
from turnwise.objectives import registry as objectives
from turnwise.objectives.registry import TokenLoss

if TYPE_CHECKING:
    from turnwise.objectives.tokens import Tokens

PAPER = "IPA (ROME), arXiv 2512.24873"
Success = Annotated[float, Help("sequential: the share of successes at which the start moves one turn back", low=0, high=1)]
Neutral = Annotated[float, Help("the return that teaches nothing; it is subtracted at the end")]
NO_IMITATION = "what the expert played is not learned from; a warm start ([sft]) imitates it"


@plan("ipa_rollback", paper=PAPER, needs=("env.expert",), former={"imitate": (False, NO_IMITATION)})
@dataclass(kw_only=True, eq=False)
class Rollback(Plan):
    """Attempts start inside the expert's trajectory, nearer to its beginning as the policy succeeds, or everywhere at once."""

    order: Annotated[Literal["sequential", "parallel"], Help("move the start back step by step, or use many starts at once")] = "sequential"
    success: Success = 0.5
    given: dict[str, int] = field(default_factory=dict, init=False)  # by task: how many turns the expert plays next time

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        starts = slots.groups(groups)
        solutions = slots.solutions(starts)
        planned = [one for group in by_group(starts).values() for one in self.begun(slots, group, solutions.get(group[0].task.id))]
        attempts = yield planned
        given = [start.branch.t if start.branch is not None else 0 for start in planned]
        if self.order == "sequential":
            self.move_back(by_group(attempts))
        counts = {"given_turns": float(np.mean(given)) if given else 0.0}
        return Gathered(attempts, counts)

    def begun(self, slots: TaskSlots, starts: Sequence[Start], shown: Trajectory | None) -> list[Start]:
        """The attempts of a group, each from its own place; from the beginning where the expert failed."""
        if shown is None:
            return list(starts)
        length = len(shown.turns)
        if self.order == "sequential":
            given = [min(self.given.setdefault(starts[0].task.id, length - 1), length - 1)] * len(starts)
        else:
            given = [length * i // len(starts) for i in range(len(starts))]
        planned: list[Start] = []
        for start, t in zip(starts, given, strict=True):
            planned += slots.branch(shown, t, group=start.group, task=start.task) if t else [start]
        return planned

    def move_back(self, groups: dict[int | str, list[Trajectory]]) -> None:
        """One turn less of the expert's for each task that was solved often enough."""
        for attempts in groups.values():
            task = attempts[0].task
            if task in self.given and float(np.mean([attempt.success for attempt in attempts])) >= self.success:
                self.given[task] = max(0, self.given[task] - 1)

    def state(self) -> dict[str, Any]:
        return {"given": dict(self.given)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.given = dict(state["given"])


@credit.register("ipa", paper="IPA, arXiv 2512.24873")
def ipa_credit(r: Rollouts, *, gamma: TurnDiscount = 0.95, neutral: Neutral = 0.0) -> Floats:
    """The discounted return from each turn on, minus a constant at the end; no baseline."""
    return reverse_scan(r.reward - neutral * last_turns(r), gamma, r.trajectory)


@objectives.register("ipa", paper="IPA, arXiv 2512.24873; TOPR", needs=("trajectory.return",), former={"imitation": (0.0, NO_IMITATION)})
def ipa_loss(
    tokens: Tokens,
    *,
    above: Annotated[float, Help("a trajectory is positive if its return is above this")] = 0.0,
    level: Annotated[Literal["turn", "trajectory"], Help("the span that has one ratio; micro-batches must contain whole spans")] = "turn",
) -> TokenLoss:
    """Credit times log-prob; in trajectories that are not positive, weighted by the turn's ratio, at most 1."""
    import torch

    from turnwise.objectives.tokens import ratio_of

    positive = tokens.extra["return"] > above
    ratio = ratio_of(tokens.mean_over(level, tokens.log_ratio.detach()))
    weight = torch.where(positive, 1.0, ratio.clamp(max=1.0))
    loss = -weight * tokens.advantage * tokens.logprob
    return TokenLoss(loss, {"positive": positive, "span_ratio": ratio, "topr_weight": weight})


@method(
    "ipa",
    paper=PAPER,
    changes="credit, objective; on request the starts of attempts",
    costs="one pass for old log-probs; with starts inside: the expert plays every task",
    evidence="paper and code; discount, threshold and neutral return are ours",
    former={"imitation": (0.0, NO_IMITATION)},
)
def ipa(
    *,
    gamma: RecipeDiscount = None,
    neutral: Neutral = 0.0,
    mismatch: Annotated[float, Help("turns whose geometric ratio of learner to engine is above this are left out", low=0)] = 1.05,
    starts: Annotated[
        Literal["beginning", "sequential", "parallel"], Help("where attempts start in the expert's trajectory")
    ] = "beginning",
    success: Success = 0.5,
) -> dict[str, Any]:
    """Return, importance ratio and mismatch mask per turn; successes are imitated, failures unlearned with bounded weight."""
    settings: dict[str, Any] = (
        section("credit", name="ipa", gamma=gamma, neutral=neutral)
        | section("objective", name="ipa", above=neutral, importance="reject", importance_options={"over": "turn", "ratio_high": mismatch})
        | {"learner.old_logprobs": "learner"}
    )
    rollback: dict[str, Any] = {"plan.name": "ipa_rollback", "plan.order": starts, "plan.success": success}
    return Brings(settings | ({} if starts == "beginning" else rollback))
