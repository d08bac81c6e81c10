"""How fast the learner is, and how much memory training takes.

    python benchmarks/learner.py update --write tiny             a tiny model on the CPU, beside the padded baseline
    python benchmarks/learner.py update --size 1.5b --write 1.5b    the shape of a 1.5B model, on a GPU, bfloat16, within 80 GB
    python benchmarks/learner.py update --size 1.5b --baseline
    python benchmarks/learner.py memory --case 7b-lora           a recipe inside the memory of a smaller card

Models have random weights.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from bench import ROOT, Part, ceilings, main, need_gpu, random_model
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
    result |= run_packed(learner, device, options.repeats, found, rollouts, values)
    if large:
        forward = sum(useful(size, packed).values())
        result["packed"] |= rates(3 * forward, len(packed.ids), result["packed"]["seconds"], peak_rate)
        result["scoring_alone"] |= rates(forward, len(packed.ids), result["scoring_alone"]["seconds"], peak_rate)
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


def update_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--baseline", action="store_true", help="also measure padding with full logits (always done for the tiny model)")


def measure_update(options: argparse.Namespace) -> dict[str, Any]:
    """A whole update, against what the card's matrix products allow and against padding with full logits.

    Both sides compute the same GiGPO gradient of the same trajectories: the baseline pads turns to the longest of each batch, makes all
    logits and takes their log-softmax, as a plain training loop does. Useful operations are 6 per weight of the layers and token, 6 per
    weight of the output layer and response token, and three times the causal half of attention; what is recomputed is not useful."""
    if options.size != "tiny":
        need_gpu("--size tiny")
    device = "cuda" if options.size != "tiny" else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)"
    report: dict[str, Any] = {"size": options.size, "machine": machine}
    report |= {"torch": torch.__version__, "transformers": transformers.__version__}
    peak = 0.0
    if device == "cuda":
        peak = ceilings()["matmul_flop_per_s"]
        report |= {"matmul_tflops": round(peak / 1e12, 1), "memory_limit_gb": MEMORY / 1e9}
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(MEMORY / torch.cuda.mem_get_info()[1])
    report["compared"] = [compare(options.size, device, context, options, peak) for context in ("window", "full")]
    return report


# -- memory -------------------------------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, str, float, int, tuple[str, ...]]] = {  # recipe, shape, GB of the card, groups per iteration, settings
    "0.5b": ("alfworld.toml", "0.5b", 12, 8, ()),
    "1.5b": ("alfworld.toml", "1.5b", 24, 3, ()),
    "7b-lora": ("alfworld-7b-lora.toml", "7b", 40, 2, ()),
    "7b-lora-4bit": ("alfworld-7b-lora.toml", "7b", 24, 1, ("model.lora.base=4bit",)),  # needs bitsandbytes
}


def memory_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", choices=tuple(CASES), default="1.5b")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8, help="turn limit")
    parser.add_argument("--response", type=int, default=64, help="sampled tokens per turn")
    parser.add_argument("--games", action="store_true", help="play the recipe's games, not generated households")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape on a CPU, without a limit")


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    """A recipe with random weights of a real shape, inside the memory of a smaller card: `turnwise train RECIPE --memory GB`.

    The recipe's loop, agent, credit, objective and optimiser are used, with fewer groups, turns and sampled tokens and generated
    households. A model of random weights answers noise, so every attempt lasts to the turn limit. The command chooses settings as it does
    on such a card, and the limit holds for everything that torch allocates."""
    recipe, shape, limit, groups, settings = CASES[options.case]
    if not options.tiny:
        need_gpu("--tiny")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_random_model(folder / "model", "tiny" if options.tiny else shape)
        changes = [f"model.path={folder / 'model'}", f"out={folder}", "name=run", f"iterations={options.iterations}"]
        changes += [f"env.max_turns={options.turns}", f"collect.groups={groups}", f"engine.max_tokens={options.response}"]
        changes += ["learner.tokens_per_batch=0", "eval.n=2", "eval.every=0", "run.checkpoint_every=0", *settings]
        changes += [] if options.games else ["env.name=household", "env.tasks=64", "eval.split=valid"]
        if options.tiny:
            changes += ["device=cpu", "model.dtype=float32", "collect.groups=1", "collect.group_size=2", "env.options.size=tiny"]
        command = [sys.executable, "-m", "turnwise", "train", str(ROOT / "recipes" / recipe), *changes]
        began = time.monotonic()
        subprocess.run([*command, *([] if options.tiny else ["--memory", str(limit)])], check=True, stdout=sys.stderr)
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = [line for line in lines if line["iteration"] > 0]
    timed_rows = rows[1:] or rows  # the first iteration compiles kernels and captures steps
    tokens = sum(row["collect/response_tokens"] + row["learner/tokens_forward"] for row in timed_rows)
    result: dict[str, Any] = {"case": options.case, "recipe": recipe, "limit_gb": limit, "iterations": len(rows)}
    result |= {"attempts": rows[0]["collect/trajectories"]} if "collect/trajectories" in rows[0] else {}
    result |= {"turns": options.turns, "response": options.response, "seconds_in_all": round(time.monotonic() - began, 1)}
    result["tokens_per_s"] = round(tokens / sum(row["time/iteration"] for row in timed_rows), 1)
    for name in ("peak", "held"):
        if f"learner/memory_{name}_gib" in rows[0]:
            result[f"{name}_gb"] = round(max(row[f"learner/memory_{name}_gib"] for row in rows) * 2**30 / 1e9, 2)
    return result


def save_random_model(folder: Path, shape: str) -> None:
    """A folder with random weights and a tokenizer of the households' words."""
    from turnwise.collect.vocabulary import environment_texts
    from turnwise.learn.tiny import build_tiny

    model = random_model(shape, "cpu" if shape == "tiny" else "cuda", half=shape != "tiny")
    model.save_pretrained(folder)
    build_tiny(environment_texts("household", n=4 if shape == "tiny" else 40), layers=1, hidden=16, heads=1)[1].save_pretrained(folder)
    del model
    release("cpu" if shape == "tiny" else "cuda")


PARTS = {"update": Part(measure_update, update_options), "memory": Part(measure_memory, memory_options)}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
