"""VPR: at each visited state, K candidate responses are scored by an oracle, and one of the best is played.

The first candidate of an attempt starts from the beginning and ends after one turn. The others branch before that turn. One of those with
the highest score is committed, chosen by the run's seed, and the next candidates branch after it. A committed line is a trajectory like any
other; each candidate that was not committed is a trajectory of one turn. Every turn has the notes `choice` (the number of its state) and
`score`, which become columns that the credit function `vpr` reads.

The oracle is the environment's expert, or your own function `file.py:oracle` of (turn, trajectory): a number, the larger the better.

Credit compares the candidates of a state with each other:

    B_j = score_j − mean score                  over the K candidates of the state; with norm="std" divided by their standard deviation
    A_j = (B_j − mean B) / (std B + 1e-6)       over all candidates of the batch that count; all deviations are of the population

A state whose candidates all have the same score teaches nothing: its turns get 0 and are masked. `turn.choice` is the number of the state
that a turn is a candidate of, `turn.score` what the oracle said; the plan `vpr` notes both. Turns without a score are masked too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.kinds import ORACLE
from turnwise.config.loading import load_reference
from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import is_constant, standardise, unmasked
from turnwise.data.anchors import dense
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Rollouts, Stop, Trajectory, Turn
from turnwise.envs.base import Transition
from turnwise.envs.wrapping import Around, wrapper
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, summary
from turnwise.methods.registry import method, plan
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

EXPERT = "env.expert_action"
Candidates = Annotated[int, Help("responses per visited state", low=2)]
OracleName = Annotated[str, Help("who scores them: env.expert_action, or your function path/to/file.py:name of (turn, trajectory)")]


@wrapper(need=EXPERT)
@dataclass(frozen=True, slots=True)
class Advised:
    """Makes environments that report their expert's advice."""

    factory: Callable[[], Any]

    def __call__(self) -> AdvisedEnv:
        return AdvisedEnv(self.factory())


class AdvisedEnv(Around):
    """An environment that reports its expert's advice with every transition.

    `info["expert"]` has what the expert said before the action was played: `action`, its own choice, and, if the environment has
    `expert_distance()`, `left` and `then`, the number of actions to the goal before and after. None where the expert knows nothing, or
    where the goal cannot be reached any more."""

    def step(self, action: str) -> Transition:
        advice, left = self._ask("expert_action"), self._ask("expert_distance")
        transition = super().step(action)
        then = (0 if transition.success else None) if transition.done else self._ask("expert_distance")
        expert = {"action": advice} | ({"left": left, "then": then} if hasattr(self._env, "expert_distance") else {})
        return replace(transition, info={**transition.info, "expert": expert})

    def _ask(self, method: str) -> Any:
        """What the expert says; None if it has no such method or no advice."""
        try:
            asked = getattr(self._env, method, None)
            return asked() if callable(asked) else None
        except TurnwiseError:
            return None


def expert_score(turn: Turn, trajectory: Trajectory) -> float:
    """1 if the action leads one step nearer to the goal or, without distances, is the expert's own; otherwise 0."""
    said = turn.info.get("env", {}).get("expert", {})
    if said.get("left") is not None:
        return float(said.get("then") is not None and said["then"] < said["left"])
    return float(said.get("action") is not None and " ".join(turn.action.lower().split()) == " ".join(str(said["action"]).lower().split()))


@dataclass
class Line:
    """An attempt that grows by one committed turn per round. `here`: the trajectory so far; `others`: candidates that were not played."""

    start: Start
    here: Trajectory
    others: list[Trajectory]
    going: bool = True


@plan("vpr", paper="VPR, arXiv 2605.10325", needs=("env.snapshot?", "{oracle}"), gives=("turn.choice", "turn.score"))
class Candidated(Plan):
    """Several candidate responses at each visited state; one of those that an oracle scores highest is played."""

    def __init__(self, *, candidates: Candidates = 4, oracle: OracleName = EXPERT):
        self.candidates = candidates
        self.oracle: Callable[[Turn, Trajectory], Any] = expert_score if oracle == EXPERT else load_reference(oracle, ORACLE)

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        starts = {start.number: start for start in slots.groups(groups)}
        first = yield [replace(start, max_turns=1) for start in starts.values()]
        lines = [Line(starts[int(one.id)], one, []) for one in first]
        attempts = yield self.branches(lines, slots, 0, self.candidates - 1)
        choices = self.commit(lines, attempts, slots, 0, 0)
        t = 1
        while going := [line for line in lines if line.going]:
            attempts = yield self.branches(going, slots, t, self.candidates)
            choices = self.commit(going, attempts, slots, t, choices)
            t += 1
        lines = [replace(line, here=replace(line.here, parent=None, branch_t=0)) for line in lines]  # it begins at the start
        return Gathered([one for line in lines for one in (line.here, *line.others)], self.counts(lines))

    def branches(self, lines: Sequence[Line], slots: TaskSlots, t: int, n: int) -> list[Start]:
        """n attempts per line that branch before turn t and end after it."""
        return [replace(start, max_turns=t + 1) for line in lines for start in slots.branch(line.here, t, n)]

    def commit(self, lines: Sequence[Line], found: Sequence[Trajectory], slots: TaskSlots, t: int, choices: int) -> int:
        """Score the candidates of each line and commit one of the best. Returns the number of the next state."""
        by_parent: dict[Any, list[Trajectory]] = {}
        for one in found:
            if len(one.turns) > t:  # an attempt that was at its limit has made no turn
                by_parent.setdefault(one.parent, []).append(one)
        for line in lines:
            candidates = ([line.here] if t == 0 else []) + by_parent.get(line.here.id, [])
            if not candidates:
                line.going = False
                continue
            scores = [self.score(one) for one in candidates]
            for one, score in zip(candidates, scores, strict=True):
                one.turns[t].notes = {**one.turns[t].notes, "choice": choices, "score": score}
            choices += 1
            best = [one for one, score in zip(candidates, scores, strict=True) if score == max(scores)]
            chosen = best[derive(slots.seed, "vpr", line.start.number, t) % len(best)]
            line.others += [replace(one, turns=one.turns[t:], parent=None, branch_t=0) for one in candidates if one is not chosen]
            line.here, line.going = chosen, chosen.stop is Stop.STEP_LIMIT
        return choices

    def score(self, candidate: Trajectory) -> float:
        """What the oracle says of a candidate's last turn."""
        score = float(self.oracle(candidate.turns[-1], candidate))
        if not math.isfinite(score):
            raise TurnwiseError(f"the oracle of plan vpr gave {score} for turn {len(candidate.turns) - 1} of task {candidate.task!r}")
        return score

    def counts(self, lines: Sequence[Line]) -> dict[str, float]:
        """Numbers for the log: those of attempts are of the committed lines alone."""
        scores = [turn.notes["score"] for line in lines for turn in line.here.turns if "score" in turn.notes]
        candidates = sum(len(line.others) + len(line.here.turns) for line in lines)
        committed = summary([line.here for line in lines])
        del committed["trajectories"]
        return {"candidates": candidates, "committed_score": sum(scores) / max(len(scores), 1), **committed}


@credit.register("vpr", paper="VPR, arXiv 2605.10325", needs=("turn.choice", "turn.score"))
def vpr_credit(
    r: Rollouts,
    *,
    norm: Annotated[Literal["none", "std"], Help("inside a state: do not divide, or divide by the standard deviation")] = "none",
    whiten: Annotated[bool, Help("subtract the mean and divide by the standard deviation over all candidates that count")] = True,
) -> dict[str, Any]:
    """An oracle's score of a turn compared with those of other responses to the same prompt, whitened over the batch."""
    choice, score = np.asarray(r.need("turn.choice", "vpr")), np.asarray(r.need("turn.score", "vpr"), np.float64)
    counts = np.isfinite(score) & np.isfinite(choice)
    advantage, rows = np.zeros(len(r)), np.flatnonzero(counts)
    if len(rows):
        distinct, state = dense(choice[rows].astype(np.int64))
        size = len(distinct)
        relative = standardise(score[rows], state, size, norm, ddof=0)
        live = ~is_constant(score[rows], state, size)[state]
        counts[rows] = live
        chosen = relative[live]
        advantage[rows[live]] = standardise(chosen, np.zeros(len(chosen), np.int64), 1, "std", ddof=0) if whiten else chosen
    return {"turn.advantage": advantage, "turn.mask": unmasked(r, counts)}


@method(
    "vpr",
    paper="VPR, arXiv 2605.10325",
    changes="plan, credit",
    costs="`candidates` generations and one replay or restore per candidate on each turn; one call of the oracle per candidate",
    evidence="code",
    options={Candidated: "candidates oracle", vpr_credit: "norm"},
)
def vpr() -> dict[str, Any]:
    """Several responses at each visited state, scored by an oracle and compared with each other; one of the best is played."""
    return {"plan.name": "vpr", "credit.name": "vpr"}
