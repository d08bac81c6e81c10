"""Layers with a backward pass of their own, in plain torch on a CPU: the same values and gradients as the model's own layers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from fused_cases import run
from gradient_cases import GradientOf, assert_same
from learn_cases import credited, equal, tiny, trajectories, weights_of, with_layers
from native_models import FAMILIES, VARIANTS, make

from turnwise import credit
from turnwise.data.batch import Batch
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, ValueSettings, add_lora, forward, pack
from turnwise.learn.activations import Kept
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused import reason_against
from turnwise.learn.fused.attention import Frame, attend, attend_backward
from turnwise.objectives import Loss
from turnwise.util.errors import TurnwiseError

WINDOW = 9  # shorter than most sequences of the batch
TAKEN = [name for name in VARIANTS if name.startswith(("qwen2", "qwen3", "gemma3", "smollm3", "llama")) and name != "llama with biases"]


def family(name: str, seed: int = 0) -> Any:
    """A small model; windows are short."""
    return make(name, seed, **({"sliding_window": WINDOW} if "gemma3" in name or "windows" in name else {}))


@pytest.mark.parametrize("name", TAKEN)
def test_every_family_has_the_values_and_gradients_of_its_own_layers(name: str) -> None:
    packed = pack(trajectories(3, context="full"))
    assert packed.lengths.max() > 2 * WINDOW
    own, fused = PackedModel(family(name), fused=False), PackedModel(family(name), fused=True)
    assert own.fused is None and fused.fused is not None and reason_against(fused.causal) is None
    for kept, places in product((Kept(), Kept(2, 1), Kept(1, 0), Kept(0, 0)), (None, packed.source)):
        fused.fused.kept = kept
        (wanted, slopes), (found, found_slopes) = run(own, packed, places), run(fused, packed, places)
        # Relative to the size of hidden states, which differs by family: gemma3's (2.0) own float32 layers are 1.9e-5 off float64.
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.square().mean().sqrt()))
        assert_same(found_slopes, slopes, 1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_steps_states_and_saved_models_of_every_family_are_those_of_its_own_layers(name: str, tmp_path: Any) -> None:
    found = credited(trajectories(8, context="full"))
    settings = LearnerSettings(minibatches=2, optimiser=OptimiserSettings(lr=0.05, eps=1.0), loss=Loss(kl_coef=0.1, entropy_coef=0.01))
    moved = []
    for fused in (False, True):
        learner = with_layers(Learner(family(name), settings, reference=family(name, 1)), fused)
        before = weights_of(learner)
        assert learner.update(found, seed=1)["steps"] == 2
        moved.append({key: value - before[key] for key, value in weights_of(learner).items()})
    assert_same(moved[1], moved[0], 1e-3)
    tensors, numbers = learner.state()
    again = Learner(family(name, 2), settings, reference=family(name, 1))
    again.load_state(tensors, numbers)
    assert equal(weights_of(again), weights_of(learner))
    model = type(learner.model).from_pretrained(learner.save_model(tmp_path / "model"))
    assert reason_against(model) is None and equal(dict(model.state_dict()), dict(learner.model.state_dict()))


def test_one_sequence_or_a_hundred_and_a_single_token_are_fine() -> None:
    model = tiny()
    for lengths in ([1], [1, 1, 1], [40], [1] * 100):
        packed = _packed(lengths)
        wanted, found = run(PackedModel(model, fused=False), packed)[0], run(PackedModel(model, fused=True), packed)[0]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def _packed(lengths: list[int]) -> Any:
    from turnwise.data.rollouts import Trajectory, Turn

    rng = np.random.default_rng(0)
    return pack([Trajectory(0, n, turns=[Turn("x", prompt_ids=rng.integers(0, 48, k).tolist())]) for n, k in enumerate(lengths)])


def test_weights_that_are_not_trained_get_no_gradient() -> None:
    model = tiny()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name and "bias" not in name)
    packed = pack(trajectories(3))
    slopes = run(PackedModel(model, fused=True), packed)[1]
    assert slopes and all("layers.1" in name and "bias" not in name for name in slopes)
    assert_same(slopes, run(PackedModel(model, fused=False), packed)[1], 1e-4)


def test_models_that_fused_layers_do_not_know_are_named_with_the_reason() -> None:
    reasons = {
        "adapters have dropout": add_lora(tiny(), rank=2, dropout=0.1),
        "attention has dropout": tiny(attention_dropout=0.1),
        "biases": tiny(kind="llama", attention_bias=True),
    }
    for word, model in reasons.items():
        assert word in str(reason_against(model))
        assert PackedModel(model).fused is None
        with pytest.raises(TurnwiseError, match=word):
            PackedModel(model, fused=True)
    assert reason_against(tiny()) is None


def test_on_a_cpu_models_in_float32_run_through_fused_layers_and_others_through_their_own(recwarn: pytest.WarningsRecorder) -> None:
    assert PackedModel(tiny()).fused is not None
    assert PackedModel(tiny(), fused=False).fused is None
    assert PackedModel(tiny().bfloat16()).fused is None and PackedModel(tiny().double()).fused is None
    assert PackedModel(tiny(attention_dropout=0.1).bfloat16()).fused is None
    assert not [warning for warning in recwarn if "layers" in str(warning.message)]


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_of_some_tokens_is_that_of_all_at_their_places(window: int, kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths, heads, size = [5, 1, 9, 4], 4, 8
    places = torch.tensor([1, 4, 6, 9, 14])  # nothing reads in the second sequence, nor in the last

    def frame() -> Frame:
        offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        return Frame(lengths, offsets, torch.empty(0), (), (), heads, kv_heads, size, 1e-6)

    qkv = torch.randn(sum(lengths), (heads + 2 * kv_heads) * size, generator=generator, dtype=torch.float64)
    slopes = torch.randn(len(places), heads * size, generator=generator, dtype=torch.float64)
    whole, some = frame(), frame()
    out, state = attend(qkv, whole, window)
    found, own = attend(qkv, some, window, places)
    torch.testing.assert_close(found, out[places])
    wanted = attend_backward(torch.zeros_like(out).index_copy_(0, places, slopes), qkv, out, state, whole, window)
    for one, two in zip(attend_backward(slopes, qkv, found, own, some, window, places), wanted, strict=True):
        torch.testing.assert_close(one, two)
    assert not wanted[0][5].any() and len(own) == 2


@pytest.mark.parametrize("half", [True, False])
def test_where_fused_layers_would_be_used_a_model_that_they_do_not_take_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    monkeypatch.setattr(forward, "_on_gpu_in_half", lambda weight: half)  # not half: in float32 on a CPU
    with pytest.warns(UserWarning, match=r"^Qwen2ForCausalLM: .* \(its attention has dropout\): transformers' own layers train it$"):
        assert PackedModel(tiny(attention_dropout=0.1)).fused is None
    assert PackedModel(tiny()).fused is not None


@pytest.mark.parametrize("value", [None, ValueSettings(level="turn")])
def test_an_update_has_the_same_gradient_through_fused_layers(value: ValueSettings | None) -> None:
    found = trajectories(8, context="full")
    loss = Loss(kl_coef=0.1, entropy_coef=0.01)
    settings = LearnerSettings(loss=loss, value=value, tokens_per_batch=60, optimiser=OptimiserSettings(lr=0.0))
    results = []
    for fused in (False, True):
        learner = with_layers(Learner(tiny(), settings, reference=tiny(1)), fused)
        batch = learner.annotate(Batch.of(found))
        targets = None if value is None else credit.assign("gae", batch.rollouts).targets
        results.append(GradientOf(learner)(credited(batch, targets=targets)))
    assert_same(results[1], results[0], 1e-4)
