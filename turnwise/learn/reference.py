"""The frozen policy that KL is measured against: a copy of the model, on its device or in host memory, or, with adapters, the model with
its adapters switched off."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from turnwise.learn.forward import PackedModel, has_adapters
from turnwise.learn.offload import OffloadedModel, host_copy_of
from turnwise.learn.ranks.tensors import put
from turnwise.learn.weights import check_names
from turnwise.util.errors import TurnwiseError


class Reference:
    """`policy` is the packed model to score with, inside `active()`."""

    def __init__(self, policy: PackedModel, model: nn.Module | None = None, dtype: torch.dtype | None = None, host: bool = False):
        """`model` is a custom reference; without it, a copy of the current policy. `dtype` is what it computes in; None: as the policy.
        `host`: its weights are in host memory, and come to the device layer by layer while it scores."""
        self._adapted = model is None and has_adapters(policy.outer)
        self._offloaded: OffloadedModel | None = None
        self.policy = policy
        if self._adapted:
            return
        parameter = next(policy.causal.parameters())
        dtype = dtype or parameter.dtype
        if host:
            frozen = (model.to("cpu") if model is not None else host_copy_of(policy.causal)).requires_grad_(False).eval()
            self._offloaded = OffloadedModel(frozen, parameter.device, dtype)
            with self._offloaded.active():
                self.policy = policy.like(frozen)
                self._release()
            return
        frozen = model if model is not None else copy.deepcopy(policy.causal)
        frozen = frozen.to(parameter.device).requires_grad_(False).eval()
        for own in frozen.parameters():
            own.data = own.data.to(dtype)
        self.policy = policy.like(frozen)

    @property
    def shares_model(self) -> bool:
        """Whether it is the policy without its adapters, and has no weights of its own."""
        return self._adapted

    @contextmanager
    def active(self) -> Iterator[None]:
        """Open while scoring: adapters are off and come back afterwards; weights in host memory come to the device."""
        if self._adapted:
            with self.policy.outer.disable_adapter():
                yield
        elif self._offloaded is not None:
            with self._offloaded.active():
                try:
                    yield
                finally:
                    self._release()
        else:
            yield

    def _release(self) -> None:
        """Fused layers forget where the weights are: they will be elsewhere the next time, and would be kept in memory until then."""
        if self.policy.fused is not None:
            self.policy.fused.release()

    def tensors(self) -> dict[str, Tensor]:
        """The copy's weights; empty if it shares the model's."""
        return {} if self._adapted else {name: tensor.detach() for name, tensor in self.policy.causal.named_parameters()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load these weights."""
        own = self.tensors()
        check_names("reference", tensors, own)
        for name, tensor in own.items():
            put(tensor, tensors[name])

    def follow(self, policy: PackedModel) -> None:
        """From now on the reference is the current policy (after a warm start, for example)."""
        if self._adapted:
            raise TurnwiseError(
                "with adapters the reference is the base model, which cannot follow: save the model merged and start a new learner from it"
            )
        self.load({name: tensor.detach() for name, tensor in policy.causal.named_parameters()})
