"""How fast the engines generate, compared with transformers' generate, vLLM and the lower bound set by memory and arithmetic.

    python benchmarks/engine.py gpu --write 1.5b            one GPU, 1.5B shape; also --shape 0.5b, 7b
    python benchmarks/engine.py gpu --parts decode128 decode512 end_to_end
    OMP_NUM_THREADS=1 python benchmarks/engine.py cpu --write

Models have random weights. On a GPU they are bfloat16, sampling has temperature 1 and top-p 0.95 (`--top-p`), and log-probs are returned.
Everything is run once to compile and capture, then timed. Floors come from two ceilings measured in the same run: a large copy and a large
matrix product. Each run has new random prompts. vLLM, if it is installed, runs last and in a separate process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import SHAPES, WORDS, Part, ceilings, main, need_gpu, random_model, seconds

from turnwise.engines.base import Engine, Request, Response, Sampling

SERVED = ("decode128", "decode512", "prefill", "end_to_end", "groups")  # parts that vLLM also runs
WORKLOADS = (*SERVED, "turns", "transformers", "agreement", "vllm")


# -- the native engine on a GPU -----------------------------------------------------------------------------------------------------------


class NativeBench:
    """One model, one engine, and the parts that can be measured with them."""

    def __init__(self, shape: str, slots: int, top_p: float):
        import torch

        from turnwise.engines.native import NativeEngine

        self.model = random_model(shape)
        self.ceiling = ceilings()
        torch.cuda.empty_cache()
        self.engine = NativeEngine(self.model, max_batch=slots, max_length=1536, cache_memory=0.6)
        self.top_p = top_p
        config = self.model.config
        self.kv_bytes = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
        self.matrix = sum(p.numel() for n, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in n and "lm_head" not in n)
        self.head = WORDS * config.hidden_size
        self.seed = 0

    def prompts(self, count: int, length: int, copies: int = 1) -> list[list[int]]:
        self.seed += 1
        rng = random.Random(self.seed)
        return [ids for _ in range(count // copies) for ids in [[rng.randrange(WORDS) for _ in range(length)]] * copies]

    def submit(self, prompts: list[list[int]], max_tokens: int) -> None:
        sampling = Sampling(temperature=1.0, top_p=self.top_p, max_tokens=max_tokens)
        self.engine.submit([Request(n, ids, sampling, seed=n, sequence=n) for n, ids in enumerate(prompts)])

    def drain(self) -> list[Response]:
        responses: list[Response] = []
        while self.engine.pending:
            responses += self.engine.poll()
        return sorted(responses, key=lambda response: response.key)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[Response]:
        self.engine.refresh()
        self.submit(prompts, max_tokens)
        return self.drain()

    def decode(self, rows: int, context: int = 1152, steps: int = 64, rounds: int = 3) -> dict[str, Any]:
        """Steps of the engine with all rows decoding, on average at the given context; the fastest round counts.

        The prompts are in the cache before: each request continues its sequence, so that after a few calls of `poll` every call is one
        decode step of all rows."""
        runs = []
        for _ in range(rounds):
            prompts = self.prompts(rows, context - steps // 2 - 6)
            first = self.generate(prompts, 1)
            self.submit([[*ids, *response.token_ids] for ids, response in zip(prompts, first, strict=True)], steps + 16)
            for _ in range(5):
                self.engine.poll(wait=False)
            runs.append(seconds(lambda: [self.engine.poll(wait=False) for _ in range(steps)]) / steps)
            assert self.engine.pending == rows, "a row ended while decode steps were timed"
            self.drain()
        best = min(runs)
        read = 2 * (self.matrix + self.head) + rows * context * self.kv_bytes
        floor = max(read / self.ceiling["copy_bytes_per_s"], 2 * (self.matrix + self.head) * rows / self.ceiling["matmul_flop_per_s"])
        return {
            "rows": rows,
            "context": context,
            "ms_per_step": best * 1e3,
            "runs_ms": [run * 1e3 for run in runs],
            "tokens_per_s": rows / best,
            "floor_ms": floor * 1e3,
            "share_of_floor": floor / best,
        }

    def flop(self, tokens: int, length: int) -> float:
        config = self.model.config
        return tokens * (2 * self.matrix + 2 * length * config.hidden_size * config.num_hidden_layers)

    def prefill(self) -> dict[str, Any]:
        runs = [self.prompts(128, 1024) for _ in range(4)]
        best = min([seconds(partial(self.generate, prompts, 1)) for prompts in runs][1:])
        share = self.flop(128 * 1024, 1024) / best / self.ceiling["matmul_flop_per_s"]
        return {"tokens": 131072, "s": best, "tokens_per_s": 131072 / best, "share_of_matmul_ceiling": share}

    def end_to_end(self, copies: int = 1) -> dict[str, Any]:
        runs = [self.prompts(128, 1024, copies) for _ in range(4)]
        times = [seconds(partial(self.generate, prompts, 128)) for prompts in runs][1:]
        decode = 127 * (2 * (self.matrix + self.head) + 128 * 1088 * self.kv_bytes) / self.ceiling["copy_bytes_per_s"]
        floor = self.flop(131072 // copies, 1024) / self.ceiling["matmul_flop_per_s"] + decode
        return end_to_end(times, copies) | {"floor_s": floor}

    def turns(self, count: int = 10) -> dict[str, Any]:
        """A dialogue that grows by 60 tokens per turn and answers with 60: with the trajectory's cache, only what is new is read."""
        self.engine.refresh()
        times = []
        prompts = self.prompts(128, 200)
        for turn in range(count):
            self.submit(prompts, 60)
            responses: list[Response] = []
            times.append(seconds(lambda responses=responses: responses.extend(self.drain())))  # type: ignore[misc]
            rng = random.Random(turn)
            for response in responses:
                prompts[response.key] = [*prompts[response.key], *response.token_ids, *(rng.randrange(WORDS) for _ in range(60))]
        return {"rows": 128, "turns": count, "new_tokens": 60, "response": 60, "s_per_turn": times}

    def transformers(self) -> dict[str, Any]:
        import torch

        ids = torch.tensor(self.prompts(128, 1024), device="cuda")
        settings = {"do_sample": True, "temperature": 1.0, "top_p": self.top_p, "top_k": 0, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        with torch.no_grad():
            self.model.generate(ids[:, :64], attention_mask=mask[:, :64], max_new_tokens=4, **settings)
            took = seconds(lambda: self.model.generate(ids, attention_mask=mask, max_new_tokens=128, min_new_tokens=128, **settings))
        return {"requests": 128, "prompt": 1024, "response": 128, "s": took, "tokens_per_s": 128 * 128 / took}

    def agreement(self) -> dict[str, Any]:
        """The engine's log-probs of the tokens that it sampled against the same model's forward: in bfloat16, and in float32."""
        import torch

        prompts = self.prompts(8, 300)
        responses = self.generate(prompts, 64)
        rows = torch.tensor([[*ids, *response.token_ids] for ids, response in zip(prompts, responses, strict=True)], device="cuda")
        sampled = torch.tensor([response.logprobs for response in responses], device="cuda")

        def forward(model: Any) -> torch.Tensor:
            with torch.no_grad():
                hidden = model.model(rows).last_hidden_state[:, 299:-1]
                logits = hidden.float() @ model.lm_head.weight.float().t()
            return logits.log_softmax(-1).gather(2, rows[:, 300:, None])[..., 0]

        with torch.device("cuda"):
            exact = type(self.model)(self.model.config).to(torch.float32).eval()
        exact.load_state_dict({name: value.float() for name, value in self.model.state_dict().items()})
        logprobs = {"engine": sampled, "bf16_forward": forward(self.model), "float32": forward(exact)}

        def gap(one: str, other: str) -> dict[str, float]:
            difference = (logprobs[one] - logprobs[other]).abs()
            return {"mean": difference.mean().item(), "max": difference.max().item()}

        pairs = (("engine", "bf16_forward"), ("engine", "float32"), ("bf16_forward", "float32"))
        return {f"{one}_vs_{other}": gap(one, other) for one, other in pairs}

    def close(self) -> None:
        """Give the GPU's memory back."""
        import torch

        self.engine.close()
        del self.engine, self.model
        torch.cuda.empty_cache()


def end_to_end(times: list[float], copies: int) -> dict[str, Any]:
    """128 requests of 1,024 + 128 tokens; `copies` of them have the same prompt."""
    best = min(times)
    result: dict[str, Any] = {"requests": 128, "prompt": 1024, "response": 128, "same_prompt": copies}
    return result | {"s": best, "runs_s": times, "tokens_per_s": 128 * 128 / best}


def gpu_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", choices=("0.5b", "1.5b", "7b"), default="1.5b")
    parser.add_argument("--parts", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--top-p", type=float, default=0.95)


def measure_gpu(options: argparse.Namespace) -> dict[str, Any]:
    """The native engine on a GPU, then transformers and vLLM."""
    need_gpu("python benchmarks/engine.py cpu")
    import torch

    bench = NativeBench(options.shape, 512 if "decode512" in options.parts else 128, options.top_p)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "shape": options.shape}
    result |= {"dtype": "bfloat16", "top_p": options.top_p, **bench.ceiling}
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "decode128": lambda: bench.decode(128),
        "decode512": lambda: bench.decode(512),
        "prefill": bench.prefill,
        "end_to_end": bench.end_to_end,
        "groups": lambda: bench.end_to_end(8),
        "turns": bench.turns,
        "transformers": bench.transformers,
        "agreement": bench.agreement,
    }
    for part in (part for part in WORKLOADS if part in options.parts):
        if part == "vllm":
            bench.close()
            result[part] = vllm_in_a_process(options)
        else:
            result[part] = work[part]()
        print(part, json.dumps(result[part]), file=sys.stderr, flush=True)  # a run that is interrupted has shown what it has
    return result


# -- vLLM ---------------------------------------------------------------------------------------------------------------------------------


def vllm_in_a_process(options: argparse.Namespace) -> dict[str, Any]:
    """What the part `vllm` measures, or why it cannot run."""
    parts = [part for part in SERVED if part in options.parts]
    command = [sys.executable, __file__, "vllm", "--shape", options.shape, "--top-p", str(options.top_p), "--parts", *parts]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in process.stderr.splitlines() if line.startswith("VLLM ")]
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("VLLM ")) if lines else {}
    if process.returncode:
        print(process.stdout[-3000:], process.stderr[-6000:], file=sys.stderr)
        result["stopped"] = (process.stderr.strip().splitlines() or [""])[-1]
    return result


class VllmBench:
    """The same workloads: the same shapes, prompts and sampling, dummy weights.

    Prefix caching is on and every run has new random prompts, so only what a group shares is reused. vLLM runs inside this process, and
    without FlashInfer's sampler, which compiles itself on first use and needs further packages: with top-p it then sorts all logits of
    every row."""

    def __init__(self, shape: str, folder: Path, slots: int, top_p: float):
        from vllm import LLM

        model = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": WORDS, "hidden_act": "silu"}
        model |= {"max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"}
        model |= {"tie_word_embeddings": shape != "7b", "use_sliding_window": False, "eos_token_id": 0, "bos_token_id": 0}
        (folder / "config.json").write_text(json.dumps(SHAPES[shape] | model))
        self.llm = LLM(
            model=str(folder),
            load_format="dummy",
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=1536,
            max_num_seqs=slots,
            max_num_batched_tokens=16384,
            gpu_memory_utilization=0.45,
            enable_prefix_caching=True,
            compilation_config={"cudagraph_capture_sizes": [1, 8, 32, 64, 128, 256, 512][: 5 if slots <= 128 else 7]},
        )
        self.seed, self.top_p = 0, top_p

    def run(self, count: int, length: int, tokens: int, copies: int = 1) -> float:
        from vllm import SamplingParams

        self.seed += 1
        rng = random.Random(self.seed)
        texts = [ids for _ in range(count // copies) for ids in [[rng.randrange(WORDS) for _ in range(length)]] * copies]
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in texts]
        sampling = SamplingParams(temperature=1.0, top_p=self.top_p, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
        took = time.perf_counter() - start
        assert all(len(one.outputs[0].token_ids) == tokens and one.outputs[0].logprobs for one in outputs)
        return took

    def decode(self, rows: int, context: int = 1152, steps: int = 64) -> dict[str, Any]:
        """The time of a run with 64 tokens more, divided by 64."""
        length = context - steps // 2
        self.run(rows, 64, 8)
        short, long = (min(self.run(rows, length, tokens) for _ in range(2)) for tokens in (1, steps + 1))
        step = (long - short) / steps
        return {"rows": rows, "context": context, "ms_per_step": step * 1e3, "tokens_per_s": rows / step}

    def end_to_end(self, copies: int = 1) -> dict[str, Any]:
        return end_to_end([self.run(128, 1024, 128, copies) for _ in range(4)][1:], copies)

    def prefill(self) -> dict[str, Any]:
        best = min(self.run(128, 1024, 1) for _ in range(3))
        return {"tokens": 131072, "s": best, "tokens_per_s": 131072 / best}


def measure_vllm(options: argparse.Namespace) -> dict[str, Any]:
    """vLLM on the workloads of `gpu`, which runs this part in a process."""
    need_gpu()
    for name, value in (("VLLM_USE_FLASHINFER_SAMPLER", "0"), ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"), ("HF_HUB_OFFLINE", "1")):
        os.environ.setdefault(name, value)
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        bench = VllmBench(options.shape, Path(folder), 512 if "decode512" in options.parts else 128, options.top_p)
        work: dict[str, Callable[[], dict[str, Any]]] = {
            "decode128": lambda: bench.decode(128),
            "decode512": lambda: bench.decode(512),
            "prefill": bench.prefill,
            "end_to_end": bench.end_to_end,
            "groups": lambda: bench.end_to_end(8),
        }
        result: dict[str, Any] = {"vllm": vllm.__version__}
        for part in (part for part in SERVED if part in options.parts):
            result[part] = work[part]()
            print("VLLM " + json.dumps(result), file=sys.stderr, flush=True)
        return result


# -- dialogues on a CPU -------------------------------------------------------------------------------------------------------------------

VOCABULARY, ROWS, GROUP, FIRST, NEW = 500, 64, 8, 100, 30


class Dialogues:
    """Prompts that grow; lengths of answers and observations are the same in every round and for every engine."""

    def __init__(self) -> None:
        first = [[random.Random(group).randrange(VOCABULARY) for _ in range(FIRST)] for group in range(ROWS // GROUP)]
        self.prompts = [list(first[row // GROUP]) for row in range(ROWS)]

    def answer_length(self, row: int, turn: int) -> int:
        return random.Random(row * 1000 + turn).randrange(4, 10)

    def record(self, row: int, turn: int, answer: list[int]) -> None:
        rng = random.Random(-row * 1000 - turn - 1)
        self.prompts[row] = [*self.prompts[row], *answer, *(rng.randrange(VOCABULARY) for _ in range(NEW))]


def play_with_engine(engine: Engine, turns: int) -> int:
    """Every dialogue continues as soon as its answer is ready. Returns the number of tokens sampled."""
    engine.refresh()
    dialogues, turn, tokens = Dialogues(), [0] * ROWS, 0

    def ask(row: int) -> None:
        sampling = Sampling(max_tokens=dialogues.answer_length(row, turn[row]))
        engine.submit([Request(row, dialogues.prompts[row], sampling, seed=row * 100 + turn[row], sequence=row)])

    for row in range(ROWS):
        ask(row)
    while engine.pending:
        for response in engine.poll():
            row = response.key
            tokens += len(response.token_ids)
            dialogues.record(row, turn[row], list(response.token_ids))
            turn[row] += 1
            if turn[row] < turns:
                ask(row)
            else:
                engine.release(row)
    return tokens


def play_with_generate(model: Any, turns: int) -> int:
    """All rows of a turn at once, padded; every prompt is read again."""
    import torch

    dialogues, tokens = Dialogues(), 0
    for turn in range(turns):
        width = max(map(len, dialogues.prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in dialogues.prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in dialogues.prompts])
        longest = max(dialogues.answer_length(row, turn) for row in range(ROWS))
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, top_k=0, pad_token_id=0)[:, width:]
        for row in range(ROWS):
            answer = out[row, : dialogues.answer_length(row, turn)].tolist()
            tokens += len(answer)
            dialogues.record(row, turn, answer)
    return tokens


def cpu_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)


def measure_cpu(options: argparse.Namespace) -> dict[str, Any]:
    """Dialogues with a small model on a CPU, in the shape of the quickstart.

    64 dialogues in groups of 8 that share their first prompt; every turn adds 30 tokens and is answered with 4 to 9. Four ways take turns:
    the native engine, the transformers engine, the same without the reuse of a dialogue's cache, and transformers' generate. Time is the
    CPU time of the process, the median of the rounds, so that a busy machine does not matter."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from turnwise.engines.native import NativeEngine
    from turnwise.engines.transformers import TransformersEngine

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 1024}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)).eval()
    settings: dict[str, Any] = {"max_batch": ROWS, "max_length": 1024, "stop_token_ids": ()}
    native, general = NativeEngine(model, **settings), TransformersEngine(model, **settings)
    forgetful = TransformersEngine(model, **settings, reuse_prefixes=False)
    ways: dict[str, Callable[[int], int]] = {
        "native": lambda turns: play_with_engine(native, turns),
        "transformers_engine": lambda turns: play_with_engine(general, turns),
        "transformers_engine_without_reuse": lambda turns: play_with_engine(forgetful, turns),
        "transformers_generate": lambda turns: play_with_generate(model, turns),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    tokens = 0
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            tokens = way(1 if number == 0 else options.turns)
            if number:
                times[name].append(time.process_time() - start)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dialogues": ROWS,
        "turns": options.turns,
        "sampled_tokens": tokens,
        "cpu_s": {name: round(statistics.median(one), 3) for name, one in times.items()},
        "tokens_per_cpu_s": {name: round(tokens / statistics.median(one), 1) for name, one in times.items()},
    }


PARTS = {"gpu": Part(measure_gpu, gpu_options), "vllm": Part(measure_vllm, gpu_options), "cpu": Part(measure_cpu, cpu_options)}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
