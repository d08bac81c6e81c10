"""The tokens of a loss: flat columns with one entry per sampled token, without padding or a [batch, time] grid.

A batch of turns has ragged lengths, and every way to normalise a loss over it is a choice of one weight per token. These weights are
data here: `token_weights` computes them once from the whole batch of an optimiser step, and the loss of any part of the batch is the
plain sum of weight × token loss. Parts add up, so neither the number of micro-batches nor the number of machines can change a gradient.

A token with weight 0 is excluded from everything: loss, means over a turn, metrics. Its other columns do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from turnwise.util.errors import TurnwiseError, unknown_name

Level = Literal["token", "turn", "trajectory"]
LEVELS: tuple[Level, ...] = ("token", "turn", "trajectory")  # from fine to coarse
AGGREGATIONS = ("token", "turn", "trajectory", "trajectory_turn", "turn_sum", "trajectory_sum")

# Beyond this a ratio carries no information (e^20 ≈ 5e8), and its square still fits a float32.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, eq=False)
class Tokens:
    """One micro-batch of sampled tokens as columns of equal length.

    logprob         log-probability under the policy that is being trained, with gradient
    old_logprob     the same under the old policy of the ratio (the learner's weights before the first update)
    advantage       credit of the token's turn
    turn            id of the token's turn, unique over the whole batch: 0, 1, 2 …
    trajectory      id of the token's trajectory: 0, 1, 2 …
    weight          from `token_weights` of the whole batch; 0 excludes the token
    engine_logprob  what the engine reported when it sampled the token
    ref_logprob     log-probability under the frozen reference
    entropy         entropy of the distribution that the token was drawn from, under the current policy, with gradient
    extra           further columns for your own objectives (a clip scale per turn, a teacher's log-probability, a span mask …)

    Three numbers describe the whole batch, and are the same in each of its parts: `batch_tokens`, the tokens with a weight (metrics
    are means over them), and `turns` and `trajectories`, the number of ids. By default they are computed from the columns.
    """

    logprob: Tensor
    old_logprob: Tensor
    advantage: Tensor
    turn: Tensor
    trajectory: Tensor
    weight: Tensor
    engine_logprob: Tensor | None = None
    ref_logprob: Tensor | None = None
    entropy: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    batch_tokens: int | Tensor | None = None
    turns: int | None = None
    trajectories: int | None = None

    def __post_init__(self) -> None:
        if clash := set(self.extra) & {f.name for f in fields(self)}:
            raise TurnwiseError(f"tokens: extra column {min(clash)!r} has the name of a built-in column; choose another name")
        for name, column in self.columns().items():
            if column.shape != self.logprob.shape or column.dim() != 1:
                raise TurnwiseError(
                    f"tokens: column {name} has shape {tuple(column.shape)} where logprob has {tuple(self.logprob.shape)}; "
                    "every column is flat, with one entry per token"
                )
        for name, count in (("turn", "turns"), ("trajectory", "trajectories")):
            ids = getattr(self, name)
            if ids.dtype not in (torch.int64, torch.int32):
                raise TurnwiseError(f"tokens: column {name} holds ids and must be int64 or int32, not {ids.dtype}")
            if getattr(self, count) is None:  # reads the device once; a learner that knows its batch passes the numbers
                object.__setattr__(self, count, int(ids.max()) + 1 if len(ids) else 0)
        if self.batch_tokens is None:
            object.__setattr__(self, "batch_tokens", (self.weight != 0).sum())

    def __len__(self) -> int:
        return len(self.logprob)

    def columns(self) -> dict[str, Tensor]:
        """Every column that is present, by name."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("extra", "batch_tokens", "turns", "trajectories")}
        return {name: column for name, column in {**own, **self.extra}.items() if column is not None}

    def take(self, which: Any) -> Tokens:
        """A part of the batch: positions, a slice or a boolean mask. The numbers that describe the whole batch are kept."""
        new = {name: column[which] for name, column in self.columns().items() if name not in self.extra}
        return replace(self, **new, extra={name: column[which] for name, column in self.extra.items()})

    def prepared(self) -> Tokens:
        """The same tokens ready for arithmetic: at least float32, no gradient into data, excluded tokens replaced by zeros."""
        real, kept = torch.promote_types(self.logprob.dtype, torch.float32), self.kept

        def clean(column: Tensor, learned: bool = False) -> Tensor:
            column = column if learned else column.detach()
            return torch.where(kept, column.to(real), 0.0) if column.is_floating_point() else column

        data = {name: clean(column, name in ("logprob", "entropy")) for name, column in self.columns().items()}
        extra = {name: data.pop(name) for name in self.extra}
        return replace(self, **data, extra=extra)

    @cached_property
    def kept(self) -> Tensor:
        """True where the token counts."""
        return self.weight != 0

    @property
    def log_ratio(self) -> Tensor:
        """Log of the new over the old probability, not clamped."""
        return self.logprob - self.old_logprob

    @property
    def ratio(self) -> Tensor:
        """New over old probability, per token."""
        return ratio_of(self.log_ratio)

    def sum_over(self, level: Level, values: Tensor) -> Tensor:
        """Each token's turn's (or trajectory's) sum of `values`; at level "token" the values themselves."""
        if level == "token":
            return values
        ids, count = (self.turn, self.turns) if level == "turn" else (self.trajectory, self.trajectories)
        return values.new_zeros(count or 0).index_add(0, ids, torch.where(self.kept, values, 0.0))[ids]

    def mean_over(self, level: Level, values: Tensor) -> Tensor:
        """Each token's turn's (or trajectory's) mean of `values` over the tokens that count."""
        if level == "token":
            return values
        return self.sum_over(level, values) / self.sum_over(level, torch.ones_like(values)).clamp(min=1)

    def max_over(self, level: Level, values: Tensor) -> Tensor:
        """Each token's turn's (or trajectory's) largest of `values` among the tokens that count. Detached."""
        if level == "token":
            return values.detach()
        ids, count = (self.turn, self.turns) if level == "turn" else (self.trajectory, self.trajectories)
        known = torch.where(self.kept, values.detach(), -torch.inf)
        largest = known.new_full((count or 0,), -torch.inf).scatter_reduce(0, ids.long(), known, "amax")[ids]
        return torch.where(largest > -torch.inf, largest, 0.0)

    def batch_mean(self, values: Tensor) -> Tensor:
        """This part's share of the mean of `values` over the tokens of the whole batch: the parts add up to the mean. Detached."""
        total = torch.where(self.kept, values.detach().to(self.logprob.dtype), 0.0).sum()
        count = self.batch_tokens
        return total / (count.clamp(min=1) if isinstance(count, Tensor) else max(count or 0, 1))

    def need(self, name: str, why: str) -> Tensor:
        """An optional column, or an error that says what needs it."""
        column = self.columns().get(name)
        if column is None:
            raise TurnwiseError(f"tokens have no column {name}, and {why} needs it: provide it, or turn that part of the loss off")
        return column


def ratio_of(log_ratio: Tensor, high: float = MAX_LOG_RATIO) -> Tensor:
    """exp with its argument clamped, so that no probability can make it overflow."""
    return log_ratio.clamp(-MAX_LOG_RATIO, high).exp()


def token_weights(
    turn: Any, trajectory: Any, how: str = "token", constant: float | None = None, mask: Any = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """One weight per token, from the ids of the WHOLE batch of an optimiser step (numpy or torch; any integers).

    "token"            1 / tokens of the batch: every token has the same weight
    "turn"             1 / (turns × tokens of the turn): every turn has the same weight
    "trajectory"       1 / (trajectories × tokens of the trajectory): every trajectory has the same weight
    "trajectory_turn"  1 / (trajectories × turns of the trajectory × tokens of the turn): nested means
    "turn_sum"         1 / (turns × constant): token losses are summed, so long responses weigh more; constant 1 by default
    "trajectory_sum"   1 / (trajectories × constant)

    `mask` is true for tokens that count; the others get weight 0, and turns and trajectories that lose all tokens are not counted.
    """
    if how not in AGGREGATIONS:
        raise unknown_name("aggregation", how, AGGREGATIONS)
    if constant is not None and (not how.endswith("_sum") or not constant > 0):
        raise TurnwiseError(f"aggregation {how!r}: constant must be a positive number and applies to turn_sum and trajectory_sum only")
    turn_ids, trajectory_ids = torch.as_tensor(turn), torch.as_tensor(trajectory)
    kept = torch.ones_like(turn_ids, dtype=torch.bool) if mask is None else torch.as_tensor(mask, device=turn_ids.device).bool()
    if not turn_ids.shape == trajectory_ids.shape == kept.shape or turn_ids.dim() != 1:
        raise TurnwiseError("token weights: turn, trajectory and mask must be flat and of equal length, one entry per token")
    weights = torch.zeros(turn_ids.shape, dtype=dtype, device=turn_ids.device)
    if kept.any():
        weights[kept] = (1 / _tokens_that_share(turn_ids[kept], trajectory_ids[kept], how, constant or 1.0)).to(dtype)
    return weights


def _tokens_that_share(turn: Tensor, trajectory: Tensor, how: str, constant: float) -> Tensor:
    """The denominator of each token's weight, in float64."""
    turns, of_turn, in_turn = turn.unique(return_inverse=True, return_counts=True)
    trajectories, of_trajectory, in_trajectory = trajectory.unique(return_inverse=True, return_counts=True)
    owner = torch.zeros_like(in_turn).scatter(0, of_turn, of_trajectory)  # the trajectory of each turn
    if (owner[of_turn] != of_trajectory).any():
        raise TurnwiseError(
            "token weights: one turn id occurs in several trajectories. Turn ids must be unique over the whole batch "
            "(number all turns 0, 1, 2 …; the index of a turn in its trajectory is not an id)"
        )
    turns_in_trajectory = owner.bincount(minlength=len(trajectories))
    ones = torch.ones(len(turn), dtype=torch.float64, device=turn.device)
    if how == "token":
        return ones * len(turn)
    if how == "turn":
        return ones * len(turns) * in_turn[of_turn]
    if how == "trajectory":
        return ones * len(trajectories) * in_trajectory[of_trajectory]
    if how == "trajectory_turn":
        return ones * len(trajectories) * turns_in_trajectory[of_trajectory] * in_turn[of_turn]
    return ones * constant * (len(turns) if how == "turn_sum" else len(trajectories))


def check_split(parts: Sequence[Any], level: Level) -> None:
    """Raises an error if an id occurs in two parts. `parts` are the turn (or trajectory) ids of each micro-batch.

    Losses that average over a turn or a trajectory need all of it: `Loss.level` says which. A learner calls this once per batch.
    At level "token" every split is valid.
    """
    if level == "token":
        return
    owner: dict[int, int] = {}
    for number, part in enumerate(parts):
        for item in torch.as_tensor(part).unique().tolist():
            if owner.setdefault(item, number) != number:
                raise TurnwiseError(
                    f"{level} {item} is split over micro-batches {owner[item]} and {number}, but this loss averages over whole {level} "
                    f"spans: cut the batch at {level} boundaries, or choose a finer level"
                )
