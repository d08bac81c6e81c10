"""Where a token is sampled. On a CPU, and as the definition that every other way is tested against, by `sample` in this file. On a GPU by
one of three ways, which `engines/native/gpu_runner.py:GpuRunner._sample` chooses between: `sample_tiles.py` where every token may be drawn,
`sample_top_p.py` where top-p, top-k or min-p exclude some, and `hopper/sample.py`, which does both within the output layer's product.

Rows with different settings are sampled in one call, each with its own random numbers.

A row's random numbers are a pure function of its seed and of the token's position in the response: a counter-based hash (the finaliser of
SplitMix64, in wrapping 64-bit integers) gives one uniform number, and the token is where the cumulative distribution passes it. There is
no generator with a state, so a row draws the same tokens regardless of the other rows in the batch, after a restart in the middle of a
response, and on any device, as long as the logits are the same except for rounding. The cumulative sum is taken in float64, so that its
rounding never matters.

Top-k, top-p and min-p exclude tokens. Where they exclude the one that was drawn, the next number of the hash draws again from the whole
distribution; after `ATTEMPTS` draws, one more number draws from the tokens that are left. The distribution is the truncated one either
way, and whether one token is excluded can be told without finding out about all of them, which is what makes the draw fast on a GPU.

The log-prob of a token is that of the whole distribution at the row's temperature (1 if greedy), before truncation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
ATTEMPTS = 8  # draws from the whole distribution
UNIFORM_BITS = 52  # one bit fewer than a float64 holds: the largest number times a sum stays below the sum


class Sampled(NamedTuple):
    """One token per row and its log-prob. A row whose logits are not numbers has a log-prob that is not finite."""

    tokens: Tensor
    logprobs: Tensor


class Settings(Protocol):
    """What is read of a request's sampling settings (`engines/base.py:Sampling`)."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Columns:
    """The settings of a batch's rows as tensors on the device. `truncates` says whether any row has a top-k, top-p or min-p."""

    temperature: Tensor  # 1 if greedy
    greedy: Tensor
    top_k: Tensor  # the largest integer if there is no limit
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    truncates: bool

    @classmethod
    def of(cls, samplings: Sequence[Settings], seeds: Sequence[int], device: torch.device | str) -> Columns:
        def column(values: list[float] | list[int] | list[bool], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        no_limit = torch.iinfo(torch.int64).max
        return cls(
            temperature=column([s.temperature or 1.0 for s in samplings], torch.float32),
            greedy=column([s.temperature == 0 for s in samplings], torch.bool),
            top_k=column([s.top_k or no_limit for s in samplings], torch.int64),
            top_p=column([s.top_p for s in samplings], torch.float64),
            min_p=column([s.min_p for s in samplings], torch.float64),
            seed=column([signed(seed) for seed in seeds], torch.int64),
            truncates=any(s.temperature > 0 and (s.top_k or s.top_p < 1 or s.min_p) for s in samplings),
        )


def sample(logits: Tensor, columns: Columns, position: Tensor) -> Sampled:
    """One token for every row of `logits` [rows, vocabulary]; `position` is the index of that token in its response."""
    logprobs = torch.log_softmax(logits.float() / columns.temperature[:, None], dim=-1)
    weights = logprobs.exp()
    numbers = uniforms(columns.seed, position, ATTEMPTS + 1 if columns.truncates else 1)
    chosen = _where(weights, numbers[:, :ATTEMPTS])
    if columns.truncates:
        chosen = _first_kept(truncate(weights, columns), chosen, numbers[:, ATTEMPTS:])
    tokens = torch.where(columns.greedy, logprobs.argmax(dim=-1), chosen[:, 0])
    return Sampled(tokens, logprobs.gather(1, tokens[:, None])[:, 0])


def _where(weights: Tensor, numbers: Tensor) -> Tensor:
    """The tokens at which the cumulative sum of a row passes these shares of the whole [rows, numbers]."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    found = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True)
    return found.clamp(max=weights.shape[-1] - 1)  # only if the logits were not numbers


def _first_kept(kept: Tensor, attempts: Tensor, number: Tensor) -> Tensor:
    """The first of a row's attempts that no rule excludes [rows, 1]; where all are excluded, one of the tokens that are left."""
    good = kept.gather(1, attempts) > 0
    chosen = attempts.gather(1, good.int().argmax(dim=1, keepdim=True))
    if len(failed := (~good.any(dim=1)).nonzero()[:, 0]):
        chosen[failed] = _where(kept[failed], number[failed])
    return chosen


def truncate(weights: Tensor, columns: Columns) -> Tensor:
    """The probabilities with those of excluded tokens set to 0. A token stays if it is among the k most likely, if those before it among
    these hold less than `top_p` of their probability, and if it has at least `min_p` times the probability of the most likely. Of equally
    likely tokens the one with the smaller id comes first. The most likely token always stays."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(weights.shape[-1], device=weights.device)
    ordered = torch.where(rank < columns.top_k[:, None], ordered, 0.0)
    cumulative = ordered.cumsum(dim=-1, dtype=torch.float64)
    before = cumulative - ordered
    total = cumulative[:, -1:]
    inside = (before < columns.top_p[:, None] * total) | (columns.top_p[:, None] >= 1)
    likely = ordered >= columns.min_p[:, None] * ordered[:, :1]
    kept = torch.where((inside & likely) | (rank == 0), ordered, 0.0)
    return torch.zeros_like(weights).scatter(1, order, kept)


def uniforms(seed: Tensor, position: Tensor, count: int = 1) -> Tensor:
    """Numbers in [0, 1) for every pair of seed and position, along a new last dimension: a pure function of the two, on any device."""
    mixed = [_mix(_mix(seed + signed(GOLDEN)) + (position + 1) * signed(GOLDEN))]
    while len(mixed) < count:
        mixed.append(_mix(mixed[-1] + signed(GOLDEN)))
    return _shift(torch.stack(mixed, dim=-1), 64 - UNIFORM_BITS).double() * 2.0**-UNIFORM_BITS


def signed(number: int) -> int:
    """Any integer as the signed 64-bit integer with the same low 64 bits."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * signed(MIX_1)
    z = (z ^ _shift(z, 27)) * signed(MIX_2)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Right shift without sign: torch's own repeats the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
