"""DPEPO: one policy drives several copies of a task at once, and is discouraged from repeating itself.

The environment is played with the option `parallel`, which any text environment takes, as in `make("household", parallel=4)`. An action is
written `1: go to desk 1; 2: look`, one part per copy, or `<env_1> go to desk 1 </env_1>`. A copy that is not named waits. The attempt is
won, and over, when one copy wins; it is lost when all copies are over. The reward of a turn is the largest of the copies that acted.
`info["acts"]` has the actions by copy. The signal gives each turn its weight W:

    W = ½ · (ω^dup + mean over the copies that act of (α^c1 + γ^c2 + β^c3) / 3)

    dup   actions of this turn that are not "look", minus the distinct ones among them
    c1    how often the copy did this action in earlier turns
    c2    how often it did this pair (its action before, this action) in earlier turns
    c3    how often the pair occurs in the other copies that act, this turn included

A copy's first action has no pair: c2 = c3 = 0. A turn without any action has the weight `idle`.

Credit compares the outcomes of the group, and weights them by how new a turn's actions are:

    A(τ) = (O(τ) − mean O) / (std O + 1e-6)      O = 1 if any copy succeeds, otherwise 0; over the turns of the group
    A_k  = A · W_k if A ≥ 0, otherwise A · (2 − W_k)

With `weighting` "step", the authors' default, the statistics are over turns: each has the O of its trajectory, so long trajectories weigh
more. W is the column `turn.diversity`, from 0 (everything was tried before) to 1; the signal `dpepo` gives it.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, Literal

import numpy as np

from turnwise.config.options import Help
from turnwise.credit import registry as credit
from turnwise.credit.segments import Norm, Weighting, episode_returns, standardise, trajectory_groups
from turnwise.data.anchors import digest
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Floats, Rollouts, Trajectory
from turnwise.data.tasks import Task
from turnwise.envs.answers import read_observation, read_snapshot, read_transition
from turnwise.envs.base import Observation, Transition
from turnwise.envs.episodes import OVER, checked_count
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.envs.wrapping import Instead, wrapper
from turnwise.methods.registry import VERL_AGENT, Brings, method, signal

PAPER = "DPEPO, arXiv 2604.24320"
LOOK = "look"
Outcome = Annotated[Literal["success", "return"], Help("what is compared: whether a copy succeeded, or the return")]
MOST = 64  # copies
TASK = "There are {n} copies of this task, and one of them has to be solved. Say one action for each copy, such as {example}"
PARTS = re.compile(r"(?:^|[;\n])\s*(?:copy\s+)?(\d+)\s*:\s*([^;\n]+)", re.IGNORECASE)
TAGS = re.compile(r"<env_(\d+)>(.*?)</env_\1>", re.DOTALL)


@wrapper(option="parallel")
@dataclass(frozen=True, slots=True)
class Parallel:
    """Makes environments with several copies of one."""

    factory: Callable[[], Any]
    copies: int

    def __post_init__(self) -> None:
        checked_count(self.copies, 1, MOST, f"parallel is the number of copies, from 1 to {MOST}")

    def __call__(self) -> Any:
        return self.factory() if self.copies == 1 else ParallelEnv(*(self.factory() for _ in range(self.copies)))


class ParallelEnv(Instead):
    """Copies of one environment, played at once."""

    option, shown = "parallel", "copies of a task"

    def __init__(self, *envs: Any):
        super().__init__(*envs)
        self._seen: list[Observation | None] = []  # by copy; None: this one is over

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._seen = [self._text_only(read_observation(env.reset(task, seed), env)) for env in self._envs]
        self._over = ""
        return self._observation()

    def step(self, action: str) -> Transition:
        self._check_going()
        acts = {copy: act for copy, act in acts_of(action, len(self._envs)).items() if self._seen[copy - 1] is not None}
        transitions = {copy: read_transition(self._envs[copy - 1].step(act), self._envs[copy - 1]) for copy, act in acts.items()}
        last = [f"{n}: {self._text_only(transition.observation).text}" for n, transition in transitions.items() if transition.done]
        for copy, transition in transitions.items():
            self._seen[copy - 1] = None if transition.done else self._text_only(transition.observation)
        won = any(transition.done and transition.success for transition in transitions.values())
        done = won or not any(self._seen)
        if done:
            self._over = OVER
        reward = max((transition.reward for transition in transitions.values()), default=0.0)
        return Transition(self._observation("\n".join(last)), reward, done, won, {"acts": {str(copy): act for copy, act in acts.items()}})

    def _observation(self, ended: str = "") -> Observation:
        n = len(self._envs)
        example = "; ".join(f"{copy}: ACTION" for copy in (1, 2)) + (" …" if n > 2 else "")
        parts = [f"Copy {copy}:\n{seen.text if seen else 'It is over.'}" for copy, seen in enumerate(self._seen, 1)]
        text = "\n\n".join([TASK.format(n=n, example=example), *parts, *([ended] if ended else [])])
        keys = b"".join(digest(seen.key) if seen else bytes(16) for seen in self._seen)
        return Observation(text, anchor=blake2b(keys, digest_size=16).digest())

    def _expert(self, task: Task) -> list[str]:
        return [self._joined(dict.fromkeys(range(1, len(self._envs) + 1), str(act))) for act in self._envs[0].expert(task)]

    def _expert_action(self) -> str | None:
        """What the expert would do in each copy that is not over."""
        advice = {copy: env.expert_action() for copy, env in enumerate(self._envs, 1) if self._seen[copy - 1] is not None}
        return self._joined({copy: str(act) for copy, act in advice.items() if act is not None}) or None

    def _joined(self, acts: dict[int, str]) -> str:
        return "; ".join(f"{copy}: {act}" for copy, act in acts.items())

    def _snapshot(self) -> bytes | None:
        self._check_going()
        states = [read_snapshot(env.snapshot(), env) if seen else b"" for env, seen in zip(self._envs, self._seen, strict=True)]
        if any(state is None for state in states):
            return None
        return pack("parallel", {"states": [b64encode(state or b"").decode() for state in states]}, {"copies": len(self._envs)})

    def _restore(self, state: bytes) -> Observation:
        saved = unpack(state, "parallel", {"copies": len(self._envs)})
        with restoring("parallel"):
            states = [b64decode(one) for one in saved["states"]]
            pairs = list(zip(self._envs, states, strict=True))
        self._seen = [self._text_only(read_observation(env.restore(one), env, "restore")) if one else None for env, one in pairs]
        self._over = ""
        return self._observation()


def acts_of(action: str, copies: int) -> dict[int, str]:
    """The action for each copy that a text names; the last one counts if a copy is named twice."""
    named = TAGS.findall(action) or PARTS.findall(action)
    return {int(copy): act.strip() for copy, act in named if 1 <= int(copy) <= copies and act.strip()}


@signal("dpepo", paper=PAPER, gives=("turn.diversity",))
def diversity(
    batch: Batch,
    models: Any,
    *,
    alpha: Annotated[float, Help("factor per earlier use of the action in its copy", low=0, high=1)] = 0.8,
    beta: Annotated[float, Help("factor per use of the pair of actions in other copies", low=0, high=1)] = 0.95,
    gamma: Annotated[float, Help("factor per earlier use of the pair of actions in its copy", low=0, high=1)] = 0.95,
    omega: Annotated[float, Help("factor per action that another copy takes in the same turn", low=0, high=1)] = 0.8,
    idle: Annotated[float, Help("weight of a turn without any action", low=0, high=1)] = 0.5,
) -> Mapping[str, Any]:
    """How little a turn repeats what was done before or is done in other copies of the task, from 0 to 1."""
    by_turn = [weight for trajectory in batch.trajectories for weight in weights(trajectory, alpha, beta, gamma, omega, idle)]
    return {"turn.diversity": np.array(by_turn)}


def weights(trajectory: Trajectory, alpha: float, beta: float, gamma: float, omega: float, idle: float) -> list[float]:
    """W of each turn of a trajectory."""
    done: dict[str, Counter[str]] = {}  # by copy: its actions so far
    pairs: dict[str, Counter[tuple[str, str]]] = {}  # and its pairs of actions
    last: dict[str, str] = {}
    by_turn = []
    for turn in trajectory.turns:
        acts = {str(copy): str(act).strip() for copy, act in turn.info.get("env", {}).get("acts", {}).items()}
        own = {copy: pairs.setdefault(copy, Counter()) for copy in acts}
        now = {copy: (last[copy], act) for copy, act in acts.items() if copy in last}
        parts = []
        for copy, act in acts.items():
            pair = now.get(copy)
            inside = 0 if pair is None else own[copy][pair]
            beside = 0 if pair is None else sum(own[other][pair] + (now.get(other) == pair) for other in acts if other != copy)
            parts.append((alpha ** done.setdefault(copy, Counter())[act] + gamma**inside + beta**beside) / 3)
        moves = [act for act in acts.values() if act != LOOK]
        by_turn.append((omega ** (len(moves) - len(set(moves))) + sum(parts) / len(parts)) / 2 if acts else idle)
        for copy, act in acts.items():
            done[copy][act] += 1
            if copy in now:
                own[copy][now[copy]] += 1
            last[copy] = act
    return by_turn


@credit.register("dpepo", paper="DPEPO, arXiv 2604.24320", needs=("turn.diversity", "group.peers"))
def dpepo_credit(r: Rollouts, *, outcome: Outcome = "success", norm: Norm = "std", weighting: Weighting = "step") -> Floats:
    """Episode credit; turns that try something new gain more from a good outcome and lose less by a bad one."""
    if outcome == "success" and r.has("trajectory.success"):
        score = r.column("trajectory.success").astype(np.float64)
    else:
        score = episode_returns(r)
    if weighting == "step":
        credit = standardise(score[r.trajectory], r.group, len(r.group_labels), norm)
    else:
        credit = standardise(score, trajectory_groups(r), len(r.group_labels), norm)[r.trajectory]
    weight = np.asarray(r.need("turn.diversity", "dpepo"), np.float64)
    return np.asarray(credit * np.where(credit >= 0, weight, 2.0 - weight))


@method(
    "dpepo",
    paper=PAPER,
    changes="environment, signal, credit",
    costs="prompts and responses that are `copies` times as long; no further rollouts",
    evidence="code",
)
def dpepo(
    *,
    copies: Annotated[int, Help("copies of the task that are played at once", low=2, high=64)] = 4,
    weighting: Weighting = "step",
) -> dict[str, Any]:
    """One policy plays several copies of a task at once, and gains less by what it repeats."""
    own = {"env.options.parallel": copies, "signal": [{"name": "dpepo"}], "credit.name": "dpepo", "credit.weighting": weighting}
    return Brings(own, VERL_AGENT | {"credit.norm": "std"})
