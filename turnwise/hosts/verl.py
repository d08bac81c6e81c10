"""Credit of Turnwise as the advantages of verl's V1 trainers, in each of its three modes.

verl passes no step data to an estimator. The trainers here read them from TransferQueue, compute the advantages of the batch, and let verl
do everything else; the estimator `turnwise` only hands them over. Step data are what an agent loop leaves in `extra_fields["turnwise"]` of
a row: lists with one entry per turn, such as `anchor`, `reward` and `valid`. A row may be a whole attempt, one turn of it, or a part. Its
turns are the runs of ones in `response_mask`. verl imports this file by an entry point, and hides its errors.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.diagnose import observe
from turnwise.credit.registry import algorithms, assign
from turnwise.credit.spans import last_turns, spans_of, spread, turn_numbers
from turnwise.data.rollouts import Rollouts
from turnwise.hosts.versions import need_version
from turnwise.util.errors import TurnwiseError

need_version("verl", "0.9.1")

import transfer_queue as tq  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.trainer.ppo.core_algos import register_adv_est  # noqa: E402
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync, register_trainer  # noqa: E402

COLUMNS = ("anchor", "reward", "valid", "next_anchor", "success", "value")  # of step data; further ones are columns that a method may need
NAME = "turnwise"  # of the estimator, its options (algorithm.turnwise) and the step data (extra_fields["turnwise"])
_advantages: ContextVar[tuple[Any, Any] | None] = ContextVar("advantages", default=None)  # and returns, of the batch at hand


def estimator(token_level_rewards: Any, response_mask: Any, config: Any = None, **_: Any) -> tuple[Any, Any]:
    """The advantages and returns that the trainer has computed for this batch."""
    ready = _advantages.get()
    if ready is None:
        raise TurnwiseError(
            "algorithm.adv_estimator=turnwise needs step data, which verl passes to no estimator: set trainer.use_v1=true and "
            "trainer.v1.trainer_mode=turnwise_sync, turnwise_colocate_async or turnwise_separate_async"
        )
    return ready


register_adv_est(NAME)(estimator)


class StepData:
    """What the three trainers add to verl's own. `mode` is verl's name of the mode, which its code compares with."""

    mode: str

    def __init__(self, config: Any):
        self.config = config
        if config.algorithm.adv_estimator != NAME or not config.algorithm.get(NAME, {}).get("name"):
            raise TurnwiseError(f"{NAME}_{self.mode} needs algorithm.adv_estimator={NAME} and +algorithm.{NAME}.name, such as gigpo")
        if config.algorithm.use_kl_in_reward:
            raise TurnwiseError("algorithm.use_kl_in_reward adds to the rewards of tokens, and turns have none: use actor.use_kl_loss")
        options = OmegaConf.to_container(config.algorithm[NAME], resolve=True)
        algorithms.of(options.pop("name")).bind(options, algorithms.kind)  # what is wrong with them is said now
        config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)  # type: ignore[call-arg]

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        options = OmegaConf.to_container(self.config.algorithm[NAME], resolve=True)
        advantage, returns, observed = advantages(batch, self.config.actor_rollout_ref.rollout.response_length, **options)
        metrics.update({f"credit/{name}": value for name, value in observed.items() if isinstance(value, (int, float))})
        token = _advantages.set((advantage, returns))
        try:
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        finally:
            _advantages.reset(token)


@register_trainer(f"{NAME}_sync")
class Sync(StepData, PPOTrainerSync):  # type: ignore[misc]
    mode = "sync"


@register_trainer(f"{NAME}_colocate_async")
class ColocateAsync(StepData, PPOTrainerColocateAsync):  # type: ignore[misc]
    mode = "colocate_async"


@register_trainer(f"{NAME}_separate_async")
class SeparateAsync(StepData, PPOTrainerSeparateAsync):  # type: ignore[misc]
    mode = "separate_async"


def advantages(batch: Any, longest: int, name: str, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Advantages and returns of a batch (rows, tokens), and what to log. Returns are a critic's targets; without one, the advantages.
    `longest` is the length at which agent loops cut a row."""
    import torch

    fields = ["response_mask", "rm_scores", "values", "extra_fields"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    records = [(extra or {}).get(NAME) or {} for extra in data.pop("extra_fields").tolist()]
    cut = (data["response_mask"].offsets().diff() >= longest).numpy()
    arrays = {field: tensor.float().numpy() for field, tensor in data.to_padded_tensor().items()}
    rollouts, start, length = turns_of(batch.keys, batch.tags, records, arrays, cut)
    credit = assign(name, rollouts, **options)
    targets = replace(credit, values=credit.values if credit.targets is None else credit.targets.astype(np.float32))
    spread_out = [torch.from_numpy(spread(kind, rollouts, start, length, arrays["response_mask"].shape)) for kind in (credit, targets)]
    return spread_out[0], spread_out[1], observe(name, options, rollouts, credit.values)


def turns_of(
    keys: list[str], tags: list[dict[str, Any]], records: list[dict[str, Any]], arrays: dict[str, NDArray[Any]], cut: NDArray[np.bool_]
) -> tuple[Rollouts, NDArray[np.int64], NDArray[np.int64]]:
    """The turns of all rows that are not padding, in order of time, and the tokens of each. Rows come in any order: their keys say to which
    attempt (`uid_session`) a row belongs, and its place there. Turns that were cut off a row stay as turns without tokens."""
    attempts, places = zip(*(key.rsplit("_", 1) for key in keys), strict=True)
    rows = [row for row in np.argsort([int(place) for place in places], kind="stable") if not tags[row].get("is_padding")]
    run_rows, run_starts, run_lengths = spans_of(arrays["response_mask"])
    runs = np.bincount(run_rows, minlength=len(keys))
    for row in rows:
        check(keys[row], records[row], records[rows[0]], int(runs[row]), bool(cut[row]))
    owner = np.repeat(rows, [len(records[row]["anchor"]) for row in rows])  # the row of each turn
    number = turn_numbers(owner)
    run = np.where(number < runs[owner], (np.cumsum(runs) - runs)[owner] + number, -1)
    start, length = np.append(run_starts, 0)[run], np.append(run_lengths, 0)[run]

    trajectory = np.asarray(attempts)[owner]
    t = turn_numbers(trajectory)
    columns: dict[str, Any] = {column: list(chain.from_iterable(records[row][column] for row in rows)) for column in records[rows[0]]}
    if "reward" not in columns:  # verl's own score of the attempt, which all of its rows have
        columns["reward"] = np.where(last_turns(trajectory, t), arrays["rm_scores"].sum(1)[owner], 0.0)
    if "values" in arrays:
        flat = np.append(arrays["values"], 0.0)
        tokens = np.repeat(start - np.cumsum(length) + length, length) + np.arange(length.sum())
        columns |= {"token_value": flat[tokens], "value": np.where(length > 0, flat[start], 0.0)}
    extra = {column: columns.pop(column) for column in columns.keys() - {*COLUMNS, "token_value"}}
    group = [attempt.rsplit("_", 1)[0] for attempt in trajectory.tolist()]
    return Rollouts.from_columns(group=group, trajectory=trajectory, t=t, tokens=length, extra=extra, **columns), start, length


def check(key: str, record: dict[str, Any], first: dict[str, Any], runs: int, cut: bool) -> None:
    """An error unless the step data of a row fit its mask, and have the columns of the first row."""
    where, lengths = f"row {key}, extra_fields[{NAME!r}]", {column: len(values) for column, values in record.items()}
    if "anchor" not in record or record.keys() != first.keys() or len({*lengths.values()}) > 1:
        raise TurnwiseError(
            f"{where}: one list per column with one entry per turn is needed, among them `anchor`, and the columns of every other row "
            f"({', '.join(first)}); got {lengths or 'none'}. Use the agent loop of turnwise.hosts.verl_agent, or let yours write them"
        )
    if runs > lengths["anchor"] or (runs < lengths["anchor"] and not cut):
        raise TurnwiseError(f"{where}: {lengths['anchor']} turns, and {runs} responses (runs of ones) in response_mask")
