"""Models that the native engine does not take: which engine serves them, what is said, and what no engine serves. Folders that hold no
model, or only a part of one. All of it is said before any work begins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner

from turnwise import api
from turnwise.cli.app import app
from turnwise.engines.batch_forward import check_batches
from turnwise.engines.native import NativeEngine
from turnwise.engines.transformers import TransformersEngine
from turnwise.learn.models import load_folder
from turnwise.learn.tiny import build_tiny
from turnwise.recipe.schema import Config
from turnwise.setup.build import build_engine, check_served
from turnwise.setup.early import check_families
from turnwise.setup.serving import serve_model
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


@pytest.mark.parametrize("kind", ["GPT2", "Mixtral"])
def test_another_family_is_served_by_transformers_and_unused_options_are_named(kind: str) -> None:
    said: list[str] = []
    changes = [*NATIVE, "engine.options.cache_dtype=8bit", "engine.options.cache_memory=1000000"]
    engine = build_engine(Config.load(None, changes), model_of(kind), None, [1], said.append)
    assert isinstance(engine, TransformersEngine)
    assert len(said) == 1 and f"{kind}" in said[0] and "qwen3_moe" in said[0]
    assert said[0].endswith("the transformers engine serves it, without engine.options (cache_dtype, cache_memory)")
    assert isinstance(build_engine(Config.load(None, NATIVE), model_of("Llama"), None, [1], pytest.fail), NativeEngine)
    with pytest.raises(TurnwiseError, match=r"the native engine cannot run this model.*families.*TransformersEngine"):
        NativeEngine(model_of(kind))


# -- before any work begins ---------------------------------------------------------------------------------------------------------

IDS = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
BART: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "init_std": 0.5, **HEADS, **IDS}
REFUSED: dict[str, tuple[transformers.PreTrainedConfig, str]] = {
    "mamba": (
        transformers.MambaConfig(hidden_size=32, num_hidden_layers=1, **IDS),
        r"MambaForCausalLM takes no past_key_values.*or the vLLM",
    ),
    "bert": (transformers.BertConfig(**SIZES, vocab_size=40), r"type bert is an encoder, whose attention looks ahead.*use a causal"),
    "bart": (transformers.BartConfig(**BART), r"type bart is an encoder with a decoder.*use a causal"),
    "vit": (transformers.ViTConfig(), r"type vit is no causal language model"),
}


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    return build_tiny(["left right"], layers=1, hidden=32, heads=2, max_length=600)


@pytest.fixture
def folder(tmp_path: Path, tiny: tuple[Any, Any]) -> Path:
    """A complete model."""
    for part in tiny:
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def entries(folder: Path, out: Path) -> dict[str, Callable[[], Any]]:
    """Everything that plays or trains a model."""
    changes = {"model.path": str(folder), "out": str(out), "device": "cpu", "sft.tasks": 4}
    typed = [f"{name}={value}" for name, value in changes.items()]

    def command(*words: str) -> None:
        result = CliRunner().invoke(app, [*words], catch_exceptions=False)
        raise AssertionError(result.output)

    return {
        "train": lambda: api.train({"env": {"name": "household"}}, quiet=True, **{"agent.max_prompt_tokens": 500}, **changes),
        "dry run": lambda: command("train", *typed, "--dry-run"),
        "evaluate": lambda: api.evaluate(folder, env="household", n=1, quiet=True, device="cpu"),
        "serve": lambda: serve_model(folder, port=0, device="cpu"),
        "play": lambda: command("play", "household", "--agent", str(folder)),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_used_is_refused_before_any_work_begins(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, message = REFUSED[name]
    config.save_pretrained(folder)
    for work in ("turnwise.envs.registry.tasks", "turnwise.envs.registry.make", "turnwise.learn.models.load_folder"):
        monkeypatch.setattr(work, lambda *given, **options: pytest.fail("work began"))
    commands = {"fit": ["fit", f"model.path={folder}"], "fit --model": ["fit", "--model", str(folder)]}
    commands["fit with a file"] = ["fit", "--model", str(folder / "config.json")]
    for entry, work in entries(folder, tmp_path / "runs").items():
        with pytest.raises(TurnwiseError, match=message) as error:
            work()
        assert str(folder) in str(error.value), entry
    for entry, words in commands.items():
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, TurnwiseError), entry
        with pytest.raises(TurnwiseError, match=message):
            raise result.exception
    assert not list((tmp_path / "runs").glob("*")), "no run is left behind"


def test_a_model_that_only_another_process_samples_needs_no_cache(folder: Path) -> None:
    REFUSED["mamba"][0].save_pretrained(folder)
    words = ["agent.max_prompt_tokens=56", f"model.path={folder}"]
    check_families(Config.load(None, [*words, "engine.name=vllm"]))
    check_families(Config.load(None, ["agent.max_prompt_tokens=56", f"models.teacher.path={folder}"]))
    check_families(Config.load(None, [*words, "engine.name=openai", "engine.url=http://127.0.0.1:1/v1", "engine.model=x"]))
    REFUSED["bert"][0].save_pretrained(folder)
    for more in ([*words, "engine.name=vllm"], ["agent.max_prompt_tokens=56", f"models.teacher.path={folder}"]):
        with pytest.raises(TurnwiseError, match="type bert is an encoder"):
            check_families(Config.load(None, more))


KEPT: dict[str, Any] = {
    "gpt2": lambda: model_of("GPT2").config,
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if "key" not in k}, **IDS),  # it says is_decoder=False
    "bert as a decoder": lambda: transformers.BertConfig(**SIZES, vocab_size=40, is_decoder=True),
    "jamba": lambda: transformers.JambaConfig(
        **(SIZES | {"num_hidden_layers": 2}), **IDS, attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_families_that_predict_one_token_after_another_are_kept(name: str, folder: Path) -> None:
    config = KEPT[name]()
    config.save_pretrained(folder)
    check_families(Config.load(None, [f"model.path={folder}", *NATIVE]))
    check_served(Config.load(None, NATIVE), transformers.AutoModelForCausalLM.from_config(config))


def test_a_model_whose_padded_rows_differ_is_refused_when_it_is_loaded() -> None:
    """The decoder of BART counts its positions from the first column."""
    model = transformers.BartForCausalLM(transformers.BartConfig(**BART))
    with pytest.raises(TurnwiseError, match=r"the logits of BartForCausalLM differ by .* prompts of two lengths.*vllm"):
        check_served(Config.load(None, NATIVE), model)
    check_served(Config.load(None, ["engine.name=vllm", *NATIVE[1:]]), model)


def test_a_model_that_gives_no_cache_back_is_refused_when_it_is_loaded() -> None:
    config = transformers.RecurrentGemmaConfig(
        **(SIZES | {"num_hidden_layers": 3}), **IDS, lru_width=32, head_dim=16, attention_window_size=16
    )
    with pytest.raises(
        TurnwiseError, match=r"RecurrentGemmaForCausalLM cannot be sampled by the transformers engine \(AttributeError: .*past_key_values"
    ):
        check_batches(transformers.AutoModelForCausalLM.from_config(config))


def test_trying_a_model_leaves_it_as_it_was() -> None:
    model = model_of("GPT2").train()
    check_batches(model)
    assert model.training and all(weight.grad is None for weight in model.parameters())


def spoil(folder: Path, how: str) -> None:
    file = folder / "config.json"
    if how == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif how == "no JSON":
        file.write_text('{"model_type": "llama",')
    elif how == "a list":
        file.write_text("[1]")
    elif how == "no text":
        file.write_bytes(b"\xff\xfe\x00")
    elif how == "unknown":
        file.write_text(json.dumps({"model_type": "nobody-knows"}))
    elif how == "no weights":
        (folder / "model.safetensors").unlink()
    elif how == "a lost part":
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}})
        )
    elif how == "no index":
        (folder / "model.safetensors.index.json").write_text("[]")
    elif how == "no tokenizer":
        for own in folder.glob("*token*"):
            own.unlink()
    elif how == "gone":
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("empty", r"not a model folder, because it has no config.json"),
        ("no JSON", r"its config.json cannot be loaded \(OSError: .*not a valid JSON"),
        ("a list", r"its config.json cannot be loaded"),
        ("no text", r"its config.json cannot be loaded"),
        ("unknown", r"its config.json cannot be loaded .*nobody-knows"),
        ("no weights", r"this folder has no weights \(\*.safetensors"),
        ("a lost part", r"1 of the files that model.safetensors.index.json lists are missing, among them other.safetensors"),
        ("no index", r"model.safetensors.index.json cannot be read"),
        ("no tokenizer", r"its tokenizer cannot be loaded"),
        ("gone", r"no such folder"),
    ],
)
def test_a_folder_without_a_whole_model_is_refused_in_one_line(how: str, message: str, folder: Path, tmp_path: Path) -> None:
    spoil(folder, how)
    for entry, work in entries(folder, tmp_path / "runs").items():
        if how in ("empty", "gone") and entry not in ("train", "dry run"):
            continue  # then it is taken for something else than a model
        with pytest.raises(TurnwiseError, match=message) as error:
            work()
        assert str(folder) in str(error.value) and "\n" not in str(error.value), entry
    assert not list((tmp_path / "runs").glob("*")), "no run is left behind"


def test_weights_that_a_file_does_not_have_are_not_drawn_at_random(folder: Path, tiny: tuple[Any, Any]) -> None:
    config = transformers.LlamaConfig(**{**tiny[0].config.to_dict(), "tie_word_embeddings": False})
    transformers.LlamaForSequenceClassification(config).save_pretrained(folder)
    with pytest.raises(TurnwiseError, match=r"no weights for 1 of the parameters of LlamaForCausalLM, among them lm_head.weight"):
        load_folder(folder)
