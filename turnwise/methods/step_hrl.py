"""STEP-HRL: one policy names subtasks, acts in them and writes down its progress; a critic per role learns from new and earlier attempts.

The environment is played with the option `subtasks`, the most actions of one subtask, which any text environment takes, as in
`make("household", subtasks=10)`. Every prompt is about a single step, and turns are:

    subtask    sees the subtasks so far, the progress of the last one, the observation        says the next subtask
    action     sees the subtask, the progress in it, the observation                          acts; `; done` behind it ends the subtask
    progress   sees the subtask, the progress before, the action, what it led to              says the progress

Only actions reach the environment. `info["step"]` has the role of a turn, whether its subtask ends with it (`ends`), and whether that was
completed: called done, or the attempt was won (`completed`). The turn limit counts turns of all roles. Each role has its own reward r and
its own episode:

    subtask    the environment's rewards until the next subtask                          the attempt
    action     1 where it completes its subtask, −1 where it cannot be parsed, else 0    the subtask
    progress   that of the action before it                                              the subtask

What ends an attempt ends the episodes of all roles.

    Q → r + γ · V'(next turn of the same role); r where the role's episode ends         V → an expectile of Q'(state, response)
    A = Q − V, with `balance` times N / (roles · N_role)                                loss = −mean of A · mean log π(token)

With `balance`, a mean over all turns is the mean of the roles' means. The critics are heads on the policy's hidden states: Q is read at a
response's last token, V at the last token of its prompt; Q' and V' are those of `critic_target`, which follows by the share τ per
iteration. Turns that are in the batch for the critics alone (`turn.critic_only`) are masked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import TurnDiscount, unmasked
from turnwise.data.anchors import dense
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_transition
from turnwise.envs.base import Observation, Transition
from turnwise.envs.episodes import OVER, checked_count
from turnwise.envs.snapshots import restoring
from turnwise.envs.wrapping import Instead, expert_target, restored_around, state_around, wrapper
from turnwise.methods.archer import CRITIC_ONLY, REPLAYED, Buffer, Tau, counted, critic_pair, noted
from turnwise.methods.planning import Gathered, Rounds, TaskSlots
from turnwise.methods.registry import Brings, method, plan, section, signal
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

PAPER = "Zhen et al. 2026, STEP-HRL, arXiv 2604.05808"
ROLES = ("subtask", "action", "progress")
HEADS = {f"{kind}_{role}": place for role in ROLES for kind, place in (("q", "turn_end"), ("v", "turn"))}
REWARD, ENDS = "turn.role_reward", "turn.role_ends"
ROLE, Q, V = "turn.role", "turn.q", "turn.v"
DONE = "; done"
LONGEST = 300  # characters of a subtask or a progress that are shown
AHEAD = 3  # actions of the expert that make a subtask, and that its progress lists
NONE = "none"


@wrapper(option="subtasks")
@dataclass(frozen=True, slots=True)
class Subtasks:
    """Makes environments that are played in three roles."""

    factory: Callable[[], Any]
    longest: int

    def __post_init__(self) -> None:
        checked_count(self.longest, 0, math.inf, "subtasks is the largest number of actions of a subtask (0: no subtasks)")

    def __call__(self) -> Any:
        return self.factory() if self.longest == 0 else SubtasksEnv(self.factory(), self.longest)


@dataclass
class Progress:
    """Where an attempt is. `ended` are the subtasks before this one, `actions` those of this one."""

    role: str = "subtask"
    ended: list[str] = field(default_factory=list)
    subtask: str = NONE
    progress: str = NONE
    actions: list[str] = field(default_factory=list)
    ends: bool = False
    completed: bool = False


class SubtasksEnv(Instead):
    """An environment that is played in three roles.

    The expert names a subtask by the last of its next three actions, if it can look ahead (a plan, or snapshots); otherwise by the next
    one. Its progress is its last three actions in the subtask."""

    option = shown = "subtasks"

    def __init__(self, env: Any, longest: int):
        super().__init__(env)
        self._env, self._longest = env, longest
        self._seen, self._at = Observation(""), Progress()

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._seen, self._at, self._over = self._read(self._env.reset(task, seed)), Progress(), ""
        return self._observation()

    def step(self, action: str) -> Transition:
        self._check_going()
        at, role = self._at, self._at.role
        if role == "action":
            return self._act(action)
        text = " ".join(action.split())[:LONGEST] or NONE
        ends, completed = at.ends, at.completed
        if role == "subtask":
            ends = completed = False
            self._at = replace(at, role="action", subtask=text, progress=NONE, actions=[])
        elif at.ends:
            self._at = replace(at, role="subtask", ended=[*at.ended, at.subtask], progress=text, ends=False, completed=False)
        else:
            self._at = replace(at, role="action", progress=text)
        return Transition(self._observation(), info={"step": {"role": role, "ends": ends, "completed": completed}})

    def _act(self, action: str) -> Transition:
        """An action reaches the environment."""
        at, called = self._at, action.rstrip(" .").lower().endswith(DONE)
        plain = " ".join((action.rstrip(" .")[: -len(DONE)] if called else action).split())
        listed = {known.casefold(): known for known in self._seen.actions or ()}
        acted = listed.get(plain.casefold(), plain) if called else action
        result = read_transition(self._env.step(acted), self._env)
        self._seen, actions = self._read(result.observation), [*at.actions, plain]
        completed = called or (result.done and result.success)
        ends = called or result.done or len(actions) >= self._longest
        self._at = replace(at, role="progress", actions=actions, ends=ends, completed=completed)
        if result.done:
            self._over = OVER
        step = {"role": "action", "ends": ends, "completed": completed}
        return replace(result, observation=self._observation(), info={**result.info, "step": step})

    def _observation(self) -> Observation:
        at, seen = self._at, self._seen
        if at.role == "subtask":
            lines = [f"Subtasks so far: {'; '.join(at.ended)[-LONGEST:] or NONE}", f"Last progress: {at.progress}"]
            return Observation("\n".join([*lines, seen.text, "Say the next subtask."]))
        lines = [f"Subtask: {at.subtask}", f"Progress: {at.progress}"]
        if at.role == "action":
            return Observation(
                "\n".join([*lines, seen.text, f'Say the next action. Write "{DONE}" behind the last one.']), (), seen.actions
            )
        return Observation("\n".join([*lines, f"Action: {at.actions[-1]}", seen.text, "Say the progress."]))

    def _read(self, answer: Any) -> Observation:
        return self._text_only(read_observation(answer, self._env))

    def _expert(self, task: Task) -> list[str]:
        plan, items = [str(act) for act in self._env.expert(task)], list[str]()
        size = min(AHEAD, self._longest)
        for first in range(0, len(plan), size):
            chunk = plan[first : first + size]
            items.append(chunk[-1])
            for k, act in enumerate(chunk):
                items += [act + DONE if k == len(chunk) - 1 else act, ", ".join(chunk[: k + 1])]
        return items[:-1]  # the last action ends the attempt

    def _expert_action(self) -> str | None:
        at = self._at
        if at.role == "progress":
            return ", ".join(at.actions[-AHEAD:])
        act = self._env.expert_action() if at.role == "action" else expert_target(self._env, min(AHEAD, self._longest))
        return None if act is None else f"{act}{DONE}" if at.role == "action" and act == at.subtask else str(act)

    def _snapshot(self) -> bytes | None:
        self._check_going()
        return state_around(self._env, "subtasks", asdict(self._at), self._longest)

    def _restore(self, state: bytes) -> Observation:
        seen, at = restored_around(self._env, "subtasks", state, self._longest)
        with restoring("subtasks"):
            self._at = Progress(**at)
        self._seen, self._over = self._text_only(seen), ""
        return self._observation()


@plan("step_hrl", paper=PAPER, gives=(REPLAYED, CRITIC_ONLY))
@dataclass(kw_only=True, eq=False)
class Steps(Buffer):
    """Every group once, and attempts of earlier batches, for the critics and for the policy."""

    replays: Annotated[int, Help("earlier attempts that are learned from in each iteration", low=0)] = 32
    collects: Annotated[int | None, Help("iterations that collect; later ones learn from the buffer alone. None: all collect", low=1)] = (
        None
    )

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        collects = self.collects is None or self.batches < self.collects
        attempts = (yield slots.groups(groups)) if collects else []
        old = self.drawn(slots, derive(slots.seed, "step_hrl", self.batches))
        learned = [noted(one, 0.0, self.warming) for one in attempts] + [noted(one, 1.0, self.warming) for one in old]
        self.keep(attempts)
        subtasks = sum(step_of(turn)["role"] == "subtask" for one in attempts for turn in one.turns) / max(len(attempts), 1)
        return Gathered(learned, counted(attempts, old, len(self.kept)) | {"subtasks": subtasks})


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
    columns = {Q: np.zeros(len(batch)), V: np.zeros(len(batch))}
    for number, name in enumerate(ROLES):
        own = np.concatenate([rows[role[rows] == number] for rows in map(np.asarray, map(batch.rows, range(len(batch.trajectories))))])
        following = np.where(ends[own], 0.0, np.append(later[f"v_{name}"][own][1:], 0.0))
        goals = {"q": np.asarray(batch.column(REWARD))[own] + gamma * following, "v": later[f"q_{name}"][own]}
        for kind, values in goals.items():
            columns[f"turn.target_{kind}_{name}"] = np.full(len(batch), np.nan)
            columns[f"turn.target_{kind}_{name}"][own] = values
            columns[f"turn.{kind}"][own] = said[f"{kind}_{name}"][own]
    return columns


def step_of(turn: Turn) -> Mapping[str, Any]:
    """What the environment said about the role of a turn."""
    columns = turn.info.get("env", {}).get("step")
    if columns is None:
        raise TurnwiseError("step_hrl: the turns have no roles. Set env.options.subtasks, as method.name=step_hrl does")
    return dict(columns)


@signal("step_roles", paper="STEP-HRL, arXiv 2604.05808", gives=(ROLE, REWARD, ENDS))
def step_roles(
    batch: Batch,
    models: Any,
    *,
    rewarded: Annotated[
        Literal["subtask", "environment"], Help("what rewards actions: completing their subtask, or the environment")
    ] = "subtask",
) -> Mapping[str, Any]:
    """The role of every turn, the reward of that role, and whether the role's episode ends with the turn."""
    role, reward, ends = np.zeros(len(batch), np.int64), np.zeros(len(batch)), np.zeros(len(batch), np.bool_)
    for k, trajectory in enumerate(batch.trajectories):
        turns = list(batch.rows(k))
        role[turns], reward[turns], ends[turns] = in_roles(trajectory, rewarded)
    return {ROLE: role, REWARD: reward, ENDS: ends}


def in_roles(trajectory: Trajectory, rewarded: str) -> tuple[list[int], list[float], list[bool]]:
    """Role, reward and end of each turn. What ends an attempt ends all roles."""
    steps, turns = [step_of(turn) for turn in trajectory.turns], trajectory.turns
    roles = [ROLES.index(step["role"]) for step in steps]
    reward = [0.0] * len(turns)
    named, acted = 0, 0.0  # the last turn that named a subtask, the reward of the last action
    for t, (turn, step, role) in enumerate(zip(turns, steps, roles, strict=True)):
        if role == 0:
            named = t
        elif role == 1:
            acted = turn.reward if rewarded == "environment" else -1.0 if not turn.valid else float(step["completed"])
        reward[named] += turn.reward
        reward[t] += acted if role else 0.0
    last = {role: t for t, role in enumerate(roles)}
    return roles, reward, [t == last[role] or bool(role and step["ends"]) for t, (role, step) in enumerate(zip(roles, steps, strict=True))]


@credit.register("step_hrl", paper="STEP-HRL, arXiv 2604.05808", needs=(ROLE, Q, V))
def step_hrl_credit(
    r: Rollouts, *, balance: Annotated[bool, Help("each role weighs the same, however many turns it has")] = True
) -> dict[str, Any]:
    """The value of the response minus the value of its state, by the critic of the role that the turn is in."""
    advantage = np.asarray(r.need(Q, "step_hrl"), np.float64) - np.asarray(r.need(V, "step_hrl"), np.float64)
    kept = np.ones(len(r), np.bool_)
    if r.has(CRITIC_ONLY):
        kept &= ~(np.asarray(r.column(CRITIC_ONLY), np.float64) > 0)
    kept = unmasked(r, kept)
    if balance and kept.any():
        distinct, role = dense(np.asarray(r.need(ROLE, "step_hrl")).astype(np.int64))
        count = np.bincount(role[kept], minlength=len(distinct))
        advantage *= kept.sum() / (np.count_nonzero(count) * np.maximum(count, 1))[role]
    return {"turn.advantage": np.where(kept, advantage, 0.0), "turn.mask": kept}


@method(
    "step_hrl",
    paper=PAPER,
    changes="environment, prompts, plan, critics, credit, objective",
    costs="about two responses per action, with short prompts; value heads, two scoring passes; updates on earlier attempts",
    evidence="code; buffer, labels of the expert and the limit of a subtask are ours",
    options={Steps: "size replays warmup collects", step_roles: "rewarded", step_values: "gamma tau", step_hrl_credit: "balance"},
)
def step_hrl(
    *,
    longest: Annotated[int, Help("actions of a subtask at most", low=1)] = 10,
    expectile: Annotated[float, Help("the expectile of Q that V learns: below 0.5 a careful one", low=0, high=1)] = 0.05,
    critic_lr: Annotated[float, Help("learning rate of the critics", low=0)] = 1e-4,
) -> dict[str, Any]:
    """One policy names subtasks, acts and summarises, each from a prompt about a single step; each role has a critic of its own."""
    expectiles = {name: expectile for name in HEADS if name.startswith("v_")}
    own = (
        critic_pair(HEADS, {"reads": "policy"}, {"lr": critic_lr}, layers=2, expectiles=expectiles)
        | section("agent", context="window", history=0)
        | {"plan.name": "step_hrl", "credit.name": "step_hrl", "objective.name": "reinforce", "env.options.subtasks": longest}
        | {"signal": [{"name": "step_roles"}, {"name": "step_values"}]}
    )
    return Brings(own, {"objective.aggregation": "turn", "objective.kl": "off"})
