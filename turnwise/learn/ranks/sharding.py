"""The model's weights in shares: FSDP2 (`fully_shard`).

Each process keeps one share of every weight, of its gradient and of its moments. A layer's weights are gathered when it computes and
dropped afterwards. The shares are float32, and FSDP2 gathers them in the precision that the model computes in: so a share is its own
master, gradients are added up in float32, and the optimiser needs no second copy. With adapters nothing is converted: the frozen base is
kept in the model's precision and the adapters in float32, as in one process.

Embeddings, the last norm and the output layer are one group, the root, so tied embeddings stay one weight. The learner reads the output
layer directly, outside any module's forward pass. So whatever computes with the model runs inside the forward pass of the root: `Sharded`
takes a function and calls it with the root's weights in place.

Our layers (`turnwise.learn.fused`) compute here too, on GPUs in half precision: FSDP2 gathers a layer's weights when its module is called,
so the module is called and computes with our layer.

A rank that runs out of memory in the middle of a pass cannot make the rest of it, and the others would wait for it: so it ends the run with
an error that says what to set.

Which rank computes which sequences (`dealt`): sequences, or all sequences of a trajectory if they must stay together, are dealt out longest
first, each to the rank with the fewest tokens so far. Every rank then cuts its own into micro-batches. All of this is arithmetic on numbers
that every rank has, so nothing is exchanged. Passes over a sharded model are made together, so all ranks need the same number of
micro-batches: those with fewer get empty ones.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from turnwise.data.rollouts import Ints, ragged
from turnwise.learn.forward import PackedModel, has_adapters, not_taken
from turnwise.learn.fused import reason_against
from turnwise.learn.packing import Packed, microbatches
from turnwise.learn.ranks.group import Decisions, Ranks
from turnwise.learn.weights import HALF
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")
P = TypeVar("P")
Array = NDArray[Any]


class Root(nn.Module):  # type: ignore[misc]
    """A module whose forward pass is any function that computes with the model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], T]) -> T:
        return work()


class Sharded:
    """A packed model, sharded over all ranks. Its parameters are replaced by shares."""

    def __init__(self, policy: PackedModel, ranks: Ranks, dtype: torch.dtype, fused: bool | None = None):
        """`fused` requests or forbids our layers; None: if they are faster, that is, on GPUs in half precision."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # a second of imports that one process does not need

        if policy.fused is not None:
            raise TurnwiseError("layers were fused before the weights were sharded: make the model with PackedModel(model, fused=False)")
        fuses = may_fuse(policy, ranks, dtype, fused)
        self.root: Any = Root(policy.outer)
        self.ranks = ranks
        self.joins = False  # whether layers also make joined copies of their weights
        self.passes = 0  # made so far, idle ones included
        trained = [weight.dtype for weight in policy.outer.parameters() if weight.requires_grad]
        lower = bool(trained) and not has_adapters(policy.outer) and dtype != torch.float32
        precision = MixedPrecisionPolicy(dtype if lower else None, torch.float32 if lower else None, cast_forward_inputs=False)
        lists = [list(module) for module in policy.backbone.modules() if isinstance(module, nn.ModuleList)]
        layers = max(lists, key=len, default=[])  # the longest list
        self.parts: list[Any] = layers if policy.packs else []  # others make a different number of passes for each batch
        for layer in self.parts:
            fully_shard(layer, mesh=ranks.mesh, mp_policy=precision)
        fully_shard(self.root, mesh=ranks.mesh, mp_policy=precision, reshard_after_forward=False)
        self.parts.append(self.root)
        for part in self.parts:
            part.set_custom_all_gather(Gather())
            part.set_custom_reduce_scatter(Reduce())
            part.set_force_sum_reduction_for_comms(True)  # weights of tokens are global, so shares of a gradient add up
            part.set_gradient_divide_factor(1.0)
        policy.sharded = self
        if fuses:
            self._fuse(policy, dtype)

    def _fuse(self, policy: PackedModel, dtype: torch.dtype) -> None:
        """Use our layers, unless they differ from the model's own in any process."""
        gap = policy.try_sharded(dtype)
        if Decisions(self.ranks).any(not gap <= (0.1 if dtype in HALF else 1e-3)):
            policy.refuse_fused(gap)
        self.joins = policy.fused is not None

    def inside(self, work: Callable[[], T]) -> T:
        """Call a function that computes with the model. All processes do so together."""
        found: T = self.root(work)
        if not torch.is_grad_enabled():
            self.root.reshard()  # otherwise the next pass would find these weights, even if they have changed
        return found

    @property
    def gathered_bytes(self) -> int:
        """Bytes of weights and gradients that are whole at the same time: the root's, those of two layers, and joined copies of one."""
        layer = max((sum(weight.numel() for weight in part.parameters()) for part in self.parts[:1]), default=0)
        inner = sum(weight.numel() for part in self.parts[:-1] for weight in part.parameters())
        everything = sum(weight.numel() for weight in self.root.parameters())
        return int(6 * (everything - inner + (3 if self.joins else 2) * layer))


def may_fuse(policy: PackedModel, ranks: Ranks, dtype: torch.dtype, wanted: bool | None = None) -> bool:
    """Whether to try our layers. It is asked while the weights are whole. One process logs a warning if only the model is against it."""
    faster = torch.device(ranks.device).type == "cuda" and dtype in HALF
    if not (wanted or (wanted is None and faster and policy.packs)):
        return False
    name = type(policy.causal).__name__
    if reason := reason_against(policy.outer, sharded=True):
        if wanted:
            raise TurnwiseError(f"{name} cannot run through fused layers: {reason}")
        if ranks.rank == 0:
            warnings.warn(not_taken(name, reason), stacklevel=4)
    return reason is None


class _Comm:
    """How FSDP2 exchanges tensors, timed."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_Comm):
    """All-gather of weights."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        return _gather(output_tensor, input_tensor, group=group, async_op=async_op)


class Reduce(_Comm):
    """Reduce-scatter of gradients: always a sum."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        if op != dist.ReduceOp.SUM:
            raise TurnwiseError(f"gradients of several ranks are summed, and torch {torch.__version__} asks for {op}: is it supported?")
        return _reduce(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the newer names of the same operations
_reduce: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def dealt(packed: Packed, size: int, whole_trajectories: bool = False) -> list[Ints]:
    """The sequences of each process, in their order."""
    owner = np.arange(len(packed))
    if whole_trajectories and len(packed):
        owner = np.unique(packed.sequence_trajectory, return_inverse=True)[1].reshape(-1)
    tokens = np.bincount(owner, weights=packed.lengths).astype(np.int64)
    taker = np.zeros(len(tokens), np.int64)
    load = [(0, rank) for rank in range(size)]
    for unit in np.argsort(-tokens, kind="stable").tolist():
        used, rank = load[0]
        taker[unit] = rank
        heapq.heapreplace(load, (used + int(tokens[unit]), rank))
    return [np.flatnonzero(taker[owner] == rank) for rank in range(size)]


def shares(packed: Packed, tokens: int, size: int, whole_trajectories: bool = False) -> list[list[Ints]]:
    """The micro-batches of each process: the same number for all, empty ones last."""
    found = [microbatches(packed, own, tokens, whole_trajectories) for own in dealt(packed, size, whole_trajectories)]
    count = max(map(len, found))
    return [own + [np.zeros(0, np.int64)] * (count - len(own)) for own in found]


def shortest(packed: Packed) -> Packed:
    """What a process reads in an empty micro-batch: the shortest sequence of the batch."""
    return packed.take([int(np.argmin(packed.lengths))])


def passes(
    policy: PackedModel,
    ranks: Ranks | None,
    packed: Packed,
    tokens: int,
    work: Callable[[Packed], T],
    idle: Callable[[Packed], Any],
    whole_trajectories: bool = False,
) -> list[T]:
    """`work` on this process's micro-batches, or on all if there is one process; `idle` on a sequence that does not count, where another
    process has one micro-batch more."""
    if ranks is None:
        return [work(packed.take(part)) for part in microbatches(packed, np.arange(len(packed)), tokens, whole_trajectories)]
    own = shares(packed, tokens, ranks.size, whole_trajectories)[ranks.rank]
    if policy.sharded is None:
        return [work(packed.take(part)) for part in own if len(part)]
    found: list[T] = []
    try:
        for part in own:
            policy.sharded.passes += 1
            if len(part):
                found.append(work(packed.take(part)))
            else:
                idle(shortest(packed))
    except torch.OutOfMemoryError as error:
        raise TurnwiseError(
            f"rank {ranks.rank} ran out of memory in the middle of a pass, and the other ranks wait for the rest of it "
            f"({str(error)[:200] or 'no memory left'}). Set learner.tokens_per_batch lower or learner.gradient_checkpointing = true, and "
            "resume the run"
        ) from error
    return found


def restored(ranks: Ranks | None, packed: Packed, own: Mapping[str, Array], offsets: Mapping[str, Ints]) -> dict[str, Array]:
    """Columns of all sequences, in the order of `packed`, from those of every process's own. `offsets`: where the entries of each
    sequence start in a column."""
    if ranks is None:
        return dict(own)
    everywhere, mine = ranks.gather(dict(own)), dealt(packed, ranks.size)
    found: dict[str, Array] = {}
    for name, starts in offsets.items():
        given = [columns.get(name) for columns in everywhere]
        like = next(column for column in given if column is not None)
        found[name] = np.zeros((int(starts[-1]), *like.shape[1:]), like.dtype)
        for column, sequences in zip(given, mine, strict=True):
            if column is not None:
                found[name][ragged(starts, sequences)] = column
    return found
