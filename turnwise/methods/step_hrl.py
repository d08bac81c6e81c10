"""STEP-HRL: one policy names subtasks, acts in them and writes down its progress; a critic per role learns from new and earlier attempts.

    Q → r + γ · V'(next turn of the same role); r where the role's episode ends         V → an expectile of Q'(state, response)
    A = Q − V                                                                           loss = −mean of A · mean log π(token)

The environment is played with the option `subtasks` (turnwise/envs/subtasks.py), so every prompt is about a single step. The critics are
heads on the policy's hidden states. Q is read at a response's last token, V at the last token of its prompt; Q' and V' are those of
`critic_target`, which follows by the share τ per iteration. Rewards are in
`turnwise/methods/roles.py`, credit is in `turnwise/credit/step_hrl.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help
from turnwise.credit.archer import CRITIC_ONLY
from turnwise.credit.segments import TurnDiscount
from turnwise.credit.step_hrl import Balance, Q, V
from turnwise.data.batch import Batch
from turnwise.methods.buffer import REPLAYED, Buffer, Size, Warmup, counted, noted
from turnwise.methods.planning import Gathered, Places, Rounds
from turnwise.methods.registry import Brings, method, plan, signal
from turnwise.methods.roles import ENDS, REWARD, ROLE, ROLES, Rewarded, subtasks_of
from turnwise.util.seeds import derive

PAPER = "Zhen et al. 2026, STEP-HRL, arXiv 2604.05808"
HEADS = {f"{kind}_{role}": place for role in ROLES for kind, place in (("q", "turn_end"), ("v", "turn"))}
Replays = Annotated[int, Help("earlier attempts that are learned from in each iteration", low=0)]
Collects = Annotated[int | None, Help("iterations that collect; later ones learn from the buffer alone. None: all collect", low=1)]
Tau = Annotated[float, Help("the share by which the target critics follow, per iteration", low=0, high=1)]


@plan("step_hrl", paper=PAPER, gives=(REPLAYED, CRITIC_ONLY))
class Steps(Buffer):
    """Every group once, and attempts of earlier batches, for the critics and for the policy."""

    def __init__(self, *, size: Size = 256, replays: Replays = 32, warmup: Warmup = 0, collects: Collects = None):
        super().__init__(size, replays, warmup)
        self.collects = collects

    def gather(self, places: Places, groups: int) -> Rounds:
        collects = self.collects is None or self.batches < self.collects
        found = (yield places.groups(groups)) if collects else []
        old = self.drawn(places, derive(places.seed, "step_hrl", self.batches))
        learned = [noted(one, 0.0, self.warming) for one in found] + [noted(one, 1.0, self.warming) for one in old]
        self.keep(found)
        return Gathered(learned, counted(found, old, len(self.kept)) | {"subtasks": subtasks_of(found)})


@signal(
    "step_values",
    paper=PAPER,
    needs=("model.critic", "model.critic_target", ROLE, REWARD, ENDS),
    gives=(Q, V, *(f"turn.target_{name}" for name in HEADS)),
)
def step_values(batch: Batch, models: Any, *, gamma: TurnDiscount = 0.99, tau: Tau = 0.2) -> Mapping[str, Any]:
    """What the critic of its role says about every turn, and what it is to say: the target critics follow first."""
    critic, target = models["critic"], models["critic_target"]
    target.follow(critic, tau)
    said, later = critic.outputs(batch), target.outputs(batch)
    role, ends = np.asarray(batch.column(ROLE)), np.asarray(batch.column(ENDS)).astype(bool)
    found = {Q: np.zeros(len(batch)), V: np.zeros(len(batch))}
    for number, name in enumerate(ROLES):
        own = np.concatenate([rows[role[rows] == number] for rows in map(np.asarray, map(batch.rows, range(len(batch.trajectories))))])
        following = np.where(ends[own], 0.0, np.append(later[f"v_{name}"][own][1:], 0.0))
        goals = {"q": np.asarray(batch.column(REWARD))[own] + gamma * following, "v": later[f"q_{name}"][own]}
        for kind, values in goals.items():
            found[f"turn.target_{kind}_{name}"] = np.full(len(batch), np.nan)
            found[f"turn.target_{kind}_{name}"][own] = values
            found[f"turn.{kind}"][own] = said[f"{kind}_{name}"][own]
    return found


@method(
    "step_hrl",
    paper=PAPER,
    changes="environment, prompts, plan, critics, credit, objective",
    costs="about two responses per action, with short prompts; value heads, two scoring passes; updates on earlier attempts",
    evidence="code; buffer, labels of the expert and the limit of a subtask are ours",
)
def step_hrl(
    *,
    longest: Annotated[int, Help("actions of a subtask at most", low=1)] = 10,
    gamma: TurnDiscount = 0.99,
    tau: Tau = 0.2,
    expectile: Annotated[float, Help("the expectile of Q that V learns: below 0.5 a careful one", low=0, high=1)] = 0.05,
    rewarded: Rewarded = "subtask",
    balance: Balance = True,
    size: Size = 256,
    replays: Replays = 32,
    warmup: Warmup = 0,
    collects: Collects = None,
    critic_lr: Annotated[float, Help("learning rate of the critics", low=0)] = 1e-4,
) -> dict[str, Any]:
    """One policy names subtasks, acts and summarises, each from a prompt about a single step; each role has a critic of its own."""
    heads = {"heads": HEADS, "weights": dict.fromkeys(HEADS, 2.0), "layers": 2}
    values = {"expectiles": {name: expectile for name in HEADS if name.startswith("v_")}}
    settings: dict[str, Any] = {}
    for name in ("critic", "critic_target"):
        settings |= {f"models.{name}.reads": "policy", f"models.{name}.kind": "heads", f"models.{name}.options": heads | values}
    own = settings | {
        "models.critic.trained": True,
        "models.critic.lr": critic_lr,
        "env.options.subtasks": longest,
        "agent.context": "window",
        "agent.history": 0,
        "plan.name": "step_hrl",
        "plan.size": size,
        "plan.replays": replays,
        "plan.warmup": warmup,
        **({} if collects is None else {"plan.collects": collects}),
        "signal": [{"name": "step_roles", "rewarded": rewarded}, {"name": "step_values", "gamma": gamma, "tau": tau}],
        "credit.name": "step_hrl",
        "credit.balance": balance,
        "objective.name": "reinforce",
    }
    return Brings(own, {"objective.aggregation": "turn", "objective.kl": "off"})
