"""Models of each family with random weights in real shapes, for `engine_models.py --random`: what the native engine and the fused layers
give and take beside transformers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import transformers

from turnwise.data.rollouts import Trajectory, Turn
from turnwise.engines.base import Request, Response, Sampling
from turnwise.engines.native import NativeEngine, supports
from turnwise.learn import pack
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused import reason_against
from turnwise.learn.logprobs import token_logprobs

NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
# Published shapes; the mixture of experts with 4 of its 48 layers, so that three gradients of it in float32 fit into host memory.
SHAPES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "qwen2.5-0.5b": ("Qwen2", (896, 4864, 24, 14, 2, 64, 151936), {"tie_word_embeddings": True}),
    "llama-3.2-1b": (
        "Llama", (2048, 8192, 16, 32, 8, 64, 128256),
        {"tie_word_embeddings": True, "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 8192}},
    ),
    "qwen3-0.6b": ("Qwen3", (1024, 3072, 28, 16, 8, 128, 151936), {"tie_word_embeddings": True}),
    "qwen3-30b-a3b": (
        "Qwen3Moe", (2048, 6144, 4, 32, 4, 128, 151936),
        {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
    ),
    "gemma-3-1b": ("Gemma3", (1152, 6912, 26, 4, 1, 256, 262144), {"sliding_window": 512, "pad_token_id": None}),
    "smollm3-3b": ("SmolLM3", (2048, 11008, 36, 16, 4, 128, 128256), {"pad_token_id": None}),
}  # fmt: skip
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"head_dim": 16, "vocab_size": 500}


def make(name: str, dtype: torch.dtype, device: str, small: bool) -> Any:
    """The same weights for every dtype."""
    kind, sizes, more = SHAPES[name]
    given = dict(zip(NAMES, sizes, strict=True)) | more | {"bos_token_id": None, "eos_token_id": None, "max_position_embeddings": 16384}
    if small:
        given |= SMALL | ({"num_experts": 8, "moe_intermediate_size": 32} if kind == "Qwen3Moe" else {})
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")(**given)
    torch.manual_seed(0)
    with torch.device(device):
        return getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype).eval()


class Clock:
    """Seconds of a block, with all work of the GPU in it."""

    def __init__(self, device: str):
        self.device = device

    def __enter__(self) -> Clock:
        self._wait()
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error: Any) -> None:
        self._wait()
        self.seconds = time.perf_counter() - self.start

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def serve(engine: Any, prompts: list[list[int]], tokens: int) -> dict[int, Response]:
    engine.submit([Request(n, ids, Sampling(max_tokens=tokens), seed=n, sequence=n) for n, ids in enumerate(prompts)])
    answers: dict[int, Response] = {}
    while engine.pending:
        answers |= {response.key: response for response in engine.poll()}
    return answers


def engine_part(model: Any, exact: Any, rows: int, length: int, tokens: int, device: str) -> dict[str, Any]:
    """Requests of equal length, after one round that compiles and records; log-probs beside the model's own and float32's."""
    words = model.config.vocab_size
    prompts = torch.randint(0, words, (rows, length), generator=torch.Generator().manual_seed(1)).tolist()
    cache = None if device == "cpu" else 8e9
    engine = NativeEngine(model, max_batch=rows, max_length=length + tokens, stop_token_ids=(), cache_memory=cache)
    serve(engine, prompts, tokens)
    engine.forget()
    with Clock(device) as native:
        answers = serve(engine, prompts, tokens)
    ids = torch.tensor(prompts, device=device)
    settings = {"max_new_tokens": tokens, "do_sample": True, "top_k": 0, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}
    with torch.no_grad(), Clock(device) as theirs:
        model.generate(ids, **settings)
    gaps: dict[str, float] = {}
    for name, other in (("own_dtype", model), ("float32", exact)):
        row = torch.tensor([[*prompts[0], *answers[0].token_ids]], device=device)
        with torch.no_grad():
            logits = other(row, logits_to_keep=tokens + 1).logits[0, :-1].float().log_softmax(-1)
        own = torch.tensor(answers[0].logprobs, device=device)
        gaps[name] = (logits.gather(1, row[0, length:, None])[:, 0] - own).abs().mean().item()
    engine.close()
    return {"seconds": native.seconds, "generate_seconds": theirs.seconds, "mean_logprob_gap": gaps}


def learner_part(model: Any, exact: Any, sequences: int, length: int, device: str) -> dict[str, Any]:
    """A forward and a backward pass over packed sequences, through fused layers and through the model's own; gradients beside float32's."""
    rng, words = np.random.default_rng(0), model.config.vocab_size
    turns = [Turn("x", prompt_ids=rng.integers(0, words, length - 32).tolist(), response_ids=rng.integers(0, words, 32).tolist())
             for _ in range(sequences)]  # fmt: skip
    packed = pack([Trajectory(0, n, turns=[turn]) for n, turn in enumerate(turns)])
    found: dict[str, Any] = {"tokens": int(packed.lengths.sum())}
    slopes: dict[str, dict[str, torch.Tensor]] = {}
    for name, own, fused in (("exact", exact, False), ("own", model, False), ("fused", model, True)):
        policy = PackedModel(own, fused=fused)
        for _ in range(2):  # the first compiles
            own.zero_grad()
            with Clock(device) as clock, policy.attention():
                source, target = (torch.as_tensor(x, device=device) for x in (packed.source, packed.target))
                token_logprobs(policy.hidden(packed, source), policy.head, target)[0].sum().backward()
        found[f"{name}_seconds"] = clock.seconds
        slopes[name] = {key: p.grad.float().cpu() for key, p in own.named_parameters() if p.grad is not None}
        own.zero_grad()
    for name in ("own", "fused"):
        gaps = [((one - slopes["exact"][key]).norm() / slopes["exact"][key].norm()).item() for key, one in slopes[name].items()]
        found[f"{name}_gradient_gap"] = {"mean": float(np.mean(gaps)), "largest": max(gaps)}
    return found


def measure(name: str, dtype: torch.dtype, device: str, small: bool) -> dict[str, Any]:
    model, exact = (make(name, kind, device, small) for kind in (dtype, torch.float32))
    result: dict[str, Any] = {
        "model": name,
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": sum(map(torch.numel, model.parameters())),
    }
    reasons = {"engine": supports(model), "fused": reason_against(model)}
    result["reasons_against"] = {part: reason for part, reason in reasons.items() if reason}
    rows, length, tokens = (4, 40, 8) if small else (64, 1024, 128)
    if not reasons["engine"]:
        result["engine"] = engine_part(model, exact, rows, length, tokens, device)
    if not reasons["fused"]:
        result["learner"] = learner_part(model, exact, *((3, 60) if small else (8, 2048)), device)
    print(result, flush=True)
    return result
