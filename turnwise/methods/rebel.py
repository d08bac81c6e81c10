"""ReBel: the agent writes down what it believes. Beliefs that agree with what was seen are rewarded, and turns of one belief are compared.

A response holds a belief as JSON: <belief>{"task": {"phase": …, "target": …}, "state": {"objects": {thing: place}, "states": {thing:
state}}, "prediction": "what comes next"}</belief>. A *tracker* knows what has really been seen: a function of a trajectory that returns,
for each turn, {"phase": …, "objects": {…}, "states": {…}} as they were known before the turn.

    r_cons = 0.40 · state + 0.30 · task + 0.20 · prediction + 0.10 · form
    state        share of the tracker's facts that the belief holds; 1/2 while it has none
    task         1 if the phase is the tracker's
    prediction   share of the longer words of the prediction that occur in the next observation
    form         0.01 with a belief, −0.05 without one; −0.02 more for an action that is not valid

Without a tracker, state and task are 0.

Credit compares turns with turns of the same belief:

    A      = A_ep + w · A_step
    A_ep   = R − mean R                                    over the trajectories of the group, not divided
    A_step = (G − mean G) + (C − mean C)                   each over the turns of the group with the same belief
    G_k    = γ^(T−1−k) · R                                 T turns: the whole return, discounted by the turns to the end
    C      = discounted sum of the rewards for consistent beliefs (column turn.consistency)

With a reward at the end alone, G is the discounted sum of rewards. With rewards before the end it is not: R counts on every turn.

A turn without a belief (column turn.belief below 0), or with one that no other turn has, has no step credit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config.kinds import Kind
from turnwise.config.loading import load_reference
from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.grpo import episode_credit
from turnwise.credit.segments import TurnDiscount, episode_returns, pair, reverse_scan, standardise
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts, Trajectory
from turnwise.envs.household import tracking
from turnwise.methods.registry import VERL_AGENT, Brings, RecipeDiscount, method, signal
from turnwise.util.errors import TurnwiseError

PAPER = "ReBel, arXiv 2605.20061"
WEIGHTS = {"state": 0.40, "task": 0.30, "prediction": 0.20, "form": 0.10}
TRACKER = Kind("belief tracker", takes=("trajectory",), gives=("list", "sequence"), example="def mine(trajectory) -> list[dict]")
OPENING, CLOSING = "<belief>", "</belief>"
Tracker = Annotated[str, Help("what knows the facts seen so far: household, none, or file.py:function")]
Facts = Mapping[str, Any]
BELIEF, CONSISTENCY = "turn.belief", "turn.consistency"


@signal("belief", paper=PAPER, gives=(BELIEF, CONSISTENCY))
class Belief:
    """The belief that each response states, as a number (-1: none), and how well it agrees with what was seen."""

    def __init__(self, *, tracker: Tracker = "none"):
        own = {"none": None, "household": tracking.facts}
        self.tracker: Callable[[Trajectory], Sequence[Facts]] | None = own[tracker] if tracker in own else load_reference(tracker, TRACKER)

    def __call__(self, batch: Batch, models: Any) -> dict[str, NDArray[Any]]:
        keys: list[str] = []
        rewards: list[float] = []
        for trajectory in batch.trajectories:
            known = [{}] * len(trajectory.turns) if self.tracker is None else self.tracker(trajectory)
            if len(known) != len(trajectory.turns):
                raise TurnwiseError(f"belief tracker: {len(known)} entries for {len(trajectory.turns)} turns; give one for each turn")
            after = [*(turn.observation for turn in trajectory.turns[1:]), ""]
            for turn, facts, seen in zip(trajectory.turns, known, after, strict=True):
                belief = belief_in(turn.response)
                keys.append("" if belief is None else key_of(belief, facts))
                rewards.append(sum(WEIGHTS[part] * value for part, value in consistency(belief, facts, seen, turn.valid).items()))
        if not any(keys):
            raise TurnwiseError(
                f"signal belief: no response of this batch states a belief ({OPENING}{{…}}{CLOSING}). Ask for beliefs in the prompt "
                "(agent.prompt) and teach them in a warm start; docs/methods/rebel.md has an example"
            )
        code = np.unique(np.array(["", *keys]), return_inverse=True)[1][1:] - 1  # the empty key is the first of all
        return {BELIEF: code.astype(np.int64), CONSISTENCY: np.array(rewards)}


def belief_in(response: str) -> Facts | None:
    """The last belief that a response states; None if there is none that can be read."""
    start = response.rfind(OPENING)
    end = response.find(CLOSING, start)
    if start < 0 or end < 0:
        return None
    try:
        result = json.loads(response[start + len(OPENING) : end])
    except (ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def key_of(belief: Facts, facts: Facts) -> str:
    """What beliefs are compared by: the phase (the tracker's, if known), the target, a full hand, and whether things were changed."""
    task, state = _part(belief, "task"), _part(belief, "state")
    held = any("in_hand" in plain(place) for place in _part(state, "objects").values())
    target = re.sub(r"[^a-z0-9 ]", "", re.sub(r"\b(a|an|the)\b", "", plain(task.get("target", ""))))
    phase = plain(facts.get("phase", task.get("phase", "")))
    return json.dumps([phase, " ".join(target.split()), held, bool(_part(state, "states"))])


def consistency(belief: Facts | None, facts: Facts, seen: str, valid: bool) -> dict[str, float]:
    """The parts of the reward of a belief, before they are weighted."""
    if belief is None:
        return {"form": -0.05}
    state, phase = _part(belief, "state"), _part(belief, "task").get("phase", "")
    true = [(kind, thing, value) for kind in ("objects", "states") for thing, value in _part(facts, kind).items()]
    said = {(kind, plain(thing)): plain(value) for kind in ("objects", "states") for thing, value in _part(state, kind).items()}
    right = sum(said.get((kind, plain(thing))) == plain(value) for kind, thing, value in true)
    words = {word for word in re.findall(r"[a-z]\w+", plain(belief.get("prediction", ""))) if len(word) > 3}
    return {
        "state": (right / len(true) if true else 0.5) if facts else 0.0,
        "task": float(plain(phase) == plain(facts["phase"])) if "phase" in facts else 0.0,
        "prediction": len(words & set(re.findall(r"[a-z]\w+", plain(seen)))) / len(words) if words else 0.0,
        "form": 0.01 - 0.02 * (not valid),
    }


def plain(value: Any) -> str:
    """A value as text, without case and extra space."""
    return " ".join(str(value).casefold().split())


def _part(table: Facts, key: str) -> Facts:
    """A table inside a table; empty if there is none."""
    result = table.get(key)
    return result if isinstance(result, Mapping) else {}


@credit.register("rebel", paper="ReBel, arXiv 2605.20061", needs=("group.peers", BELIEF, CONSISTENCY))
def rebel_credit(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 0.95,
    weight: Annotated[float, Help("weight of the step credit within belief groups", low=0)] = 0.5,
) -> Floats:
    """Episode credit without division, plus step credit among turns of the same belief: returns and consistency, each centred."""
    to_end = reverse_scan(np.ones(len(r)), 1.0, r.trajectory) - 1
    outcome = gamma**to_end * episode_returns(r)[r.trajectory]
    belief = np.asarray(r.column(BELIEF), np.int64)
    held = belief >= 0
    segment, size = pair(r.group[held], belief[held])
    step = np.zeros(len(r))
    for score in (outcome, reverse_scan(np.asarray(r.column(CONSISTENCY), np.float64), gamma, r.trajectory)):
        step[held] += standardise(score[held], segment, size, "none")
    return episode_credit(r, norm="none", weighting="trajectory", invalid_penalty=0.0) + weight * step


@method(
    "rebel",
    paper=PAPER,
    changes="reward, credit",
    costs="none; beliefs make responses longer",
    evidence="code; parts simplified",
    options={rebel_credit: "weight", Belief: "tracker"},
)
def rebel(
    *,
    gamma: RecipeDiscount = None,
) -> dict[str, Any]:
    """Turns are compared with turns of the same belief, and beliefs that agree with what was seen are rewarded."""
    return Brings({"signal": [{"name": "belief"}], "credit.name": "rebel", "credit.gamma": gamma}, VERL_AGENT | {"credit.gamma": 0.95})
