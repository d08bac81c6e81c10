"""SkyRL: credit per turn in step-wise mode, where SkyRL's own trainer computes one number per trajectory from its last step.

    class Trainer(TurnCredit, RayPPOTrainer):
        credit = "gigpo"
        options = {"gamma": 0.95}

In step-wise mode a row of the batch is one step: a prompt, a response, and the tokens of the observation that came back, masked out of the
loss. With `generator.merge_stepwise_output` a row holds several steps, and each run of the loss mask is a turn. Rows are aligned at the
right, and rows that only fill up the batch stand at its end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnwise.credit.diagnose import observe
from turnwise.credit.registry import Credit, algorithms, assign, stands_alone
from turnwise.credit.spans import spread, turn_numbers, turns_of
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Rollouts
from turnwise.hosts.versions import need_version
from turnwise.util.errors import TurnwiseError

VERSION = "0.4"


class TurnCredit:
    """Put before `RayPPOTrainer` or `FullyAsyncRayPPOTrainer` in a class, it computes advantages with an algorithm of Turnwise."""

    credit: ClassVar[str] = "gigpo"
    options: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        need_version("skyrl", VERSION)
        entry = algorithms.of(cls.credit)
        entry.bind(cls.options, algorithms.kind)
        if not stands_alone(entry):
            raise TurnwiseError(f"{cls.__name__}: {cls.credit} needs {', '.join(entry.needed(cls.options))}, which SkyRL does not have")

    def state_of(self, observation: NDArray[np.int64]) -> Hashable:
        """The state that a turn starts from, by the tokens that the model read since its last response (at the first turn: the prompt).
        Turns of a group with equal states are compared. Override it where an observation holds more than the state."""
        return observation.tobytes()

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """SkyRL's method: first its own, for its metrics, then `advantages` and `returns` of the sampled tokens."""
        settings = self.cfg.generator  # type: ignore[attr-defined]
        if not settings.step_wise_trajectories:
            raise TurnwiseError("turnwise.hosts.skyrl: set generator.step_wise_trajectories=true; without it a row is a whole trajectory")
        data = super().compute_advantages_and_returns(data)  # type: ignore[misc]
        rows = len(data["loss_mask"]) - data.metadata.get("pad_size", 0)
        turns = find_turns(data["loss_mask"][:rows].numpy() > 0, merged=settings.merge_stepwise_output)
        rollouts = self._rollouts(data, rows, turns)
        credit = assign(self.credit, rollouts, **self.options)
        advantages = spread(credit, rollouts, turns.start, turns.length, turns.sampled.shape)
        data["advantages"] = _filled(data["advantages"], advantages)
        data["returns"] = _filled(data["returns"], _returns(data, credit, rollouts, turns, advantages))
        measured = observe(self.credit, self.options, rollouts, credit.values)
        trained = advantages[data["loss_mask"][:rows].numpy() > 0]
        metrics = {f"credit/{name}": value for name, value in measured.items() if isinstance(value, int | float)}
        metrics |= {"loss/avg_raw_advantages": float(trained.mean()), "loss/avg_raw_advantages_abs": float(np.abs(trained).mean())}
        self.all_metrics.update(metrics)  # type: ignore[attr-defined]
        return data

    def _rollouts(self, data: Any, rows: int, turns: Turns) -> Rollouts:
        """The turns of a batch. A row's rewards belong to the turn before them, a critic's value to the token after it."""
        last_step = np.asarray(data.metadata["is_last_step"][:rows], bool)
        trajectory = (np.cumsum(last_step) - last_step)[turns.row]
        reward = data["rewards"][:rows].numpy().astype(np.float64).reshape(-1)
        first_of_row = np.diff(turns.row, prepend=-1) > 0
        values = None if data["values"] is None else data["values"][:rows].numpy().reshape(-1)
        return Rollouts.from_columns(
            group=np.asarray(data.metadata["uids"][:rows])[turns.row],
            trajectory=trajectory,
            t=turn_numbers(trajectory),
            reward=np.add.reduceat(reward, np.where(first_of_row, turns.row * turns.sampled.shape[1], turns.start)),
            anchor=[self.state_of(tokens) for tokens in observations(data, rows, turns, trajectory)],
            tokens=turns.length,
            value=None if values is None else values[turns.start],
            token_value=None if values is None else values[turns.sampled.reshape(-1)],
        )


class Turns(NamedTuple):
    """Which tokens the turns of a batch are: of each its row, the flat position of its first token, and how many tokens it has."""

    row: Ints
    start: Ints
    length: Ints
    sampled: NDArray[np.bool_]  # [rows, width]: the tokens of all turns


def find_turns(mask: NDArray[np.bool_], *, merged: bool) -> Turns:
    """A row is one turn, from its first to its last trained token; with `merged`, each run of trained tokens is one."""
    if not merged:
        mask = np.logical_or.accumulate(mask, 1) & np.logical_or.accumulate(mask[:, ::-1], 1)[:, ::-1]
    return Turns(*turns_of(mask), mask)


def observations(data: Any, rows: int, turns: Turns, trajectory: Ints) -> Iterator[NDArray[np.int64]]:
    """The tokens between a turn and the one before it, which may be in another row; before the first turn the prompt of its row, and
    where a generator leaves observations out of the responses as well."""
    sequences, real = data["sequences"][:rows].numpy(), data["response_mask"][:rows].numpy() > 0
    tokens = sequences[:, sequences.shape[1] - real.shape[1] :][real]
    before = np.cumsum(real.reshape(-1)) - real.reshape(-1)  # real response tokens before each flat position
    starts = before[turns.start]
    ends = starts + turns.length
    first = np.diff(trajectory, prepend=-1) > 0
    prompt_end = sequences.shape[1] - real.sum(1)
    prompt_start = sequences.shape[1] - data["attention_mask"][:rows].numpy().sum(1)
    for i, row in enumerate(turns.row):
        seen = tokens[:0] if first[i] else tokens[ends[i - 1] : starts[i]]
        yield seen if len(seen) else sequences[row, prompt_start[row] : prompt_end[row]]


def _returns(data: Any, credit: Credit, rollouts: Rollouts, turns: Turns, advantages: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a critic learns: the targets of its values. A turn's target is for the value before its first token; at its other tokens the
    critic keeps what it says. Without targets SkyRL's own estimators give the advantages."""
    if credit.targets is None:
        return advantages
    if credit.level == "token":
        return spread(Credit(credit.targets.astype(np.float32), "token"), rollouts, turns.start, turns.length, advantages.shape)
    returns: NDArray[np.float32] = data["values"][: len(advantages)].numpy().astype(np.float32)
    some = turns.length > 0
    returns.reshape(-1)[turns.start[some]] = credit.targets[some]
    return returns


def _filled(tensor: Any, values: NDArray[np.float32]) -> Any:
    """A tensor of the same kind with these values in its first rows, and 0 in those that fill up the batch."""
    result = tensor.new_zeros(tensor.shape)
    result[: len(values)] = tensor.new_tensor(values)
    return result
