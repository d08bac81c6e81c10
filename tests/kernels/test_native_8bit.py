"""A cache in 8 bits: half the memory, log-probs that differ a little, and everything else as with any other cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from native_models import FAMILIES, ask, make, plain_logprobs, prompt
from native_requests import Counted

from turnwise.engines.base import Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.kernels.cache_8bit import copy_beginning, pack, stored, views
from turnwise.learn.shapes import SHAPES
from turnwise.planner.fit import demand_of
from turnwise.planner.memory import Demand
from turnwise.recipe.schema import Config
from turnwise.setup.training import with_8bit_cache
from turnwise.util.errors import TurnwiseError

ROOT = Path(__file__).parents[2]

GREEDY = Sampling(temperature=0.0, max_tokens=6)


def eight(model: object, **settings: object) -> NativeEngine:
    return NativeEngine(model, cache_dtype="8bit", **{"max_length": 256, **settings})  # type: ignore[arg-type]


def gap(model: Any, prompts: list[list[int]], responses: dict[int, Response]) -> float:
    """The mean distance from the log-probs of the model's own forward. Single ones may be large: a token goes to another expert."""
    pairs = [(plain_logprobs(model, ids, responses[n].token_ids), torch.tensor(responses[n].logprobs)) for n, ids in enumerate(prompts)]
    return torch.cat([(theirs - ours).abs() for theirs, ours in pairs]).mean().item()


def test_a_number_is_off_by_half_a_step_of_its_heads_scale_at_most() -> None:
    x = torch.randn(50, 3, 16, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 6, 50)[:, None, None]
    x[7, 1] = 0.0
    numbers, scales = pack(x)
    assert numbers.dtype == torch.int8 and scales.shape == (50, 3)
    assert torch.equal(scales, x.abs().amax(-1) / 127)
    assert ((numbers * scales[..., None] - x).abs() <= 0.501 * scales[..., None]).all()
    assert (numbers.abs().amax(-1) == 127).sum() == 149  # every head but the one of zeros fills its range


def test_what_is_not_a_number_stays_none() -> None:
    x = torch.ones(3, 16)
    x[0, 3], x[1, 5] = torch.nan, torch.inf
    assert pack(x)[1].isfinite().tolist() == [False, False, True]


def test_tokens_are_found_where_they_were_put_and_copied() -> None:
    cache = torch.zeros(1, 2, 4, 3, 10, 16 + 4, dtype=torch.int8)
    keys, values = views(cache[0], torch.float32)
    new = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(2))
    pages, places = torch.tensor([2, 2, 2, 0, 2]), torch.tensor([0, 1, 2, 9, 3])
    keys.put(pages, places, new)
    values.put(pages, places, -2 * new)
    copy_beginning(cache, 2, 3, 3)
    for page in (2, 3):
        found = keys.part(page, slice(0, 3))
        assert (found - new[:3].transpose(0, 1)).abs().max() < 0.02
        assert (values.part(page, slice(0, 3)) + 2 * found).abs().max() < 1e-5
    assert not keys.part(3, slice(3, None)).any() and not keys.part(1, slice(None)).any()
    assert torch.equal(keys.part(torch.tensor([3, 0]), slice(2, None))[1], keys.part(slice(0, 1), slice(2, None))[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_near_those_of_the_models_forward_over_two_turns(family: str) -> None:
    model, engine = make(family), eight(make(family))
    prompts = [prompt(n, n) for n in (1, 33, 60, 60)]
    for turn in range(2):
        responses = ask(engine, prompts, Sampling(max_tokens=6), seed=turn)
        assert 1e-6 < gap(model, prompts, responses) < 0.1
        prompts = [[*ids, *responses[n].token_ids, *prompt(7, n)] for n, ids in enumerate(prompts)]


def test_a_large_bias_of_keys_leaves_the_rest_its_steps() -> None:
    model = make()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.bias[5::16] += 60.0
    engine, prompts = eight(model), [prompt(40 + n, n) for n in range(4)]
    near = gap(model, prompts, ask(engine, prompts, GREEDY))
    engine.weights.shift_keys = lambda length: None  # type: ignore[method-assign]
    for layer in engine.weights.layers:
        layer.shift = None
    engine.refresh()
    assert near < 0.1 < gap(model, prompts, ask(engine, prompts, GREEDY))
    other = eight(model)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.bias[5::16] -= 120.0
    other.refresh()  # a bias is trained too
    assert gap(model, prompts, ask(other, prompts, GREEDY)) < 0.1


def test_a_reused_prefix_gives_what_a_new_one_gives() -> None:
    """Prompts read their own tokens from the cache too, so it does not matter who wrote them, or in how many pieces."""
    ids = [*prompt(90), *prompt(20, 3)]
    alone = ask(eight(make()), [ids], Sampling(max_tokens=8))[0]
    engine = eight(make(), prefill_tokens=37)
    ask(engine, [prompt(90)], GREEDY, first=5)
    counted = Counted(engine)
    shared = ask(engine, [ids], Sampling(max_tokens=8))[0]
    assert counted.tokens == 20 + 7
    assert shared.token_ids == alone.token_ids and shared.logprobs == pytest.approx(alone.logprobs, abs=2e-3)


def test_bf16_weights_and_scattered_rows_work() -> None:
    model = make().bfloat16()
    engine = eight(model, max_batch=12)
    prompts = [prompt(20 + n, n) for n in range(12)]
    found = ask(engine, prompts, GREEDY)
    again = ask(engine, prompts[::11], GREEDY)  # the first and the last page
    exact = make()
    exact.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    for n, place in enumerate((0, 11)):
        assert again[n].token_ids == found[place].token_ids
        expected = plain_logprobs(exact, prompts[place], found[place].token_ids, 1.0)
        assert expected.tolist() == pytest.approx(found[place].logprobs, abs=0.3)


def test_kinds_that_do_not_exist_and_heads_that_do_not_fit_are_named() -> None:
    with pytest.raises(TurnwiseError, match="cache_dtype is one of model, 8bit, not 'fp8'"):
        NativeEngine(make(), cache_dtype="fp8")
    with pytest.raises(TurnwiseError, match="divides by 4"):
        stored("8bit", torch.float32, 6)
    assert stored("8bit", torch.float32, 8) == (torch.int8, 12) and stored("model", torch.bfloat16, 6) == (torch.bfloat16, 6)


def test_a_recipe_with_such_a_cache_gets_importance_weights_and_old_logprobs_of_the_learner() -> None:
    said: list[str] = []

    def corrected(*changes: str) -> tuple[str, str]:
        found = with_8bit_cache(Config.load(ROOT / "recipes" / "quickstart.toml", ["engine.name=native", *changes]), said.append)
        return found.objective.importance, found.learner.old_logprobs

    packed = "engine.options.cache_dtype=8bit"
    assert corrected() == corrected("engine.options.cache_dtype=model") == ("none", "engine") and not said
    assert corrected("engine.options.cache_dtype=fp8") == ("none", "engine") and not said, "refused with the other options of the engine"
    assert corrected(packed) == ("truncate", "learner") and "instead of engine" in said.pop()
    assert corrected(packed, "objective.importance=mask") == ("mask", "learner") and "importance=mask" in said.pop()
    assert corrected(packed, "objective.importance=mask", "learner.old_logprobs=learner") == ("mask", "learner") and not said


def test_a_recipe_with_such_a_cache_needs_half_the_memory_for_it() -> None:
    shape = SHAPES["1.5b"]
    plain, packed = (Demand(shape, cache_8bit=kind, cache=4 * 10**9) for kind in (False, True))
    assert 1.9 < plain.page / packed.page < 2 and packed.page == 64 * 2 * 28 * 2 * (128 + 4)
    assert packed.rows > 1.9 * plain.rows - 2 and packed.wanted_cache < 0.53 * plain.wanted_cache
    config = Config.load(ROOT / "recipes" / "alfworld.toml", ["engine.name=native", "engine.options.cache_dtype=8bit"])
    assert demand_of(config, shape, 80 * 10**9).cache_8bit
