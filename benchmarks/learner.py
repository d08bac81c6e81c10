"""How fast the learner is: packed sequences and chunked log-probs against padding with full logits, side by side in one run.

    python benchmarks/learner.py                    a tiny model on the CPU
    python benchmarks/learner.py --size 1.5b        the shape of a 1.5B model with random weights, on a GPU, bfloat16

Both sides compute the same GiGPO gradient of the same trajectories: the baseline pads turns to the longest of each batch, makes all logits
and takes their log-softmax, as a plain training loop does. Prints JSON; --write puts it beside this file.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise import credit
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, pack
from turnwise.rollouts import Rollouts, Trajectory, Turn

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
    """The baseline: one row a turn, padded to the longest of the batch, full logits, AdamW."""

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
    best = float("inf")
    for repeat in range(repeats + 1):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start) if repeat else best
    peak = {"peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)} if device == "cuda" else {}
    return {"seconds": round(best, 3)} | peak


def compare(size: str, device: str, context: str, count: int, repeats: int) -> dict[str, Any]:
    large = size != "tiny"
    budget, baseline_budget = (32768, 8192) if large else (8192, 8192)
    found = make_trajectories(count, 10, *((300, 60) if large else (80, 8)), SIZES[size][-1], context)
    rollouts = Rollouts.from_trajectories(found)
    values = credit.compute("gigpo", rollouts)
    start = time.perf_counter()
    packed = pack(found, rollouts)
    result: dict[str, Any] = {"context": context, "turns": len(rollouts), "response_tokens": len(packed.source)}
    result |= {
        "packed_tokens": len(packed.ids),
        "tokens_of_all_turns": sum(len(t.prompt_ids) + len(t.response_ids) for x in found for t in x.turns),
    }
    result["pack_seconds"] = round(time.perf_counter() - start, 4)
    settings = LearnerSettings(
        dtype="bfloat16" if large else "float32",
        gradient_checkpointing=large,
        tokens_per_batch=budget,
        optimiser=OptimiserSettings(lr=1e-6),
    )
    result |= run_packed(Learner(make_model(size, device), settings), device, repeats, found, rollouts, values)
    padded = Padded(make_model(size, device), baseline_budget, large, large)
    result["padded_full_logits"] = timed(repeats, device, lambda: padded.update(found, values))
    for side in ("packed", "padded_full_logits"):
        result[side]["turns_per_second"] = round(len(rollouts) / result[side]["seconds"], 1)
    result["packed"]["tokens_per_second"] = round(len(packed.ids) / result["packed"]["seconds"])
    result["times_faster"] = round(result["padded_full_logits"]["seconds"] / result["packed"]["seconds"], 2)
    return result


def run_packed(learner: Learner, device: str, repeats: int, found: list[Trajectory], rollouts: Rollouts, values: Any) -> dict[str, Any]:
    """The learner's update, and its scoring pass alone."""
    packed = pack(found, rollouts)
    update = timed(repeats, device, lambda: learner.update(found, rollouts, values))
    score = timed(repeats, device, lambda: learner.logprobs(packed))
    return {"packed": update, "scoring_alone": score | {"tokens_per_second": round(len(packed.ids) / score["seconds"])}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the result beside this file")
    options = parser.parse_args()
    device = "cuda" if options.size != "tiny" else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    compared = [compare(options.size, device, context, options.trajectories, options.repeats) for context in ("window", "full")]
    report = {"size": options.size, "machine": machine, **versions, "compared": compared}
    text = json.dumps(report, indent=1)
    print(text)
    if options.write:
        Path(__file__).with_name(f"learner-{options.size}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
