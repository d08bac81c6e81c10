"""Trained weights with a float32 master each, and the buffers in which their gradients are added up.

A model that computes in bfloat16 cannot learn in it: a step of 1e-6 of a weight is smaller than its last bit. So each trained weight has a
float32 master, which the optimiser moves; `publish` writes the masters back into the model. A weight that is already float32 is its own
master and needs no extra memory.

Gradients of every micro-batch are added up in float32 (`GradientBuffer`). A backward pass that knows a weight's buffer adds to it directly,
and the matrix product that gives the gradient does the addition: nothing is rounded to half precision, and no further pass reads the sum.
Gradients that autograd leaves on the weight are added by a hook.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.learn.offload import host_copy
from turnwise.learn.ranks.group import put
from turnwise.util.errors import TurnwiseError

HALF = (torch.bfloat16, torch.float16)


class GradientBuffer:
    """The float32 gradient of one weight: `.grad` of its master, or an entry of a table by name, if the master is in host memory."""

    def __init__(self, master: Tensor, table: dict[str, Tensor] | None = None, name: str = ""):
        self._master, self._table, self._name = master, table, name

    @property
    def sum(self) -> Tensor | None:
        """What has been added up so far."""
        return self._master.grad if self._table is None else self._table.get(self._name)

    def put(self, gradient: Tensor) -> None:
        """Replace the sum."""
        if self._table is None:
            self._master.grad = gradient
        else:
            self._table[self._name] = gradient

    def collect(self, weight: Tensor) -> None:
        """A hook: add the gradient that autograd left on the weight, and take it from there."""
        if weight.grad is not None:
            self.add(weight.grad)
            weight.grad = None

    def add(self, gradient: Tensor) -> None:
        """Add a gradient in any precision. One in float32 may be kept as it is."""
        total = self.sum
        if total is None:
            self.put(gradient.float())
        else:
            total.add_(gradient)


def buffer_of(weight: Any) -> GradientBuffer | None:
    """The buffer of a weight, if it has one: parameters of torch carry it as an attribute."""
    return getattr(weight, "gradient_buffer", None)


def buffers_of(weights: Sequence[Any]) -> list[GradientBuffer | None]:
    """The buffer of each weight; None for those without one."""
    return [buffer_of(weight) for weight in weights]


def reserve(weights: Sequence[Any]) -> None:
    """Allocate the buffers of weights that follow one another before anything is added up: zeros, in one piece. Nothing happens if one of
    them has no buffer, or a sum already."""
    buffers = [buffer for buffer in buffers_of(weights) if buffer is not None and buffer.sum is None]
    if len(buffers) < len(weights):
        return
    rows = [len(weight) for weight in weights]
    whole = torch.zeros(sum(rows), *weights[0].shape[1:], dtype=torch.float32, device=weights[0].device)
    for buffer, part in zip(buffers, whole.split(rows), strict=True):
        buffer.put(part)


def add_product(buffers: Sequence[GradientBuffer], sizes: Sequence[int], left_TO: Tensor, right_TI: Tensor) -> None:
    """Add leftᵀ · right, [outputs, inputs], to the sums of weights that follow one another in it, with `sizes` rows each."""
    total_OI = joined([buffer.sum for buffer in buffers])
    if total_OI is None:
        share(buffers, sizes, product(left_TO.t(), right_TI).float())
    elif left_TO.is_cuda and left_TO.dtype in HALF and adds_in_place(left_TO.dtype):
        torch.addmm(total_OI, left_TO.t(), right_TI, out_dtype=total_OI.dtype, out=total_OI)
    else:
        total_OI.add_(left_TO.t() @ right_TI)


def weight_gradients(
    left_TO: Tensor, right_TI: Tensor, sizes: Sequence[int], wanted: Sequence[bool], buffers: Sequence[GradientBuffer | None]
) -> list[Tensor | None]:
    """leftᵀ · right as gradients of weights with `sizes` rows each. Those that have a buffer are added there, and None stands for them."""
    existing = [buffer for buffer in buffers if buffer is not None]
    if any(wanted) and (len(existing) < len(buffers) or not all(wanted)):
        return list((left_TO.t() @ right_TI).split(list(sizes)))
    if any(wanted):
        add_product(existing, sizes, left_TO, right_TI)
    return [None] * len(sizes)


def share(buffers: Sequence[GradientBuffer], sizes: Sequence[int], gradient: Tensor) -> None:
    """Add a joined gradient to the sums of the weights that it belongs to, with `sizes` rows each."""
    for buffer, part in zip(buffers, gradient.split(list(sizes)), strict=True):
        buffer.add(part)


def joined(sums: Sequence[Tensor | None]) -> Tensor | None:
    """The tensor that these sums are all parts of, one after another; None if there is none."""
    first = sums[0]
    if first is None or len(sums) == 1:
        return first
    whole, end = first._base, first.data_ptr()
    if whole is None or whole.data_ptr() != end or not whole.is_contiguous():
        return None
    for part in sums:
        if part is None or part._base is not whole or part.data_ptr() != end or not part.is_contiguous():
            return None
        end += part.numel() * part.element_size()
    return whole if end == whole.data_ptr() + whole.numel() * whole.element_size() else None


def product(left: Tensor, right: Tensor) -> Tensor:
    """left · right. On a GPU, that of half precision is float32, without rounding before."""
    return torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda and left.dtype in HALF else left @ right


@lru_cache
def adds_in_place(dtype: torch.dtype) -> bool:
    """Whether torch adds a product of this dtype to a float32 matrix on this GPU."""
    ones = torch.ones(16, 16, dtype=dtype, device="cuda")
    total = torch.full((16, 16), 0.5, device="cuda")
    try:
        torch.addmm(total, ones.t(), ones, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):  # an older torch wants one dtype
        return False
    return bool((total == 16.5).all())


class Weights:
    """The trained parameters by name, and the float32 master of each."""

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        dtype: torch.dtype = torch.float32,
        exact: Container[str] = (),
        host: bool = False,
    ):
        """`dtype` is what the model computes in: parameters are changed to it, except those named in `exact`, which become float32.
        Masters are copies of the original parameters. `host`: masters that are copies, and the moments, are in host memory."""
        self.parameters: dict[str, nn.Parameter] = dict(named)
        self.masters: dict[str, Tensor] = {}
        self.host = host
        self._host_sums: dict[str, Tensor] = {}  # gradients of masters in host memory, on the model's device
        for name, parameter in self.parameters.items():
            if parameter.dtype == torch.float32 and (dtype == torch.float32 or name in exact):
                self.masters[name] = parameter
                continue
            full = parameter.data.float()
            parameter.data = full if name in exact else full.to(dtype)
            if parameter.dtype == torch.float32:
                self.masters[name] = parameter
                continue
            master = host_copy(full, full.device) if host else full.clone()
            self.masters[name] = master
            buffer = GradientBuffer(master, self._host_sums if host else None, name)
            parameter.gradient_buffer = buffer  # the gradients are added up there
            parameter.register_post_accumulate_grad_hook(buffer.collect)

    def gradients(self) -> dict[str, Tensor]:
        """The gradients by name, on the model's device; without those of weights that have none."""
        sums = {name: self._host_sums.get(name, master.grad) for name, master in self.masters.items()}
        return {name: gradient for name, gradient in sums.items() if gradient is not None}

    def put_gradient(self, name: str, gradient: Tensor) -> None:
        """Set the gradient of a weight."""
        if self.host and self.masters[name] is not self.parameters[name]:
            self._host_sums[name] = gradient
        else:
            self.masters[name].grad = gradient

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for tensor in (*self.parameters.values(), *self.masters.values()):
            tensor.grad = None
        self._host_sums.clear()

    def publish(self) -> None:
        """Write the masters into the model."""
        copied = [name for name, parameter in self.parameters.items() if self.masters[name] is not parameter]
        if copied:
            torch._foreach_copy_([self.parameters[name].data for name in copied], [self.masters[name] for name in copied])

    def tensors(self) -> dict[str, Tensor]:
        """The masters, detached, by name."""
        return {name: master.detach() for name, master in self.masters.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load these values; names and shapes must be exactly those of the model."""
        check_names("weights", tensors, self.masters)
        for name, master in self.masters.items():
            put(master, tensors[name])
        self.publish()


def check_names(what: str, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raises an error if names or shapes differ; it names the first."""
    for name, tensor in wanted.items():
        if name not in tensors:
            raise TurnwiseError(f"{what}: {name!r} is missing. Is this a state of the same model, with the same adapters and critic?")
        if tensors[name].shape != tensor.shape:
            raise TurnwiseError(f"{what}: {name!r} has shape {tuple(tensors[name].shape)}, the model's has {tuple(tensor.shape)}")
    strange = set(tensors) - set(wanted)
    if strange:
        raise TurnwiseError(f"{what}: {sorted(strange)[0]!r} is not in the model. Is this a state of another model?")
