"""Models that the native engine does not take: which engine serves them, what is said, and what no engine serves."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from turnwise.config.schema import Config
from turnwise.engines.native import NativeEngine
from turnwise.engines.transformers import TransformersEngine
from turnwise.setup.build import build_engine
from turnwise.util.errors import TurnwiseError

NATIVE = ["engine.name=native", "engine.max_tokens=8", "agent.max_prompt_tokens=56"]
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}


def model_of(kind: str) -> Any:
    values: dict[str, Any] = {
        "GPT2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
        "Mamba": {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
        "Mixtral": SIZES | {"num_local_experts": 2},
    }.get(kind, SIZES)
    config = getattr(transformers, f"{kind}Config")(vocab_size=20, bos_token_id=0, eos_token_id=1, pad_token_id=1, **values)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("kind", ["GPT2", "Phi3", "Mixtral"])
def test_another_family_is_served_by_transformers_and_unused_options_are_named(kind: str) -> None:
    said: list[str] = []
    changes = [*NATIVE, "engine.options.cache_dtype=8bit", "engine.options.cache_memory=1000000"]
    engine = build_engine(Config.load(None, changes), model_of(kind), None, [1], said.append)
    assert isinstance(engine, TransformersEngine)
    assert len(said) == 1 and f"{kind}" in said[0] and "qwen3_moe" in said[0]
    assert said[0].endswith("the transformers engine serves it, without engine.options (cache_dtype, cache_memory)")
    with pytest.raises(TurnwiseError, match=r"the native engine cannot run this model.*families.*TransformersEngine"):
        NativeEngine(model_of(kind))


def test_without_options_none_are_named_and_a_known_family_stays() -> None:
    said: list[str] = []
    build_engine(Config.load(None, NATIVE), model_of("GPT2"), None, [1], said.append)
    assert said[0].endswith("the transformers engine serves it")
    engine = build_engine(Config.load(None, NATIVE), model_of("Llama"), None, [1], pytest.fail)
    assert isinstance(engine, NativeEngine)


def test_a_model_that_no_engine_of_this_process_serves_is_refused_with_what_to_do() -> None:
    with pytest.raises(TurnwiseError, match=r"MambaForCausalLM takes no past_key_values.*another model, or the vLLM engine"):
        build_engine(Config.load(None, NATIVE), model_of("Mamba"), None, [1], lambda text: None)
