"""How long the parts of an iteration take: measured on one H200, and scaled to other models and more GPUs.

Every time is a floor (operations at the rate of matrix products, bytes at the rate of copies) plus what the measurements showed beyond it.
The constants of `Machine` were fitted to measurements of November 2026. What was not measured is marked as an assumption: tensor
parallelism, sharding over ranks, and the network. docs/measurements/2026-11-cluster.md names the measurements and lists the assumptions.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turnwise.learn.shapes import ModelShape

OldPass = Literal["all", "sample", "none"]  # the sequences that a learner scores for old log-probs; `sample` is one micro-batch


@dataclass(frozen=True)
class Machine:
    """One GPU, its host, and the network between GPUs. The defaults are an NVIDIA H200."""

    copy_bytes_per_s: float = 4.23e12  # measured
    flop_per_s: float = 7.95e14  # measured: matrix products in bfloat16
    memory: float = 141e9
    memory_used: float = 0.92  # the share of it that may be planned with
    # decoding, measured: engine_steps_tiles.json
    decode_layer: float = 29.4e-6  # seconds per layer and step, independent of the work
    decode_sequence: float = 0.967e-6  # seconds per sequence and step: the draw of a token, without top-p
    cache_read: float = 1.057  # how fast attention reads more cache, compared with copies, which also write: engine_steps.json
    # elementwise work: seconds per token, layer and hidden unit; and how much slower attention is than matrix products
    prefill_unit: float = 20.5e-12  # measured: engine_steps_tiles.json
    score_unit: float = 26.3e-12  # measured: iteration-window-tiles.json
    score_attention: float = 1.52  # measured, as the next two: learner-1.5b-now.json
    update_unit: float = 118e-12
    update_attention: float = 1.73
    # credit and packing on the host, in seconds; every rank does all of it. Measured: iteration-*-auto.json
    pack_prompt_token: float = 7.1e-9  # per token of every turn's prompt
    pack_token: float = 52e-9  # per token of the packed sequences
    pack_sampled_token: float = 0.584e-6
    # assumptions
    node_gpus: int = 8  # GPUs of a node: no engine is larger
    link_bytes_per_s: float = 3.0e11  # what collectives reach per GPU inside a node
    network_bytes_per_s: float = 3.0e11  # and over several nodes
    hop: float = 10e-6  # seconds of a small all-reduce among the GPUs of one engine
    overlap: float = 0.8  # share of communication that hides behind computation, or the other way round
    optimiser_bytes: float = 32.0  # read and written per parameter and step
    tokens_per_batch: int = 32768  # tokens of a micro-batch per rank
    transfer_start: float = 0.14  # published: 0.18 s for 0.6B (1 + 1 GPU), 2.3 s for 32B (16 + 16 H200)
    transfer_bytes_per_s: float = 3.0e10


@dataclass(frozen=True)
class EngineTimes:
    """An engine on `gpus` GPUs (tensor parallel)."""

    model: ModelShape
    machine: Machine
    gpus: int = 1

    def decode(self, sequences: float, context: float) -> float:
        """Seconds of one step: a token for each of `sequences` with this many tokens in the cache on average."""
        model, machine = self.model, self.machine
        weights = weights_read(model, sequences) + model.head
        read = max(2.0 * weights / machine.copy_bytes_per_s, 2.0 * (model.used + model.head) * sequences / machine.flop_per_s)
        cache = sequences * context * model.cache_bytes / (machine.copy_bytes_per_s * machine.cache_read)
        fixed = machine.decode_layer * model.layers + machine.decode_sequence * sequences
        exchanged = 0.0 if self.gpus == 1 else 2 * model.layers * machine.hop
        return (read + cache) / self.gpus + fixed + exchanged

    def prefill(self, tokens: float, past: float) -> float:
        """Seconds to read this many new tokens, each of which attends to `past` tokens on average."""
        model, machine = self.model, self.machine
        operations = tokens * (2.0 * model.used + model.attention * past)
        exchanged = 0.0
        if self.gpus > 1:
            exchanged = 2 * model.layers * 2 * model.hidden * tokens * 2 * (self.gpus - 1) / self.gpus / machine.link_bytes_per_s
        elementwise = machine.prefill_unit * model.layers * model.hidden * tokens
        return (operations / machine.flop_per_s + elementwise) / self.gpus + exchanged


@dataclass(frozen=True)
class Sequences:
    """What a learner computes: tokens and sampled tokens of every sequence, and the tokens of all prompts of all turns."""

    tokens: np.ndarray
    sampled: np.ndarray
    prompts: int


@dataclass(frozen=True)
class LearnerTimes:
    """A learner over `ranks` GPUs (FSDP2)."""

    model: ModelShape
    machine: Machine
    ranks: int = 1

    def learn(self, batch: Sequences, steps: int, old: OldPass = "sample") -> float:
        """Seconds for old log-probs, the reference's, and an update in this many optimiser steps."""
        if not len(batch.tokens):
            return 0.0
        reference = self._pass(batch.tokens, batch.sampled, update=False)
        parts = [slice(first, None, steps) for first in range(min(steps, len(batch.tokens)))]
        step = self.machine.optimiser_bytes * self.model.parameters / self.ranks / self.machine.copy_bytes_per_s
        update = sum(self._pass(batch.tokens[part], batch.sampled[part], update=True) + step for part in parts)
        return self.old_logprobs(batch, old) + reference + update

    def old_logprobs(self, batch: Sequences, old: OldPass) -> float:
        """Seconds for old log-probs: a pass over everything; or over one micro-batch, after which those of the engine are taken."""
        if old == "none" or not len(batch.tokens):
            return 0.0
        number = len(batch.tokens)
        share = min(1.0, self.machine.tokens_per_batch / float(batch.tokens.sum())) if old == "sample" else 1.0
        chosen = np.linspace(0, number - 1, max(1, round(share * number))).round().astype(np.int64)
        return self._pass(batch.tokens[chosen], batch.sampled[chosen], update=False)

    def pack(self, batch: Sequences) -> float:
        """Seconds for credit and packing, on the host."""
        machine, tokens, sampled = self.machine, float(batch.tokens.sum()), float(batch.sampled.sum())
        return machine.pack_prompt_token * batch.prompts + machine.pack_token * tokens + machine.pack_sampled_token * sampled

    def seconds(self, tokens: np.ndarray, sampled: np.ndarray, update: bool) -> np.ndarray:
        """Seconds of each sequence on one GPU."""
        model, machine = self.model, self.machine
        unit, slower, passes = machine.score_unit, machine.score_attention, 1.0
        if update:
            unit, slower, passes = machine.update_unit, machine.update_attention, 3.0
        operations = 2.0 * model.used * tokens + 2.0 * model.head * sampled + slower * model.attention / 2 * tokens.astype(float) ** 2
        return passes * operations / machine.flop_per_s + unit * model.layers * model.hidden * tokens

    def _pass(self, tokens: np.ndarray, sampled: np.ndarray, update: bool) -> float:
        """Seconds until the last rank is done: its share of the sequences, and the weights that it gathers for each micro-batch."""
        compute = largest_share(self.seconds(tokens, sampled, update), self.ranks)
        if self.ranks == 1:
            return compute
        machine, weights = self.machine, 2.0 * self.model.parameters * (self.ranks - 1) / self.ranks
        micro_batches = max(1, int(np.ceil(tokens.sum() / self.ranks / machine.tokens_per_batch)))
        moved = weights * micro_batches * (2 if update else 1) + (2 * weights if update else 0.0)  # gradients are summed in 32 bits
        exchange = moved / (machine.link_bytes_per_s if self.ranks <= machine.node_gpus else machine.network_bytes_per_s)
        return max(compute, exchange) + (1 - machine.overlap) * min(compute, exchange)

    def transfer(self, shared: bool) -> float:
        """Seconds to send the weights to all engines; nothing if the engine has the learner's own."""
        if shared:
            return 0.0
        return self.machine.transfer_start + 2.0 * self.model.parameters / self.machine.transfer_bytes_per_s


def weights_read(model: ModelShape, sequences: float) -> float:
    """Parameters of the layers that a step over this many sequences reads. Of a mixture, the experts that one of them goes through, if all
    experts are chosen equally often."""
    if not model.experts:
        return float(model.matrices)
    mlps = 3 * model.mixtures * model.hidden * model.mlp * model.experts
    missed: float = (1 - model.active / model.experts) ** sequences
    return model.matrices - mlps * missed


def largest_share(seconds: np.ndarray, ranks: int) -> float:
    """The work of the busiest rank if each sequence goes to the rank with the least work, the longest first."""
    if ranks == 1:
        return float(seconds.sum())
    if len(seconds) > 64 * ranks:  # enough sequences for equal shares
        return float(max(seconds.sum() / ranks, seconds.max()))
    loads = [0.0] * ranks
    for one in np.sort(seconds)[::-1]:
        heapq.heapreplace(loads, loads[0] + float(one))
    return max(loads)
