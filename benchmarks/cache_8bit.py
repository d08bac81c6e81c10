"""What a cache in 8 bits does to the engine's log-probs, and what the importance weights that correct it look like.

    python benchmarks/cache_8bit.py                                                   # a small random model
    python benchmarks/cache_8bit.py --model FOLDER --out benchmarks/cache_8bit.json   # a real one
    python benchmarks/cache_8bit.py --model FOLDER --dtype bfloat16                   # the engine computes in bfloat16, as on a GPU
    python benchmarks/cache_8bit.py --model FOLDER --gguf model.gguf                  # weights of a GGUF file

The same prompts are answered with a cache as the model computes (`model`), with one in 8 bits (`8bit`), and with one in 8 bits whose keys
are not stored relative to their bias (`8bit, keys as they are`). Of every sampled token: the distance between the engine's log-prob and
that of a float32 forward pass over the same tokens, the KL divergence estimated from them, and the weight exp(learner - engine) with the
share of tokens whose weight `objective.importance=truncate` would change. The result is printed as JSON; seconds are told on a GPU only.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from results import publish
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from turnwise.engines.base import Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native.weights import Weights

WAYS = ("model", "8bit", "8bit, keys as they are")
HIGH = 2.0  # where objective.importance=truncate cuts a weight
DOCS = Path(__file__).parent.parent / "docs"


def small() -> Any:
    """A random model whose keys have a large bias, as pretrained ones do."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 997, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.08)).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.k_proj.bias, 0.0, 3.0)
    return model


def load(options: argparse.Namespace) -> tuple[Any, list[int]]:
    """The model in float32, and tokens to cut prompts from."""
    if options.model is None:
        rng = random.Random(0)
        return small(), [rng.randrange(997) for _ in range(options.rows * options.prompt)]
    extra = {} if options.gguf is None else {"gguf_file": options.gguf}
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model, **extra)
    text = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))[: 12 * options.rows * options.prompt]
    return AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, **extra).eval(), tokenizer(text)["input_ids"]


def play(engine: NativeEngine, prompts: list[list[int]], tokens: int) -> tuple[list[Response], float]:
    """An answer for every prompt, and the seconds that took."""
    start = time.perf_counter()
    engine.submit([Request(n, ids, Sampling(max_tokens=tokens), seed=n, sequence=n) for n, ids in enumerate(prompts)])
    found: list[Response] = []
    while engine.pending:
        found += engine.poll()
    return sorted(found, key=lambda response: response.key), time.perf_counter() - start


def gaps(exact: Any, prompts: list[list[int]], found: list[Response]) -> torch.Tensor:
    """Learner's minus engine's log-prob of every sampled token."""
    differences = []
    for ids, response in zip(prompts, found, strict=True):
        row = torch.tensor([[*ids, *response.token_ids]], device=exact.device)
        with torch.no_grad():
            logits = exact(row).logits[0, len(ids) - 1 : -1].float()
        theirs = logits.log_softmax(-1).gather(1, row[0, len(ids) :, None])[:, 0].cpu()
        differences.append(theirs - torch.tensor(response.logprobs))
    return torch.cat(differences)


def measure(way: str, computes: Any, exact: Any, prompts: list[list[int]], options: argparse.Namespace) -> dict[str, float]:
    longest = options.prompt + options.tokens
    memory = options.cache_gb * 1e9
    with patch.object(Weights, "shift_keys", lambda self, length: None) if "as they are" in way else nullcontext():
        engine = NativeEngine(computes, max_batch=len(prompts), max_length=longest, cache_memory=memory, cache_dtype=way.split(",")[0])
        play(engine, prompts[:2], 4)  # compiles
        engine.refresh()
        found, seconds = play(engine, prompts, options.tokens)
    page = engine._runner.cache[:, :, 0]  # type: ignore[attr-defined]
    token_bytes = page.numel() * page.element_size() / engine._runner.page_size
    engine.close()
    difference = gaps(exact, prompts, found)
    weight = difference.exp()
    return {
        "gap": difference.abs().mean().item(),
        "gap_max": difference.abs().max().item(),
        "kl_k3": (weight - 1 - difference).mean().item(),
        "importance": weight.mean().item(),
        "importance_std": weight.std().item(),
        "truncated_share": (weight > HIGH).float().mean().item(),
        "bytes_per_token": token_bytes,
        "sampled_tokens": float(len(difference)),
    } | ({"s": seconds} if exact.device.type == "cuda" else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model's folder")
    parser.add_argument("--gguf", help="the GGUF file in it")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="what the engine computes in")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--cache-gb", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact, ids = load(options)
    exact = exact.to(device)
    computes = exact
    if options.dtype == "bfloat16":  # both sides have the same, rounded weights
        computes = type(exact)(exact.config).to(device, torch.bfloat16).eval()
        computes.load_state_dict(exact.state_dict())
        exact.load_state_dict(computes.state_dict())
    prompts = [ids[n * options.prompt : (n + 1) * options.prompt] for n in range(options.rows)]
    result: dict[str, Any] = {"device": torch.cuda.get_device_name() if device == "cuda" else "CPU", "torch": torch.__version__}
    result |= {
        "model": Path(options.model).name if options.model else "small random model",
        "dtype": options.dtype,
        "rows": options.rows,
        "prompt": options.prompt,
    }
    result["ways"] = {way: measure(way, computes, exact, prompts, options) for way in WAYS}
    publish(result, options.out)


if __name__ == "__main__":
    main()
