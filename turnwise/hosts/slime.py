"""slime: two functions that it loads by their paths, one that computes credit from the whole batch, and one that puts it into training.

    --custom-convert-samples-to-train-data-path turnwise.hosts.slime.convert
    --custom-advantage-function-path turnwise.hosts.slime.advantages
    --custom-config-path credit.yaml          # turnwise: {credit: gigpo, gamma: 0.95}

Only the process that collects samples sees whole groups, and it sends a fixed list of columns to the ranks that train. One of them,
`teacher_log_probs`, has a number per response token and is cut for context parallelism; distillation, its purpose, is refused here.
Both functions were read and tried at commit 624b824 (2026-08-21); slime is not on the package index.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.registry import algorithms, stands_alone
from turnwise.credit.spans import last_turns, on_tokens, turn_numbers, turns_of
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Rollouts
from turnwise.util.errors import TurnwiseError

COMMIT = "624b824"
CARRIER = "teacher_log_probs"
KNOWN = ("reward", "anchor", "valid", "value", "token_value")  # what `Sample.metadata["turns"]` may say of a turn


def convert(args: Any, samples: list[Any]) -> dict[str, Any]:
    """slime's training data, with the advantages of every response token. `args.turnwise` holds the name and options of the method."""
    settings = dict(getattr(args, "turnwise", None) or {})
    name = settings.pop("credit", "gigpo")
    entry = algorithms.of(name)
    entry.bind(settings, algorithms.kind)
    if not stands_alone(entry):
        raise TurnwiseError(f"turnwise.hosts.slime: {name} needs {', '.join(entry.needed(settings))}, which slime does not have")
    _refuse_distillation(args)
    values = token_advantages(args, samples, name, settings)
    data = _slimes_own(args, samples)
    data[CARRIER] = values
    return data


def advantages(args: Any, rollout_data: dict[str, Any]) -> None:
    """Set `advantages` and `returns` on a rank, from what `convert` computed."""
    _refuse_distillation(args)
    if CARRIER not in rollout_data:
        raise TurnwiseError(
            "turnwise.hosts.slime: no advantages came; set --custom-convert-samples-to-train-data-path turnwise.hosts.slime.convert too"
        )
    values = rollout_data.pop(CARRIER)  # it is not what its name says: it must not be logged or used as that
    rollout_data["advantages"] = list(values)
    rollout_data["returns"] = list(values)


def token_advantages(args: Any, samples: list[Any], name: str, options: dict[str, Any]) -> list[list[float]]:
    """Of each sample the advantages of its response tokens, 0 where its loss mask is. A run of the mask is a turn; samples with one
    `rollout_id` are parts of one attempt, in their order.

    `metadata["turns"]` says more: a list with a dictionary per turn (`reward`, `anchor`, `valid`). Without it the reward of an attempt's
    last sample is on its last turn, and a turn's state is what stands between it and the turn before it, or before it in its sample."""
    if any(sample.group_index is None for sample in samples):
        raise TurnwiseError("turnwise.hosts.slime: every sample needs its group_index, which says whose attempts are compared")
    widths = [sample.response_length for sample in samples]
    mask = np.zeros((len(samples), max(widths)), np.bool_)
    for row, sample in enumerate(samples):
        mask[row, : widths[row]] = 1 if sample.loss_mask is None else sample.loss_mask
    rows, starts, lengths = turns_of(mask)
    attempts = [f"sample {row}" if sample.rollout_id is None else str(sample.rollout_id) for row, sample in enumerate(samples)]
    trajectory = np.unique(attempts, return_inverse=True)[1][rows]
    t = turn_numbers(trajectory)
    turns = _described(samples, rows)
    if "reward" not in turns:
        ends = last_turns(trajectory, t)
        turns["reward"] = [float(samples[row].get_reward_value(args)) if end else 0.0 for row, end in zip(rows, ends, strict=True)]
    turns.setdefault("anchor", _observations(samples, rows, starts - rows * mask.shape[1], lengths))
    rollouts = Rollouts.from_columns(
        group=[str(samples[row].group_index) for row in rows],
        trajectory=trajectory,
        t=t,
        tokens=lengths,
        **turns,
    )
    credit, _ = on_tokens(name, rollouts, starts, lengths, mask.shape, **options)
    return [credit[row, :width].tolist() for row, width in enumerate(widths)]


def _described(samples: list[Any], rows: Ints) -> dict[str, Any]:
    """The columns that the metadata of the samples give; one that a turn lacks is left out."""
    counts = np.bincount(rows, minlength=len(samples))
    described = [(sample.metadata or {}).get("turns") for sample in samples]
    for sample, turns, count in zip(samples, described, counts, strict=True):
        if turns is not None and len(turns) != count:
            raise TurnwiseError(
                f"sample {sample.index}: metadata['turns'] has {len(turns)} turns, and its loss mask has {count} runs of trained tokens"
            )
    every = list(chain.from_iterable(turns or [{}] * count for turns, count in zip(described, counts, strict=True)))
    columns: dict[str, Any] = {name: [turn.get(name) for turn in every] for name in KNOWN}
    columns = {name: values for name, values in columns.items() if all(value is not None for value in values)}
    if "token_value" in columns:
        columns["token_value"] = list(chain.from_iterable(columns["token_value"]))
    return columns


def _observations(samples: list[Any], rows: Ints, starts: Ints, lengths: Ints) -> list[bytes]:
    """The tokens between each turn and the one before it in its sample; `starts` are positions in the responses."""
    tokens: list[NDArray[np.int64]] = [np.asarray(sample.tokens, np.int64) for sample in samples]
    prompts = np.array([len(sample.tokens) - sample.response_length for sample in samples])[rows]
    first = np.diff(rows, prepend=-1) > 0
    before = np.where(first, 0, np.roll(prompts + starts + lengths, 1))
    return [tokens[row][a:b].tobytes() for row, a, b in zip(rows, before, prompts + starts, strict=True)]


def _slimes_own(args: Any, samples: list[Any]) -> dict[str, Any]:
    """slime's conversion, which runs only where no function replaces it: its class without the actor around it and without `convert`."""
    try:
        from slime.ray.rollout import RolloutManager  # type: ignore[import-not-found]
        from slime.utils.misc import load_function  # type: ignore[import-not-found]

        manager = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    except (ImportError, AttributeError) as error:
        raise TurnwiseError(f"turnwise.hosts.slime needs slime as of commit {COMMIT}: {error}") from error
    path = args.custom_reward_post_process_path
    manager.args = args
    manager.custom_convert_samples_to_train_data_func = None
    manager.custom_reward_post_process_func = None if path is None else load_function(path)
    data: dict[str, Any] = manager._convert_samples_to_train_data(samples)
    return data


def _refuse_distillation(args: Any) -> None:
    if args.use_opd:
        raise TurnwiseError(f"turnwise.hosts.slime cannot run with --use-opd: both need the column {CARRIER}")
