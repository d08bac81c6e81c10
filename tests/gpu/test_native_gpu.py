"""The native engine's GPU side: the same results as the model's own forward, with and without captured steps. Needs a GPU."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from native_doubles import Everything
from native_models import WORDS, ask, drain, make, prompt
from native_requests import run_randomly

from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.kernels import product_table
from turnwise.kernels.product_table import Blocks
from turnwise.kernels.sample import ATTEMPTS, Columns, sample, truncate, uniforms
from turnwise.learn.lora import pack_base

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GREEDY = Sampling(temperature=0.0, max_tokens=9)
SETTINGS = [
    Sampling(temperature=t, top_p=p, top_k=k, min_p=m)
    for t in (1.0, 0.0, 0.7, 1.5)
    for p in (1.0, 0.95, 0.3)
    for k, m in ((0, 0.0), (40, 0.0), (1, 0.0), (0, 0.05), (200, 0.01))
]


def gap(model: Any, prompts: list[list[int]], responses: dict[int, Response], temperature: float = 1.0) -> float:
    """The largest difference from the log-probs of the model's own forward."""
    worst = 0.0
    for n, ids in enumerate(prompts):
        assert responses[n].finish in (Finish.STOP, Finish.LENGTH)
        row = torch.tensor([[*ids, *responses[n].token_ids]], device="cuda")
        with torch.no_grad():
            logits = model(row).logits[0, len(ids) - 1 : -1].float() / temperature
        expected = logits.log_softmax(-1).gather(1, row[0, len(ids) :, None])[:, 0].cpu()
        worst = max(worst, (expected - torch.tensor(responses[n].logprobs)).abs().max().item())
    return worst


VARIANTS = ["qwen2", "qwen3", "llama with biases", "llama, one head for all", "qwen3, windows", "qwen3-moe", "gemma3", "smollm3"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("graphs", [False, True])
def test_logprobs_are_those_of_the_models_forward_over_two_turns(variant: str, graphs: bool) -> None:
    model = make(variant).cuda()
    engine = NativeEngine(model, max_batch=6, max_length=200, prefill_tokens=64, cache_memory=1e8, graphs=graphs)
    for sampling in (GREEDY, Sampling(temperature=0.8, top_p=0.9, top_k=30, max_tokens=9)):
        prompts = [prompt(n, n) for n in (1, 5, 63, 64, 65, 130, 130, 99)]
        for _ in range(2):
            responses = ask(engine, prompts, sampling)
            assert gap(model, prompts, responses, sampling.temperature or 1.0) < 1e-4
            prompts = [[*ids, *responses[n].token_ids, *prompt(7, n)] for n, ids in enumerate(prompts)]
        for n in range(len(prompts)):
            engine.release(n)
        assert engine._pages.held == 0


def test_early_starts_give_the_logprobs_of_the_models_forward_over_turns() -> None:
    model = make("qwen2").cuda()
    engine = NativeEngine(model, max_batch=64, max_length=200, prefill_tokens=2048, cache_memory=1e8)
    prompts = [prompt(20 + n % 30, n) for n in range(60)]
    for turn in range(4):
        under_way = []
        for first, end in ((0, 16), (16, 50), (50, 60)):
            engine.submit([Request(n, prompts[n], Sampling(max_tokens=9), n + turn, sequence=n) for n in range(first, end)])
            engine.start()
            under_way.append(len(engine._flights))
        assert under_way == [1, 2, 2], "two steps are launched before anything is waited for"
        responses = drain(engine)
        assert gap(model, prompts, responses) < 1e-4
        prompts = [[*ids, *responses[n].token_ids, *prompt(7, n)] for n, ids in enumerate(prompts)]
    for n in range(len(prompts)):
        engine.release(n)
    assert engine._pages.held == 0


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (extra 4bit)")
@pytest.mark.parametrize("variant", ["qwen2", "llama with biases"])
@pytest.mark.parametrize("graphs", [False, True])
def test_weights_of_four_bits_give_the_logprobs_of_the_models_forward(variant: str, graphs: bool) -> None:
    model = pack_base(make(variant, intermediate_size=128), "cuda", torch.float32)
    engine = NativeEngine(model, max_batch=6, max_length=200, prefill_tokens=64, cache_memory=1e8, graphs=graphs)
    prompts = [prompt(n, n) for n in (1, 5, 63, 64, 65, 130, 130, 99)]
    for _ in range(3):
        responses = ask(engine, prompts, Sampling(max_tokens=9))
        assert gap(model, prompts, responses) < 1e-4


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (extra 4bit)")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "block", "nested"), [("nf4", 64, True), ("nf4", 64, False), ("fp4", 64, True), ("nf4", 256, True)])
def test_products_with_packed_weights_are_those_of_the_unpacked_ones(dtype: torch.dtype, kind: str, block: int, nested: bool) -> None:
    from bitsandbytes.functional import quantize_4bit

    from turnwise.engines.fourbit import dense
    from turnwise.kernels.product_4bit import packed_product

    rng = torch.Generator("cuda").manual_seed(0)
    weights = []
    for size in (3584, 500):
        plain = torch.randn(size, 1792, device="cuda", dtype=dtype, generator=rng)
        codes, state = quantize_4bit(plain, blocksize=block, compress_statistics=nested, quant_type=kind)
        weights.append(SimpleNamespace(data=codes, quant_state=state))
    whole, bias = torch.cat([dense(weight) for weight in weights]), torch.randn(4084, device="cuda", dtype=dtype, generator=rng)
    eye = torch.eye(1792, device="cuda", dtype=dtype)
    for rows in (2, 8, 16, 32, 64):
        found = packed_product(eye[:rows], weights, None)
        if found is None:
            generation = torch.cuda.get_device_capability()[0]
            assert generation < 8 or generation in product_table.NOT_PACKED
            continue
        assert torch.equal(found, whole[:, :rows].t()), "every code, as the library rounds it"
        x = torch.randn(rows, 1792, device="cuda", dtype=dtype, generator=rng)
        exact = x.float() @ whole.float().t()
        far = 2 * torch.finfo(dtype).eps
        for added in (None, bias):
            expected = exact if added is None else exact + added.float()
            found = packed_product(x, weights, added)
            assert found is not None and (found.float() - expected).norm() < far * expected.norm()


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes (extra 4bit)")
@pytest.mark.parametrize("graphs", [False, True])
def test_the_engine_draws_from_packed_weights_with_its_own_products(graphs: bool) -> None:
    kind = torch.float16  # it rounds less than bfloat16
    model = pack_base(make("llama with biases", hidden_size=128, intermediate_size=256), "cuda", kind).to(kind)
    prompts = [prompt(n, n) for n in (1, 5, 33, 64)]
    engine = NativeEngine(model, max_batch=6, max_length=200, cache_memory=1e8, graphs=graphs)
    responses = ask(engine, prompts, Sampling(max_tokens=9))
    assert gap(model, prompts, responses) < 0.05


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "llama with biases"])
def test_captured_steps_give_the_logprobs_of_the_models_forward_and_the_tokens_of_others(variant: str) -> None:
    model = make(variant).cuda()
    engine = NativeEngine(model, max_batch=6, max_length=200, prefill_tokens=64, cache_memory=1e8)
    plain = NativeEngine(model, max_batch=6, max_length=200, prefill_tokens=64, cache_memory=1e8, graphs=False)
    prompts = [prompt(n, n) for n in (1, 5, 63, 64, 65, 130, 130, 99)]
    for turn in range(4):  # steps are captured when a size comes for the second time
        sampling = (Sampling(max_tokens=9), GREEDY, Sampling(temperature=0.8, top_p=0.9, max_tokens=9), Sampling(max_tokens=9))[turn]
        responses = ask(engine, prompts, sampling)
        assert gap(model, prompts, responses, sampling.temperature or 1.0) < 1e-4
        assert {n: r.token_ids for n, r in ask(plain, prompts, sampling).items()} == {n: r.token_ids for n, r in responses.items()}
        if turn < 2:
            prompts = [[*ids, *responses[n].token_ids, *prompt(7, n)] for n, ids in enumerate(prompts)]
    captured = [key[0] for key, graph in engine._runner._captured.items() if graph is not None]  # type: ignore[attr-defined]
    assert set(captured) == {"prompt", "sample", "decode"}
    for n in range(len(prompts)):
        engine.release(n)
    assert engine._pages.held == 0


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "llama with biases", "gemma3"])
@pytest.mark.parametrize("bulk", [False, True])
def test_own_products_give_the_logprobs_of_the_models_forward(variant: str, bulk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Blocks(16, 32, 16, split=2, bulk=bulk, ahead=2)
    monkeypatch.setattr(product_table, "MEASURED", Everything(qkv=split, out=split, down=split))
    model = make(variant).cuda()
    engine = NativeEngine(model, max_batch=6, max_length=200, prefill_tokens=64, cache_memory=1e8)
    prompts = [prompt(n, n) for n in (1, 5, 63, 64, 65, 130, 130, 99)]
    for turn in range(3):
        responses = ask(engine, prompts, Sampling(max_tokens=9), seed=turn)
        assert gap(model, prompts, responses) < 1e-4


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "gemma3"])
def test_a_cache_in_8_bits_gives_nearly_the_logprobs_of_the_models_forward(variant: str) -> None:
    model = make(variant, max_position_embeddings=1024).cuda()
    engine = NativeEngine(model, max_batch=8, max_length=500, cache_memory=1e8, cache_dtype="8bit")
    prompts = [[*prompt(280, 1), *prompt(3 + n, n)] for n in range(6)] + [prompt(1), prompt(63)]
    for turn in range(2):
        responses = ask(engine, prompts, Sampling(max_tokens=9), seed=turn)
        assert 1e-6 < gap(model, prompts, responses) < 0.5
        prompts = [[*ids, *responses[n].token_ids, *prompt(7, n)] for n, ids in enumerate(prompts)]
    engine.sleep()
    assert 1e-6 < gap(model, prompts, ask(engine, prompts, GREEDY)) < 0.5


def test_a_gpu_gives_the_tokens_of_a_cpu() -> None:
    prompts, sampling = [prompt(n, n) for n in (3, 20, 64, 90)], Sampling(temperature=1.0, top_p=0.9, max_tokens=12)
    on_cpu = ask(NativeEngine(make(), max_length=128), prompts, sampling)
    on_gpu = ask(NativeEngine(make().cuda(), max_length=128, cache_memory=1e8), prompts, sampling)
    assert {n: r.token_ids for n, r in on_gpu.items()} == {n: r.token_ids for n, r in on_cpu.items()}


@pytest.mark.parametrize("spread", [0.5, 3.0, 8.0])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("way", ["rows", "nucleus"])
def test_the_draw_without_a_sort_draws_what_the_draw_with_one_draws(spread: float, rounded: bool, way: str) -> None:
    from turnwise.kernels.sample_rows import draw_tokens
    from turnwise.kernels.sample_tiles import Drawing
    from turnwise.kernels.sample_top_p import draw_nucleus

    rows, words = 240, 20011
    logits = torch.randn(rows, words, device="cuda", generator=torch.Generator("cuda").manual_seed(1)) * spread
    if rounded:
        logits = (logits * 4).round() / 4  # many tokens tie
    samplings = [SETTINGS[n % len(SETTINGS)] for n in range(rows)]
    seeds = [n * 7919 - 3 for n in range(rows)]
    place = torch.arange(rows, device="cuda") % 7
    expected = sample(logits, Columns.of(samplings, seeds, "cuda"), place)
    floats = torch.tensor([[s.temperature or 1.0, s.top_p, s.min_p] for s in samplings], device="cuda")
    integers = torch.tensor([[s.temperature == 0, s.top_k or words, seed] for s, seed in zip(samplings, seeds, strict=True)], device="cuda")
    tokens, last = (torch.full((rows,), -1, dtype=torch.int64, device="cuda") for _ in range(2))
    logprobs = torch.full((rows,), 1.0, device="cuda")
    to = Drawing(torch.arange(rows, dtype=torch.int32, device="cuda"), place.int(), floats, integers, last, tokens, logprobs)
    draw_tokens(logits, *to) if way == "rows" else draw_nucleus(logits, to)
    assert torch.equal(tokens, last)
    same = tokens == expected.tokens
    assert (logprobs - expected.logprobs)[same].abs().max() < 1e-4
    assert (~same).sum() <= rows // 50
    for row in (~same).nonzero()[:, 0].tolist():  # only where a number falls beside a border between tokens, or a token is beside the cut
        found = int(tokens[row]), int(expected.tokens[row])
        assert min(distance_from_border(logits[row], samplings[row], seeds[row], int(place[row]), token) for token in found) < 1e-4


def distance_from_border(logits: torch.Tensor, sampling: Sampling, seed: int, place: int, token: int) -> float:
    """How far, in probability, the nearest of the row's uniform numbers is from the ends of the token's part of the cumulative
    distribution, or the token from the cut."""
    columns = Columns.of([sampling], [seed], "cpu")
    weights = (logits.cpu() / columns.temperature[0]).softmax(-1)[None]
    numbers = uniforms(columns.seed, torch.tensor([place]), ATTEMPTS + 1)[0]
    kept = truncate(weights, columns)[0]
    distances = []
    for attempt, number in enumerate(numbers.tolist()):
        part = weights[0] if attempt < ATTEMPTS else kept
        cumulative = part.cumsum(-1, dtype=torch.float64) / part.sum(dtype=torch.float64)
        begin, end = (float(cumulative[token - 1]) if token else 0.0), float(cumulative[token])
        distances.append(min(abs(begin - number), abs(end - number)))
    ordered, order = weights[0].sort(descending=True, stable=True)
    last = int((kept[order] > 0).sum()) - 1  # the least likely token that is kept, by its place among all
    mine = int((order == token).nonzero()[0, 0])
    between = ordered[min(last, mine) : max(last, mine) + 1].sum(dtype=torch.float64)
    return min(*distances, float(between) if abs(last - mine) < 3 else 1.0)


def test_rows_keep_their_results_when_pages_run_out_and_cache_is_given_back() -> None:
    model = make().cuda()
    engine = NativeEngine(model, max_batch=8, max_length=192, cache_memory=2**20)
    prompts = [prompt(40 + 9 * n, n) for n in range(10)]
    engine._pages.count = engine._runner.page_count = 9  # fewer than eight rows need
    engine._pages.clear()
    responses = ask(engine, prompts, Sampling(max_tokens=60))
    assert gap(model, prompts, responses) < 1e-4 and {r.finish for r in responses.values()} == {Finish.LENGTH}
    engine.sleep()
    assert engine._pages.held == 0
    again = ask(engine, prompts, Sampling(max_tokens=60))
    assert {n: r.token_ids for n, r in again.items()} == {n: r.token_ids for n, r in responses.items()}


@pytest.mark.parametrize("graphs", [False, True])
def test_a_sleeping_engine_holds_no_cache_and_wakes_with_the_weights_of_then(graphs: bool) -> None:
    model, prompts = make().cuda(), [prompt(30 + n, n) for n in range(6)]
    engine = NativeEngine(model, max_batch=6, max_length=128, cache_memory=2**28, graphs=graphs)
    ask(engine, prompts, GREEDY)
    cache = engine._runner.cache.nbytes  # type: ignore[attr-defined]
    awake = torch.cuda.memory_allocated()
    engine.sleep()
    assert torch.cuda.memory_allocated() <= awake - cache and engine.pending == 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.refresh()
    assert gap(model, prompts, ask(engine, prompts, GREEDY)) < 1e-4
    engine.submit([Request(0, prompts[0], GREEDY)])
    engine._step()
    engine.sleep()  # a row in the middle of its response goes on where it was
    assert gap(model, prompts[:1], {0: drain(engine)[0]}) < 1e-4


def test_bf16_is_as_near_to_float32_as_the_models_own_bf16_forward() -> None:
    model, prompts = make().cuda(), [prompt(n, n) for n in (30, 64, 100)]
    half = make().cuda().bfloat16()
    exact = make().cuda()
    exact.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    responses = ask(NativeEngine(half, max_length=160, cache_memory=1e8), prompts, Sampling(max_tokens=20))
    assert model.dtype == torch.float32 and gap(exact, prompts, responses) < 0.2


def test_an_output_layer_that_draws_by_itself_is_as_near_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.engines.native.gpu_runner.FEW_ROWS", 0)
    half = make(vocab_size=416).cuda().bfloat16()
    exact = make(vocab_size=416).cuda()
    exact.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    engine = NativeEngine(half, max_length=200, cache_memory=1e8)
    prompts = [prompt(n, n) for n in (1, 30, 64, 100)]
    for turn in range(3):
        sampling = (Sampling(max_tokens=9), GREEDY, Sampling(temperature=0.8, max_tokens=9))[turn]
        responses = ask(engine, prompts, sampling)
        assert gap(exact, prompts, responses, sampling.temperature or 1.0) < 0.2
        prompts = [[*ids, *responses[n].token_ids, *prompt(7, n)] for n, ids in enumerate(prompts)]


def test_new_weights_count_after_refresh_in_captured_steps_too() -> None:
    model, prompts = make().cuda(), [prompt(30), prompt(50, 1)]
    engine = NativeEngine(model, max_length=128, cache_memory=1e8)
    ask(engine, prompts, GREEDY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.refresh()
    assert gap(model, prompts, ask(engine, prompts, GREEDY)) < 1e-4
    engine.submit([Request(0, [WORDS], GREEDY)])
    assert drain(engine)[0].finish is Finish.REFUSED


def adapted(dtype: torch.dtype) -> Any:
    """A model with adapters that matter, as the learner holds it: the base in `dtype`, the adapters in float32."""
    peft = pytest.importorskip("peft", reason="needs the lora extra")
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = peft.get_peft_model(make().cuda().to(dtype), peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets)).eval()
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter, dtype=torch.float32) * 0.2
    return model


def test_adapters_count_in_captured_steps_and_follow_their_training() -> None:
    model, prompts = adapted(torch.float32), [prompt(n, n) for n in (3, 30, 64, 100)]
    engine = NativeEngine(model, max_length=160, cache_memory=1e8)
    first = ask(engine, prompts, GREEDY)
    assert gap(model, prompts, first) < 1e-4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(-1.0)
    engine.refresh()
    second = ask(engine, prompts, GREEDY)
    assert gap(model, prompts, second) < 1e-4 and first != second
    with model.disable_adapter():
        engine.refresh()
        assert gap(model, prompts, ask(engine, prompts, GREEDY)) < 1e-4


def test_float32_adapters_on_a_bf16_base_are_as_near_as_bf16_allows() -> None:
    model, prompts = adapted(torch.bfloat16), [prompt(n, n) for n in (3, 30, 64, 100)]
    responses = ask(NativeEngine(model, max_length=160, cache_memory=1e8), prompts, GREEDY)
    exact = adapted(torch.float32)
    exact.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    assert gap(exact, prompts, responses) < 0.2


def test_random_requests_on_a_gpu_leak_no_page_and_no_slot() -> None:
    model = make(num_hidden_layers=1).cuda()
    engine = NativeEngine(model, max_batch=8, max_length=192, stop_token_ids=[3, 4, 5], cache_memory=2**20, prefill_tokens=64)
    engine._pages.count = engine._runner.page_count = 12  # fewer than eight rows need
    engine._pages.clear()
    found = run_randomly(engine, 1000, 7)
    assert engine.pending == 0 and engine._pages.held == 0 and len(engine._free_slots) == 8 and not engine._chains.copies
    assert Finish.FAULT not in {response.finish for _, _, response in found.values()}
    sample = [entry for entry in found.values() if entry[2].token_ids][::10]
    worst = [gap(model, [ids], {0: response}, request.sampling.temperature or 1.0) for ids, request, response in sample]
    assert max(worst) < 1e-4
