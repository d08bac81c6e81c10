"""Log-probabilities (and entropies) of given tokens from hidden states, without the full logits.

A vocabulary of 150,000 makes the logits of one batch larger than the model. Here they exist for one chunk of tokens at a time: the
forward pass keeps one number per token (the log of the softmax's denominator), and the backward pass recomputes each chunk. Products are
accumulated in float32 whatever the precision of the weights, because a log-probability that is off by 0.05 is a ratio that is off by 5 %.

Where memory allows (`keep`), the forward pass also caches the gradient of each log-probability by its row's logits, in the weights'
precision. The gradient of the loss by a log-probability is one number per row, which multiplies that row: so the backward pass needs no
logits, and is two products over all tokens.

The temperature divides the logits as the sampler does, so these are log-probabilities of the distribution that the tokens were drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.learn.weights import HALF, GradientBuffer, add_product, buffer_of, product
from turnwise.util.errors import TurnwiseError

CHUNK_ELEMENTS = {"cpu": 2**22, "cuda": 2**28}  # logits that exist at once, in numbers; more is not faster


@dataclass(frozen=True)
class Head:
    """The output layer of a causal language model: logits = bound(scale · (hidden · weightᵀ + bias))."""

    weight: Tensor  # [vocabulary, hidden size]
    bias: Tensor | None = None  # [vocabulary]
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Head:
        """The head of a transformers model, with the factors that its config names."""
        layer: Any = model.get_output_embeddings()
        if not isinstance(layer, nn.Linear):
            raise TurnwiseError(
                f"{type(model).__name__}: the output layer is {type(layer).__name__}, and only a plain linear layer can be trained here "
                "(no adapters on it; leave lm_head out of LoRA's targets)"
            )
        config: Any = model.config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        scale = float(getattr(text, "logit_scale", None) or 1.0) / float(getattr(text, "logits_scaling", None) or 1.0)
        return cls(layer.weight, layer.bias, scale, getattr(text, "final_logit_softcapping", None))


def token_logprobs(
    hidden: Tensor,
    head: Head,
    target: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk: int | None = None,
    keep: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log p(target) of each row of `hidden`, float32, with gradient; and the entropy of each row's distribution if requested. `keep`: use
    memory of the size of the logits in the weights' precision, so that the backward pass does not compute them again (it does anyway if the
    entropy has a gradient)."""
    if not temperature > 0:
        raise TurnwiseError(f"temperature is a number > 0, not {temperature!r}; tokens of a greedy sampler have log-probs at 1.0")
    size = chunk or max(1, CHUNK_ELEMENTS.get(hidden.device.type, 2**24) // head.weight.shape[0])
    keep = keep and torch.is_grad_enabled() and bool(hidden.requires_grad or head.weight.requires_grad)
    cap = None if head.softcap is None else head.softcap / temperature  # bound(z)/T is a bound at cap/T of z/T
    logprob, spread = _TokenLogprobs.apply(hidden, head.weight, head.bias, target, head.scale / temperature, cap, entropy, size, keep)
    return logprob, spread if entropy else None


class _TokenLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """Chunked log-softmax of a linear layer. Second derivatives are left out: no objective here needs them. Letters after a name are axes:
    R rows (response tokens), H hidden size, V vocabulary. `hidden` is [R, H], `weight` [V, H], `target` and the outputs [R]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        scale: float,
        cap: float | None,
        entropy: bool,
        chunk: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        logprob = torch.empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        normaliser, entropies = torch.empty_like(logprob), torch.zeros_like(logprob)
        weight_VH, kernels = _ready(weight), _kernels(weight, bias, cap)
        cached_RV = weight_VH.new_empty(len(hidden), len(weight_VH)) if keep else None
        for part in _chunks(len(hidden), chunk):
            if kernels is not None:
                logits_RV = product(hidden[part].to(weight_VH.dtype), weight_VH.t())
                kernels.pick(logits_RV, target[part], scale, logprob[part], normaliser[part], entropies[part])
                if cached_RV is not None:
                    ones = torch.ones_like(normaliser[part])
                    kernels.logit_gradients(
                        logits_RV, target[part], normaliser[part], entropies[part], ones, None, scale, weight_VH.dtype, cached_RV[part]
                    )
                continue
            logits_RV = _logits(hidden[part], weight_VH, bias, scale, cap)
            normaliser[part] = log_sum = logits_RV.logsumexp(-1)
            logprob[part] = logits_RV.gather(-1, target[part, None])[:, 0] - log_sum
            if entropy:
                entropies[part] = _entropy(logits_RV, log_sum)
            if cached_RV is not None:
                cached_RV[part] = _logit_gradients(
                    logits_RV, target[part], log_sum, entropies[part], torch.ones_like(log_sum), None, scale, cap
                )
        ctx.save_for_backward(hidden, weight, bias, target, normaliser, entropies, cached_RV)
        ctx.settings, ctx.buffer = (scale, cap, chunk), buffer_of(weight) if weight.is_cuda else None
        ctx.set_materialize_grads(False)  # an entropy that is only reported is free in the backward pass
        if not entropy:
            ctx.mark_non_differentiable(entropies)
        return logprob, entropies

    @staticmethod
    def backward(ctx: Any, logprob_grad: Tensor | None, entropy_grad: Tensor | None) -> tuple[Any, ...]:
        hidden, weight, bias, target, normaliser, entropies, cached_RV = ctx.saved_tensors
        scale, cap, chunk = ctx.settings
        if logprob_grad is None:
            logprob_grad = torch.zeros_like(normaliser)
        # The gradient of a sum is one number for all rows; kernels read one number per row.
        logprob_grad, entropy_grad = logprob_grad.contiguous(), None if entropy_grad is None else entropy_grad.contiguous()
        if cached_RV is not None and entropy_grad is None:
            return (*_from_cached(cached_RV, hidden, weight, bias, logprob_grad, ctx.needs_input_grad[:3], ctx.buffer), *[None] * 6)
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        buffer = ctx.buffer if need_weight else None
        weight_VH, kernels = _ready(weight), _kernels(weight, bias, cap)
        hidden_grad = torch.empty_like(hidden) if need_hidden else None
        weight_grad = torch.zeros(weight.shape, dtype=normaliser.dtype, device=weight.device) if need_weight and buffer is None else None
        bias_grad = torch.zeros(len(weight), dtype=normaliser.dtype, device=weight.device) if need_bias and bias is not None else None
        for part in _chunks(len(hidden), chunk):
            part_entropy_grad = None if entropy_grad is None else entropy_grad[part]
            known = normaliser[part], entropies[part], logprob_grad[part], part_entropy_grad
            if kernels is not None:
                logit_grad_RV = kernels.logit_gradients(
                    product(hidden[part].to(weight_VH.dtype), weight_VH.t()), target[part], *known, scale, weight_VH.dtype
                )
            else:
                logit_grad_RV = _logit_gradients(_logits(hidden[part], weight_VH, bias, scale, cap), target[part], *known, scale, cap)
            if bias_grad is not None:
                bias_grad += logit_grad_RV.sum(0)
            logit_grad_RV = logit_grad_RV.to(weight_VH.dtype)
            if hidden_grad is not None:
                hidden_grad[part] = (logit_grad_RV @ weight_VH).to(hidden.dtype)
            if buffer is not None:
                add_product([buffer], [len(weight)], logit_grad_RV, hidden[part].to(weight_VH.dtype))
            if weight_grad is not None:
                weight_grad += product(logit_grad_RV.t(), hidden[part].to(weight_VH.dtype))
        return (
            hidden_grad,
            None if weight_grad is None else weight_grad.to(weight.dtype),
            None if bias_grad is None or bias is None else bias_grad.to(bias.dtype),
            *[None] * 6,
        )


def _from_cached(
    cached_RV: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    logprob_grad: Tensor,
    needs_grad: Sequence[bool],
    buffer: GradientBuffer | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of hidden states, weight and bias if the log-probs have gradient `logprob_grad`, from what a gradient of 1 would be.
    That of a weight with a buffer is added there."""
    weight_VH, weight_grad = _ready(weight), None
    hidden_grad = (product(cached_RV, weight_VH) * logprob_grad[:, None]).to(hidden.dtype) if needs_grad[0] else None
    if needs_grad[1]:
        scaled = (hidden * logprob_grad[:, None]).to(weight_VH.dtype)
        if buffer is not None:
            add_product([buffer], [len(weight)], cached_RV, scaled)
        else:
            weight_grad = product(cached_RV.t(), scaled).to(weight.dtype)
    bias_grad = (logprob_grad @ cached_RV.to(logprob_grad.dtype)).to(bias.dtype) if needs_grad[2] and bias is not None else None
    return hidden_grad, weight_grad, bias_grad


def _logit_gradients(
    logits_RV: Tensor,
    target: Tensor,
    normaliser: Tensor,
    entropies: Tensor,
    logprob_grad: Tensor,
    entropy_grad: Tensor | None,
    scale: float,
    cap: float | None,
) -> Tensor:
    """The gradient of the raw logits if the log-prob of the target has gradient `logprob_grad` and the entropy has `entropy_grad`."""
    log_p = logits_RV - normaliser[:, None]
    logit_grad_RV = log_p.exp()
    factor = -logprob_grad[:, None]
    if entropy_grad is not None:  # d entropy / d logit = −p (log p + entropy)
        factor = factor - entropy_grad[:, None] * (log_p + entropies[:, None])
    logit_grad_RV = logit_grad_RV.mul_(factor)
    logit_grad_RV.scatter_add_(-1, target[:, None], logprob_grad[:, None])
    if cap is not None:
        logit_grad_RV = logit_grad_RV * (1 - (logits_RV / cap).square())
    return logit_grad_RV.mul_(scale)


def _kernels(weight: Tensor, bias: Tensor | None, cap: float | None) -> Any:
    """Kernels that pass over a chunk of logits once, if this head has them; otherwise None."""
    if not (weight.is_cuda and weight.dtype in HALF) or bias is not None or cap is not None or find_spec("triton") is None:
        return None
    from turnwise.learn.fused import kernels

    return kernels


def _chunks(total: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, total, size)]


def _ready(weight: Tensor) -> Tensor:
    """The weight in the type that products are taken in: as it is on a GPU, which accumulates in float32; float32 elsewhere."""
    return weight if weight.is_cuda or weight.dtype in (torch.float32, torch.float64) else weight.float()


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float, cap: float | None) -> Tensor:
    logits_RV = product(hidden.to(weight.dtype), weight.t())
    if bias is not None:
        logits_RV = logits_RV + bias.to(logits_RV.dtype)
    if scale != 1.0:
        logits_RV = logits_RV * scale
    return logits_RV if cap is None else cap * torch.tanh(logits_RV / cap)


def _entropy(logits_RV: Tensor, log_sum: Tensor) -> Tensor:
    log_p = logits_RV - log_sum[:, None]
    return -(log_p.exp() * log_p).sum(-1)
