"""Is it faster to compute the reference's log-probs while the engine decodes, on the same GPU, than one after the other?

    python benchmarks/overlap.py                    # 1.5B shape on a GPU, about a minute; writes overlap.json beside this file
    python benchmarks/overlap.py --issued           # the forward is launched kernel by kernel, as the learner does it now
    python benchmarks/overlap.py --size tiny        # seconds, on a CPU: one after the other, nothing overlaps

Two streams of one GPU have work all the time. One replays a decode step of the native engine: 128 rows at 768 tokens. The other computes
log-probs of the learner's reference: a micro-batch of sequences of 700 + 100 tokens, without gradient, by the learner's own forward. Both
are recorded as graphs, so that the host is in none of these figures. Kernels of a graph have the priority of the stream on which they
were recorded, so each is recorded on the stream that replays it. Weights are random, bfloat16; the two models have weights of their own.

For each number of tokens in a micro-batch: `step_ms` and `ms_per_1000_tokens` alone, as means of a measurement before and one after those
of both at once (`apart`: how far these two are from each other), then both at once, with decode steps of higher priority
(`decode first`) and of the same (`equal`):

    steps, tokens    what was done in `ms`
    gain             (steps × step alone + tokens × token alone) / ms; 1: no gain over one after the other
    gain_at_best     the same with the time of a token in the best micro-batch: small ones cost more per token
    slowdown         of a decode step, compared with one alone
    saved_s          what an iteration would save

The iteration is that of benchmarks/iteration.py in window context: 50 turns of 128 rows, so 50 × 99 = 4,950 decode steps and 5.12 million
tokens to score, which take 24.3 s alone (iteration-window-tiles.json). If s tokens are scored during a decode step, which takes e ms
instead of d, and a token in the best micro-batch takes c ms alone, then

    saved = n · (d + s · c − e), where n = min(4950, 5120000 / s) is the number of steps in which there is something to score.

It is an upper bound: in the first turn there is nothing to score yet, and prompts are read between decode steps. `gap` is the largest
difference between log-probs of the last overlapped pass and those that the learner gives, in nats: 0, unless the streams disturb each
other.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from iteration import TINY, Shape, make_model
from results import need_gpu, publish

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.learn import Learner, LearnerSettings, forward, learner, pack
from turnwise.learn.packing import Packed
from turnwise.objectives import Loss

PIECES = (1, 2, 4, 10, 40)  # sequences of a micro-batch
PRIORITIES = {"decode first": -1, "equal": 0}  # of the stream with decode steps; the other one has 0, the lowest
AHEAD = {"step": 4, "piece": 2}  # launches under way: the GPU never waits for the host
FEWEST = 6  # launches in a measurement


# What is measured.


class Lane:
    """Work that is launched again and again: on a stream, with so many launches under way; without one, on a CPU, it is done at once."""

    def __init__(self, work: Callable[[], Any], stream: Any, ahead: int):
        self.work, self.stream, self.ahead = work, stream, ahead
        self.marks: list[Any] = []

    def begin(self, start: Any) -> None:
        self.marks = []
        if self.stream is not None:
            self.stream.wait_event(start)

    def fill(self) -> bool:
        """Launch the work, unless enough is under way."""
        if self.stream is not None and len(self.marks) >= self.ahead and not self.marks[-self.ahead].query():
            return False
        with torch.cuda.stream(self.stream):
            self.work()
        self.marks.append(now(self.stream))
        return True


def now(stream: Any) -> Any:
    """This moment on a stream, or on a CPU."""
    if stream is None:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def between(start: Any, end: Any) -> float:
    """Milliseconds."""
    found: float = 1000 * (end - start) if isinstance(start, float) else start.elapsed_time(end)
    return found


def timed(lanes: Sequence[Lane], seconds: float) -> list[list[float]]:
    """When each launch of each lane was done, in milliseconds from the start, while all lanes have work for so many seconds. Nothing waits
    for the whole GPU in that time."""
    wait(lanes)
    start = now(lanes[0].stream)
    for lane in lanes:
        lane.begin(start)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or min(len(lane.marks) for lane in lanes) < FEWEST:
        filled = [lane.fill() for lane in lanes]
        if not any(filled):
            time.sleep(2e-5)
    wait(lanes)
    return [[between(start, mark) for mark in lane.marks] for lane in lanes]


def wait(lanes: Sequence[Lane]) -> None:
    if lanes[0].stream is not None:
        torch.cuda.synchronize()


# What is computed from it.


def alone(done: Sequence[float]) -> float:
    """Milliseconds of one launch, without the first."""
    return (done[-1] - done[0]) / (len(done) - 1)


def count(done: Sequence[float], end: float) -> float:
    """How many launches were done at this time, with the share of the one under way."""
    whole = bisect_right(done, end)
    if whole == len(done):
        return float(whole)
    before = done[whole - 1] if whole else 0.0
    return whole + (end - before) / (done[whole] - before)


def overlapped(steps: Sequence[float], pieces: Sequence[float]) -> tuple[float, float, float]:
    """Decode steps, micro-batches and milliseconds of the time in which both lanes had work. It ends with a whole micro-batch where there
    is one, because the share of a long one under way would be a guess."""
    end = max((piece for piece in pieces if piece <= steps[-1]), default=steps[-1])
    return count(steps, end), count(pieces, end), end


def gain(steps: float, tokens: float, ms: float, step_ms: float, token_ms: float) -> float:
    """The time of one after the other, divided by that of both at once."""
    return (steps * step_ms + tokens * token_ms) / ms


def saved(shape: Shape, steps: float, tokens: float, ms: float, step_ms: float, token_ms: float) -> float:
    """Seconds that an iteration saves, as the head of this file says."""
    every, all_tokens = work_of(shape)
    some = min(every, all_tokens * steps / tokens)
    return some * (step_ms + tokens / steps * token_ms - ms / steps) / 1000


def work_of(shape: Shape) -> tuple[int, int]:
    """Decode steps of an iteration, and tokens to score."""
    return shape.turns * (shape.response - 1), shape.groups * shape.members * shape.turns * shape.longest


# What runs.


class Bench:
    """A decode step and the reference's forward, on streams of their own if there is a GPU."""

    def __init__(self, shape: Shape, issued: bool = False):
        self.shape, self.device = shape, "cpu" if shape.size == "tiny" else "cuda"
        self.recorded = self.device == "cuda" and not issued
        settings = LearnerSettings(
            loss=Loss(kl_coef=0.01), dtype="bfloat16" if self.device == "cuda" else "float32", tokens_per_batch=32768
        )
        self.learner = Learner(make_model(shape, self.device), settings)
        self.low = torch.cuda.Stream() if self.device == "cuda" else None
        self.known: dict[Any, torch.Tensor] = {}  # what recorded passes read
        self.steps = self._gpu_steps() if self.device == "cuda" else dict.fromkeys(PRIORITIES, self._cpu_step())

    # The decode step.

    def _gpu_steps(self) -> dict[str, Lane]:
        from engine_tuning import CASES, Step

        from turnwise.engines.native.mail import Results

        step = Step(self.shape.size)
        case = CASES["128 at 768"]
        step.prepare(*case)
        rows = case[0]
        runner, results = step.runner, Results(rows, step.runner.weights.device)
        runner.tables.last.zero_()

        def decode() -> None:
            with torch.no_grad():
                runner._decode_into(step.control, results, runner.switches.way(rows), None)

        lanes = {}
        for name, priority in PRIORITIES.items():
            stream = torch.cuda.Stream(priority=priority)
            lanes[name] = Lane(Recorded(decode, stream), stream, AHEAD["step"])
        return lanes

    def _cpu_step(self) -> Lane:
        """The same decode step again and again, as a recorded one."""
        shape, rows = self.shape, self.shape.groups * self.shape.members
        engine: Any = NativeEngine(self.learner.model, max_batch=rows, max_length=shape.longest + 1, cache_memory=2**26)
        prompts = np.random.default_rng(0).integers(0, shape.model["vocab_size"], (rows, shape.prompt)).tolist()
        sampling = Sampling(max_tokens=shape.response)
        engine.submit([Request(n, ids, sampling, seed=n, sequence=n) for n, ids in enumerate(prompts)])
        while len(engine._rows) < rows or any(row.todo > 1 for row in engine._rows):
            engine._advance()
        step = engine._plan()
        return Lane(lambda: engine._runner.launch(step), None, AHEAD["step"])

    # The reference's forward.

    def packed(self, sequences: int) -> Packed:
        """Turns of window context: random tokens."""
        shape, rng, found = self.shape, np.random.default_rng(sequences), []
        for number in range(sequences):
            prompt, response = (rng.integers(0, shape.model["vocab_size"], size) for size in (shape.prompt, shape.response))
            turn = Turn(anchor=0, reward=0.0, prompt_ids=prompt.tolist(), response_ids=response.tolist())
            found.append(Trajectory(number, number, turns=[turn]))
        return pack(found)

    def piece(self, packed: Packed) -> tuple[Lane, list[torch.Tensor]]:
        """A lane that scores a micro-batch, and where its last log-probs are. It does what `Learner.reference_logprobs` does, without the
        copy to the host at its end, which waits."""
        found: list[torch.Tensor] = []

        def score() -> None:
            reference: Any = self.learner.reference
            with torch.no_grad(), reference.active(), self.learner._mode(reference.policy, training=False):
                found[:] = [self.learner.forward(reference.policy, packed, None)[0]]

        if not self.recorded:
            return Lane(score, self.low, AHEAD["piece"]), found
        try:
            with ExitStack() as patched:
                for module in (forward, learner):
                    patched.enter_context(patch.object(module, "sent", self._sent))
                replay = Recorded(score, self.low)
        except RuntimeError as error:  # a pass that cannot be recorded can still be launched
            self.recorded = False
            print("the forward is not recorded:", str(error).splitlines()[0], flush=True)
            return self.piece(packed)
        return Lane(replay, self.low, AHEAD["piece"]), found

    def _sent(self, array: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
        """As `turnwise.learn.sending.sent`, but what was sent once stays: a graph cannot hold a copy from pinned memory."""
        found = torch.as_tensor(array, dtype=dtype)
        if found.device.type == device.type:
            return found
        key = found.dtype, found.numpy().tobytes()
        if key not in self.known:
            self.known[key] = found.to(device)
        return self.known[key]

    # Both.

    def measure(self, sequences: int, seconds: float) -> dict[str, Any]:
        """All that is measured with a micro-batch of so many sequences."""
        packed = self.packed(sequences)
        tokens, wanted = len(packed.ids), self.learner.reference_logprobs(packed)
        lane, found = self.piece(packed)
        single = [self._alone(lane, tokens, seconds / 5)]
        both = {}
        for name, steps in self.steps.items():
            done, pieces, ms = overlapped(*timed([steps, lane], seconds))
            both[name] = {"steps": done, "tokens": pieces * tokens, "ms": ms}
        gap = float(np.abs(found[0].float().cpu().numpy() - wanted).max())
        single.append(self._alone(lane, tokens, seconds / 5))
        means = [sum(values) / 2 for values in zip(*single, strict=True)]
        apart = [abs(one - two) / mean for one, two, mean in zip(*single, means, strict=True)]
        return {"tokens": tokens, "step_ms": means[0], "token_ms": means[1], "apart": apart, "gap": gap, **both}

    def _alone(self, lane: Lane, tokens: int, seconds: float) -> tuple[float, float]:
        """Milliseconds of a decode step and of a token, each alone."""
        step, piece = (alone(timed([one], seconds)[0]) for one in (self.steps["equal"], lane))
        return step, piece / tokens


class Recorded:
    """Work as a graph, which must be replayed on the same stream. It keeps the work, and with it the tensors that the graph uses: a graph
    alone does not, and would use memory that others have by then."""

    def __init__(self, work: Callable[[], Any], stream: Any):
        self.work = work
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):  # also if it fails, the stream of before is the current one afterwards
            work()  # compiles its kernels
            with torch.cuda.graph(self.graph, stream=stream):
                work()

    def __call__(self) -> None:
        self.graph.replay()


def report(shape: Shape, measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Gains, and what an iteration would save with the best setting."""
    least = min(one["token_ms"] for one in measured)
    table, savings = [], []
    for one in measured:
        step_ms, own = one["step_ms"], one["token_ms"]
        line: dict[str, Any] = {
            "tokens": one["tokens"], "step_ms": round(step_ms, 3), "ms_per_1000_tokens": round(1000 * own, 3),
            "apart": [round(value, 3) for value in one["apart"]], "gap": one["gap"],
        }  # fmt: skip
        for name in PRIORITIES:
            done = one[name]["steps"], one[name]["tokens"], one[name]["ms"]
            seconds = saved(shape, *done, step_ms, least)
            savings.append((seconds, one["tokens"], name))
            line[name] = {
                "steps": round(done[0], 1), "tokens": round(done[1]), "ms": round(done[2], 1),
                "gain": round(gain(*done, step_ms, own), 3), "gain_at_best": round(gain(*done, step_ms, least), 3),
                "slowdown": round(done[2] / done[0] / step_ms, 2), "saved_s": round(seconds, 2),
            }  # fmt: skip
        table.append(line)
    (steps, tokens), (seconds, piece, name) = work_of(shape), max(savings)
    step_ms = sum(one["step_ms"] for one in measured) / len(measured)
    iteration = {
        "decode_steps": steps, "tokens": tokens, "decode_alone_s": round(steps * step_ms / 1000, 2),
        "reference_alone_s": round(tokens * least / 1000, 2), "best": {"tokens": piece, "priority": name, "saved_s": round(seconds, 2)},
    }  # fmt: skip
    return {"micro_batches": table, "iteration": iteration}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("1.5b", "0.5b", "tiny"), default="1.5b")
    parser.add_argument("--seconds", type=float, help="of both at once, for each setting; 1.5 on a GPU if left out")
    parser.add_argument("--issued", action="store_true", help="launch the forward kernel by kernel instead of replaying a graph")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    tiny = options.size == "tiny"
    if not tiny:
        need_gpu("--size tiny")
    shape = TINY if tiny else Shape(size=options.size)
    begun, seconds = time.perf_counter(), options.seconds or (0.05 if tiny else 1.5)
    bench, measured = Bench(shape, options.issued), []
    for sequences in PIECES:
        measured.append(bench.measure(sequences, seconds))
        print(f"{measured[-1]['tokens']} tokens: measured after {time.perf_counter() - begun:.0f} s", flush=True)
    result = {
        "machine": "CPU" if tiny else torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "size": options.size,
        "forward": "recorded" if bench.recorded else "issued",
        "seconds": seconds,
        **report(shape, measured),
    }
    publish(result, options.out or (None if tiny else Path(__file__).with_name("overlap.json")))


if __name__ == "__main__":
    main()
