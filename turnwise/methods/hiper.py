"""HiPER: the policy keeps or switches a subgoal, and credit is given inside subgoals, across them, and to the switch.

    <switch>KEEP</switch><subgoal>find the key</subgoal><action>open the drawer</action>

A response without a switch, or with an empty one, keeps. Without <action> tags, the action is where it was parsed from. An auxiliary model
`critic` has three heads: `low` is read before the first token after </subgoal> (or </switch>, or the response), `high` and `term` before
the response.

A warm start teaches the tags: any environment whose expert advises from every state (`expert_action`) takes the option `subgoals`, the
number of the expert's actions per subgoal, as in `make("household", subgoals=3)`. It then has `expert_words()`, which are written in front
of an action. A subgoal is named by the last of the expert's next actions, and reached when this action is played: SWITCH names the next
one, KEEP the same. One that takes twice as many actions as it should is given up.

    shaped reward = reward + keep (a turn that keeps) + consistency (it keeps, and its subgoal is another than before) − invalid

Credit is given to each part on its own tokens:

A segment starts at the first turn and at every turn that says SWITCH. V_next after a trajectory's end is 0.

    low    δ = r + γ V_next − V_low       V_next: V_low of the next turn, at a segment's end V_high of the next segment
           A_low = δ + γ λ A_low(next turn of the segment)                                    on the tokens of the action
    high   δ = Σ γ^j r_j + γ^d V_high(next segment) − V_high     d: the turns of the segment
           A_high = δ + γ^d λ_high A_high(next segment)                                       on the subgoal of a segment's first turn
    term   A_term = G − V_term     G = r + γ G_next inside the segment, V_high of the next segment after it       on the switch

Each of the three is z-scored over the turns that have such tokens. All other tokens are masked. The targets of the three heads are the
advantages before that, plus the values. With `bootstrap`, a trajectory that a limit ended goes on with its own last value instead of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import Penalty, TurnDiscount, relative, reverse_scan
from turnwise.data.anchors import Ints
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Bools, Floats, Rollouts, Stop, Turn
from turnwise.data.tasks import Task
from turnwise.envs.base import Observation, Restorable, Transition
from turnwise.envs.episodes import checked_count
from turnwise.envs.snapshots import restoring
from turnwise.envs.wrapping import Around, expert_target, restored_around, state_around, wrapper
from turnwise.methods.registry import VERL_AGENT, Brings, RecipeDiscount, method, section, signal
from turnwise.methods.spans import Spans

PAPER = "HiPER, arXiv 2602.16165"
INSTRUCTIONS = (
    "Work on one subgoal at a time. Answer with <switch>KEEP</switch> or <switch>SWITCH</switch>, then the current subgoal as "
    "<subgoal>…</subgoal>, then the next action as <action>…</action>."
)
PART, SWITCH, LOW_AT, TRUNCATED = "token.part", "turn.switch", "turn.low_at", "trajectory.truncated"
VALUES = ("turn.value_low", "turn.value_high", "turn.value_term")
TARGETS = ("token.target_low", "turn.target_high", "turn.target_term")
SWITCH_PART, SUBGOAL_PART, ACTION_PART = 1, 2, 3  # what a token belongs to; 0: none of them
PARTS = {"switch": SWITCH_PART, "subgoal": SUBGOAL_PART, "action": ACTION_PART}
WORDS = "<switch>{}</switch><subgoal>{}</subgoal>"


@wrapper(option="subgoals")
@dataclass(frozen=True, slots=True)
class Subgoals:
    """Makes environments whose expert names its subgoals."""

    factory: Callable[[], Any]
    actions: int

    def __post_init__(self) -> None:
        checked_count(self.actions, 0, math.inf, "subgoals is the number of the expert's actions per subgoal (0: none)")

    def __call__(self) -> Any:
        env = self.factory()
        return SubgoalsEnv(env, self.actions) if self.actions and callable(getattr(env, "expert_action", None)) else env


class SubgoalsEnv(Around):
    """An environment whose expert names its subgoals."""

    def __init__(self, env: Any, actions: int):
        super().__init__(env)
        self._most = actions
        self._begin()
        if isinstance(env, Restorable):
            self.snapshot, self.restore = self._snapshot, self._restore

    def _begin(self) -> None:
        """No subgoal is named yet; `named` means before the last action, or earlier."""
        self._subgoal, self._named, self._acted = "", False, 0

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._begin()
        return super().reset(task, seed)

    def step(self, action: str) -> Transition:
        self._named, self._acted = bool(self._subgoal), self._acted + 1
        if action == self._subgoal or self._acted >= 2 * self._most:
            self._begin()
        return super().step(action)

    def expert_words(self) -> str:
        """The subgoal, kept or switched; empty where the expert has no advice."""
        if not self._subgoal:
            self._subgoal, self._acted = expert_target(self._env, self._most) or "", 0
        return WORDS.format("KEEP" if self._named else "SWITCH", self._subgoal) if self._subgoal else ""

    def _snapshot(self) -> bytes | None:
        return state_around(self._env, "subgoals", [self._subgoal, self._named, self._acted], self._most)

    def _restore(self, state: bytes) -> Observation:
        seen, at = restored_around(self._env, "subgoals", state, self._most)
        with restoring("subgoals"):
            subgoal, named, acted = at
        self._subgoal, self._named, self._acted = str(subgoal), bool(named), int(acted)
        return seen


class Read(NamedTuple):
    """What a response says: the part of each token, the place where V_low is read, whether it switches, and its subgoal."""

    parts: list[int]
    low_at: int
    switch: bool
    subgoal: str


def read(turn: Turn, spans: Spans) -> Read:
    """The tags of one response."""
    result = spans.between(turn.response_ids, tuple(PARTS))
    if "action" not in result and (own := spans.find(turn.response_ids, turn.action)) is not None:
        result["action"] = own, turn.action
    parts = [0] * len(turn.response_ids)
    for tag, (place, _) in result.items():
        parts[place.start : place.stop] = [PARTS[tag]] * len(place)
    low_at = next((after(turn, spans, tag) for tag in ("subgoal", "switch") if tag in result), 0)
    said = result["switch"][1].upper() if "switch" in result else ""
    return Read(parts, low_at, said not in ("", "KEEP"), result["subgoal"][1] if "subgoal" in result else "")


def after(turn: Turn, spans: Spans, tag: str) -> int:
    """The first token after a closing tag; the last token if there is none."""
    closing = spans.find(turn.response_ids, f"</{tag}>")
    return min(closing.stop if closing is not None else 0, max(len(turn.response_ids) - 1, 0))


@signal("subgoals", paper=PAPER, needs=("model.policy",), gives=(PART, SWITCH, LOW_AT, TRUNCATED, "turn.reward"))
def subgoals(
    batch: Batch,
    models: Any,
    *,
    keep: Annotated[float, Help("added to the reward of a turn that keeps its subgoal", high=0)] = -0.3,
    keep_mode: Annotated[
        Literal["fixed", "normalized"], Help("`keep` on each turn that keeps, or `keep` over the number of turns")
    ] = "fixed",
    consistency: Annotated[float, Help("added where a turn keeps, and names another subgoal than before", high=0)] = -0.3,
    invalid: Penalty = 0.1,
) -> Mapping[str, Any]:
    """Which tokens are the switch, the subgoal and the action, which turns switch, and the shaped reward."""
    spans = Spans(models.policy.tokenizer)
    columns = [[read(turn, spans) for turn in trajectory.turns] for trajectory in batch.trajectories]
    reward = np.asarray(batch.column("turn.reward"), np.float64).copy()
    parts: list[list[int]] = [[] for _ in range(len(batch))]
    switch, low_at = np.zeros(len(batch), np.bool_), np.zeros(len(batch), np.int64)
    for k, (trajectory, said) in enumerate(zip(batch.trajectories, columns, strict=True)):
        turns = list(batch.rows(k))
        reward[turns] += shaping(said, keep, keep_mode, consistency) - invalid * np.array([not turn.valid for turn in trajectory.turns])
        for row, one in zip(turns, said, strict=True):
            parts[row], switch[row], low_at[row] = one.parts, one.switch, one.low_at
    truncated = np.array([trajectory.stop is not Stop.DONE for trajectory in batch.trajectories])
    flat = np.array([number for row in parts for number in row], np.int64)
    return {PART: flat, SWITCH: switch, LOW_AT: low_at, TRUNCATED: truncated, "turn.reward": reward}


def shaping(said: list[Read], keep: float, mode: str, consistency: float) -> Floats:
    """What is added to the rewards of a trajectory's turns."""
    keeps = np.array([not one.switch for one in said])
    added = np.where(keeps, keep if mode == "fixed" else keep / len(said) * (len(said) > 1), 0.0)
    for k in np.flatnonzero(keeps):
        if k > 0 and said[k].subgoal and said[k - 1].subgoal and said[k].subgoal != said[k - 1].subgoal:
            added[k] += consistency
    return added


@signal("subgoal_values", paper=PAPER, needs=("model.critic", LOW_AT), gives=VALUES)
def subgoal_values(batch: Batch, models: Any) -> Mapping[str, Any]:
    """What the three heads of the model called critic say about every turn."""
    said = models["critic"].outputs(batch)
    offsets = batch.rollouts.token_offsets
    place = np.minimum(offsets[:-1] + np.asarray(batch.column(LOW_AT)).astype(np.int64), max(len(said["low"]) - 1, 0))
    low = np.where(np.diff(offsets) > 0, said["low"][place], 0.0) if len(said["low"]) else np.zeros(len(batch))
    return dict(zip(VALUES, (low, said["high"], said["term"]), strict=True))


@credit.register("hiper", paper="HiPER, arXiv 2602.16165", needs=(PART, SWITCH, LOW_AT, TRUNCATED, *VALUES), gives=TARGETS)
def hiper_credit(
    r: Rollouts,
    *,
    gamma: TurnDiscount = 1.0,
    lam: Annotated[float, Help("λ inside a segment", low=0, high=1)] = 1.0,
    lam_high: Annotated[float, Help("λ across segments", low=0, high=1)] = 0.95,
    bootstrap: Annotated[bool, Help("after a trajectory that a limit ended: its own last value instead of 0")] = True,
) -> dict[str, Any]:
    """Advantages of actions inside a subgoal's segment, of subgoals across segments, and of switches, on their own tokens."""
    v_low, v_high, v_term = (np.asarray(r.need(name, "hiper"), np.float64) for name in VALUES)
    first = np.append(True, r.trajectory[1:] != r.trajectory[:-1])
    starts = first | (np.asarray(r.column(SWITCH)) > 0)
    goes_on = bootstrap & np.asarray(r.column(TRUNCATED)).astype(bool)[r.trajectory]
    segment = np.cumsum(starts) - 1
    ends, last = np.append(starts[1:], True), np.append(first[1:], True)
    own_start = np.flatnonzero(starts)[segment]
    after = np.where(last, np.where(goes_on, v_high[own_start], 0.0), np.append(v_high[1:], 0.0))  # what follows a segment's last turn
    following = np.where(ends & ~last, after, np.where(last, np.where(goes_on, v_low, 0.0), np.append(v_low[1:], 0.0)))
    low = reverse_scan(r.reward + gamma * following - v_low, gamma * lam, segment)
    to_go = reverse_scan(r.reward + gamma * np.where(ends, after, 0.0), gamma, segment)
    high = across(r, np.flatnonzero(starts), to_go, v_high, gamma, lam_high)
    rows = np.repeat(np.arange(len(r)), np.diff(r.token_offsets))
    part = np.asarray(r.column(PART))
    advantage, kept, every = np.zeros(len(rows)), np.zeros(len(rows), np.bool_), np.ones(len(r), np.bool_)
    kinds = ((ACTION_PART, low, every), (SUBGOAL_PART, high, starts), (SWITCH_PART, to_go - v_term, every))
    for number, values, turns in kinds:
        chosen = (part == number) & turns[rows]
        advantage[chosen] = normalised(values, np.bincount(rows[chosen], minlength=len(r)) > 0)[rows[chosen]]
        kept |= chosen
    if r.has("token.mask"):
        kept &= r.column("token.mask").astype(bool)
    targets = (at_tokens(r, low + v_low), np.where(starts, high + v_high, np.nan), to_go)
    return {"token.advantage": np.where(kept, advantage, 0.0), "token.mask": kept, **dict(zip(TARGETS, targets, strict=True))}


def across(r: Rollouts, at: Ints, to_go: Floats, v_high: Floats, gamma: float, lam: float) -> Floats:
    """Advantages over segments, by the first turn of each; 0 for other turns. `to_go` of that turn has the value after the segment."""
    length = np.diff(np.append(at, len(r))).astype(np.float64)
    values = np.zeros(len(r))
    values[at] = reverse_scan(to_go[at] - v_high[at], np.power(gamma, length) * lam, r.trajectory[at])
    return values


def normalised(values: Floats, chosen: Bools) -> Floats:
    """z-scores over the chosen turns, 0 for others; equal values give exactly 0."""
    result = np.zeros(len(values))
    own = values[chosen]
    if len(own):
        difference = relative(own, np.zeros(len(own), np.int64), 1)
        result[chosen] = (difference - difference.mean()) / (difference.std() + 1e-8) if difference.any() else 0.0
    return result


def at_tokens(r: Rollouts, values: Floats) -> Floats:
    """A number per token: the turn's value at the token where V_low is read, NaN elsewhere."""
    result = np.full(int(r.token_offsets[-1]), np.nan)
    some = np.diff(r.token_offsets) > 0
    place = r.token_offsets[:-1] + np.asarray(r.column(LOW_AT)).astype(np.int64)
    result[place[some]] = values[some]
    return result


@method(
    "hiper",
    paper=PAPER,
    changes="prompt, reward, credit",
    costs="a trained critic of the policy's size with three heads, and one scoring pass of it",
    evidence="code",
    options={hiper_credit: "lam lam_high bootstrap", subgoals: "keep keep_mode consistency invalid"},
)
def hiper(
    *,
    gamma: RecipeDiscount = None,
    critic_lr: Annotated[float, Help("learning rate of the critic", low=0)] = 1e-5,
    instructions: Annotated[bool, Help("tell the agent about the tags; false keeps the recipe's instructions")] = True,
    teach: Annotated[int, Help("actions per subgoal of the expert, which names them in a warm start; 0: it names none", low=0)] = 3,
) -> dict[str, Any]:
    """Subgoals that the policy keeps or switches, with a value head and credit for the action, the subgoal and the switch."""
    heads = {"heads": {"low": "token", "high": "turn", "term": "turn"}}
    settings: dict[str, Any] = section("models.critic", copy_of="policy", trained=True, lr=critic_lr, kind="heads", options=heads) | {
        "credit.name": "hiper",
        "credit.gamma": gamma,
        "signal": [{"name": "subgoals"}, {"name": "subgoal_values"}],
        "objective.name": "clip",
    }
    told = {"agent.instructions": INSTRUCTIONS, "agent.parse": "tags"} if instructions else {}
    own = settings | told | ({"env.options.subgoals": teach} if teach else {})
    return Brings(own, VERL_AGENT | {"credit.gamma": 1.0})
