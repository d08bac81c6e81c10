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
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from turnwise.learn.forward import HALF, PackedModel, not_taken
from turnwise.learn.fused import reason_against
from turnwise.learn.ranks.group import Ranks
from turnwise.learn.ranks.lockstep import Gather, Lockstep, Reduce
from turnwise.util.errors import TurnwiseError

T = TypeVar("T")


class Root(nn.Module):  # type: ignore[misc]
    """Model and critic as one module whose forward pass is any function."""

    def __init__(self, model: nn.Module, critic: nn.Module | None = None):
        super().__init__()
        self.model, self.critic = model, critic

    def forward(self, work: Callable[[], T]) -> T:
        return work()


class Sharded:
    """A packed model, and a critic if there is one, sharded over all processes. Their parameters are replaced by shares."""

    def __init__(self, policy: PackedModel, ranks: Ranks, dtype: torch.dtype, critic: nn.Module | None = None, fused: bool | None = None):
        """`fused` requests or forbids our layers; None: if they are faster, that is, on GPUs in half precision."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # a second of imports that one process does not need

        if policy.fused is not None:
            raise TurnwiseError("layers were fused before the weights were sharded: make the model with PackedModel(model, fused=False)")
        fuses = may_fuse(policy, ranks, dtype, fused)
        self.root: Any = Root(policy.outer, critic)
        self.ranks = ranks
        self.joins = False  # whether layers also make joined copies of their weights
        self.lockstep = Lockstep(torch.device(ranks.device), self.reset)
        trained = [weight.dtype for weight in policy.outer.parameters() if weight.requires_grad]
        lower = bool(trained) and not hasattr(policy.outer, "disable_adapter") and dtype != torch.float32
        precision = MixedPrecisionPolicy(dtype if lower else None, torch.float32 if lower else None, cast_forward_inputs=False)
        self.parts: list[Any] = [*layers_of(policy)] if policy.packs else []  # others make a different number of passes for each batch
        for layer in self.parts:
            fully_shard(layer, mesh=ranks.mesh, mp_policy=precision)
        if critic is not None:
            fully_shard(critic, mesh=ranks.mesh)  # float32, whatever the model computes in
            self.parts.append(critic)
        fully_shard(self.root, mesh=ranks.mesh, mp_policy=precision, reshard_after_forward=False)
        self.parts.append(self.root)
        gather, reduce = Gather(self.lockstep), Reduce(self.lockstep)
        for part in self.parts:
            part.set_custom_all_gather(gather)
            part.set_custom_reduce_scatter(reduce)
            part.set_force_sum_reduction_for_comms(True)  # weights of tokens are global, so shares of a gradient add up
            part.set_gradient_divide_factor(1.0)
        policy.sharded = self
        if fuses:
            self._fuse(policy, dtype)

    def _fuse(self, policy: PackedModel, dtype: torch.dtype) -> None:
        """Use our layers, unless they differ from the model's own in any process."""
        gap = policy.try_shared(dtype)
        if self.ranks.together.any(not gap <= (0.1 if dtype in HALF else 1e-3)):
            policy.refuse_fused(gap)
        self.joins = policy.fused is not None

    def inside(self, work: Callable[[], T]) -> T:
        """Call a function that computes with the model. All processes do so together."""
        found: T = self.root(work)
        if not torch.is_grad_enabled():
            self.root.reshard()  # otherwise the next pass would find these weights, even if they have changed
        return found

    def reset(self) -> None:
        """After an error in the middle of a pass: all weights are shares again, and have no gradients."""
        reset = getattr(self.root, "reset_iter_state", None)
        if reset is None:
            raise TurnwiseError(
                f"out of memory in the middle of a pass; with several ranks, torch {torch.__version__} cannot recover from it (2.13 can). "
                "Set learner.tokens_per_batch lower or learner.gradient_checkpointing = true"
            )
        for weight in self.root.parameters():
            weight.grad = None  # of whole weights too, which would be added to the gradients of the next pass
        reset()

    @property
    def gathered_bytes(self) -> int:
        """Bytes of weights and gradients that are whole at the same time: the root's, those of two layers, and joined copies of one."""
        layer = max((sum(weight.numel() for weight in part.parameters()) for part in self.parts[:1]), default=0)
        inner = sum(weight.numel() for part in self.parts[:-1] for weight in part.parameters())
        everything = sum(weight.numel() for weight in self.root.parameters())
        return int(6 * (everything - inner + (3 if self.joins else 2) * layer))


def layers_of(policy: PackedModel) -> list[nn.Module]:
    """The layers of a model: the modules of its longest list. Empty if it has no list of modules."""
    lists = [list(module) for module in policy.backbone.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def may_fuse(policy: PackedModel, ranks: Ranks, dtype: torch.dtype, wanted: bool | None = None) -> bool:
    """Whether to try our layers. It is asked while the weights are whole. One process logs a warning if only the model is against it."""
    faster = torch.device(ranks.device).type == "cuda" and dtype in HALF
    if not (wanted or (wanted is None and faster and policy.packs)):
        return False
    name = type(policy.causal).__name__
    if reason := reason_against(policy.outer, shared=True):
        if wanted:
            raise TurnwiseError(f"{name} cannot run through fused layers: {reason}")
        if ranks.rank == 0:
            warnings.warn(not_taken(name, reason), stacklevel=4)
    return reason is None
