"""Adapters on a base in 4 bits: with bitsandbytes (extra `4bit`) if it is installed, otherwise with a double of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fourbit_double import fourbit
from learn_cases import credited, equal, tiny, trajectories
from native_models import ask, make, worst
from transformers import AutoModelForCausalLM

import turnwise as tw
from turnwise.engines import fourbit as packing
from turnwise.engines.base import Sampling
from turnwise.engines.fourbit import dense, is_packed
from turnwise.engines.native import NativeEngine, supports
from turnwise.learn.learner import Learner
from turnwise.learn.lora import add_lora, has_packed, pack_base
from turnwise.learn.packing import pack
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.objectives import Loss
from turnwise.recipe.schema import Config
from turnwise.setup.early import check_adapters
from turnwise.util.errors import TurnwiseError

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
needs_library = pytest.mark.usefixtures("fourbit")
__all__ = ["fourbit"]  # a fixture


def base(seed: int = 0) -> Any:
    return tiny(seed, hidden_size=64, intermediate_size=128)


def made() -> Learner:
    model = add_lora(pack_base(base(), "cpu", torch.float32), rank=4)
    return Learner(model, LearnerSettings(loss=Loss(kl_coef=0.1), optimiser=OptimiserSettings(lr=2e-2)))


@needs_library
def test_inner_linear_layers_take_four_bits_and_the_rest_stays() -> None:
    plain, model = base(), pack_base(base(), "cpu", torch.float32)
    layer = model.model.layers[0].mlp.up_proj
    assert is_packed(layer) and layer.weight.numel() * layer.weight.element_size() == 64 * 128 // 2
    assert not is_packed(model.lm_head) and torch.equal(model.lm_head.weight, plain.lm_head.weight)
    found, wanted = dense(layer.weight), plain.model.layers[0].mlp.up_proj.weight
    assert found.shape == wanted.shape and (found - wanted).norm() < 0.15 * wanted.norm()


@needs_library
def test_the_learner_computes_with_what_the_codes_stand_for() -> None:
    learner, packed = made(), pack(trajectories())
    plain = base()
    for name, module in learner.policy.causal.named_modules():
        if name.endswith("base_layer"):
            plain.get_submodule(name.removesuffix(".base_layer")).weight.data = dense(module.weight)
    assert np.allclose(learner.logprobs(packed), Learner(plain).logprobs(packed), atol=1e-4)
    assert np.array_equal(learner.reference_logprobs(packed), learner.logprobs(packed))  # the adapters start at zero


@needs_library
def test_an_update_moves_the_adapters_alone_and_a_state_resumes_exactly() -> None:
    learner, packed = made(), pack(trajectories())
    codes = {name: weight.clone() for name, weight in learner.model.named_parameters() if weight.dtype == torch.uint8}
    learner.update(credited(trajectories()), 0)
    assert codes and all(torch.equal(codes[name], dict(learner.model.named_parameters())[name]) for name in codes)
    assert all("lora_" in name for name in learner.weights.masters)
    again = made()
    again.load_state(*learner.state())
    for one in (learner, again):
        one.update(credited(trajectories()), 1)
    assert equal(learner.state()[0], again.state()[0])
    assert not np.array_equal(learner.reference_logprobs(packed), learner.logprobs(packed))


@needs_library
def test_the_merged_model_is_written_without_codes(tmp_path: Path) -> None:
    learner, packed = made(), pack(trajectories())
    learner.update(credited(trajectories()), 0)
    written = AutoModelForCausalLM.from_pretrained(learner.save_model(tmp_path / "model"), dtype=torch.float32)
    assert not has_packed(written)
    assert np.allclose(Learner(written).logprobs(packed), learner.logprobs(packed), atol=1e-4)


PROMPTS = [[1, 2, 3, 4, 5], [7, 8], [9] * 12]


@needs_library
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_native_engine_samples_from_the_same_codes(temperature: float) -> None:
    learner = made()
    engine = NativeEngine(learner.model, max_length=64)
    for version in (1, 2):
        learner.update(credited(trajectories()), version)
        engine.publish(version)
        responses = ask(engine, PROMPTS, Sampling(temperature=temperature, max_tokens=9))
        assert worst(learner.model, PROMPTS, responses) < 1e-4


@needs_library
@pytest.mark.parametrize("variant", ["llama with biases", "qwen3", "qwen3-moe", "gemma3", "smollm3"])
def test_the_native_engine_takes_every_family_in_four_bits(variant: str) -> None:
    model = pack_base(make(variant, intermediate_size=128), "cpu", torch.float32)
    assert has_packed(model) and supports(model) is None
    responses = ask(NativeEngine(model, max_length=64), PROMPTS, Sampling(max_tokens=6))
    assert worst(model, PROMPTS, responses) < 1e-4


@needs_library
@pytest.mark.parametrize("rows", [1, 7])
def test_the_librarys_product_and_unpacked_weights_are_the_same(rows: int) -> None:
    model = pack_base(base(), "cpu", torch.float32)
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0))
    for module in (model.model.layers[0].mlp.up_proj, model.model.layers[0].self_attn.k_proj):
        whole, out = dense(module.weight), torch.zeros(2, module.out_features, 64)
        packing.unpack(module.weight, out[1])
        assert torch.equal(out[1], whole) and not out[0].any()
        torch.testing.assert_close(packing.times(x, module.weight), x @ whole.t(), rtol=1e-4, atol=1e-5)


@needs_library
def test_what_the_native_engine_does_not_read_is_named() -> None:
    model = pack_base(base(), "cpu", torch.float32)
    attention = model.model.layers[1].self_attn
    attention.k_proj.weight.quant_state.packing_format_for_cpu = True
    assert "arranged" in str(supports(model))
    attention.k_proj = torch.nn.Linear(64, attention.k_proj.out_features)
    assert "4 bits" in str(supports(model))


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(TurnwiseError, match=r"\[4bit\]"):
        pack_base(base(), "cpu", torch.float32)


def test_a_run_without_the_library_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(TurnwiseError, match=r"model\.lora\.base.*\[4bit\]"):
        tw.train(QUICKSTART, model={"lora": {"base": "4bit"}}, out=str(tmp_path), quiet=True)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(TurnwiseError, match=r"\[lora\]"):
        check_adapters(Config.load(QUICKSTART, ["model.lora.rank=4"]).model.lora)
    check_adapters(None)


@needs_library
def test_a_library_that_does_not_work_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no kernel for this device\nand many more lines")

    monkeypatch.setattr(packing.library().nn.Params4bit, "to", fail)
    with pytest.raises(TurnwiseError, match=r"on cpu: no kernel for this device\. .*model\.lora\.base=full"):
        pack_base(base(), "cpu", torch.float32)
    monkeypatch.setattr(packing.library().nn.Params4bit, "to", lambda weight, device: weight)
    with pytest.raises(TurnwiseError, match=r"stores nothing"):
        pack_base(base(), "cpu", torch.float32)


@needs_library
def test_a_model_without_inner_linear_layers_is_refused() -> None:
    model = tiny()
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(TurnwiseError, match=r"no inner linear layers.*model\.lora\.base=full"):
        pack_base(model, "cpu", torch.float32)


def test_several_processes_and_auxiliary_models_refuse_it() -> None:
    with pytest.raises(TurnwiseError, match="one process"):
        Config.load({"cluster": {"learners": 2}, "model": {"lora": {"base": "4bit"}}})
    with pytest.raises(TurnwiseError, match=r"model\.lora"):
        Config.load({"models": {"judge": {"copy_of": "policy", "trained": True, "lora": {"base": "4bit"}}}})
