"""LoRA adapters in the fused layers, on a CPU: the values and gradients of peft's own layers, and no gradient of the frozen base."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fourbit_double import fourbit
from fused_cases import adapted, run
from gradient_cases import assert_same
from learn_cases import tiny, trajectories
from native_models import make

from turnwise.engines.native import supports
from turnwise.learn import pack
from turnwise.learn.activations import Kept
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused import reason_against
from turnwise.learn.lora import pack_base

__all__ = ["fourbit"]  # a fixture
SIZES = {"hidden_size": 64, "intermediate_size": 128}


def compare(build: Any, kept: Kept | None = None, narrow: bool = False, exact: float = 1e-4) -> dict[str, torch.Tensor]:
    """Hidden states and gradients through both kinds of layers; those of ours."""
    packed = pack(trajectories(3, context="full"))
    own, fused = PackedModel(build(), fused=False), PackedModel(build(), fused=True)
    assert own.fused is None and fused.fused is not None
    fused.fused.kept = kept or Kept()
    places = packed.source if narrow else None
    (wanted, slopes), (found, found_slopes) = run(own, packed, places), run(fused, packed, places)
    # Relative to the size of hidden states, as in test_learn_fused.py.
    torch.testing.assert_close(found, wanted, rtol=exact, atol=0.1 * exact * float(wanted.square().mean().sqrt()))
    assert_same(found_slopes, slopes, exact)
    return found_slopes


@pytest.mark.parametrize("kept", [Kept(), Kept(1, 0), Kept(0, 0)])
@pytest.mark.parametrize("narrow", [False, True])
def test_adapters_have_the_values_and_gradients_of_peft(kept: Kept, narrow: bool) -> None:
    slopes = compare(lambda: adapted(tiny()), kept, narrow)
    assert len(slopes) == 2 * 2 * 7 and all("lora_" in name and slope.abs().sum() > 0 for name, slope in slopes.items())


@pytest.mark.parametrize("variant", ["llama3 rope", "qwen3", "qwen3-moe", "qwen3-moe, a dense layer", "gemma3", "smollm3"])
def test_every_family_has_the_values_and_gradients_of_its_adapters(variant: str) -> None:
    compare(lambda: adapted(make(variant)), Kept(1, 0), narrow=True)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["down_proj", "k_proj"], ["up_proj"]])
def test_some_layers_may_have_none(targets: list[str]) -> None:
    slopes = compare(lambda: adapted(tiny(), targets=targets))
    assert len(slopes) == 2 * 2 * len(targets)


@pytest.mark.usefixtures("fourbit")
@pytest.mark.parametrize("kept", [Kept(), Kept(0, 0)])
def test_a_base_in_four_bits_is_unpacked_in_both_passes(kept: Kept) -> None:
    slopes = compare(lambda: adapted(pack_base(tiny(**SIZES), "cpu", torch.float32)), kept)
    assert slopes and all("lora_" in name for name in slopes)


def test_adapters_that_are_off_add_nothing_and_are_back_afterwards() -> None:
    model, packed = adapted(tiny()), pack(trajectories(3))
    policy = PackedModel(model, fused=True)
    plain = run(PackedModel(tiny(), fused=True), packed)[0]

    def seen() -> torch.Tensor:
        with torch.no_grad(), policy.attention():
            return policy.hidden(packed)

    before = seen()
    with model.disable_adapter():
        torch.testing.assert_close(seen(), plain, rtol=1e-4, atol=1e-5)
    assert torch.equal(seen(), before) and not torch.allclose(before, plain, atol=1e-3)


def test_adapters_are_taken_unless_several_processes_share_the_model() -> None:
    assert PackedModel(adapted(tiny())).fused is not None
    assert "adapters" in str(reason_against(adapted(tiny()), sharded=True)), "several processes leave them to transformers"


def test_an_adapter_that_nothing_here_reads_is_a_reason_against_a_model() -> None:
    model = adapted(tiny())
    model.get_base_model().model.layers[1].input_layernorm.lora_A = torch.nn.ModuleDict()
    assert "adapter on model.layers.1.input_layernorm" in str(supports(model))
