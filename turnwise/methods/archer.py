"""ArCHer: critics of whole responses that also learn from earlier attempts, and a policy gradient per token below.

    Q_i → r + γ · V_i'(next state), r after the last turn        V_i → Q_i'(state, response), on turns of the current policy
    A   = min(Q1, Q2) − min(V1, V2)                              loss = −mean over turns of Σ A · log π(token)

The model `critic` has four heads: Q is read at a response's last token, V at the last token of its prompt. Q' and V' are those of
`critic_target`, which follows by the share τ per iteration. The plan `archer` keeps attempts and puts some of them into each batch, for the
critics alone; its buffer is part of the checkpoints.

Turns that are in the batch for the critics alone (`turn.critic_only`) are masked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import TurnDiscount, unmasked
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory
from turnwise.data.schema import from_rows, to_rows
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots, summary
from turnwise.methods.registry import Brings, method, plan, section, signal
from turnwise.util.seeds import derive

PAPER = "Zhou et al. 2024, ArCHer, arXiv 2402.19446"
TARGETS = ("turn.target_q1", "turn.target_q2", "turn.target_v1", "turn.target_v2")
Replays = Annotated[int, Help("earlier attempts that the critics learn from in each iteration", low=0)]
Tau = Annotated[float, Help("the share by which the target critics follow, per iteration", low=0, high=1)]
REPLAYED = "turn.replayed"
REPLAY_GROUP = -1
Size = Annotated[int, Help("earlier attempts that are kept; the oldest goes first", low=0)]
Warmup = Annotated[int, Help("iterations in which only the critics learn", low=0)]
CRITIC_ONLY = "turn.critic_only"
VALUES = ("turn.q1", "turn.q2", "turn.v1", "turn.v2")
FORMER = {"baseline": (False, "remove it: the advantage of a turn is that of all its tokens")}


@dataclass(kw_only=True, eq=False)
class Buffer(Plan):
    """The base of plans that keep attempts. The buffer and the number of batches are their state."""

    size: Size = 256
    replays: Replays = 32
    warmup: Warmup = 0

    def __post_init__(self) -> None:
        self.kept: list[Trajectory] = []  # the oldest first
        self.batches = 0

    def drawn(self, slots: TaskSlots, seed: int) -> list[Trajectory]:
        """Some of the attempts that are kept, as attempts of this batch."""
        chosen = random.Random(seed).sample(self.kept, min(self.replays, len(self.kept)))
        return [slots.adopt(one, REPLAY_GROUP) for one in chosen]

    def keep(self, attempts: Sequence[Trajectory]) -> None:
        """A batch is composed: keep its new attempts."""
        self.kept = [*self.kept, *attempts][-self.size :] if self.size else []
        self.batches += 1

    @property
    def warming(self) -> float:
        """1 where only the critics learn."""
        return float(self.batches < self.warmup)

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches, "kept": [to_rows([one], tokens=True, reports=True) for one in self.kept]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]
        self.kept = [from_rows(rows, "the buffer of attempts")[0] for rows in state["kept"]]


def noted(trajectory: Trajectory, replayed: float, critic_only: float) -> Trajectory:
    """The trajectory with notes on its turns: from an earlier batch or not, for the critics alone or not."""
    notes = {"replayed": replayed, "critic_only": critic_only}
    return replace(trajectory, turns=[replace(turn, notes={**turn.notes, **notes}) for turn in trajectory.turns])


def counted(attempts: Sequence[Trajectory], old: Sequence[Trajectory], kept: int) -> dict[str, float]:
    """Counts for the log. Success and reward are those of the new attempts, if there are any."""
    new = summary(attempts)
    return {"replayed": len(old), "buffer": kept} | ({"success": new["success"], "reward": new["reward"]} if attempts else {})


@plan("archer", paper=PAPER, gives=(REPLAYED, CRITIC_ONLY))
@dataclass(kw_only=True, eq=False)
class Replay(Buffer):
    """Every group once, and attempts of earlier batches for the critics."""

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        attempts = yield slots.groups(groups)
        old = [noted(one, 1.0, 1.0) for one in self.drawn(slots, derive(slots.seed, "archer", slots.used))]
        new = [noted(one, 0.0, self.warming) for one in attempts]
        self.keep(attempts)
        return Gathered([*new, *old], counted(attempts, old, len(self.kept)))


@signal("archer_values", paper=PAPER, needs=("model.critic", "model.critic_target", REPLAYED), gives=(*VALUES, *TARGETS))
def archer_values(batch: Batch, models: Any, *, gamma: TurnDiscount = 0.9, tau: Tau = 0.1) -> Mapping[str, Any]:
    """What the critics say about every turn, and what they are to say: the target critics follow first."""
    critic, target = models["critic"], models["critic_target"]
    target.follow(critic, tau)
    said, later = critic.outputs(batch), target.outputs(batch)
    r, old = batch.rollouts, np.asarray(batch.column(REPLAYED)) > 0
    following = np.full(len(r), -1)
    for k in range(len(batch.trajectories)):
        rows = list(batch.rows(k))
        following[rows[:-1]] = rows[1:]
    columns = {f"turn.{name}": said[name] for name in ("q1", "q2", "v1", "v2")}
    for i in ("1", "2"):
        columns[f"turn.target_q{i}"] = r.reward + gamma * np.where(following >= 0, later[f"v{i}"][following], 0.0)
        columns[f"turn.target_v{i}"] = np.where(old, np.nan, later[f"q{i}"])
    return columns


@credit.register("archer", paper="ArCHer, arXiv 2402.19446", needs=(CRITIC_ONLY, *VALUES), former=FORMER)
def archer_credit(r: Rollouts) -> dict[str, Any]:
    """The value of the response minus the value of its state, by the more careful of two critics."""
    q1, q2, v1, v2 = (np.asarray(r.need(name, "archer"), np.float64) for name in VALUES)
    kept = ~(np.asarray(r.need(CRITIC_ONLY, "archer"), np.float64) > 0)
    kept = unmasked(r, kept)
    advantage = np.minimum(q1, q2) - np.minimum(v1, v2)
    return {"turn.advantage": np.where(kept, advantage, 0.0), "turn.mask": kept}


def critic_pair(heads: Mapping[str, str], model: Mapping[str, Any], training: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Settings of a trained critic with these heads and of its target, whose losses are mean squared errors."""
    parts = {**model, "kind": "heads", "options": {"heads": heads, "weights": dict.fromkeys(heads, 2.0), **options}}
    return section("models.critic", **parts, trained=True, **training) | section("models.critic_target", **parts)


@method(
    "archer",
    paper=PAPER,
    changes="plan, critics, credit, objective",
    costs="a trained critic and a target copy of the policy's size; two scoring passes; updates on earlier attempts",
    evidence="code; sizes of the buffer are ours",
    options={Replay: "size replays warmup", archer_values: "gamma tau"},
    former=FORMER,
)
def archer(
    *,
    critic_lr: Annotated[float, Help("learning rate of the critics", low=0)] = 1e-5,
    critic_epochs: Annotated[int, Help("passes of the critics over a batch", low=1)] = 3,
) -> dict[str, Any]:
    """Two critics of whole responses learn from new and earlier attempts; the policy follows the more careful one."""
    heads = {"q1": "turn_end", "q2": "turn_end", "v1": "turn", "v2": "turn"}
    own = critic_pair(heads, {"copy_of": "policy"}, {"lr": critic_lr, "epochs": critic_epochs}, spread=0.01) | {
        "plan.name": "archer",
        "signal": [{"name": "archer_values"}],
        "credit.name": "archer",
        "objective.name": "reinforce",
    }
    return Brings(own, {"objective.aggregation": "turn_sum", "objective.kl": "off"})
