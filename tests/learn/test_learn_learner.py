"""The learner as a whole: it learns, it stops when it should, and what it knows survives."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_cases import VOCABULARY, changed, credited, equal, rollouts_of, tiny, trajectories, weights_of
from native_models import make
from transformers import AutoModelForCausalLM

from turnwise import credit
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.engines.native import supports
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, ValueSettings, add_lora, pack
from turnwise.objectives import Loss
from turnwise.util.errors import MissingExtra, TurnwiseError

FAST = OptimiserSettings(lr=3e-3, weight_decay=0.0)


def batch(seed: int = 0, **more: Any) -> tuple[list[Trajectory], Rollouts, Any]:
    found = trajectories(seed, **more)
    rollouts = rollouts_of(found)
    return found, rollouts, credit.compute("gigpo", rollouts)


def test_the_same_seed_gives_the_same_weights_bit_by_bit_and_another_seed_does_not() -> None:
    def trained(seed: int) -> dict[str, torch.Tensor]:
        learner = Learner(tiny(), LearnerSettings(optimiser=FAST, epochs=2, minibatches=3, tokens_per_batch=50))
        learner.update(credited(trajectories(1)), seed=seed)
        return weights_of(learner)

    first = trained(5)
    torch.manual_seed(123)  # what others draw does not matter
    assert equal(first, trained(5))
    assert not equal(first, trained(6))


def test_an_update_leaves_global_chance_and_the_models_mode_alone() -> None:
    learner = Learner(tiny(), LearnerSettings(optimiser=FAST))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    learner.update(credited(trajectories(1)), seed=5)
    assert torch.equal(before, torch.get_rng_state())
    assert not learner.model.training and learner.model.config._attn_implementation == "sdpa"


def test_old_logprobs_are_those_before_the_first_step() -> None:
    found, rollouts, values = batch(2)
    several = LearnerSettings(optimiser=FAST, epochs=2, minibatches=2)
    computed, given = Learner(tiny(), several), Learner(tiny(), several)
    annotated = given.annotate(Batch.of(found))
    packed = pack(found, rollouts)
    assert np.allclose(annotated.column("token.old_logprob")[packed.index], given.logprobs(packed), atol=1e-6)
    metrics = computed.update(credited(found, values), seed=1)
    given.update(credited(annotated, values), seed=1)
    assert equal(weights_of(computed), weights_of(given))
    assert metrics["steps"] == 4 and metrics["kl_old_k3"] > 0
    alone = Learner(tiny(), LearnerSettings(optimiser=FAST)).update(credited(found, values))
    assert alone["ratio"] == pytest.approx(1, abs=1e-6) and "seconds_old_logprobs" not in alone


def test_the_engines_logprobs_can_anchor_the_ratio() -> None:
    found, _rollouts, values = batch(2)
    learner = Learner(tiny(), LearnerSettings(optimiser=FAST, old_logprobs="engine"))
    metrics = learner.update(credited(found, values))
    gap = Learner(tiny()).logprobs(pack(found)) - pack(found).engine_logprob
    assert metrics["ratio"] == pytest.approx(np.exp(gap).mean(), rel=1e-4) and metrics["old_from_engine"] == 1
    assert metrics["engine_gap"] == pytest.approx(np.abs(gap).mean(), rel=1e-4)
    assert metrics["engine_gap_max"] == pytest.approx(np.abs(gap).max(), rel=1e-4)
    given = credited(found, values)
    for turn in found[0].turns:
        turn.logprobs = ()
    with pytest.raises(TurnwiseError, match="old_logprobs='engine'"):
        learner.update(given)
    with pytest.raises(TurnwiseError, match="importance correction"):
        Learner(tiny(), LearnerSettings(loss=Loss(importance="truncate"))).update(given)


def test_a_loss_that_is_not_finite_skips_the_step_and_three_in_a_row_end_training() -> None:
    found, _rollouts, values = batch(3)
    learner = Learner(tiny(), LearnerSettings(optimiser=FAST))
    learner.update(credited(found, values))
    broken = np.where(np.arange(len(values)) == 1, np.nan, values)
    before, moments = weights_of(learner), learner.state()[0]
    metrics = learner.update(credited(found, broken))
    assert metrics["skipped_steps"] == 1 and metrics["steps"] == 0
    assert equal(weights_of(learner), before) and equal(learner.state()[0], moments)
    assert learner.update(credited(found, values))["steps"] == 1  # one good step, and the count starts anew
    learner.update(credited(found, broken))
    learner.update(credited(found, broken))
    with pytest.raises(TurnwiseError, match="3 optimiser steps in a row"):
        learner.update(credited(found, broken))
    assert all(torch.isfinite(tensor).all() for tensor in weights_of(learner).values())


def test_an_update_ends_when_the_policy_has_moved_too_far() -> None:
    found, _rollouts, values = batch(4)
    settings = LearnerSettings(optimiser=changed(FAST, lr=3e-2), epochs=8, kl_stop=0.01)
    metrics = Learner(tiny(), settings).update(credited(found, values))
    assert metrics["stopped_early"] == 1 and 1 <= metrics["steps"] < 8 and metrics["kl_at_stop"] > 0.01
    assert Learner(tiny(), changed(settings, kl_stop=None)).update(credited(found, values))["steps"] == 8


def test_a_clipped_gradient_has_the_norm_that_was_asked_for() -> None:
    found, _rollouts, values = batch(6)
    learner = Learner(tiny(), LearnerSettings(optimiser=changed(FAST, clip=0.01)))
    seen = []
    adam, original = learner.optimiser._adam, learner.optimiser._adam.step
    adam.step = lambda: (  # type: ignore[method-assign]
        seen.append(torch.stack([m.grad.norm() for m in learner.weights.masters.values()]).norm().item()),
        original(),
    )
    metrics = learner.update(credited(found, values))
    assert metrics["grad_norm"] > 0.02 and seen[0] == pytest.approx(0.01, rel=1e-3)


def test_schedules_warm_up_and_fall_with_progress() -> None:
    settings = OptimiserSettings(lr=1.0, schedule="linear", warmup=4)
    assert [settings.factor(step, 0.0) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert settings.factor(9, 0.5) == pytest.approx(0.5) and settings.factor(9, 1.0) == 0
    cosine = changed(settings, schedule="cosine")
    assert cosine.factor(9, 0.5) == pytest.approx(0.5) and cosine.factor(9, 1.0) == pytest.approx(0)
    assert changed(settings, schedule="constant").factor(9, 0.9) == 1
    learner = Learner(tiny(), LearnerSettings(optimiser=OptimiserSettings(lr=1e-3, warmup=2)))
    rates = [learner.update(credited(trajectories(1)))["lr"] for _ in range(3)]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3])


def test_weight_decay_spares_norms_and_biases() -> None:
    found, rollouts, _ = batch(6)
    learner = Learner(tiny(), LearnerSettings(optimiser=OptimiserSettings(lr=0.1, weight_decay=0.5)))
    before = weights_of(learner)
    learner.update(credited(found, np.zeros(len(rollouts))))  # no credit: decay alone moves weights
    for name, tensor in weights_of(learner).items():
        wanted = before[name] * (0.95 if tensor.dim() > 1 else 1.0)
        torch.testing.assert_close(tensor, wanted)


def test_bfloat16_weights_follow_float32_masters_through_steps_too_small_to_see() -> None:
    found, _rollouts, values = batch(7)
    learner = Learner(tiny(), LearnerSettings(dtype="bfloat16", optimiser=OptimiserSettings(lr=1e-6, weight_decay=0.0)))
    start = weights_of(learner)
    assert equal({n: p.detach() for n, p in tiny().named_parameters()}, start)  # masters keep what bfloat16 cannot hold
    for seed in range(3):
        learner.update(credited(found, values), seed=seed)
    name = "model.layers.0.mlp.up_proj.weight"
    moved = (learner.weights.masters[name] - start[name]).abs()
    assert (moved > 1e-6).any() and moved.max() < 1e-5
    parameter = dict(learner.model.named_parameters())[name]
    assert parameter.dtype == torch.bfloat16 and torch.equal(parameter, learner.weights.masters[name].bfloat16())


def test_kl_in_the_loss_pulls_back_to_the_reference() -> None:
    found, rollouts, _ = batch(8)
    nothing = np.zeros(len(rollouts))

    def distance(coefficient: float) -> list[float]:
        settings = LearnerSettings(loss=Loss(kl="k3+", kl_coef=coefficient), optimiser=FAST)
        learner = Learner(tiny(0), settings, reference=tiny(1))
        return [learner.update(credited(found, nothing))["kl_ref_k3"] for _ in range(8)]

    pulled = distance(1.0)
    assert pulled[-1] < 0.7 * pulled[0]
    own = Learner(tiny(0), LearnerSettings(loss=Loss(kl_coef=1.0), optimiser=FAST))
    assert own.update(credited(found, nothing))["kl_ref_k3"] == pytest.approx(0, abs=1e-6)
    before = own.reference_logprobs(pack(found))
    own.update(credited(found, credit.compute("gigpo", rollouts)))
    assert np.array_equal(before, own.reference_logprobs(pack(found)))
    assert np.abs(before - own.logprobs(pack(found))).max() > 1e-3
    own.reset_reference()
    assert np.allclose(own.reference_logprobs(pack(found)), own.logprobs(pack(found)), atol=1e-6)


def test_kl_in_the_reward_is_subtracted_turn_by_turn() -> None:
    found, rollouts, _ = batch(9)
    learner = Learner(tiny(0), LearnerSettings(kl_reward_coef=0.5), reference=tiny(1))
    annotated = learner.annotate(Batch.of(found))
    packed = pack(found, rollouts)
    gap = learner.logprobs(packed) - learner.reference_logprobs(packed)
    wanted = rollouts.reward.copy()
    for turn, value in zip(packed.turn, gap, strict=True):
        wanted[turn] -= 0.5 * value
    charged = annotated.rollouts.reward
    assert np.allclose(charged, wanted, atol=1e-5) and np.abs(charged - rollouts.reward).max() > 0.1
    assert learner.update(credited(annotated))["steps"] == 1


def test_a_learner_without_a_reference_says_so() -> None:
    with pytest.raises(TurnwiseError, match="kl_coef"):
        Learner(tiny()).reference_logprobs(pack(trajectories(1)))


@pytest.mark.parametrize("level", ["turn", "token"])
def test_the_critic_learns_a_constant(level: str) -> None:
    found, rollouts, _ = batch(10)
    settings = LearnerSettings(optimiser=OptimiserSettings(lr=0.0, clip=None), value=ValueSettings(level=level, lr=0.05))  # type: ignore[arg-type]
    learner = Learner(tiny(), settings)
    assert rollouts.tokens is not None
    size = len(rollouts) if level == "turn" else int(rollouts.tokens.sum())
    played = Batch.of(found)
    assert np.array_equal(learner.annotate(played).column(f"{level}.value"), np.zeros(size))
    metrics = {}
    for seed in range(40):
        batch_ = credited(learner.annotate(played), np.zeros(len(rollouts)), np.full(size, 3.0), level)
        metrics = learner.update(batch_, seed)
    learnt = learner.annotate(played).column(f"{level}.value")
    assert np.abs(learnt - 3.0).mean() < 0.5
    assert metrics["value_loss"] < 0.3 and metrics["explained_variance"] == 0
    with pytest.raises(TurnwiseError, match=f"needs targets for it: the column {level}.target"):
        learner.update(credited(learner.annotate(played), credit.compute("grpo", rollouts)))
    with pytest.raises(TurnwiseError, match=f"{level}.value, which this batch does not have"):
        learner.update(credited(found))


def test_values_land_on_their_own_turns() -> None:
    found, rollouts, _ = batch(12)
    learner = Learner(tiny(), LearnerSettings(value=ValueSettings()))
    assert learner.critic is not None
    torch.nn.init.normal_(learner.critic.heads.value.weight, generator=torch.Generator().manual_seed(0))
    values = learner.annotate(Batch.of(found)).column("turn.value")
    for row in range(len(rollouts)):
        x = next(x for x in found if x.id == rollouts.trajectory_labels[rollouts.trajectory[row]])
        prompt = torch.tensor([list(x.turns[rollouts.t[row]].prompt_ids)])
        with torch.no_grad():
            wanted = learner.critic.heads.value(learner.model.model(input_ids=prompt).last_hidden_state[0, -1]).item()
        assert values[row] == pytest.approx(wanted, abs=1e-4)


def test_annotate_needs_every_turn() -> None:
    found, _, _ = batch(12)
    found[1].turns[0].prompt_ids = found[1].turns[0].response_ids = found[1].turns[0].logprobs = ()
    with pytest.raises(TurnwiseError, match="has no prompt ids"):
        Learner(tiny()).annotate(Batch.of(found))


def test_nothing_to_learn_from_is_no_step() -> None:
    found = [Trajectory(0, 0, turns=[Turn(anchor="x", prompt_ids=[1, 2])])]
    metrics = Learner(tiny()).update(credited(found, np.zeros(1)))
    assert metrics["steps"] == 0 and metrics["tokens"] == 0


def test_lora_starts_as_the_base_and_the_base_stays_the_reference() -> None:
    found, _rollouts, values = batch(13)
    plain = Learner(tiny()).logprobs(pack(found))
    settings = LearnerSettings(loss=Loss(kl_coef=0.01), optimiser=changed(FAST, lr=1e-2))
    learner = Learner(add_lora(tiny(), rank=4, seed=1), settings)
    assert np.allclose(learner.logprobs(pack(found)), plain, atol=1e-6)
    assert all("lora_" in name for name in learner.weights.masters)
    assert {name.split(".")[-4] for name in learner.weights.masters} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    for seed in range(3):
        learner.update(credited(found, values), seed)
    assert np.abs(learner.logprobs(pack(found)) - plain).max() > 1e-2
    assert np.allclose(learner.reference_logprobs(pack(found)), plain, atol=1e-6)
    with pytest.raises(TurnwiseError, match="base model, which cannot follow"):
        learner.reset_reference()


def test_lora_with_dropout_draws_from_the_seed() -> None:
    def trained(noise: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(noise)
        learner = Learner(add_lora(tiny(), rank=4, dropout=0.5), LearnerSettings(optimiser=FAST, minibatches=2))
        learner.update(credited(trajectories(1)), seed=4)
        return weights_of(learner)

    assert equal(trained(0), trained(1))


def test_adapters_of_a_mixture_are_those_of_attention_also_next_to_dense_layers() -> None:
    """peft takes the names of a dense layer's MLP for those of the experts."""
    adapted = add_lora(make("qwen3-moe, a dense layer"), rank=4)
    trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 * 2 * 4 and all(".self_attn." in name for name in trained) and supports(adapted) is None
    with pytest.raises(TurnwiseError, match=r"'up_proj' is a part of this model's experts.* Known: k_proj, o_proj, q_proj, v_proj"):
        add_lora(make("qwen3-moe, a dense layer"), targets=["q_proj", "up_proj"])


def test_lora_targets_are_checked_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TurnwiseError, match="q_proj"):
        add_lora(tiny(), targets=["query"])
    with pytest.raises(TurnwiseError, match="output layer"):
        add_lora(tiny(), targets=["lm_head"])
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"\[lora\]"):
        add_lora(tiny())


@pytest.mark.parametrize("adapters", [False, True])
def test_a_resumed_learner_goes_on_bit_by_bit(adapters: bool) -> None:
    settings = LearnerSettings(
        loss=Loss(kl_coef=0.1), optimiser=changed(FAST, warmup=5), epochs=2, minibatches=2, value=ValueSettings(), dtype="bfloat16"
    )

    def fresh() -> Learner:
        return Learner(add_lora(tiny(), rank=4) if adapters else tiny(), settings)

    def train(learner: Learner, seed: int) -> dict[str, float]:
        annotated = learner.annotate(Batch.of(trajectories(seed)))
        return learner.update(credited(annotated, credit.assign("gae", annotated.rollouts)), seed)

    straight = fresh()
    train(straight, 1)
    tensors, numbers = straight.state()
    wanted = train(straight, 2)
    resumed = fresh()
    train(resumed, 3)  # whatever it did before is gone
    resumed.load_state(tensors, __import__("json").loads(__import__("json").dumps(numbers)))
    got = train(resumed, 2)
    assert equal(weights_of(straight), weights_of(resumed)) and equal(straight.state()[0], resumed.state()[0])
    assert {k: v for k, v in wanted.items() if "seconds" not in k} == {k: v for k, v in got.items() if "seconds" not in k}


def test_a_state_of_another_model_is_refused() -> None:
    learner = Learner(tiny())
    learner.update(credited(trajectories(1)))
    tensors, numbers = learner.state()
    with pytest.raises(TurnwiseError, match="shape"):
        Learner(tiny(intermediate_size=40)).load_state(tensors, numbers)
    critic = Learner(tiny(), LearnerSettings(value=ValueSettings()))
    with pytest.raises(TurnwiseError, match="no critic"):
        critic.load_state(tensors, numbers)
    with pytest.raises(TurnwiseError, match="a critic"):
        learner.load_state(*critic.state())
    with pytest.raises(TurnwiseError, match="not in the model"):
        Learner(tiny()).load_state({**tensors, "weights/stranger": torch.zeros(1)}, numbers)
    saved = Learner(add_lora(tiny(0), rank=2)).state()
    with pytest.raises(TurnwiseError, match="another base model"):
        Learner(add_lora(tiny(1), rank=2)).load_state(*saved)


@pytest.mark.parametrize("adapters", [False, True])
def test_a_saved_model_loads_as_a_plain_hugging_face_folder(tmp_path: Path, adapters: bool) -> None:
    learner = Learner(add_lora(tiny(), rank=4) if adapters else tiny(), LearnerSettings(optimiser=FAST))
    found, _rollouts, values = batch(1)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("replaced")
    learner.update(credited(found, values))
    folder = learner.save_model(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert np.allclose(Learner(loaded).logprobs(pack(found)), learner.logprobs(pack(found)), atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and not (folder / "old").exists()
    before = weights_of(learner)
    learner.update(credited(found, values))  # saving a merged copy has not touched the adapters
    assert not equal(before, weights_of(learner))


def test_adapters_can_be_saved_alone(tmp_path: Path) -> None:
    from peft import PeftModel

    learner = Learner(add_lora(tiny(), rank=4), LearnerSettings(optimiser=FAST))
    found, _rollouts, values = batch(1)
    learner.update(credited(found, values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = learner.save_model(tmp_path / "adapter", merged=False)
    assert not list(folder.glob("model*.safetensors"))
    loaded = PeftModel.from_pretrained(tiny(), folder, is_trainable=True)
    assert np.allclose(Learner(loaded).logprobs(pack(found)), learner.logprobs(pack(found)), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aggregation": "tokens"}, "Did you mean 'token'"),
        ({"epochs": 0}, "epochs: must be at least 1"),
        ({"tokens_per_batch": 1.5}, "tokens_per_batch: must be an integer"),
        ({"temperature": 0.0}, "temperature: must be greater than 0"),
        ({"kl_stop": float("nan")}, "kl_stop"),
        ({"minibatch_unit": "turn", "loss": Loss("gspo", {"level": "trajectory"})}, "whole trajectories"),
        ({"constant": 3.0}, "turn_sum"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        LearnerSettings(**settings)
    with pytest.raises(TurnwiseError, match="betas"):
        OptimiserSettings(betas=(0.9, 1.0))


def test_a_model_without_trainable_weights_is_refused() -> None:
    with pytest.raises(TurnwiseError, match="nothing to train"):
        Learner(tiny().requires_grad_(False))


def test_a_models_vocabulary_bounds_what_it_is_asked() -> None:
    found = [Trajectory(0, 0, turns=[Turn(anchor="x", prompt_ids=[1], response_ids=[VOCABULARY])])]
    with pytest.raises(TurnwiseError, match=f"0 to {VOCABULARY - 1}"):
        Learner(tiny()).logprobs(pack(found))
