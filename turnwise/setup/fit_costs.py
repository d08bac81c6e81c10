"""What a choice of settings costs in time: estimates.

They come from the operations and bytes that a choice adds, at the rates that were measured on one H200; on another GPU the seconds differ,
and the shares less so. What was not measured is an assumption and is marked as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnwise.cluster.service_times import EngineTimes, Machine
from turnwise.engines.prefill import ON_A_LARGE_GPU
from turnwise.learn.footprint import EIGHT_BIT, EXACT, LANES, MOST_TOKENS, Demand, last, recorded_prompts

HOST_BYTES_PER_S = 2.5e10  # assumption: what a PCIe 4.0 slot carries in one direction
RECORDING = 0.02  # seconds to record a step; 20 of a 1.5B model took 0.23 s
STEP_TOKENS = 131072  # of an optimiser step that shares refer to
SAMPLED = 1 / 8  # of these tokens
STEPS = 8  # of an iteration
MOVED = 16.0  # bytes per weight that a micro-batch moves for its gradients: written, read, added, and the weights read again


@dataclass(frozen=True)
class Cost:
    """The extra time of a choice: as a share of a part of the iteration, or in seconds each time."""

    share: float = 0.0
    of: str = "an update"
    seconds: float = 0.0
    each: str = ""

    @property
    def words(self) -> str:
        if self.seconds:
            return f"+{self.seconds:.2g} s per {self.each}" + (f" (+{self.share:.0%} of {self.of})" if self.share else "")
        return f"+{self.share:.0%} of {self.of}" if self.share >= 0.005 else "nothing measurable"


def _update_seconds(demand: Demand, machine: Machine) -> float:
    """Seconds of the matrix products of one optimiser step."""
    return 6.0 * (demand.shape.used + demand.shape.head / 8) * STEP_TOKENS / machine.flop_per_s


def _decode_seconds(demand: Demand, machine: Machine, rows: int) -> float:
    """Seconds of decoding per token, with a cache for so many rows of the longest length: twice as many of half of it."""
    lanes = max(1, min(demand.slots, 2 * rows))
    return EngineTimes(demand.shape, machine).decode(lanes, demand.longest / 2) / lanes


def _cache(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Fewer rows at the same time read the weights more often."""
    now, then = (_decode_seconds(after, machine, rows) for rows in (after.rows, after.slots))
    return Cost(max(0.0, now / then - 1), "decoding")


def _prefill(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Every forward pass over prompts reads the weights again."""
    read, computed = after.width * after.shape.matrices / machine.copy_bytes_per_s, 2.0 * after.shape.used / machine.flop_per_s
    return Cost((1 / max(1, after.prefill) - 1 / ON_A_LARGE_GPU) * read / computed, "reading prompts")


def _prompt_seconds(demand: Demand, machine: Machine) -> float:
    """Seconds of reading what is not sampled of an optimiser step's tokens, in the native engine."""
    if not (demand.slots and demand.prefill):
        return 0.0
    computed = 2.0 * demand.shape.used * (1 - SAMPLED) * STEP_TOKENS / machine.flop_per_s
    return computed * (1 + _prefill(demand, demand, machine).share)


def _tokens(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Every micro-batch adds its gradients to those of all weights."""
    moved = MOVED * after.trained / machine.copy_bytes_per_s

    def batches(tokens: int) -> float:
        return STEP_TOKENS / max(1, tokens) * moved

    return Cost((batches(after.read) - batches(MOST_TOKENS)) / _update_seconds(after, machine))


def _recompute(before: Demand, after: Demand, machine: Machine) -> Cost:
    """A forward pass is a third of an update; of each layer, the halves that keep nothing are computed again."""
    shape = after.shape
    mlp, missing = 3 * shape.hidden / shape.used, 1 - min(after.attention, shape.layers) / shape.layers
    all_of_it, kept = sum(shape.middles), sum(last(shape.middles, after.mlp))
    return Cost(((1 - mlp * all_of_it) * missing + mlp * (all_of_it - kept)) / 3)


def _sleep(before: Demand, after: Demand, machine: Machine) -> Cost:
    recorded = sum(size <= after.slots for size in LANES) + len(recorded_prompts(after.shape)) if after.graphs else 0
    return Cost(seconds=recorded * RECORDING, each="iteration")


def _reference(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Every micro-batch of its pass brings the layers to the device."""
    seconds = after.width * after.shape.matrices / HOST_BYTES_PER_S
    return Cost(STEP_TOKENS / max(1, after.read) * seconds / _update_seconds(after, machine))


def _moments(before: Demand, after: Demand, machine: Machine) -> Cost:
    return Cost(100.0 * after.trained / machine.copy_bytes_per_s / _update_seconds(after, machine))


def _place(before: Demand, after: Demand, machine: Machine) -> Cost:
    """The state goes to the device and back, both ways at the same time."""
    masters = 0 if after.rank or after.width == 4 else 4
    seconds = (masters + (EIGHT_BIT if after.moments == "8bit" else EXACT)) * after.trained / HOST_BYTES_PER_S
    return Cost(seconds / _update_seconds(after, machine), seconds=seconds, each="optimiser step")


def _lora(before: Demand, after: Demand, machine: Machine) -> Cost:
    return Cost()


def _four_bit(before: Demand, after: Demand, machine: Machine) -> Cost:
    """Every micro-batch unpacks the weights twice."""
    moved = 2 * 2.5 * after.shape.matrices / machine.copy_bytes_per_s
    return Cost(STEP_TOKENS / max(1, after.read) * moved / _update_seconds(after, machine))


COSTS: dict[str, Callable[[Demand, Demand, Machine], Cost]] = {
    "prefill": _prefill,
    "cache": _cache,
    "tokens": _tokens,
    "recompute": _recompute,
    "sleep": _sleep,
    "reference": _reference,
    "moments": _moments,
    "place": _place,
    "lora": _lora,
    "four_bit": _four_bit,
}


def seconds(demand: Demand, machine: Machine | None = None) -> float:
    """Seconds of an optimiser step with these settings, of the prompts and the decoding that belong to it, and of its part of what happens
    once in an iteration. It serves to compare settings with each other."""
    machine = machine or Machine()
    chosen = {
        "tokens": True,
        "recompute": True,
        "reference": demand.reference == "host",
        "moments": demand.moments == "8bit",
        "place": demand.place == "host",
        "four_bit": demand.four_bit,
    }
    shares = sum(COSTS[name](demand, demand, machine).share for name, own in chosen.items() if own)
    once = _sleep(demand, demand, machine).seconds if demand.sleeps else 0.0
    decoding = SAMPLED * STEP_TOKENS * _decode_seconds(demand, machine, demand.rows) if demand.slots else 0.0
    return _update_seconds(demand, machine) * (1 + shares) + _prompt_seconds(demand, machine) + decoding + once / STEPS
