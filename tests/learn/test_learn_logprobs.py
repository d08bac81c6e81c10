"""Log-probs without full logits, and the packed forward pass: both against what transformers and torch give."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from learn_cases import VOCABULARY, plain_logprobs, tiny, trajectories
from torch.distributions import Categorical

from turnwise.learn.forward import PackedModel
from turnwise.learn.logprobs import Head, token_logprobs
from turnwise.learn.packing import pack
from turnwise.util.errors import TurnwiseError


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("temperature", "scale", "softcap"), [(1.0, 1.0, None), (0.4, 1.0, None), (1.7, 0.25, 3.0)])
@pytest.mark.parametrize(("chunk", "dtype", "near"), [(7, "float64", 1e-10), (7, "float32", 1e-5), (99, "float32", 1e-5)])
@pytest.mark.parametrize(("keep", "pushed"), [(False, True), (True, False), (True, True)])
def test_value_and_gradient_equal_those_of_full_logits(
    bias: bool, temperature: float, scale: float, softcap: float | None, chunk: int, dtype: str, near: float, keep: bool, pushed: bool
) -> None:
    """Also from cached logit gradients (`keep`), which a gradient of the entropy (`pushed`) cannot use."""
    generator = torch.Generator().manual_seed(0)
    real = {"generator": generator, "dtype": getattr(torch, dtype)}
    hidden, weight = (torch.randn(n, 16, **real) for n in (23, 37))
    shift = torch.randn(37, **real) if bias else None
    target = torch.randint(0, 37, (23,), generator=generator)
    pull, push = torch.randn(23, **real), pushed * torch.randn(23, **real)
    pull[3:9] = 0.0  # tokens that a mask leaves out

    def leaves() -> list[Any]:
        return [None if x is None else x.clone().requires_grad_() for x in (hidden, weight, shift)]

    own, plain = leaves(), leaves()
    logprob, entropy = token_logprobs(
        own[0], Head(own[1], own[2], scale, softcap), target, temperature=temperature, entropy=True, chunk=chunk, keep=keep
    )
    assert entropy is not None
    (pull @ logprob + (push @ entropy if pushed else 0.0)).backward()
    logits = plain[0] @ plain[1].t() * scale if shift is None else (plain[0] @ plain[1].t() + plain[2]) * scale
    logits = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / temperature
    wanted = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
    (pull @ wanted + push @ Categorical(logits=logits).entropy()).backward()
    torch.testing.assert_close(logprob, wanted, rtol=near, atol=near)
    torch.testing.assert_close(entropy, Categorical(logits=logits).entropy(), rtol=near, atol=near)
    for one, other in zip(own, plain, strict=True):
        if one is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=10 * near, atol=10 * near)


def test_bfloat16_weights_are_multiplied_in_float32() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(n, 64, generator=generator).bfloat16() for n in (9, 50))
    target = torch.randint(0, 50, (9,), generator=generator)
    logprob, entropy = token_logprobs(hidden, Head(weight), target)
    exact = (hidden.double() @ weight.double().t()).log_softmax(-1).gather(-1, target[:, None])[:, 0]
    assert entropy is None and logprob.dtype == torch.float32
    torch.testing.assert_close(logprob.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(TurnwiseError, match="greedy"):
        token_logprobs(torch.zeros(1, 4), Head(torch.zeros(5, 4)), torch.zeros(1, dtype=torch.long), temperature=0.0)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("context", ["window", "full"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_logprobs_equal_transformers_own_forward(kind: str, context: str, temperature: float) -> None:
    model, found = tiny(kind=kind), trajectories(4, context=context)
    packed, policy = pack(found), PackedModel(model)
    with torch.no_grad():
        with policy.attention():
            hidden = policy.hidden(packed)
        source, target = torch.as_tensor(packed.source), torch.as_tensor(packed.target)
        logprob, _ = token_logprobs(hidden[source], policy.head, target, temperature=temperature)
        plain = [plain_logprobs(model, list(t.prompt_ids), list(t.response_ids), temperature) for x in found for t in x.turns]
    assert policy.packs
    torch.testing.assert_close(logprob, torch.cat(plain), rtol=1e-5, atol=1e-5)


def test_a_sliding_window_is_kept_inside_each_sequence() -> None:
    model = tiny(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    found = trajectories(6, context="full")
    packed, policy = pack(found), PackedModel(model)
    with torch.no_grad():
        with policy.attention():
            together = policy.hidden(packed)
        pieces = torch.as_tensor(packed.ids).split(packed.lengths.tolist())
        alone = torch.cat([model.model(input_ids=piece[None]).last_hidden_state[0] for piece in pieces])
    assert policy.packs and packed.lengths.max() > 8
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "words"), [("bloom", "custom attention"), ("mpt", "AttributeError")])
def test_a_model_whose_sequences_would_leak_runs_them_one_at_a_time(kind: str, words: str) -> None:
    """Bloom's attention is its own and knows nothing of borders; MPT's layers fail if the attention is not one of theirs."""
    from transformers import BloomConfig, BloomForCausalLM, MptConfig, MptForCausalLM

    torch.manual_seed(0)
    if kind == "bloom":
        model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)).eval()
    else:
        model = MptForCausalLM(MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=256)).eval()
    with pytest.warns(UserWarning, match=f"{words}.*one at a time"):
        policy = PackedModel(model)
    found = trajectories(2)
    packed = pack(found)
    with torch.no_grad():
        with policy.attention():
            hidden = policy.hidden(packed)
        logprob, _ = token_logprobs(hidden[packed.source], policy.head, torch.as_tensor(packed.target))
        plain = [plain_logprobs(model, list(t.prompt_ids), list(t.response_ids)) for x in found for t in x.turns]
    assert not policy.packs
    torch.testing.assert_close(logprob, torch.cat(plain), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_attention_that_never_sees_the_borders_is_noticed_in_any_precision(dtype: torch.dtype) -> None:
    from transformers import GPTJConfig, GPTJForCausalLM  # takes the borders and passes them to nobody; half precision hides the leak

    torch.manual_seed(0)
    model = GPTJForCausalLM(GPTJConfig(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64)).to(dtype)
    with pytest.warns(UserWarning, match="one at a time"):
        assert not PackedModel(model).packs


def hooked(change: Any) -> Any:
    """A model whose hidden states are changed by a function of the row's token ids."""
    model = tiny()
    seen: dict[str, Any] = {}
    model.model.register_forward_pre_hook(lambda module, args, kwargs: seen.update(ids=kwargs["input_ids"]), with_kwargs=True)

    def after(module: Any, args: Any, out: Any) -> Any:
        out.last_hidden_state = out.last_hidden_state + change(seen["ids"])
        return out

    model.model.register_forward_hook(after)
    return model


@pytest.mark.parametrize("change", [lambda ids: 2e-5 * ids[0, 0], lambda ids: 1e-2 * ids.shape[1]])
def test_a_small_leak_and_a_change_too_large_for_rounding_are_found(change: Any) -> None:
    with pytest.warns(UserWarning, match="one at a time"):
        assert not PackedModel(hooked(change)).packs


def test_the_model_is_left_as_it_was() -> None:
    model = tiny()
    before = model.config._attn_implementation
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = PackedModel(model)
    with pytest.raises(KeyError), policy.attention():
        assert model.config._attn_implementation != before
        raise KeyError
    assert model.config._attn_implementation == before and not model.training


def test_an_output_layer_that_is_not_what_it_seems_is_refused() -> None:
    class Doubled(type(tiny())):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 2
            return out

    with pytest.raises(TurnwiseError, match="output layer"):
        PackedModel(Doubled(tiny().config))


def test_something_that_is_no_language_model_is_refused() -> None:
    with pytest.raises(TurnwiseError, match="causal language model"):
        PackedModel(torch.nn.Linear(2, 2))
