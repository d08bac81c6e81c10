"""OpenEnv: a rubric that gives every step its credit, by a method that needs no other attempts at the task.

A rubric lives in an environment and sees one trajectory, so methods that compare a group cannot run here; the registry says which ones.
What normalises over a batch is left to the trainer: the credit of a trajectory is the same alone as among others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnwise.config.options import Entry
from turnwise.credit.registry import algorithms, apply, assign, stands_alone
from turnwise.data.rollouts import Rollouts
from turnwise.hosts.versions import need_version
from turnwise.util.errors import TurnwiseError

need_version("openenv", "0.10")

from openenv.core.rubrics import TrajectoryRubric  # type: ignore[import-not-found]  # noqa: E402 (after its version is known to be right)

GROUP = "group.peers"


def methods(*, alone: bool) -> list[str]:
    """The credit algorithms that need nothing but trajectories and the values of states: those that judge a trajectory alone, or those
    that compare it with others. Algorithms per token are in neither list, as an environment has no tokens."""
    known = [entry for entry in algorithms if stands_alone(entry) and not _by_token(entry)]
    return sorted(entry.name for entry in known if _judges_alone(entry) == alone)


class CreditRubric(TrajectoryRubric):  # type: ignore[misc]
    """Implement `score_trajectory`, as for every trajectory rubric; `compute_step_rewards` then gives the credit of each step."""

    def __init__(self, credit: str, intermediate_reward: float = 0.0, **options: Any):
        super().__init__(intermediate_reward=intermediate_reward)
        self.credit, self.options = credit, _checked(credit, options)

    def step_reward(self, action: Any, observation: Any) -> float:
        """What a step earned before the end of its episode. The score of the trajectory is added at the last step."""
        return float(self.intermediate_reward)

    def value_of(self, observation: Any) -> float:
        """An estimate of what is still to come from the state after this observation; None stands for the first state. For `gae`."""
        raise TurnwiseError(f"{type(self).__name__}: {self.credit} needs the values of states; override value_of(observation)")

    def forward(self, action: Any, observation: Any) -> float:
        """The reward that the environment reports for this step."""
        self._trajectory.append((action, observation))
        done = getattr(observation, "done", False)
        return float(self.score_trajectory(self._trajectory)) if done else self.step_reward(action, observation)

    def compute_step_rewards(self) -> list[float]:
        """The credit of each step of the trajectory so far, whose last step gets its score."""
        steps = self._trajectory
        if not steps:
            return []
        rewards = [self.step_reward(*step) for step in steps[:-1]] + [float(self.score_trajectory(steps))]
        before = [None, *(observation for _, observation in steps[:-1])]
        valued = "turn.value" in algorithms.of(self.credit).needed(self.options)
        rollouts = Rollouts.from_columns(
            group=[0] * len(steps),
            trajectory=[0] * len(steps),
            t=range(len(steps)),
            reward=rewards,
            anchor=range(len(steps)),  # no method for one trajectory asks which states are equal
            value=[self.value_of(observation) for observation in before] if valued else None,
        )
        return [float(credit) for credit in assign(self.credit, rollouts, **self.options).values]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()
        return state | {"credit": self.credit, "options": dict(self.options)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if "credit" in state:
            self.credit, self.options = state["credit"], _checked(state["credit"], state.get("options", {}))


def _checked(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a method for one trajectory, without normalisation; an error that lists the methods where it is another one."""
    entry = algorithms.of(name)
    here = f"Methods for one trajectory: {', '.join(methods(alone=True))}."
    given = _unnormalised(entry) | options
    bound = entry.bind(given, algorithms.kind)
    if not stands_alone(entry) or _by_token(entry, given):
        raise TurnwiseError(f"{name} needs {', '.join(entry.needed(given))}, which an environment does not have. {here}")
    if not _judges_alone(entry):
        others = ", ".join(methods(alone=False))
        raise TurnwiseError(f"{name} compares trajectories, and a rubric sees one. {here} In a trainer, with a group or batch: {others}.")
    if bound.get("norm", "none") != "none":
        raise TurnwiseError(f"{name}: norm={bound['norm']} is over a batch, and a rubric sees one trajectory; normalise in the trainer")
    return bound


def _judges_alone(entry: Entry[Any]) -> bool:
    """Whether a trajectory's credit, without normalisation, is the same alone as next to another one of the same task."""
    if GROUP in entry.needed({}):
        return False
    alone, both = _trial(1), _trial(2)
    options = entry.bind(_unnormalised(entry), algorithms.kind)
    credit = apply(entry, both, options).values[: len(alone)]
    return bool(np.allclose(apply(entry, alone, options).values, credit))


def _trial(trajectories: int) -> Rollouts:
    """Attempts at one task with unequal rewards and values: what a method makes of them shows whether it compares them."""
    t = np.tile(np.arange(3), trajectories)
    trajectory = np.repeat(np.arange(trajectories), 3)
    return Rollouts.from_columns(
        group=np.zeros_like(t), trajectory=trajectory, t=t, reward=1.0 + trajectory, anchor=t, value=0.25 * t + trajectory
    )


def _unnormalised(entry: Entry[Any]) -> dict[str, Any]:
    return {"norm": "none"} if "norm" in entry.options else {}


def _by_token(entry: Entry[Any], options: Mapping[str, Any] | None = None) -> bool:
    return any(need.startswith("token.") for need in entry.needed(options or {}))
