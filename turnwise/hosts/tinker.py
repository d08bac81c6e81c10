"""Credit in tinker-cookbook 0.5.8, for Tinker 0.36: `loss_fn_inputs["advantages"]` with a number of its own for every turn or token.

`assemble_with` makes a function that goes where the cookbook's `assemble_training_data` is. The cookbook itself turns trajectories into
datums: it alone decides which turns are merged. To learn where each sampled token went, it is handed the tokens' numbers in the place of
their log-probs, and these are put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.spans import on_tokens
from turnwise.data.rollouts import Rollouts
from turnwise.hosts.versions import need_version
from turnwise.util.errors import TurnwiseError

MASKED = "parse_error_masked"  # the cookbook's metric of a turn that it does not train
Assemble = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[dict[str, int]]]]


def assemble_with(
    name: str | Callable[..., Any] = "gigpo", *, anchor: str | None = None, columns: Mapping[str, str] | None = None, **options: Any
) -> Assemble:
    """A function for `tinker_cookbook.rl.train.assemble_training_data`. It takes the cookbook's advantages and leaves them unread.

    Rewards are those of the transitions; the last one also gets the group's final reward. anchor: the state before the turn, a key of
    `Transition.logs` or `.metrics`; without it, the part of the observation that is new since the turn before. columns: keys of what else
    the algorithm reads, such as {"turn.value": "value"}; for a column "token.…", a list with one number per sampled token.
    """
    need_version("tinker", "0.36")
    need_version("tinker-cookbook", "0.5.8")
    from tinker import TensorData
    from tinker_cookbook.rl.data_processing import assemble_training_data

    def assemble(trajectory_groups_P: Sequence[Any], advantages_P: Sequence[Any]) -> tuple[list[Any], list[dict[str, int]]]:
        data, metadata = assemble_training_data([_numbered(group) for group in trajectory_groups_P], list(advantages_P))
        advantages, logprobs, first = _of_tokens(trajectory_groups_P, name, anchor, columns or {}, options)
        for datum, origin in zip(data, metadata, strict=True):
            inputs = datum.loss_fn_inputs
            numbers = inputs["logprobs"].to_numpy().astype(np.int64)  # from 1 in each trajectory; 0 is not sampled
            places = numbers + first[origin["group_idx"], origin["traj_idx"]]
            inputs["logprobs"] = TensorData.from_numpy(np.where(numbers > 0, logprobs[places], np.float32(0)))
            inputs["advantages"] = TensorData.from_numpy(advantages[places] * inputs["mask"].to_numpy())  # the mask is 0 where not sampled
        return data, metadata

    return assemble


def _numbered(group: Any) -> Any:
    """The same group with the number of each sampled token in the place of its log-prob."""
    trajectories = []
    for trajectory in group.trajectories_G:
        transitions, number = [], 1
        for step in trajectory.transitions:
            if len(step.ac.logprobs) != len(step.ac.tokens):
                raise TurnwiseError(f"a transition has {len(step.ac.tokens)} tokens and {len(step.ac.logprobs)} log-probs")
            numbers = [float(value) for value in range(number, number + len(step.ac.tokens))]
            transitions.append(replace(step, ac=replace(step.ac, maybe_logprobs=numbers)))
            number += len(numbers)
        trajectories.append(replace(trajectory, transitions=transitions))
    return replace(group, trajectories_G=trajectories)


def _of_tokens(
    groups: Sequence[Any], name: str | Callable[..., Any], anchor: str | None, columns: Mapping[str, str], options: dict[str, Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32], dict[tuple[int, int], int]]:
    """Advantages and log-probs of all sampled tokens, after a 0 for those that are not sampled, and where the tokens of each trajectory
    begin."""
    rows: list[tuple[Any, ...]] = []
    steps: list[Any] = []
    first: dict[tuple[int, int], int] = {}
    tokens = 0
    for number, group in enumerate(groups):
        for index, (trajectory, final) in enumerate(zip(group.trajectories_G, group.final_rewards_G, strict=True)):
            first[number, index] = tokens
            last = len(trajectory.transitions) - 1
            news = _news(trajectory.transitions) if anchor is None else [str(_logged(step, anchor)) for step in trajectory.transitions]
            for t, (step, state) in enumerate(zip(trajectory.transitions, news, strict=True)):
                valid = not step.metrics.get(MASKED, 0.0) >= 1.0
                rows.append((number, len(first), t, step.reward + (final if t == last else 0.0), state, valid, len(step.ac.tokens)))
                tokens += len(step.ac.tokens)
            steps += trajectory.transitions
    if not rows:
        return np.zeros(1, np.float32), np.zeros(1, np.float32), first
    names = ("group", "trajectory", "t", "reward", "anchor", "valid", "tokens")
    base: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    rollouts = Rollouts.from_columns(**base).with_columns({column: _column(steps, column, key) for column, key in columns.items()})
    offsets = rollouts.token_offsets
    advantages, _ = on_tokens(name, rollouts, offsets[:-1] + 1, np.diff(offsets), tokens + 1, **options)
    logprobs = np.fromiter(chain([0.0], *(step.ac.logprobs for step in steps)), np.float32, tokens + 1)
    return advantages, logprobs, first


def _news(transitions: Sequence[Any]) -> list[bytes]:
    """Of each observation, what is new since the turn before: all of it, unless it continues that turn's prompt and response."""
    news: list[bytes] = []
    before: list[Any] = []
    for step in transitions:
        parts = [part for chunk in step.ob.chunks for part in (chunk.tokens if hasattr(chunk, "tokens") else [chunk])]
        continues = parts[: len(before)] == before
        news.append(repr(parts[len(before) :] if continues else parts).encode())
        before = [*parts, *step.ac.tokens]
    return news


def _column(steps: Sequence[Any], column: str, key: str) -> list[Any]:
    values = [_logged(step, key) for step in steps]
    if not column.startswith("token."):
        return values
    for step, numbers in zip(steps, values, strict=True):
        if not isinstance(numbers, list) or len(numbers) != len(step.ac.tokens):
            raise TurnwiseError(f"Transition.logs[{key!r}]: a list with one number for each of {len(step.ac.tokens)} tokens is needed")
    return list(chain.from_iterable(values))


def _logged(step: Any, key: str) -> Any:
    if key in step.logs:
        return step.logs[key]
    if key in step.metrics:
        return step.metrics[key]
    known = ", ".join([*step.logs, *step.metrics])
    raise TurnwiseError(f"a transition has no {key!r} in its logs or metrics. They have: {known[:300] or 'nothing'}")
