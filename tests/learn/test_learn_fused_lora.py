"""LoRA adapters in the fused layers, on a CPU: the values and gradients of peft's own layers, and no gradient of the frozen base."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fourbit_double import fourbit
from fused_cases import adapted, run
from gradient_cases import assert_same
from learn_cases import credited, gradients, tiny, trajectories, weights_of, with_layers
from native_models import make
from torch.nn.functional import rms_norm
from torch.utils._python_dispatch import TorchDispatchMode

from turnwise.engines.fourbit import is_packed
from turnwise.engines.native import supports
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, add_lora, forward, pack
from turnwise.learn.activations import Kept
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused import reason_against
from turnwise.learn.lora import pack_base
from turnwise.objectives import Loss
from turnwise.util.errors import TurnwiseError

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
    torch.testing.assert_close(found, wanted, rtol=exact, atol=0.1 * exact)
    assert_same(found_slopes, slopes, exact)
    return found_slopes


@pytest.mark.parametrize("kept", [Kept(), Kept(9, 9, 9), Kept(1, 0), Kept(0, 0)])
@pytest.mark.parametrize("narrow", [False, True])
def test_adapters_have_the_values_and_gradients_of_peft(kept: Kept, narrow: bool) -> None:
    slopes = compare(lambda: adapted(tiny()), kept, narrow)
    assert len(slopes) == 2 * 2 * 7 and all("lora_" in name and slope.abs().sum() > 0 for name, slope in slopes.items())


def double() -> Any:
    """A model of float64 throughout: norms of transformers compute in float32."""
    model = adapted(tiny()).double()
    for module in model.modules():
        if type(module).__name__ == "Qwen2RMSNorm":
            own = partial(rms_norm, normalized_shape=module.weight.shape, weight=module.weight, eps=module.variance_epsilon)
            module.forward = own
    return model


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


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that operations make, apart from views of a model's parameters."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.made: set[tuple[int, ...]] = set()
        self.own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self.own:
                self.made |= {tuple(one.shape), tuple(one.shape)[::-1]}
        return out


def test_no_gradient_of_a_frozen_weight_is_ever_made() -> None:
    """Not even one that is thrown away: none of the tensors of a backward pass is as large as a weight."""
    model, packed = adapted(tiny(hidden_size=80, intermediate_size=144)), pack(trajectories(3))
    policy = PackedModel(model, fused=True)
    inner = policy.causal.model.layers[0]
    sizes = {tuple(inner.mlp.up_proj.weight.shape), tuple(inner.self_attn.o_proj.weight.shape), (2 * 144, 80)}
    assert len(packed.ids) not in (80, 144, 288)
    with policy.attention():
        hidden = policy.hidden(packed)
        with Shapes(model) as shapes:
            hidden.sum().backward()
    assert shapes.made and not sizes & shapes.made
    assert all((parameter.grad is not None) == ("lora_" in name) for name, parameter in model.named_parameters())
    model.base_model.requires_grad_(True)
    with policy.attention(), Shapes(model) as shapes:
        policy.hidden(packed).sum().backward()
    assert sizes & shapes.made, "what is counted would be seen"


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


def test_updates_with_a_reference_move_adapters_as_peft_does() -> None:
    found = credited(trajectories(8, context="full"))
    settings = LearnerSettings(minibatches=2, optimiser=OptimiserSettings(lr=0.05, eps=1.0), loss=Loss(kl_coef=0.1))
    moved = []
    for fused in (False, True):
        learner = with_layers(Learner(adapted(tiny()), settings), fused)
        assert learner.reference is not None
        learner.reference.policy = learner.policy
        before = weights_of(learner)
        assert learner.update(found, seed=1)["steps"] == 2
        assert not any("lora_" not in name for name in gradients(learner.policy.causal))
        moved.append({key: value - before[key] for key, value in weights_of(learner).items()})
    assert_same(moved[1], moved[0], 1e-3)


def test_adapters_that_are_not_taken_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    dropping = add_lora(tiny(), rank=2, dropout=0.1)
    assert "adapters have dropout" in str(reason_against(dropping))
    with pytest.raises(TurnwiseError, match="dropout"):
        PackedModel(dropping, fused=True)
    monkeypatch.setattr(forward, "_on_gpu_in_half", lambda weight: True)
    with pytest.warns(UserWarning, match=r"its adapters have dropout\): transformers' own layers train it$"):
        assert PackedModel(dropping).fused is None
    assert PackedModel(adapted(tiny())).fused is not None
    assert "adapters" in str(reason_against(adapted(tiny()), sharded=True)), "several processes leave them to transformers"


def test_an_adapter_that_nothing_here_reads_is_a_reason_against_a_model() -> None:
    model = adapted(tiny())
    model.get_base_model().model.layers[1].input_layernorm.lora_A = torch.nn.ModuleDict()
    assert "adapter on model.layers.1.input_layernorm" in str(supports(model))


@pytest.mark.usefixtures("fourbit")
def test_a_base_in_four_bits_keeps_its_codes_through_an_update() -> None:
    learner = Learner(adapted(pack_base(tiny(**SIZES), "cpu", torch.float32)), LearnerSettings(optimiser=OptimiserSettings(lr=0.01)))
    learner.policy = learner.memory.policy = PackedModel(learner.model, fused=True)
    codes = [module.weight.data.clone() for module in learner.model.modules() if is_packed(module)]
    learner.update(credited(trajectories()), 0)
    now = [module.weight.data for module in learner.model.modules() if is_packed(module)]
    assert codes and all(torch.equal(one, two) for one, two in zip(codes, now, strict=True))
