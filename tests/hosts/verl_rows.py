"""Real objects of verl on a CPU, for the tests of its host: its configuration, TransferQueue in a local Ray, attempts as its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from batches import Attempt
from hydra import compose, initialize_config_module
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import AgentLoopWorkerTQ, get_trainer_cls
from verl.utils.tensordict_utils import get_tensordict

WORKER = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # the class itself, without an actor
LONGEST = 16  # rollout.response_length: longer rows are cut
FOR_MODE = {  # what verl demands of the mode with separate machines
    "separate_async": [
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    ]
}


@contextmanager
def local_cluster() -> Iterator[None]:
    """Ray on this machine, and TransferQueue in it."""
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        tq.init(config_of("sync").transfer_queue)
        yield
    finally:
        tq.close()
        ray.shutdown()


def config_of(mode: str, name: str = "gigpo", *overrides: str, **options: object) -> Any:
    """verl's own configuration with what a user adds on the command line."""
    lines = [
        "algorithm.adv_estimator=turnwise",
        f"trainer.v1.trainer_mode=turnwise_{mode}",
        *[f"+algorithm.turnwise.{option}={value}" for option, value in {"name": name, **options}.items()],
        *[f"actor_rollout_ref.rollout.{key}" for key in ("name=vllm", "prompt_length=64", f"response_length={LONGEST}")],
        "actor_rollout_ref.model.path=none",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        *FOR_MODE.get(mode, ()),
        *overrides,
    ]
    return compose_with(lines)


def compose_with(overrides: list[str]) -> Any:
    """As `python -m verl.trainer.main_ppo` reads its command line."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides)


def trainer_of(config: Any) -> Any:
    """The trainer that `python -m verl.trainer.main_ppo` would make, before it starts its workers."""
    return get_trainer_cls(config.trainer.v1.trainer_mode)(config)


def by_attempt(attempt: Attempt) -> list[Any]:
    """One row: the dialogue grows, and is cut at the longest response, as verl's agent loops do."""
    response: list[int] = []
    mask: list[int] = []
    for t, turn in enumerate(attempt.turns):
        seen = turn.prompt if t else []
        response += seen + turn.response
        mask += [0] * len(seen) + [1] * len(turn.response)
    return [row_of(attempt, 0, len(attempt.turns), response[:LONGEST], mask[:LONGEST])]


def by_step(attempt: Attempt) -> list[Any]:
    """One row per turn."""
    return [row_of(attempt, t, t + 1, turn.response, [1] * len(turn.response)) for t, turn in enumerate(attempt.turns)]


def row_of(attempt: Attempt, first: int, end: int, response: list[int], mask: list[int]) -> Any:
    turns = attempt.turns[first:end]
    steps = {"anchor": [turn.anchor for turn in turns], "reward": [turn.reward for turn in turns], "valid": [turn.valid for turn in turns]}
    return AgentLoopOutput(
        prompt_ids=turns[0].prompt,
        response_ids=response,
        response_mask=mask,
        reward_score=attempt.outcome,
        metrics={},
        extra_fields={"turnwise": steps, "reward_extra_info": {}, "min_global_steps": 0, "max_global_steps": 0},
    )


def truncated(attempts: list[Attempt], whole_turns: bool) -> None:
    """The attempts as verl's rows have them after they were cut: fewer tokens; and, if an agent loop stops there, fewer turns."""
    for attempt in attempts:
        used = 0
        for t, turn in enumerate(attempt.turns):
            used += len(turn.prompt) if t else 0
            left = max(LONGEST - used, 0)
            used += len(turn.response)
            turn.response, turn.token_values = turn.response[:left], turn.token_values[:left]
        if whole_turns:
            attempt.turns = [turn for turn in attempt.turns if turn.response]


def put(attempts: list[Attempt], layout: Any, partition: str) -> None:
    """Into TransferQueue, as verl's agent loop worker puts them. Each group has a uid, each of its attempts a session."""
    worker = WORKER.__new__(WORKER)
    worker.reward_loop_worker_handles, worker.processor, worker.distillation_enabled = None, None, False

    async def all_of_them() -> None:
        for attempt in attempts:
            field = {"uid": uid_of(attempt), "session_id": attempt.number, "global_steps": 0}
            await worker._agent_loop_postprocess(layout(attempt), partition == "val", **field)

    asyncio.run(all_of_them())


def uid_of(attempt: Attempt) -> str:
    return attempt.group.replace(" ", "-")


def batch_of(partition: str, seed: int) -> Any:
    """All rows of a partition and three padding rows of verl's, in random order."""
    listed = tq.kv_list(partition)[partition]
    batch = tq.KVBatchMeta(partition_id=partition, keys=list(listed), tags=list(listed.values()))
    batch = upsample_batch_to_divisible_size(batch, len(listed) + 3, eos_token_id=1)
    batch.reorder(np.random.default_rng(seed).permutation(len(batch.keys)).tolist())
    return batch


def put_tokens(batch: Any, field: str, rows: list[Any]) -> None:
    """Numbers of the tokens of each row, as verl's `_compute_values` and `_compute_old_log_prob` leave them."""
    nested = torch.nested.as_nested_tensor([torch.as_tensor(row, dtype=torch.float32) for row in rows], layout=torch.jagged)
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=get_tensordict({field: nested}))


def read(batch: Any, *fields: str) -> list[dict[str, Any]]:
    """What each row has now; numbers as arrays."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))
    columns = [data.get(field) for field in fields]
    plain = [[row.numpy() for row in column.unbind()] if isinstance(column, torch.Tensor) else column.tolist() for column in columns]
    return [dict(zip(fields, row, strict=True)) for row in zip(*plain, strict=True)]
