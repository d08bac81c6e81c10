"""How fast the native engine generates on a GPU, compared with transformers' generate, vLLM and the lower bound set by memory and
arithmetic.

    python benchmarks/engine.py --out benchmarks/engine.json            # 1.5B shape; also --shape 0.5b, 7b
    python benchmarks/engine.py --parts decode128 prefill               # some parts alone

Models have random weights made on the device, bf16. Sampling has temperature 1 and top-p 0.95 (`--top-p`), and log-probs are returned.
Everything is run once to compile and record, then timed. Floors come from two ceilings measured in the same run: a large copy and a large
matrix product. Each run has new random prompts. vLLM, if it is installed, runs last and in a separate process (engine_vllm.py).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from engine_shapes import SHAPES, WORDS
from results import need_gpu
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnwise.engines.base import Request, Response, Sampling
from turnwise.engines.native import NativeEngine

PARTS = ("decode128", "decode512", "prefill", "end_to_end", "groups", "turns", "transformers", "agreement", "profile", "vllm")


def make_model(shape: str) -> Any:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    config = Qwen2Config(
        **SHAPES[shape], vocab_size=WORDS, max_position_embeddings=32768, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=shape != "7b", bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(before)
    return model


def seconds(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def ceilings() -> dict[str, float]:
    """Bytes and operations per second that this GPU reaches at best."""
    source, target = (torch.randn(2**30, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    target.copy_(source)
    left @ right
    copy = min(seconds(lambda: target.copy_(source)) for _ in range(5))
    product = min(seconds(lambda: [left @ right for _ in range(10)]) for _ in range(3)) / 10
    return {"copy_bytes_per_s": 2 * source.nbytes / copy, "matmul_flop_per_s": 2 * 8192**3 / product}


class Bench:
    """One model, one engine, and the parts that can be measured with them."""

    def __init__(self, shape: str, slots: int, top_p: float):
        self.model = make_model(shape)
        self.ceiling = ceilings()
        torch.cuda.empty_cache()
        self.engine = NativeEngine(self.model, max_batch=slots, max_length=1536, cache_memory=0.6)
        self.top_p = top_p
        config = self.model.config
        self.kv_bytes = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
        self.matrix = sum(p.numel() for n, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in n and "lm_head" not in n)
        self.head = WORDS * config.hidden_size
        self.seed = 0

    def prompts(self, count: int, length: int, copies: int = 1, seed: int | None = None) -> list[list[int]]:
        self.seed += 1
        rng = random.Random(self.seed if seed is None else -seed)
        return [ids for _ in range(count // copies) for ids in [[rng.randrange(WORDS) for _ in range(length)]] * copies]

    def submit(self, prompts: list[list[int]], max_tokens: int) -> None:
        sampling = Sampling(temperature=1.0, top_p=self.top_p, max_tokens=max_tokens)
        self.engine.submit([Request(n, ids, sampling, seed=n, sequence=n) for n, ids in enumerate(prompts)])

    def drain(self) -> list[Response]:
        found: list[Response] = []
        while self.engine.pending:
            found += self.engine.poll()
        return found

    def all_of(self, prompts: list[list[int]], max_tokens: int) -> list[Response]:
        self.engine.refresh()
        self.submit(prompts, max_tokens)
        return self.drain()

    def start(self, lanes: int, length: int, tokens: int) -> None:
        """Bring this many rows to the point where all of them decode."""
        self.submit(self.prompts(lanes, length), tokens)
        while len(self.engine._rows) < lanes or any(row.todo > 1 for row in self.engine._rows):
            self.engine._advance()
        self.engine._advance()

    def profile(self, steps: int = 8) -> dict[str, Any]:
        """Microseconds of a decode step by kernel, the largest first, and the time between kernels."""
        found: dict[str, Any] = {}
        for lanes in sorted({128, self.engine.max_batch}):
            self.engine.refresh()
            self.start(lanes, 1152 - steps, steps + 12)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
                took = seconds(lambda: [self.engine._advance() for _ in range(steps)])
            self.drain()
            times: Counter[str] = Counter()
            for event in profiler.events() or ():
                times[event.name[:60]] += event.device_time_total / steps
            found[str(lanes)] = {"step": took / steps * 1e6, "kernels": sum(times.values()), **dict(times.most_common(14))}
        return found

    def decode(self, lanes: int, context: int = 1152, steps: int = 64, rounds: int = 1) -> dict[str, Any]:
        """Steps of the engine with all rows decoding, on average at the given context; the fastest round counts."""
        self.all_of(self.prompts(lanes, 64), 4)
        runs = []
        for _ in range(rounds):
            self.engine.refresh()
            self.start(lanes, context - steps // 2 - 2, steps + 8)
            runs.append(seconds(lambda: [self.engine._advance() for _ in range(steps)]) / steps)
            self.drain()
        took = min(runs)
        read = 2 * (self.matrix + self.head) + lanes * context * self.kv_bytes
        floor = max(read / self.ceiling["copy_bytes_per_s"], 2 * (self.matrix + self.head) * lanes / self.ceiling["matmul_flop_per_s"])
        return {
            "lanes": lanes, "context": context, "ms_per_step": took * 1e3, "runs_ms": [run * 1e3 for run in runs],
            "tokens_per_s": lanes / took, "floor_ms": floor * 1e3, "share_of_floor": floor / took,
        }  # fmt: skip

    def close(self) -> None:
        """Give the GPU's memory back."""
        self.engine.close()
        del self.engine, self.model
        torch.cuda.empty_cache()

    def flop(self, tokens: int, length: int) -> float:
        config = self.model.config
        return tokens * (2 * self.matrix + 2 * length * config.hidden_size * config.num_hidden_layers)

    def prefill(self) -> dict[str, Any]:
        runs = [self.prompts(128, 1024) for _ in range(4)]
        took = min([seconds(partial(self.all_of, prompts, 1)) for prompts in runs][1:])
        rate = self.flop(128 * 1024, 1024) / took
        return {
            "tokens": 131072,
            "s": took,
            "tokens_per_s": 131072 / took,
            "share_of_matmul_ceiling": rate / self.ceiling["matmul_flop_per_s"],
        }

    def end_to_end(self, copies: int = 1) -> dict[str, Any]:
        runs = [self.prompts(128, 1024, copies) for _ in range(4)]
        took = [seconds(partial(self.all_of, prompts, 128)) for prompts in runs][1:]
        decode = 127 * (2 * (self.matrix + self.head) + 128 * 1088 * self.kv_bytes) / self.ceiling["copy_bytes_per_s"]
        floor = self.flop(131072 // copies, 1024) / self.ceiling["matmul_flop_per_s"] + decode
        return {"requests": 128, "prompt": 1024, "response": 128, "same_prompt": copies, "s": min(took), "runs_s": took, "floor_s": floor,
                "tokens_per_s": 128 * 128 / min(took)}  # fmt: skip

    def turns(self, count: int = 10) -> dict[str, Any]:
        """A dialogue that grows by 60 tokens per turn and answers with 60: with the trajectory's cache, only what is new is read."""
        self.engine.refresh()
        took = []
        prompts = self.prompts(128, 200)
        for turn in range(count):
            self.submit(prompts, 60)
            found: list[Response] = []
            took.append(seconds(lambda found=found: found.extend(self.drain())))  # type: ignore[misc]
            rng = random.Random(turn)
            for response in found:
                prompts[response.key] = [*prompts[response.key], *response.token_ids, *(rng.randrange(WORDS) for _ in range(60))]
        return {"rows": 128, "turns": count, "new_tokens": 60, "response": 60, "s_per_turn": took}

    def transformers(self) -> dict[str, Any]:
        ids = torch.tensor(self.prompts(128, 1024), device="cuda")
        ask = {"do_sample": True, "temperature": 1.0, "top_p": self.top_p, "top_k": 0, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        with torch.no_grad():
            self.model.generate(ids[:, :64], attention_mask=mask[:, :64], max_new_tokens=4, **ask)
            took = seconds(lambda: self.model.generate(ids, attention_mask=mask, max_new_tokens=128, min_new_tokens=128, **ask))
        return {"requests": 128, "prompt": 1024, "response": 128, "s": took, "tokens_per_s": 128 * 128 / took}

    def agreement(self) -> dict[str, Any]:
        """The engine's log-probs of its own tokens against the same model's forward: in bf16, and in float32."""
        prompts = self.prompts(8, 300, seed=5)
        found = sorted(self.all_of(prompts, 64), key=lambda r: r.key)
        rows = torch.tensor([[*ids, *r.token_ids] for ids, r in zip(prompts, found, strict=True)], device="cuda")
        mine = torch.tensor([r.logprobs for r in found], device="cuda")

        def plain(model: Any) -> torch.Tensor:
            with torch.no_grad():
                hidden = model.model(rows).last_hidden_state[:, 299:-1]
                logits = hidden.float() @ model.lm_head.weight.float().t()
            return logits.log_softmax(-1).gather(2, rows[:, 300:, None])[..., 0]

        half = plain(self.model)
        exact = plain(as_float(self.model))

        def gap(a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
            return {"mean": (a - b).abs().mean().item(), "max": (a - b).abs().max().item()}

        return {
            "engine_vs_bf16_forward": gap(mine, half),
            "engine_vs_float32": gap(mine, exact),
            "bf16_forward_vs_float32": gap(half, exact),
        }


def as_float(model: Any) -> Any:
    """The same weights in float32, on the same device."""
    config = model.config
    with torch.device("cuda"):
        other = type(model)(config).to(torch.float32).eval()
    other.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    return other


def vllm(shape: str, parts: list[str], top_p: float) -> dict[str, Any]:
    """What engine_vllm.py measures, or why it cannot run."""
    wanted = [part for part in ("end_to_end", "groups", "prefill", "decode128", "decode512") if part in parts]
    command = [sys.executable, str(Path(__file__).with_name("engine_vllm.py")), "--shape", shape, "--top-p", str(top_p), "--parts", *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("VLLM ")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("VLLM ")) if lines else {}
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-6000:], file=sys.stderr)
        found["stopped"] = (done.stderr.strip().splitlines() or [""])[-1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1.5b")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    need_gpu()
    bench = Bench(options.shape, 512 if "decode512" in options.parts else 128, options.top_p)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": options.shape, "dtype": "bfloat16",
        "top_p": options.top_p, **bench.ceiling,
    }  # fmt: skip
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "decode128": lambda: bench.decode(128, rounds=3),
        "decode512": lambda: bench.decode(512, rounds=3),
        "prefill": bench.prefill,
        "end_to_end": bench.end_to_end,
        "groups": lambda: bench.end_to_end(8),
        "turns": bench.turns,
        "transformers": bench.transformers,
        "agreement": bench.agreement,
        "profile": bench.profile,
    }
    for part in PARTS:
        if part not in options.parts:
            continue
        if part == "vllm":
            bench.close()
            result[part] = vllm(options.shape, options.parts, options.top_p)
        else:
            result[part] = work[part]()
        print(part, json.dumps(result[part]), flush=True)
        if options.out:  # after each part: a run that is cut keeps what it has
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
