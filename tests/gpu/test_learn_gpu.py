"""The learner's GPU side: kernels against their plain arithmetic, and fused layers against the model's own. Needs a GPU."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from learn_cases import VOCABULARY, credited, rollouts_of, tiny, trajectories
from native_models import FAMILIES, make

from turnwise import credit
from turnwise.learn import Learner, LearnerSettings, OptimiserSettings, pack
from turnwise.learn.activations import Kept
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused import eager
from turnwise.learn.fused.attention import Frame, attend, attend_backward
from turnwise.learn.logprobs import Head, token_logprobs
from turnwise.learn.ranks.group import join, leave, whole
from turnwise.objectives import Loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def near(found: Any, wanted: Any, bound: float = 1e-5) -> bool:
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    return all(
        one.shape == other.shape and bool((one.float() - other.float()).norm() <= bound * other.float().norm()) for one, other in pairs
    )


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("rows", [1, 7, 3000])
def test_kernels_do_what_their_plain_arithmetic_does(dtype: torch.dtype, bound: float, rows: int) -> None:
    from turnwise.learn.fused import kernels

    generator = torch.Generator("cuda").manual_seed(rows)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    x, delta, more, grad, weight = draw(rows, 1100), draw(rows, 1100), draw(rows, 1100), draw(rows, 1100), draw(1100)
    assert near(kernels.add_norm(x, delta, weight, 1e-6), eager.add_norm(x, delta, weight, 1e-6), bound)
    scales = eager.add_norm(x, None, weight, 1e-6)[2]
    assert near(kernels.norm_backward(grad, more, x, scales, weight), eager.norm_backward(grad, more, x, scales, weight), bound)
    heads, kv_heads, size = 12, 2, 64
    places = torch.randint(0, 50, (rows,), generator=generator, device="cuda")
    angle = torch.randn(50, size // 2, generator=generator, device="cuda")
    cos, sin = torch.cat([angle.cos()] * 2, -1).to(dtype), torch.cat([-angle.sin(), angle.sin()], -1).to(dtype)
    one = draw(rows, (heads + 2 * kv_heads) * size)
    other = one.clone()
    tokens, wide = torch.arange(2 * rows, device="cuda") // 2, torch.arange(rows, device="cuda") * 2
    for own in (tokens, None):
        wanted_rows = eager.rotate(other, cos, sin, places, heads, kv_heads, size, own)
        assert near(kernels.rotate(one, cos, sin, places, heads, kv_heads, size, own), wanted_rows, bound)
    assert torch.equal(kernels.widen(one, tokens, wide), eager.widen(one, tokens, wide))
    for at, count in ((None, rows), (wide, 2 * rows)):
        parts = draw(count, heads, size), draw(count, kv_heads, size), draw(count, kv_heads, size)
        wanted_grad, _ = eager.rotate_back(*parts, cos, sin, places, at)
        assert near(kernels.rotate_back(*parts, cos, sin, places, at)[0], wanted_grad, bound)
        found_grad, sums = kernels.rotate_back(*parts, cos, sin, places, at, summed=True)
        assert sums is not None and near(found_grad, wanted_grad, bound)
        assert near(kernels.fold(sums, torch.ones_like(sums[0])), found_grad.float().sum(0) + 1, 1e-4)
    both, slope = draw(rows, 2 * 1500), draw(rows, 1500)
    assert near(kernels.swiglu(both), eager.swiglu(both), bound)
    wanted = eager.swiglu_backward(both.float(), slope.float())
    assert near(kernels.swiglu_backward(both, slope), wanted, bound)


@pytest.mark.parametrize("words", [100, 20_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_their_gradient_are_those_of_float64(words: int, temperature: float) -> None:
    generator = torch.Generator("cuda").manual_seed(words)
    hidden = torch.randn(300, 128, generator=generator, device="cuda").bfloat16()
    weight = (torch.randn(words, 128, generator=generator, device="cuda") / 4).bfloat16()
    target = torch.randint(0, words, (300,), generator=generator, device="cuda")
    pull, push = torch.randn(2, 300, generator=generator, device="cuda")
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    logprob, entropy = token_logprobs(leaves[0], Head(leaves[1]), target, temperature=temperature, entropy=True, chunk=128)
    assert entropy is not None
    (pull @ logprob + push @ entropy).backward()
    exact = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    log_p = (exact[0] @ exact[1].t() / temperature).log_softmax(-1)
    chosen, spread = log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (pull.double() @ chosen + push.double() @ spread).backward()
    torch.testing.assert_close(logprob.double(), chosen, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), spread, rtol=1e-4, atol=1e-4)
    for one, other in zip(leaves, exact, strict=True):
        assert near(one.grad, other.grad, 1e-2)


def test_the_gradient_of_a_plain_sum_is_that_of_float64() -> None:
    """A warm start sums log-probs: the gradient that comes back is one number that stands for all of them."""
    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(300, 128, generator=generator, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(20_000, 128, generator=generator, device="cuda") / 4).bfloat16()
    target = torch.randint(0, 20_000, (300,), generator=generator, device="cuda")
    token_logprobs(hidden, Head(weight), target, chunk=128)[0].sum().backward()
    exact = hidden.detach().double().requires_grad_()
    (exact @ weight.double().t()).log_softmax(-1).gather(1, target[:, None]).sum().backward()
    assert near(hidden.grad, exact.grad, 1e-2)


def test_gradients_from_kept_slopes_are_those_of_float64() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(300, 128, generator=generator, device="cuda").bfloat16()
    weight = (torch.randn(20_000, 128, generator=generator, device="cuda") / 4).bfloat16()
    target = torch.randint(0, 20_000, (300,), generator=generator, device="cuda")
    pull = torch.randn(300, generator=generator, device="cuda") * 1e-5  # a token's weight in a large batch
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    logprob, _ = token_logprobs(leaves[0], Head(leaves[1]), target, temperature=0.7, entropy=True, chunk=128, keep=True)
    (pull @ logprob).backward()
    exact = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    wanted = (exact[0] @ exact[1].t() / 0.7).log_softmax(-1).gather(1, target[:, None])[:, 0]
    (pull.double() @ wanted).backward()
    assert near(logprob, wanted, 1e-4)
    assert all(near(one.grad, other.grad, 1e-2) for one, other in zip(leaves, exact, strict=True))


@pytest.mark.parametrize(
    "lengths", [[2500, 100, 30, 3000, 2048, 5], [7, 4096, 1], [300, 40], [2600], [2500, 2400, 2560, 2500, 2450, 30, 2048], [2440] * 3]
)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(12, 2, 128), (4, 4, 64)])
def test_attention_over_short_and_long_sequences_is_that_of_float64(lengths: list[int], heads: int, kv_heads: int, size: int) -> None:
    tokens, generator = sum(lengths), torch.Generator("cuda").manual_seed(0)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * size, generator=generator, device="cuda").bfloat16()
    grad = torch.randn(tokens, heads * size, generator=generator, device="cuda").bfloat16()
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device="cuda")
    nothing = torch.empty(0)
    frame = Frame(lengths, offsets, nothing, (), (), heads, kv_heads, size, 1e-6)
    rows, slope, wide = qkv, grad, frame.wide
    if wide is not None:
        rows, slope = qkv[wide.tokens], eager.widen(grad, wide.tokens, wide.rows)
    out, state = attend(rows, frame)
    found = attend_backward(slope, rows, out, state, frame)
    if wide is not None:
        out, found = out[wide.rows], tuple(x[wide.rows] for x in found)
    plain = Frame(lengths, nothing, nothing, (), (), heads, kv_heads, size, 1e-6)
    exact, exact_slope = qkv.double().cpu(), grad.double().cpu()
    wanted, kept = attend(exact, plain)
    assert near(out.cpu(), wanted, 1e-2)
    assert near(tuple(x.cpu() for x in found), attend_backward(exact_slope, exact, wanted, kept, plain), 1e-2)


def model(kind: str, dtype: torch.dtype, **more: Any) -> Any:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "spread": 0.05}
    return tiny(kind=kind, **(sizes | more)).to("cuda", dtype)


def gradient(policy: PackedModel, packed: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Hidden states where responses are predicted, and the gradients of a fixed weighting of their log-probs."""
    policy.causal.zero_grad()
    with policy.attention():
        source, target = (torch.as_tensor(x, device="cuda") for x in (packed.source, packed.target))
        hidden = policy.hidden(packed, source)
        logprob, _ = token_logprobs(hidden, policy.head, target)
        (logprob * torch.linspace(-1, 2, len(target), device="cuda")).sum().backward()
    return hidden.detach().float(), {n: p.grad.float().clone() for n, p in policy.causal.named_parameters() if p.requires_grad}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(((one[name] - other[name]).norm() / other[name].norm()).item() for name in other)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("context", ["window", "full"])
def test_fused_layers_are_as_near_to_float32_as_the_models_own(kind: str, tied: bool, context: str) -> None:
    packed = pack(trajectories(3, groups=4, size=4, context=context))
    exact = PackedModel(model(kind, torch.float32, tie_word_embeddings=tied))
    plain = PackedModel(model(kind, torch.bfloat16, tie_word_embeddings=tied), fused=False)
    fused = PackedModel(model(kind, torch.bfloat16, tie_word_embeddings=tied))
    assert exact.fused is None and plain.fused is None and fused.fused is not None
    (wanted, slopes), (own, own_slopes), (found, found_slopes) = (gradient(x, packed) for x in (exact, plain, fused))
    assert (found - wanted).norm() <= 1.2 * (own - wanted).norm()
    assert distance(found_slopes, slopes) <= 1.3 * distance(own_slopes, slopes) < 0.1


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "gemma3", "smollm3"])
def test_fused_layers_of_every_family_are_as_near_to_float32_as_the_models_own(name: str) -> None:
    packed = pack(trajectories(3, groups=4, size=4, context="full"))

    def of(dtype: torch.dtype, fused: bool | None) -> PackedModel:
        sizes = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.05, "head_dim": 32}
        return PackedModel(make(name, **sizes).to("cuda", dtype), fused=fused)

    exact, plain, fused = of(torch.float32, False), of(torch.bfloat16, False), of(torch.bfloat16, None)
    assert fused.fused is not None
    (wanted, slopes), (own, own_slopes), (found, found_slopes) = (gradient(x, packed) for x in (exact, plain, fused))
    assert (found - wanted).norm() <= 1.2 * (own - wanted).norm()
    assert distance(found_slopes, slopes) <= 1.3 * distance(own_slopes, slopes)


@pytest.mark.parametrize("kept", [Kept(3, 1), Kept(1, 0), Kept(0, 0)])
def test_what_is_computed_again_has_the_same_gradient(kept: Kept) -> None:
    packed = pack(trajectories(4, groups=3, size=4, context="full"))
    policy = PackedModel(model("qwen2", torch.bfloat16))
    _, whole = gradient(policy, packed)
    assert policy.fused is not None
    policy.fused.kept = kept
    _, again = gradient(policy, packed)
    assert distance(again, whole) < 2e-3


def test_a_bfloat16_learner_on_a_gpu_learns_what_a_float32_one_on_a_cpu_learns() -> None:
    found = trajectories(5, groups=3, size=4, context="full")
    rollouts = rollouts_of(found)
    values = credit.compute("gigpo", rollouts)
    moved = []
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        settings = LearnerSettings(
            loss=Loss(kl_coef=0.01), dtype=dtype, optimiser=OptimiserSettings(lr=0.1, eps=1.0), minibatches=2, epochs=2
        )
        learner = Learner(model("qwen2", torch.float32), settings, device)
        assert learner.policy.fused is not None
        before = {name: tensor.cpu().clone() for name, tensor in learner.weights.tensors().items()}
        metrics = learner.update(credited(found, values), seed=1)
        assert metrics["steps"] == 4
        if device == "cuda":
            assert 0 < metrics["memory_peak_gib"] <= metrics["memory_held_gib"]
        else:
            assert "memory_peak_gib" not in metrics
        moved.append({name: tensor.cpu() - before[name] for name, tensor in learner.weights.tensors().items()})
    for name, step in moved[0].items():
        assert torch.nn.functional.cosine_similarity(step.flatten(), moved[1][name].flatten(), dim=0) > 0.97, name


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_that_products_add_up_are_those_of_autograd(tied: bool) -> None:
    """Three micro-batches, so that sums are begun and continued."""
    found = [trajectories(seed, groups=2, size=4, context="full") for seed in range(3)]
    sums = []
    for direct in (True, False):
        whole = model("qwen2", torch.float32, tie_word_embeddings=tied)
        learner = Learner(whole, LearnerSettings(dtype="bfloat16"), "cuda")
        if not direct:
            for parameter in whole.parameters():
                del parameter.gradient_buffer
        for own in found:
            packed = pack(own)
            with learner.training(0):
                logprob, _, _ = learner.forward(packed)
                (logprob * torch.linspace(-1, 2, len(logprob), device="cuda")).sum().backward()
        sums.append({name: gradient.clone() for name, gradient in learner.weights.gradients().items()})
        assert all(gradient.dtype == torch.float32 for gradient in sums[-1].values()) and len(sums[-1]) == len(learner.weights.masters)
    assert distance(sums[0], sums[1]) < 0.02


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A single process whose weights are sharded all the same."""
    yield join(0, 1, f"file://{tmp_path_factory.mktemp('ranks')}/meet", device="cuda", shards=True)
    leave()


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_layers_with_sharded_weights_have_the_gradient_of_whole_ones(one_rank: Any, family: str) -> None:
    found = credited(trajectories(8, context="full"))
    own = LearnerSettings(dtype="bfloat16", loss=Loss(kl_coef=0.1), optimiser=OptimiserSettings(lr=1e-3, eps=1.0), tokens_per_batch=200)
    slopes, losses = [], []
    for ranks in (None, one_rank):
        learner = Learner(make(family), own, device="cuda", reference=make(family, 1), ranks=ranks)
        assert learner.policy.fused is not None and (learner.policy.fused.sharded is None) == (ranks is None)
        seen: dict[str, torch.Tensor] = {}
        learner.optimiser.look = lambda it, seen=seen: seen.update({n: whole(m.grad).clone() for n, m in it.masters.items()})
        losses.append(learner.update(found, seed=1)["loss"])
        slopes.append(seen)
    assert losses[1] == pytest.approx(losses[0], abs=1e-2)
    assert slopes[0].keys() == slopes[1].keys() and all(near(slopes[1][name], slopes[0][name], 0.05) for name in slopes[0])


def test_half_the_tokens_are_computed_at_once_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trajectories(6, groups=16, size=8, context="full")
    rollouts = rollouts_of(found)
    learner = Learner(model("qwen2", torch.float32, vocab_size=VOCABULARY), LearnerSettings(dtype="bfloat16", tokens_per_batch=4096))
    torch.cuda.empty_cache()  # what earlier tests left
    room = 4 * 2**30  # for a tiny model's update, and for what follows
    limit = torch.cuda.memory_reserved() + room
    whole = learner._backward
    before = torch.cuda.get_per_process_memory_fraction()

    def hungry(batch: Any, minibatch: Any, part: Any) -> Any:
        keep = torch.empty(room * len(part.ids) // 2400, dtype=torch.uint8, device="cuda")
        return whole(batch, minibatch, part) if len(keep) else {}

    monkeypatch.setattr(learner, "_backward", hungry)
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert learner.update(credited(found, credit.compute("gigpo", rollouts)))["steps"] == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(before)
    assert any("out of memory with 4096 tokens" in str(w.message) for w in seen) and learner.budget.tokens == 2048
