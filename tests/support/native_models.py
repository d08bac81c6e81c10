"""Small random models of the families that the native engine runs, and the plain forward to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from turnwise.engines.base import Engine, Finish, Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native.weights import Linear

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
SCALED_YARN = YARN | {"mscale": 0.8, "mscale_all_dim": 0.5, "beta_fast": 20, "beta_slow": 2, "truncate": False}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
MOE = {"head_dim": 32, "moe_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 2}
GEMMA = {"head_dim": 32, "num_hidden_layers": 3, "sliding_window": 24, "query_pre_attn_scalar": 40, "pad_token_id": None}
GEMMA |= {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
BASES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
NOPE = {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "pad_token_id": None}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one head for all": ("llama", {"num_key_value_heads": 1}),
    "llama, seven heads on one of twelve numbers": (
        "llama",
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56, "head_dim": 12, "rope_parameters": SCALED_YARN},
    ),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, no shared heads": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2, short windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3, tied": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, windows": ("qwen3", {"head_dim": 32, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "biases of qwen3": ("qwen3", {"head_dim": 32, "attention_bias": True}),
    "qwen3-moe": ("qwen3_moe", MOE),
    "qwen3-moe, normed and tied": ("qwen3_moe", MOE | {"norm_topk_prob": True, "tie_word_embeddings": True, "head_dim": 16}),
    "qwen3-moe, a dense layer": ("qwen3_moe", MOE | {"mlp_only_layers": [0]}),
    "qwen3-moe, every other layer": ("qwen3_moe", MOE | {"num_hidden_layers": 3, "decoder_sparse_step": 2, "num_experts_per_tok": 1}),
    "gemma3": ("gemma3_text", GEMMA | {"rope_parameters": BASES}),
    "gemma3, untied and capped": ("gemma3_text", GEMMA | {"tie_word_embeddings": False, "final_logit_softcapping": 3.0, "head_dim": 16}),
    "smollm3": ("smollm3", NOPE),
    "smollm3, windows": ("smollm3", NOPE | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "biases of smollm3": ("smollm3", NOPE | {"attention_bias": True, "mlp_bias": True}),
    "smollm3, untied, yarn": ("smollm3", NOPE | {"tie_word_embeddings": False, "rope_parameters": YARN}),
}
FAMILIES = ("llama3 rope", "qwen2", "qwen3", "qwen3-moe", "gemma3", "smollm3")  # one variant of each
WORDS = 97
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "eos_token_id": None,
    "bos_token_id": None,
}


def make(variant: str = "qwen2", seed: int = 0, **changes: Any) -> Any:
    """A random model with weights large enough that its tokens differ."""
    family, settings = VARIANTS[variant]
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **settings, **changes})).eval()
    for name, parameter in made.named_parameters():  # norms and biases that are ones and zeros would hide mistakes
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    return made


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(0, WORDS, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def plain_logprobs(model: Any, ids: Sequence[int], sampled: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """The log-probs of sampled tokens by the model's own forward over everything."""
    row = torch.tensor([[*ids, *sampled]])
    with torch.no_grad():
        logits = model(row, use_cache=False).logits[0, len(ids) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, row[0, len(ids) :, None])[:, 0]


def drain(engine: Engine) -> dict[int, Response]:
    """Everything that is pending, by key."""
    found: dict[int, Response] = {}
    while engine.pending:
        for response in engine.poll():
            assert response.key not in found
            found[response.key] = response
    return found


def ask(engine: Engine, prompts: Iterable[Sequence[int]], sampling: Sampling, seed: int = 0, first: int = 0) -> dict[int, Response]:
    """One request a prompt, all at once; key and sequence are its number."""
    engine.submit([Request(n, ids, sampling, seed + n, sequence=n) for n, ids in enumerate(prompts, first)])
    return drain(engine)


def worst(model: Any, prompts: Sequence[Sequence[int]], responses: dict[int, Response], temperature: float = 1.0) -> float:
    """The largest difference between the engine's log-probs and the plain forward's. Every response must be a whole one."""
    assert all(responses[n].finish in (Finish.STOP, Finish.LENGTH) for n in range(len(prompts)))
    gaps = [
        (plain_logprobs(model, ids, responses[n].token_ids, temperature) - torch.tensor(responses[n].logprobs)).abs().max().item()
        for n, ids in enumerate(prompts)
    ]
    return max(gaps)


def mlp_rows(engine: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """By layer, how many rows its MLP was given in every step from now on."""
    layers = engine.weights.layers
    found: list[list[int]] = [[] for _ in layers]
    numbers, call = {id(layer.gate_up): number for number, layer in enumerate(layers)}, Linear.__call__

    def counted(linear: Linear, x: torch.Tensor, *more: Any) -> torch.Tensor:
        if id(linear) in numbers:
            found[numbers[id(linear)]].append(len(x))
        return call(linear, x, *more)

    monkeypatch.setattr(Linear, "__call__", counted)
    return found


@pytest.fixture
def one_thread_each(request: pytest.FixtureRequest) -> None:
    """With more threads inside an operation, the order of its sums may depend on what else is computed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(before))
