"""What an update does with the memory it has, what it leaves out, and whose log-probs it trusts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from gradient_cases import GradientOf, assert_same
from learn_cases import changed, credited, rollouts_of, tiny, trajectories

from turnwise import credit
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, ValueSettings, pack
from turnwise.learn.activations import peak_bytes
from turnwise.learn.forward import PackedModel
from turnwise.learn.memory import Memory
from turnwise.learn.minibatch import may_skip, vanishes
from turnwise.learn.weights import Weights
from turnwise.objectives import Loss, algorithms
from turnwise.objectives.registry import TokenLoss, register
from turnwise.util.errors import TurnwiseError

STILL = OptimiserSettings(lr=0.0)


@cache
def estimated() -> tuple[PackedModel, Weights]:
    """A model whose memory is estimated, and nothing else is done with it."""
    model = tiny(hidden_size=64, intermediate_size=512, num_hidden_layers=4)
    return PackedModel(model, fused=True), Weights(model.named_parameters())


def memory(keep: bool | None = None, room: float = float("inf")) -> Memory:
    found = Memory(*estimated(), keep)
    found.room = room
    return found


def test_less_memory_keeps_less_and_the_plan_always_fits_if_it_can() -> None:
    kept = []
    for room in np.linspace(2e7, 1e8, 40):
        estimate = memory(room=float(room))
        plan = estimate.plan(4096)
        kept.append(min(plan.mlp, 4) + min(plan.attention, 4))
        assert plan.mlp == plan.attention == 0 or peak_bytes(estimate._shape, 4096, plan) <= room
    assert kept == sorted(kept) and kept[0] == 0 and kept[-1] == 8
    assert memory(room=5e7).plan(2048).mlp > memory(room=5e7).plan(8192).mlp


def test_keeping_can_be_forced_either_way() -> None:
    assert memory(keep=True, room=1.0).plan(32768).mlp >= 4
    assert memory(keep=False).plan(1).mlp == 0 == memory(keep=False).plan(1).attention
    for dropout, own in ((0.0, True), (0.1, False)):  # our layers keep what the plan says, and do not take a model with dropout
        for given in (True, False, None):
            learner = Learner(tiny(attention_dropout=dropout), LearnerSettings(gradient_checkpointing=given))
            assert (learner.policy.fused is not None) == own
            assert learner.model.is_gradient_checkpointing == (given is True and not own)
            assert (learner.memory.plan(1).mlp == 0) == (given is True)


def test_the_size_of_a_batch_follows_the_memory() -> None:
    sizes = [memory(room=room).tokens() for room in (1e5, 1e7, 1e8, 1e9, 1e12)]
    assert sizes == sorted(sizes) and sizes[0] == 1024 and sizes[-1] == 32768
    assert memory(keep=False, room=1e8).tokens() >= memory(keep=None, room=1e8).tokens() >= memory(keep=True, room=1e8).tokens()


class OutOfMemory:
    """Fails like a GPU for batches of more than `most` tokens, after some of the backward pass has been done."""

    def __init__(self, learner: Learner, most: int, monkeypatch: pytest.MonkeyPatch):
        self.learner, self.most, self.sizes = learner, most, list[int]()
        self.backward, self.hidden = learner._backward, learner.policy.hidden
        monkeypatch.setattr(learner, "_backward", self.limited_backward)
        learner.policy.hidden = self.limited_hidden  # type: ignore[method-assign]

    def limited_backward(self, batch: Any, minibatch: Any, part: Any) -> Any:
        self.sizes.append(len(part.ids))
        done = self.backward(batch, minibatch, part)
        if len(part.ids) > self.most:
            raise torch.OutOfMemoryError("a fault that a test made")
        return done

    def limited_hidden(self, part: Any, places: Any = None) -> Any:
        if not torch.is_grad_enabled() and len(part.ids) > self.most:
            raise torch.OutOfMemoryError("a fault that a test made")
        return self.hidden(part, places)


def test_out_of_memory_halves_the_batch_once_and_goes_on_with_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trajectories(8, context="full")
    rollouts = rollouts_of(found)
    values = credit.compute("gigpo", rollouts)
    settings = LearnerSettings(loss=Loss(kl_coef=0.1), tokens_per_batch=120, optimiser=STILL, epochs=2)
    wanted = GradientOf(Learner(tiny(), settings, reference=tiny(1)))(credited(found, values))
    learner = Learner(tiny(), settings, reference=tiny(1))
    fault, run = OutOfMemory(learner, 70, monkeypatch), GradientOf(learner)
    with pytest.warns(UserWarning, match="out of memory with 120 tokens at once: continuing with 60"):
        assert_same(run(credited(found, values)), wanted)
    assert max(fault.sizes[-2:]) <= 70 and learner.budget.tokens == 60
    before = len(fault.sizes)
    assert_same(run(credited(found, values)), wanted)
    assert max(fault.sizes[before:]) <= 70  # it stays at half, and warns no more


def test_out_of_memory_at_half_the_batch_as_well_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trajectories(8, context="full")
    rollouts = rollouts_of(found)
    learner = Learner(tiny(), LearnerSettings(tokens_per_batch=120))
    OutOfMemory(learner, 1, monkeypatch)
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(TurnwiseError, match="gradient_checkpointing"):
        learner.update(credited(found, credit.compute("gigpo", rollouts)))
    assert all(parameter.grad is None for parameter in learner.model.parameters())


LOSSES = {
    "clip": Loss(),
    "gspo a turn": Loss("gspo", {"level": "turn"}),
    "gspo a trajectory": Loss("gspo", {"level": "trajectory", "clip_low": 0.5, "clip_high": 0.5}),
    "truncated": Loss(importance="truncate"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("context", ["window", "full"])
@pytest.mark.parametrize("share", ["turns", "trajectories", "all"])
def test_skipping_what_has_no_credit_leaves_the_gradient_as_it_is(name: str, context: str, share: str) -> None:
    found = trajectories(8, groups=3, context=context)
    rollouts = rollouts_of(found)
    values = credit.compute("gigpo", rollouts)
    chosen = {"turns": np.arange(len(values)) % 3 > 0, "trajectories": rollouts.trajectory % 2 > 0, "all": np.ones(len(values), bool)}
    values = np.where(chosen[share], 0.0, values)
    settings = LearnerSettings(
        loss=LOSSES[name],
        aggregation="token" if context == "full" else "turn",
        optimiser=STILL,
        epochs=2,
        minibatches=2,
        tokens_per_batch=60,
    )
    runs = [GradientOf(Learner(tiny(), changed(settings, skip_zero_credit=skip))) for skip in (False, True)]
    for run in runs:
        run(credited(found, values), seed=3)
    assert len(runs[0].found) == len(runs[1].found) == 4
    for plain, skipping in zip(runs[0].found, runs[1].found, strict=True):
        if max(gradient.abs().max() for gradient in plain.values()) > 1e-3:
            assert_same(skipping, plain)
        else:
            assert all(gradient.abs().max() < 1e-6 for gradient in skipping.values()) and skipping.keys() == plain.keys()
    assert runs[1].metrics["loss"] == pytest.approx(runs[0].metrics["loss"], abs=1e-6)
    if context == "window" and "trajectory" not in name:
        assert runs[1].metrics["skipped_sequences"] > 0


def test_nothing_is_skipped_where_something_else_needs_it() -> None:
    assert may_skip(LearnerSettings())
    for loss in (Loss(kl_coef=0.1), Loss(entropy_coef=0.1)):
        assert not may_skip(LearnerSettings(loss=loss))
    assert not may_skip(LearnerSettings(value=ValueSettings())) and not may_skip(LearnerSettings(kl_stop=0.1))


def test_an_objective_that_does_not_vanish_without_credit_is_found_out() -> None:
    def imitate(tokens: Any) -> TokenLoss:
        """Makes every sampled token likelier."""
        return TokenLoss(-tokens.logprob, {})

    register("imitate_for_this_test")(imitate)
    try:
        assert not vanishes(Loss("imitate_for_this_test"))
    finally:
        del algorithms._entries["imitate_for_this_test"]
    assert all(vanishes(Loss(name)) for name in ("clip", "gspo", "gmpo", "cispo", "reinforce", "sapo"))


@pytest.mark.parametrize(("gap", "trusted"), [(0.01, True), (0.2, False)])
def test_the_engines_logprobs_are_trusted_where_they_are_near(gap: float, trusted: bool, recwarn: pytest.WarningsRecorder) -> None:
    found = trajectories(2)
    settings = LearnerSettings(optimiser=STILL, minibatches=2, old_logprobs="auto")
    learner = Learner(tiny(), settings)
    # the engine reports what the learner would, and a constant more
    scores = iter(learner.logprobs(pack(found)).tolist())
    for trajectory in found:
        for turn in trajectory.turns:
            turn.logprobs = [next(scores) + gap for _ in turn.response_ids]
    rollouts = rollouts_of(found)
    batch = credited(found, credit.compute("gigpo", rollouts))
    metrics = learner.update(batch)
    assert metrics["old_from_engine"] == trusted
    assert metrics["ratio"] == pytest.approx(np.exp(-gap) if trusted else 1, abs=1e-4)
    assert metrics["engine_gap"] == pytest.approx(gap, rel=1e-3) and metrics["engine_gap_max"] == pytest.approx(gap, rel=1e-3)
    learner.update(batch)
    said = [str(warning.message) for warning in recwarn if "differ from the learner's" in str(warning.message)]
    assert len(said) == (not trusted)  # a pass that could not be saved is explained once
    annotated = learner.update(learner.annotate(batch))  # the learner's own cost nothing more here
    assert "old_from_engine" not in annotated and annotated["ratio"] == pytest.approx(1, abs=1e-5)


def test_left_open_the_engines_log_probs_are_considered_on_a_gpu_in_16_bits_only() -> None:
    half = LearnerSettings(dtype="bfloat16")
    assert (half.old_logprobs_on("cuda"), half.old_logprobs_on("cpu")) == ("auto", "learner")
    assert LearnerSettings().old_logprobs_on("cuda") == "learner"
    for given in (None, "auto"):  # a weight of one everywhere would correct nothing
        compared = LearnerSettings(dtype="bfloat16", loss=Loss(importance="truncate"), old_logprobs=given)  # type: ignore[arg-type]
        assert compared.old_logprobs_on("cuda") == "learner"
    for chosen in ("learner", "engine", "auto"):
        assert LearnerSettings(dtype="bfloat16", old_logprobs=chosen).old_logprobs_on("cuda") == chosen


def test_where_one_step_is_taken_or_the_engine_reports_nothing_auto_needs_no_engine() -> None:
    found = trajectories(2, logprobs=False)
    rollouts = rollouts_of(found)
    values = credit.compute("gigpo", rollouts)
    for steps in (1, 2):
        settings = LearnerSettings(optimiser=STILL, minibatches=steps, old_logprobs="auto")
        metrics = Learner(tiny(), settings).update(credited(found, values))
        assert "old_from_engine" not in metrics and metrics["ratio"] == pytest.approx(1, abs=1e-5)
