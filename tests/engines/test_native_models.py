"""The native engine on every family that it takes: small ones with random weights, and real pretrained chat models, in float32 on a CPU.

Greedy tokens of all variants are compared in `test_native.py`, pages in `test_native_gpu_runner.py`. The real models are looked for in
$TURNWISE_MODELS, then in ../shared/models and ~/.cache/turnwise/models, each in a folder of its own name.
"""

from __future__ import annotations

import copy
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from native_models import FAMILIES, LLAMA3, ask, make, plain_logprobs, prompt, worst
from native_requests import Counted

from turnwise.engines.base import Finish, Response, Sampling
from turnwise.engines.native import NativeEngine, supports

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
TOKENS = 72
QUESTIONS = (
    "Name three things that are found in a kitchen and say what each is for.",
    "Write a Python function that reverses a linked list, and explain it.",
    "You are in a room. You see a cabinet 1, a drawer 1 and a desk 1. Your task is to: put a pen in the drawer. What do you do?",
    "Continue the story: The lighthouse keeper had not spoken to anyone for a year when",
    "What is 17 times 23? Think step by step.",
)


GREEDY = Sampling(temperature=0.0, max_tokens=6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dialogue_beyond_the_window_computes_only_its_new_tokens(family: str) -> None:
    model = make(family)
    engine = NativeEngine(model, max_length=160, prefill_tokens=40)
    counted, ids = Counted(engine), prompt(50)
    for turn in range(3):
        response = ask(engine, [ids], GREEDY)[0]
        assert plain_logprobs(model, ids, response.token_ids).tolist() == pytest.approx(response.logprobs, abs=1e-4)
        ids = [*ids, *response.token_ids, *prompt(10, 100 + turn)]
    assert counted.tokens == (50 + 5) + 2 * (1 + 10 + 5)
    group = [[*ids, *prompt(3, n)] for n in range(4)]
    found = ask(engine, group, Sampling(max_tokens=4), first=5)
    assert worst(model, group, {n: found[5 + n] for n in range(4)}) < 1e-4
    assert counted.tokens <= 55 + 32 + len(ids) + 4 * (3 + 3)  # what the group has in common is computed once


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_that_is_trained_or_moved_counts_after_refresh(family: str) -> None:
    model, ids = make(family), prompt(60)
    engine = NativeEngine(model, max_length=96)
    before = ask(engine, [ids], GREEDY)[0]
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.03)
    model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.backward()
    optimiser.step()
    engine.refresh()
    after = ask(engine, [ids], GREEDY)
    assert after[0].logprobs != before.logprobs and worst(model, [ids], after) < 1e-4
    assert places == {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    attention, joined = model.model.layers[0].self_attn, engine.weights.layers[0].qkv.weight
    assert joined.data_ptr() == attention.q_proj.weight.data_ptr(), "no copy"
    other = make(family, seed=1)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data.clone()
    engine.refresh()
    assert worst(other, [ids], ask(engine, [ids], GREEDY)) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_near_the_models_own(family: str) -> None:
    model, ids = make(family, initializer_range=0.05).bfloat16(), [prompt(40)]
    responses = ask(NativeEngine(model, max_length=96), ids, GREEDY)
    assert worst(model, ids, responses) < 0.06
    copied = make(family, initializer_range=0.05)
    engine = NativeEngine(copied, max_length=96, dtype=torch.bfloat16)
    assert worst(model, ids, ask(engine, ids, GREEDY)) < 0.15  # its norms are not rounded
    with torch.no_grad():
        copied.lm_head.weight.mul_(0.0)
    engine.refresh()
    assert ask(engine, ids, GREEDY)[0].logprobs[0] == pytest.approx(-torch.tensor(97.0).log().item(), abs=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_on_every_family_are_applied_on_the_fly(family: str) -> None:
    pytest.importorskip("peft", reason="needs the lora extra")
    from turnwise.learn import add_lora

    model, prompts = add_lora(make(family), rank=2).eval(), [prompt(5), prompt(50, 1)]
    engine = NativeEngine(model, max_length=96)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 0.0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    engine.refresh()
    with_adapters = ask(engine, prompts, GREEDY)
    assert worst(model, prompts, with_adapters) < 1e-4
    with model.disable_adapter():
        engine.refresh()
        base = ask(engine, prompts, GREEDY)
        assert worst(model, prompts, base) < 1e-4
    assert with_adapters[0].logprobs != base[0].logprobs


SOFT = {"attn_logit_softcapping": 20.0}
UNKNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    "mrope_section": ("llama", {"rope_parameters": LLAMA3 | {"mrope_section": [4, 4]}}),
    "is gelu,": ("llama", {"hidden_act": "gelu"}),
    "attention_multiplier": ("llama", {"attention_multiplier": 0.3}),
    "use_qk_norm": ("qwen2", {"use_qk_norm": True}),
    "residual_scale = 0.5": ("smollm3", {"residual_scale": 0.5}),
    "type chunked_attention": ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}),
    "bounds attention scores": ("gemma3", SOFT),
    "looks ahead": ("gemma3", {"use_bidirectional_attention": True}),
}


@pytest.mark.parametrize("words", UNKNOWN)
def test_a_setting_that_may_change_the_forward_pass_is_a_reason_against_a_model(words: str) -> None:
    variant, changes = UNKNOWN[words]
    model = make(variant)
    for name, value in changes.items():
        setattr(model.config, name, value)
    if "rope_parameters" in changes:
        model.model.rotary_emb.rope_type = changes["rope_parameters"]["rope_type"]
    assert words in str(supports(model))
    assert supports(make(variant)) is None


def test_settings_that_are_off_or_of_no_matter_are_no_reason() -> None:
    model = make()
    for name, value in {"rope_interleaved": False, "use_mrope": False, "is_llama_config": True, "embedding_multiplier": 1.0}.items():
        setattr(model.config, name, value)
    assert supports(model) is None
    for variant in ("qwen3", "qwen3-moe", "gemma3"):  # norms of heads are what these families have: Qwen3-Coder says so
        model = make(variant)
        model.config.use_qk_norm, model.config.qkv_bias = True, False
        assert supports(model) is None


def test_parameters_and_classes_that_nothing_reads_are_a_reason_against_a_model() -> None:
    model = make("qwen3")
    model.model.layers[1].self_attn.sinks = torch.nn.Parameter(torch.zeros(4))
    assert "layers.1.self_attn.sinks" in str(supports(model))
    model = make("qwen3")
    model.__class__ = type("Qwen3ForCausalLM", (type(model),), {"__module__": "somewhere"})
    assert "somewhere" in str(supports(model))
    model = make("smollm3")
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq[:4]
    assert "turns 8 of the 16 numbers" in str(supports(model))
    model = make()
    model.lm_head.to(torch.bfloat16)
    assert "dtypes" in str(supports(model))


@cache
def loaded(name: str) -> tuple[Any, Any]:
    # where the model is on this machine; None where it is not
    given = os.environ.get("TURNWISE_MODELS")
    beside = Path(__file__).parents[3] / "shared" / "models"
    places = [Path(given)] if given else [beside, Path.home() / ".cache" / "turnwise" / "models"]
    folder = next((place / name for place in places if (place / name / "config.json").is_file()), None)
    if folder is None:
        pytest.skip(f"the model {name} is not here: put its folder under $TURNWISE_MODELS or ~/.cache/turnwise/models")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@cache
def answered(name: str) -> tuple[list[list[int]], dict[int, Response]]:
    """The engine's greedy answers, all prompts in one batch with fewer slots than rows and prompts cut into pieces."""
    model, tokenizer = loaded(name)
    # chat prompts of several lengths; the last one is a dialogue of two turns
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts.append(
        [*prompts[0], {"role": "assistant", "content": "A knife, a pan and a kettle."}, {"role": "user", "content": "And two more?"}]
    )
    prompts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"] for p in prompts]
    engine = NativeEngine(model, tokenizer, max_batch=5, max_length=512, prefill_tokens=64)
    return prompts, ask(engine, prompts, Sampling(temperature=0.0, max_tokens=TOKENS))


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_of_a_real_model_are_those_of_generate(name: str) -> None:
    model, tokenizer = loaded(name)
    assert supports(model) is None
    prompts, responses = answered(name)
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id or 0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with torch.no_grad():
        expected = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False)[:, longest:].tolist()
    for n, row in enumerate(expected):
        length = len(responses[n].token_ids)
        assert list(responses[n].token_ids) == row[:length], f"prompt {n}: {tokenizer.decode(row)!r}"
        if responses[n].finish is Finish.STOP:
            assert responses[n].token_ids[-1] in model.generation_config.eos_token_id
        else:
            assert length == TOKENS


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_of_a_real_model_are_those_of_a_float64_forward(name: str) -> None:
    model, _ = loaded(name)
    prompts, responses = answered(name)
    exact = copy.deepcopy(model).double()
    worst = 0.0
    for n in (0, 5):
        row = torch.tensor([[*prompts[n], *responses[n].token_ids]])
        with torch.no_grad():
            logits = exact(row, logits_to_keep=len(responses[n].token_ids) + 1).logits[0, :-1]
        expected = logits.log_softmax(-1).gather(1, row[0, len(prompts[n]) :, None])[:, 0]
        worst = max(worst, (expected - torch.tensor(responses[n].logprobs, dtype=torch.float64)).abs().max().item())
    print(f"{name}: largest difference from float64 {worst:.2e}")
    assert worst < 5e-4
