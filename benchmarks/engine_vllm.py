"""vLLM on the workloads of `engine.py`: the same shapes, prompts and sampling, dummy weights. `engine.py --parts … vllm` runs it in a
separate process; alone:

    python benchmarks/engine_vllm.py --shape 1.5b

Prefix caching is on and every run has new random prompts, so only what a group shares is reused. A decode step is the time of a run with
64 tokens more, divided by 64. vLLM runs inside this process, and without FlashInfer's sampler, which compiles itself on first use and
needs further packages: with top-p it then sorts all logits of every row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_shapes import SHAPES, WORDS

os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def config_folder(shape: str, folder: Path) -> Path:
    config = {
        **SHAPES[shape], "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": WORDS, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
        "tie_word_embeddings": shape != "7b", "use_sliding_window": False, "eos_token_id": 0, "bos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Bench:
    def __init__(self, shape: str, folder: Path, slots: int, top_p: float):
        from vllm import LLM

        self.llm = LLM(
            model=str(config_folder(shape, folder)), load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, max_model_len=1536,
            max_num_seqs=slots, max_num_batched_tokens=16384, gpu_memory_utilization=0.45, enable_prefix_caching=True,
            compilation_config={"cudagraph_capture_sizes": [1, 8, 32, 64, 128, 256, 512][: 5 if slots <= 128 else 7]},
        )  # fmt: skip
        self.seed, self.top_p = 0, top_p

    def run(self, count: int, length: int, tokens: int, copies: int = 1) -> float:
        from vllm import SamplingParams

        self.seed += 1
        rng = random.Random(self.seed)
        prompts: list[Any] = [
            {"prompt_token_ids": ids} for _ in range(count // copies) for ids in [[rng.randrange(WORDS) for _ in range(length)]] * copies
        ]
        sampling = SamplingParams(temperature=1.0, top_p=self.top_p, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
        start = time.perf_counter()
        found = self.llm.generate(prompts, sampling, use_tqdm=False)
        took = time.perf_counter() - start
        assert all(len(one.outputs[0].token_ids) == tokens and one.outputs[0].logprobs for one in found)
        return took

    def decode(self, lanes: int, context: int = 1152, steps: int = 64) -> dict[str, Any]:
        length = context - steps // 2
        self.run(lanes, 64, 8)
        short, long = min(self.run(lanes, length, 1) for _ in range(2)), min(self.run(lanes, length, steps + 1) for _ in range(2))
        step = (long - short) / steps
        return {"lanes": lanes, "context": context, "ms_per_step": step * 1e3, "tokens_per_s": lanes / step}

    def end_to_end(self, copies: int = 1) -> dict[str, Any]:
        self.run(128, 1024, 128, copies)
        took = [self.run(128, 1024, 128, copies) for _ in range(3)]
        return {"requests": 128, "prompt": 1024, "response": 128, "same_prompt": copies, "s": min(took), "runs_s": took,
                "tokens_per_s": 128 * 128 / min(took)}  # fmt: skip

    def prefill(self) -> dict[str, Any]:
        took = min(self.run(128, 1024, 1) for _ in range(3))
        return {"tokens": 131072, "s": took, "tokens_per_s": 131072 / took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1.5b")
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--parts", nargs="+", default=["end_to_end", "groups", "prefill", "decode128", "decode512"])
    options = parser.parse_args()
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.shape, Path(folder), 512 if "decode512" in options.parts else 128, options.top_p)
        result: dict[str, Any] = {"vllm": vllm.__version__}
        work = {
            "end_to_end": bench.end_to_end,
            "groups": lambda: bench.end_to_end(8),
            "prefill": bench.prefill,
            "decode128": lambda: bench.decode(128),
            "decode512": lambda: bench.decode(512),
        }
        for part in options.parts:
            result[part] = work[part]()
            print("VLLM " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
