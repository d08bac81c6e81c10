"""The transformers engine: what it draws is what the model says, whoever shares the batch and whatever goes wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from native_models import plain_logprobs
from transformers import AutoConfig, AutoModelForCausalLM

from turnwise import TurnwiseError
from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.transformers import TransformersEngine
from turnwise.util.seeds import derive

VOCABULARY = 97
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LINEAR = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8, "mamba_expand": 2}
# plain attention, sliding windows, learned positions, no positions at all, linear attention, and a cache of the model's own kind; then
# state spaces and convolutions together with attention
KINDS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gemma3_text": {"sliding_window": 12},
    "mistral": {"sliding_window": 12},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "bloom": {"n_layer": 2, "n_head": 4},
    "qwen3_5_text": LINEAR,
    "minimax": {},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "zamba2": {
        "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_d_state": 8, "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid"], "head_dim": 16,
    },
    "nemotron_h": {
        "hybrid_override_pattern": "M*-M", "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 8,
        "num_hidden_layers": 4,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
}  # fmt: skip


def small_model(kind: str = "qwen2", seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **KINDS[kind], **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.15)  # as initialised, a small model hardly looks at its prompt
    return model.eval()


def chance(*names: int | str) -> int:
    return derive(0, *names)


def prompts(n: int, longest: int = 40) -> dict[int, Request]:
    found = {}
    for key in range(n):
        length = 1 + chance(key, "length") % longest
        sampling = Sampling(temperature=[1.0, 0.7, 1.5][key % 3], top_k=[0, 0, 20][key % 3], max_tokens=1 + chance(key, "max") % 20)
        found[key] = Request(key, [6 + chance(key, place) % 90 for place in range(length)], sampling, seed=chance(key), sequence=key)
    return found


def followed(request: Request, response: Response) -> Request:
    """The next turn of a dialogue that grows: all that was said, and a few new tokens."""
    new = [6 + chance(request.key, "new", place) % 90 for place in range(1 + request.key % 5)]
    prompt = [*request.prompt_ids, *response.token_ids, *new]
    return Request(request.key + 100, prompt, request.sampling, request.seed + 1, request.sequence)


def play(engine: TransformersEngine, first: dict[int, Request], late: dict[int, Request] | None = None, turns: int = 2) -> Any:
    """Every request with its response: `late` ones come after the first poll, and every trajectory has `turns` turns."""
    asked, got = dict(first), {}
    engine.submit(list(first.values()))
    while engine.pending:
        for response in engine.poll():
            got[response.key] = response
            if response.key < 100 * (turns - 1) and response.token_ids:
                following = followed(asked[response.key], response)
                asked[following.key] = following
                engine.submit([following])
        if late:
            asked |= late
            engine.submit(list(late.values()))
            late = None
    return {key: (asked[key], got[key]) for key in asked}


def reference(model: Any, request: Request, response: Response) -> torch.Tensor:
    return plain_logprobs(model, request.prompt_ids, response.token_ids, request.sampling.temperature or 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_the_models_own_and_company_changes_no_token(kind: str) -> None:
    model = small_model(kind)
    requests = prompts(9)
    engine = TransformersEngine(model, max_batch=4, max_length=200, stop_token_ids=range(3, 9), prefill_tokens=100)
    found = play(engine, {key: requests[key] for key in range(6)}, late={key: requests[key] for key in range(6, 9)})
    assert len(found) == 18
    alone = TransformersEngine(model, max_batch=1, max_length=200, stop_token_ids=range(3, 9), reuse_prefixes=False)
    for request, response in found.values():
        assert response.finish in (Finish.STOP, Finish.LENGTH), response.message
        assert len(response.logprobs) == len(response.token_ids) > 0
        assert (reference(model, request, response) - torch.tensor(response.logprobs)).abs().max() < 1e-4
        if request.key % 2:
            continue
        alone.submit([request])
        assert alone.poll()[0].token_ids == response.token_ids
    assert {response.finish for _, response in found.values()} == {Finish.STOP, Finish.LENGTH}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_tokens_as_the_cpu() -> None:
    here = play(TransformersEngine(small_model(), stop_token_ids=[3]), prompts(9))
    there = play(TransformersEngine(small_model().cuda(), stop_token_ids=[3]), prompts(9))
    assert {k: v[1].token_ids for k, v in here.items()} == {k: v[1].token_ids for k, v in there.items()}


def test_finished_rows_leave_at_once_and_new_ones_join_the_running_batch() -> None:
    model = small_model()
    sizes = []
    model.register_forward_pre_hook(lambda *a: sizes.append(tuple(a[2]["input_ids"].shape)), with_kwargs=True)
    engine = TransformersEngine(model, max_batch=3, stop_token_ids=[])
    lengths = [2, 6, 4, 3]
    engine.submit([Request(key, [9, 8, 7], Sampling(max_tokens=n)) for key, n in enumerate(lengths)])
    order = []
    while engine.pending:
        order += [response.key for response in engine.poll()]
    assert order == [0, 2, 3, 1]
    #         three read, draw        the fourth joins
    assert sizes == [(3, 3), (3, 1), (1, 3), (3, 1), (3, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("forget", ["", "release", "refresh"])
def test_a_dialogue_that_goes_on_is_not_read_again_unless_it_was_released_or_the_weights_changed(forget: str) -> None:
    model, widths = small_model(), []
    model.register_forward_pre_hook(lambda *a: widths.append(a[2]["input_ids"].shape[1]), with_kwargs=True)
    engine = TransformersEngine(model, stop_token_ids=[])
    request = Request(0, list(range(6, 40)), Sampling(max_tokens=3), sequence=5)
    engine.submit([request])
    engine.poll()
    widths.clear()
    if forget:
        engine.release(5) if forget == "release" else engine.refresh()
    engine.submit([request])
    engine.poll()
    assert (max(widths) == 34) == bool(forget)


def test_the_learners_module_is_used_without_dropout_and_left_in_its_mode() -> None:
    model = small_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    plain = play(TransformersEngine(model), prompts(3), turns=1)
    model.train()
    model.transformer.h[1].eval()
    modes = [module.training for module in model.modules()]
    again = play(TransformersEngine(model), prompts(3), turns=1)
    assert {k: v[1] for k, v in plain.items()} == {k: v[1] for k, v in again.items()}
    assert [module.training for module in model.modules()] == modes
    assert all(not parameter.grad_fn for parameter in model.parameters()) and torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_half_precision_gives_log_probs_near_the_plain_forward() -> None:
    full, half = small_model(), small_model().to(torch.bfloat16)
    for engine in (TransformersEngine(half, max_batch=4), TransformersEngine(full, max_batch=4, autocast=torch.bfloat16)):
        for request, response in play(engine, prompts(6)).values():
            assert (reference(full, request, response) - torch.tensor(response.logprobs)).abs().max() < 0.5


class Troubled(torch.nn.Module):
    """A model whose forward fails where `trouble(input_ids, columns)` gives an exception."""

    def __init__(self, model: Any, trouble: Any):
        super().__init__()
        self.inner, self.trouble = model, trouble
        self.config = model.config
        self.get_input_embeddings = model.get_input_embeddings

    def get_base_model(self) -> Any:
        return self.inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **rest: Any) -> Any:
        output = self.inner(input_ids=input_ids, attention_mask=attention_mask, **rest)
        if (error := self.trouble(input_ids, attention_mask.shape[1])) is not None:
            raise error  # after the cache has been changed
        return output


def test_too_little_memory_halves_the_batch_and_changes_no_token() -> None:
    model = small_model()
    expected = play(TransformersEngine(model, max_batch=8, stop_token_ids=[3]), prompts(12))
    sizes = []

    def trouble(ids: torch.Tensor, width: int) -> Exception | None:
        sizes.append(len(ids))
        return torch.OutOfMemoryError("CUDA out of memory") if len(ids) * width > 120 else None

    engine = TransformersEngine(Troubled(model, trouble), max_batch=8, stop_token_ids=[3])
    found = play(engine, prompts(12))
    assert max(sizes) == 8
    assert {k: v[1].token_ids for k, v in found.items()} == {k: v[1].token_ids for k, v in expected.items()}


def test_a_row_that_fails_alone_is_a_fault_and_the_others_go_on() -> None:
    model = small_model()
    expected = play(TransformersEngine(model, max_batch=8, stop_token_ids=[3]), prompts(12), turns=1)

    def trouble(ids: torch.Tensor, width: int) -> Exception | None:
        return RuntimeError("poison") if (ids == 96).any() else None

    engine = TransformersEngine(Troubled(model, trouble), max_batch=8, stop_token_ids=[3])
    found = play(engine, {**prompts(12), 50: Request(50, [8, 96, 9], Sampling())}, turns=1)
    assert found[50][1].finish is Finish.FAULT and "RuntimeError: poison" in found[50][1].message
    for key, (_, response) in expected.items():
        drew_it = 96 in response.token_ids[:-1]
        assert (found[key][1].finish is Finish.FAULT) == (drew_it or 96 in expected[key][0].prompt_ids)
        if not drew_it and 96 not in expected[key][0].prompt_ids:
            assert found[key][1].token_ids == response.token_ids


def test_an_interrupt_is_passed_on_and_the_engine_can_go_on_afterwards() -> None:
    model, steps = small_model(), []
    expected = play(TransformersEngine(model, stop_token_ids=[3]), prompts(4), turns=1)

    def trouble(ids: torch.Tensor, width: int) -> BaseException | None:
        steps.append(width)
        return KeyboardInterrupt() if len(steps) == 3 else None

    engine = TransformersEngine(Troubled(model, trouble), stop_token_ids=[3])
    engine.submit(list(prompts(4).values()))
    found: dict[int, Response] = {}
    interrupted = 0
    while engine.pending:
        try:
            found |= {response.key: response for response in engine.poll()}
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted == 1
    assert {k: r.token_ids for k, r in found.items()} == {k: v[1].token_ids for k, v in expected.items()}


def test_a_closed_engine_and_a_model_without_a_cache_are_named() -> None:
    engine = TransformersEngine(small_model())
    engine.submit(list(prompts(2).values()))
    engine.close()
    assert engine.pending == 0 and engine.poll() == []
    with pytest.raises(TurnwiseError, match="closed"):
        engine.submit([])
    with pytest.raises(TurnwiseError, match="no past_key_values"):
        TransformersEngine(
            AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", hidden_size=8, num_hidden_layers=1)), max_length=9
        )
