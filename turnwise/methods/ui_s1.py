"""UI-S1, semi-online: the policy acts along an expert's trajectory, with its own responses in the history.

    turn k matches      its action is the expert's k-th action: the attempt goes on
    otherwise           the expert's response takes its place in the history, at most `patches` times (−1: always); then the attempt ends
    s_k = 0.1 · parsed + 0.9 · (1 for the same action, 0.5 for the same first word, 0.1 if it could be parsed, else 0)

The state is the expert's before every turn. The policy's own response is learned from in each case; the expert's is part of later prompts
alone. Rewards of turns are their scores.

Credit counts how well a turn agrees with the expert, and what follows as long as the policy agrees:

    G_k = s_k + γ · G_{k+1}     if turns k and k + 1 both match the expert; otherwise G_k = s_k        s: column turn.score
    A_k = episode_weight · z(s_k over all turns of the group) + step_weight · z(G_k over the group's turns with the same number k)

z subtracts the mean and divides by the sample standard deviation + 1e-6. A group is masked unless the population standard deviation of
its attempts' G_0, at their first turns, is above `least`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import Norm, TurnDiscount, deviation, pair, reverse_scan, segment_count, standardise, unmasked
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Rollouts, Stop, Trajectory, Turn
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots
from turnwise.methods.registry import Brings, RecipeDiscount, kl_loss, method, plan

PAPER = "UI-S1, arXiv 2509.11543"
Patches = Annotated[int, Help("wrong actions per attempt that the expert's replaces; -1: all of them", low=-1)]
SCORE, MATCH = "turn.score", "turn.match"
EpisodeWeight = Annotated[float, Help("weight of scores compared over all turns of the group", low=0)]
StepWeight = Annotated[float, Help("weight of returns compared at the same turn number", low=0)]
Least = Annotated[float, Help("a group is learned from if its attempts' returns deviate by more than this; 0: every group", low=0)]


@dataclass
class Line:
    """One attempt along the expert's trajectory `shown`. `turns`: the policy's own; `here`: the history, with the expert's responses."""

    start: Start
    shown: Trajectory
    here: Trajectory
    turns: list[Turn] = field(default_factory=list)
    patched: int = 0
    lost: bool = False


@plan("ui_s1", paper=PAPER, needs=("env.expert",), gives=("turn.score", "turn.match", "turn.patched"))
@dataclass(kw_only=True, eq=False)
class SemiOnline(Plan):
    """Attempts along an expert's trajectory; a wrong action is replaced by the expert's a few times, then the attempt ends."""

    patches: Patches = 2

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        starts = slots.groups(groups)
        solutions = slots.solutions(starts)
        lines = [Line(start, one, one) for start in starts if (one := solutions.get(start.task.id)) is not None]
        going = lines
        while going:
            planned = [(line, self.next(line, slots)) for line in going]
            attempts = yield [start for _, start in planned]
            played = {one.id: one for one in attempts}
            for line, start in planned:
                line.lost = start.number not in played
            going = [line for line, start in planned if not line.lost and self.goes_on(line, played[start.number])]
        kept = [line for line in lines if not line.lost]
        counts = {"without_expert": len(starts) - len(lines), "patched": sum(one.patched for one in kept)}
        return Gathered([self.learned(line) for line in kept], counts)

    def next(self, line: Line, slots: TaskSlots) -> Start:
        """The attempt that continues a line behind its history."""
        [start] = slots.branch(line.here, len(line.turns), group=line.start.group, task=line.start.task)
        return replace(start, max_turns=len(line.shown.turns))

    def goes_on(self, line: Line, one: Trajectory) -> bool:
        """Take the new turns up to the first wrong action. Returns whether the line goes on behind a patch."""
        for turn in one.turns[len(line.turns) : len(line.shown.turns)]:
            k, expert = len(line.turns), line.shown.turns[len(line.turns)]
            match = same(turn, expert)
            patch = not match and (self.patches == -1 or line.patched < self.patches)
            notes = {**turn.notes, "score": (s := score(turn, expert)), "match": float(match), "patched": float(patch)}
            line.turns.append(replace(turn, notes=notes, reward=s))
            if match:
                continue
            line.patched += patch
            if patch and k + 1 < len(line.shown.turns):
                line.here = patched(one, k, line.shown)
                return True
            break
        return False

    def learned(self, line: Line) -> Trajectory:
        """The policy's own turns as one trajectory; it succeeded if all of them match."""
        success = len(line.turns) == len(line.shown.turns) and all(turn.notes["match"] for turn in line.turns)
        own = replace(line.here, group=line.start.group, id=line.start.number, turns=line.turns, success=success)
        return replace(own, parent=None, branch_t=0, stop=Stop.DONE, stop_detail="")


def patched(one: Trajectory, k: int, shown: Trajectory) -> Trajectory:
    """The history of an attempt up to its turn k, in which the expert's response takes the place of the attempt's own."""
    expert = shown.turns[k]
    names = ("action", "thought", "valid", "response", "response_ids", "logprobs", "reward", "info")
    said = {name: getattr(expert, name) for name in names}
    return replace(one, turns=[*one.turns[:k], replace(one.turns[k], **said, reports={})], final_anchor=shown.turns[k + 1].anchor)


def words(action: str) -> list[str]:
    """The words of an action, in small letters."""
    return re.findall(r"\w+|[^\w\s]", action.lower())


def same(turn: Turn, expert: Turn) -> bool:
    """Whether the policy's action is the expert's."""
    return turn.valid and words(turn.action) == words(expert.action)


def score(turn: Turn, expert: Turn) -> float:
    """How well a turn agrees with the expert's."""
    kind = turn.valid and words(turn.action)[:1] == words(expert.action)[:1]
    return 0.1 * turn.valid + 0.9 * (1.0 if same(turn, expert) else 0.5 if kind else 0.1 * turn.valid)


@credit.register("ui_s1", paper="UI-S1, arXiv 2509.11543", needs=("group.peers", SCORE, MATCH))
def ui_s1_credit(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 0.5,
    episode_weight: EpisodeWeight = 1.0,
    step_weight: StepWeight = 1.0,
    norm: Norm = "std",
    least: Least = 0.3,
) -> dict[str, Any]:
    """Agreement with an expert, plus the discounted agreement that follows, compared at the same turn number."""
    score, match = np.asarray(r.need(SCORE, "ui_s1"), np.float64), np.asarray(r.need(MATCH, "ui_s1"), np.float64) > 0
    counts, score = np.isfinite(score), np.nan_to_num(score)
    followed = match & np.append(match[1:], False)
    later = reverse_scan(score, gamma * followed, r.trajectory)
    turns = np.flatnonzero(counts)
    step, steps = pair(r.group[turns], r.t[turns])
    groups = len(r.group_labels)
    advantage = np.zeros(len(r))
    advantage[turns] = episode_weight * standardise(score[turns], r.group[turns], groups, norm)
    advantage[turns] += step_weight * standardise(later[turns], step, steps, norm)
    first = np.flatnonzero(counts & (r.t == 0))  # a group is learned from if its attempts differ enough at their first turns
    spread, attempts = deviation(later[first], r.group[first], groups, ddof=0), segment_count(r.group[first], groups)
    kept = unmasked(r, counts & ((spread > least) | (attempts == 1) | (least == 0))[r.group])
    return {"turn.advantage": np.where(kept, advantage, 0.0), "turn.mask": kept, "turn.later_score": later}


@method(
    "ui_s1",
    paper=PAPER,
    changes="plan, reward, credit",
    costs="the expert plays every task; turns after a wrong action are played and thrown away; earlier actions are played again",
    evidence="code",
    options={SemiOnline: "patches", ui_s1_credit: "episode_weight step_weight least"},
)
def ui_s1(
    *,
    gamma: RecipeDiscount = None,
) -> dict[str, Any]:
    """The policy acts along an expert's trajectory, its wrong actions are replaced, and every turn is judged by the expert's."""
    own = {"plan.name": "ui_s1", "credit.name": "ui_s1", "credit.gamma": gamma}
    authors = {"objective.name": "clip", "objective.aggregation": "token", "objective.entropy_coef": 0.0}
    return Brings(own, authors | {"credit.gamma": 0.5, "credit.norm": "std"} | kl_loss(0.0001))
