"""rLLM: a grouping hook that writes credit per turn into `step.advantage`, from where rLLM's Tinker backend trains.

rLLM's advantage estimators return one number per trajectory, and whatever they write into steps is overwritten with it. Credit that
compares attempts therefore goes in one stage earlier, where episodes become groups; `rllm.algorithm.use_precomputed_advantage` keeps it.
It was read and tried at commit 9beb6e0 (2026-08-15); rLLM is not on the package index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from turnwise.credit.registry import algorithms, stands_alone
from turnwise.credit.spans import on_tokens
from turnwise.data.rollouts import Rollouts
from turnwise.util.errors import TurnwiseError

COMMIT = "9beb6e0"


def with_credit(name: str, **options: Any) -> Callable[..., list[Any]]:
    """The `traj_grouping_hook` of rLLM's trainer: groups as rLLM makes them, with the advantages of this credit algorithm in their steps.
    Each role of a workflow is a batch of its own.

    A step's reward is its `reward`; where no step of a trajectory has one, the trajectory's is on its last step. Two steps start from the
    same state if their `metadata["anchor"]` is equal, without it their `observation`, without that the tokens since the last response."""
    entry = algorithms.of(name)
    entry.bind(options, algorithms.kind)
    if not stands_alone(entry):
        raise TurnwiseError(f"turnwise.hosts.rllm: {name} needs {', '.join(entry.needed(options))}, which rLLM does not have")
    try:
        from rllm.trainer.algorithms.transform import _default_traj_grouping_hook as grouped  # type: ignore[import-not-found]
    except ImportError as error:
        raise TurnwiseError(f"turnwise.hosts.rllm needs rLLM as of commit {COMMIT}: {error}") from error

    def hook(episodes: list[Any], transform_config: Any, compact_filtering_config: Any = None) -> list[Any]:
        groups: list[Any] = grouped(episodes, transform_config, compact_filtering_config)
        for role in dict.fromkeys(group.group_role for group in groups):
            assign_advantages([group for group in groups if group.group_role == role], name, **options)
        return groups

    return hook


def assign_advantages(groups: list[Any], name: str, **options: Any) -> dict[str, Any]:
    """Write the advantages of the response tokens into every step of these groups; return what a run logs about its credit."""
    attempts = [(group.group_id, trajectory) for group in groups for trajectory in group.trajectories if trajectory.steps]
    if not attempts:
        return {}
    steps = [step for _, trajectory in attempts for step in trajectory.steps]
    counts = [len(trajectory.steps) for _, trajectory in attempts]
    lengths = np.array([len(step.response_ids) for step in steps])
    rollouts = Rollouts.from_columns(
        group=np.repeat([group for group, _ in attempts], counts),
        trajectory=np.repeat(np.arange(len(attempts)), counts),
        t=[t for count in counts for t in range(count)],
        reward=[reward for _, trajectory in attempts for reward in _rewards(trajectory)],
        anchor=[state for _, trajectory in attempts for state in _states(trajectory)],
        valid=[bool((step.metadata or {}).get("valid", True)) for step in steps],
        tokens=lengths,
        value=_given(steps, "value"),
        token_value=_given(steps, "token_value"),
    )
    ends = np.cumsum(lengths)
    advantages, measured = on_tokens(name, rollouts, ends - lengths, lengths, int(ends[-1]), **options)
    for step, values in zip(steps, np.split(advantages, ends[:-1]), strict=True):
        step.advantage = values.tolist()
    return measured


def _rewards(trajectory: Any) -> list[float]:
    rewards = [float(step.reward or 0.0) for step in trajectory.steps]
    return rewards if any(rewards) else [*rewards[:-1], float(trajectory.reward or 0.0)]


def _states(trajectory: Any) -> Iterator[str]:
    before: list[Any] = []
    for step in trajectory.steps:
        anchor = (step.metadata or {}).get("anchor", step.observation)
        if anchor is None:
            continues = step.prompt_ids[: len(before)] == before
            anchor = step.prompt_ids[len(before) :] if continues else step.prompt_ids
        yield str(anchor)
        before = [*step.prompt_ids, *step.response_ids]


def _given(steps: list[Any], column: str) -> list[float] | None:
    """A column that only the agent itself can give, in the metadata of its steps; None if a step lacks it."""
    values: list[Any] = [(step.metadata or {}).get(column) for step in steps]
    if any(value is None for value in values):
        return None
    return list(chain.from_iterable(values)) if column.startswith("token_") else values
