"""How fast the learner is: a whole update against what the card's matrix products allow, and against padding with full logits.

    python benchmarks/learner.py                    a tiny model on the CPU, beside the padded baseline
    python benchmarks/learner.py --size 1.5b        the shape of a 1.5B model with random weights, on a GPU, bfloat16, within 80 GB
    python benchmarks/learner.py --size 1.5b --baseline
    python benchmarks/learner.py --size 1.5b --profile profile.txt     what a micro-batch's time goes into

Both sides compute the same GiGPO gradient of the same trajectories: the baseline pads turns to the longest of each batch, makes all
logits and takes their log-softmax, as a plain training loop does. Useful operations are 6 per weight of the layers and token, 6 per
weight of the output layer and response token, and three times the causal half of attention; what is recomputed is not useful. Prints
JSON; --write puts it next to this file.
"""

from __future__ import annotations

import argparse
import gc
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from kept import watch
from results import need_gpu, publish
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, pack
from turnwise.objectives import Loss

NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
SIZES = {"tiny": (128, 352, 4, 4, 4, 1000), "1.5b": (1536, 8960, 28, 12, 2, 151936)}


def make_model(size: str, device: str) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(**dict(zip(NAMES, SIZES[size], strict=True)), max_position_embeddings=16384, tie_word_embeddings=True)
    with torch.device(device):
        return Qwen2ForCausalLM(config)


def make_trajectories(count: int, turns: int, observation: int, response: int, vocabulary: int, context: str) -> list[Trajectory]:
    """Observations and responses vary between half and one and a half times the given lengths."""
    rng, found = np.random.default_rng(0), []
    for number in range(count):
        own, past = [], np.zeros(0, np.int64)
        for t in range(turns):
            fresh = rng.integers(0, vocabulary, rng.integers(observation // 2, observation * 3 // 2 + 1))
            said = rng.integers(0, vocabulary, rng.integers(response // 2, response * 3 // 2 + 1))
            prompt = np.concatenate([past, fresh]) if context == "full" else fresh
            past = np.concatenate([prompt, said])
            own.append(Turn(anchor=t, reward=float(rng.random() < 0.1), prompt_ids=prompt, response_ids=said))  # type: ignore[arg-type]
        found.append(Trajectory(number // 8, number, turns=own))
    return found


class Padded:
    """The baseline: one row per turn, padded to the longest of the batch, full logits, AdamW."""

    def __init__(self, model: Any, budget: int, half: bool, checkpointing: bool):
        self.model, self.budget, self.half = model.train(), budget, half
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.adam = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def update(self, found: list[Trajectory], values: Any) -> None:
        turns = [turn for trajectory in found for turn in trajectory.turns]
        device = next(self.model.parameters()).device
        start = 0
        while start < len(turns):
            end, longest = start, 0
            while end < len(turns):
                longest = max(longest, len(turns[end].prompt_ids) + len(turns[end].response_ids))
                if end > start and longest * (end + 1 - start) > self.budget:
                    break
                end += 1
            self._backward(turns[start:end], values[start:end], len(turns), device)
            start = end
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad()

    def _backward(self, turns: list[Turn], values: Any, total: int, device: Any) -> None:
        rows = [torch.as_tensor(np.concatenate([turn.prompt_ids, turn.response_ids])) for turn in turns]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        prompts = torch.tensor([len(turn.prompt_ids) for turn in turns], device=device)
        place = torch.arange(ids.shape[1], device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.half):
            logits = self.model(input_ids=ids, attention_mask=(place < lengths[:, None]).long(), use_cache=False).logits
        logprob = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        response = (place[1:] >= prompts[:, None]) & (place[1:] < lengths[:, None])
        ratio = (logprob - logprob.detach()).exp()
        advantage = torch.as_tensor(values, device=device)[:, None]
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        ((loss * response).sum(1) / response.sum(1)).sum().div(total).backward()


def timed(repeats: int, device: str, work: Any) -> dict[str, float]:
    """The best of several, after one that does not count; and the largest memory that it took."""
    best, done = float("inf"), None
    for repeat in range(repeats + 1):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        start = time.perf_counter()
        done = work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start) if repeat else best
    peak = {}
    if device == "cuda":
        peak = {"peak_gb": torch.cuda.max_memory_allocated() / 1e9, "reserved_gb": torch.cuda.max_memory_reserved() / 1e9}
        if isinstance(done, dict) and "memory_peak_gib" in done:  # an update counts anew when it has ended
            peak = {"peak_gb": done["memory_peak_gib"] * 2**30 / 1e9, "reserved_gb": done["memory_held_gib"] * 2**30 / 1e9}
    return {"seconds": round(best, 3)} | {name: round(value, 2) for name, value in peak.items()}


LARGE = {"window": (164, 1, 700, 100), "full": (16, 50, 70, 100)}  # trajectories, turns, new tokens of a prompt, of a response
SMALL = {"window": (8, 10, 80, 8), "full": (8, 10, 80, 8)}
MEMORY = 80e9


def ceiling() -> float:
    """Operations per second of a large matrix product."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    left @ right
    return 2 * 8192**3 * 10 / min(clocked(lambda: [left @ right for _ in range(10)]) for _ in range(3))


def clocked(work: Any) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def useful(size: str, packed: Any) -> dict[str, float]:
    """Operations of a forward pass over these sequences: layers, output layer, attention."""
    hidden, middle, layers, heads, kv_heads, words = SIZES[size]
    matrices = layers * (2 * hidden * hidden + 2 * hidden * hidden * kv_heads // heads + 3 * hidden * middle)
    attention = 2 * layers * hidden * float((packed.lengths.astype(np.float64) ** 2).sum())
    return {"layers": 2.0 * matrices * len(packed.ids), "head": 2.0 * hidden * words * len(packed.source), "attention": attention}


def settings_of(size: str, kl: bool) -> LearnerSettings:
    large = size != "tiny"
    return LearnerSettings(
        loss=Loss(kl_coef=0.01 if kl else 0.0),
        dtype="bfloat16" if large else "float32",
        tokens_per_batch=32768 if large else 8192,
        optimiser=OptimiserSettings(lr=1e-6),
    )


def compare(size: str, device: str, context: str, options: Any, peak_rate: float) -> dict[str, Any]:
    large = size != "tiny"
    count, *shape = (LARGE if large else SMALL)[context]
    found = make_trajectories(count, *shape, SIZES[size][-1], context)  # type: ignore[call-arg, arg-type]
    rollouts = Rollouts.from_trajectories(found)
    values = np.random.default_rng(0).normal(size=len(rollouts))
    start = time.perf_counter()
    packed = pack(found, rollouts)
    result: dict[str, Any] = {"context": context, "turns": len(rollouts), "response_tokens": len(packed.source)}
    result |= {
        "packed_tokens": len(packed.ids),
        "sequences": len(packed),
        "tokens_of_all_turns": sum(len(t.prompt_ids) + len(t.response_ids) for x in found for t in x.turns),
    }
    result["pack_seconds"] = round(time.perf_counter() - start, 4)
    learner = Learner(make_model(size, device), settings_of(size, kl=large))
    result["kept"] = watch(learner)
    result |= run_packed(learner, device, options.repeats, found, rollouts, values)
    if large:
        forward = sum(useful(size, packed).values())
        result["packed"] |= rates(3 * forward, len(packed.ids), result["packed"]["seconds"], peak_rate)
        result["scoring_alone"] |= rates(forward, len(packed.ids), result["scoring_alone"]["seconds"], peak_rate)
        if options.profile is not None:
            profiled(learner, found, rollouts, values, options.profile.with_suffix(f".{context}.txt"))
    del learner
    release(device)
    if options.baseline or not large:
        padded = Padded(make_model(size, device), 8192, large, large)
        result["padded_full_logits"] = timed(options.repeats, device, lambda: padded.update(found, values))
        result["times_faster"] = round(result["padded_full_logits"]["seconds"] / result["packed"]["seconds"], 2)
    return result


def release(device: str) -> None:
    """Give back what the last learner held: its hooks and parameters refer to each other."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def rates(operations: float, tokens: int, seconds: float, peak: float) -> dict[str, float]:
    rate = operations / seconds
    return {"tokens_per_second": round(tokens / seconds), "tflops": round(rate / 1e12, 1), "share_of_ceiling": round(rate / peak, 3)}


def run_packed(learner: Learner, device: str, repeats: int, found: list[Trajectory], rollouts: Rollouts, values: Any) -> dict[str, Any]:
    """The learner's update without the reference's pass, which is timed with the scoring."""
    packed, batch = pack(found, rollouts), Batch(tuple(found), rollouts).with_columns({"turn.advantage": values})
    if learner.reference is not None:
        batch = learner.annotate(batch)
    update = timed(repeats, device, lambda: learner.update(batch))
    score = timed(repeats, device, lambda: learner.logprobs(packed))
    return {"packed": update, "scoring_alone": score}


def profiled(learner: Learner, found: list[Trajectory], rollouts: Rollouts, values: Any, path: Path) -> None:
    """A table of the kernels that an update spends its time in."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        learner.update(learner.annotate(Batch(tuple(found), rollouts)).with_columns({"turn.advantage": values}))
    path.write_text(profile.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=90))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--baseline", action="store_true", help="also measure padding with full logits (always done for the tiny model)")
    parser.add_argument("--profile", type=Path, help="write tables of kernels there")
    parser.add_argument("--write", action="store_true", help="put the result beside this file")
    options = parser.parse_args()
    if options.size != "tiny":
        need_gpu("--size tiny")
    device = "cuda" if options.size != "tiny" else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)"
    report: dict[str, Any] = {
        "size": options.size,
        "machine": machine,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    peak = 0.0
    if device == "cuda":
        peak = ceiling()
        report |= {"matmul_tflops": round(peak / 1e12, 1), "memory_limit_gb": MEMORY / 1e9}
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(MEMORY / torch.cuda.mem_get_info()[1])
    report["compared"] = [compare(options.size, device, context, options, peak) for context in ("window", "full")]
    publish(report, Path(__file__).with_name(f"learner-{options.size}.json") if options.write else None)


if __name__ == "__main__":
    main()
