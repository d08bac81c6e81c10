"""Whether a recipe fits into a GPU's memory: what is kept against what torch saves, the choice of settings, and what is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from learn_cases import tiny
from native_models import VARIANTS, make
from typer.testing import CliRunner

from turnwise.cli.app import app
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.learn.activations import Kept, kept_bytes, logit_chunk
from turnwise.learn.forward import PackedModel
from turnwise.learn.lora import add_lora
from turnwise.learn.memory import Memory
from turnwise.learn.packing import pack
from turnwise.learn.shapes import SHAPES, ModelShape, shape_from, shape_of
from turnwise.learn.weights import Weights
from turnwise.planner.choose import LEVERS, MARGIN, Freedom, as_it_is, choose, seconds
from turnwise.planner.fit import GB, find, sampled_share, with_settings
from turnwise.planner.memory import CONTEXT, FUSED, Demand
from turnwise.planner.small_gpu import HOST_PART, fitted, fitted_to_gpu, foreseen, keep_choice
from turnwise.planner.tables import fixed_settings
from turnwise.planner.times import weights_read
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.runs.folder import Run
from turnwise.util.errors import TurnwiseError
from turnwise.util.threads import all_memory

HERE = Path(__file__).parents[2]
SMALL = SHAPES["1.5b"]


# -- against what torch saves for a backward pass -----------------------------------------------------------------------------------


def saved_bytes(model: Any, work: Callable[[], Any]) -> int:
    """Bytes of all storages that a forward pass keeps, without those of the model."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}
    alive = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        alive.append(work())
    return sum(seen.values())


def saved_per_token(rank: int, kept: Kept, variant: str = "", **sizes: Any) -> tuple[float, ModelShape]:
    """What a small model keeps per token, in bfloat16, from two lengths; and its shape."""
    small = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3}
    model = (make(variant) if variant else tiny(**small | sizes)).bfloat16()
    shape = shape_from(model.config.to_dict(), "tiny")
    model = add_lora(model, rank=rank) if rank else model
    policy = PackedModel(model, fused=True)
    policy.fused.kept = kept  # type: ignore[union-attr]
    model.train()
    found = []
    for length in (64, 128):
        ids = [1] * (length - 1)
        packed = pack([Trajectory(0, number, turns=[Turn(anchor="a", prompt_ids=ids, response_ids=[2])]) for number in range(2)])
        with policy.attention():
            found.append(saved_bytes(model, lambda packed=packed: policy.hidden(packed)))  # type: ignore[misc]
    return (found[1] - found[0]) / 128, shape


SHAPED: list[dict[str, Any]] = [{}, {"num_attention_heads": 8, "head_dim": 16, "hidden_size": 96, "num_hidden_layers": 2}]
MIXED = ("qwen3-moe", "qwen3-moe, a dense layer", "qwen3-moe, every other layer")
SHAPED += [{"variant": name} for name in ("qwen3", *MIXED)]


@pytest.mark.parametrize(("kept", "rank"), [(Kept(), 0), (Kept(9, 1), 8), (Kept(0, 0), 0)])
@pytest.mark.parametrize("sizes", SHAPED)
def test_the_fused_layers_keep_exactly_what_the_formula_says(sizes: dict[str, Any], kept: Kept, rank: int) -> None:
    saved, shape = saved_per_token(rank, kept, **sizes)
    outside = 2 * shape.hidden + 4 + (0 if rank else 8)  # the norm after the last layer, and the token's id if its embedding is trained
    assert saved == kept_bytes(shape, kept) + outside


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ((), 512 / 2560),
        (("agent.context=full", "engine.max_tokens=32"), 50 * 32 / 2080),
        (("agent.context=full",), 1.0),
        (("objective.entropy_coef=0.01",), 0.0),
        (("cluster.learners=2",), 0.0),
    ],
)
def test_the_share_of_sampled_tokens_is_that_of_the_longest_sequence(changes: tuple[str, ...], share: float) -> None:
    assert sampled_share(Config.load(RECIPE, [*changes])) == pytest.approx(share)


# -- the choice ---------------------------------------------------------------------------------------------------------------------

WINDOW = Demand(SMALL, longest=2560, sequence=2560)
CASES = {
    "0.5b": (replace(WINDOW, shape=SHAPES["0.5b"]), 12),
    "1.5b": (WINDOW, 24),
    "1.5b full": (replace(WINDOW, longest=12800, sequence=12800), 24),
    "7b adapters": (replace(WINDOW, shape=SHAPES["7b"], rank=64, reference=None), 40),
    "7b adapters, 4 bits": (replace(WINDOW, shape=SHAPES["7b"], rank=64, reference=None, four_bit=True), 24),
}


@pytest.mark.parametrize("name", CASES)
def test_the_usual_models_fit_into_small_cards(name: str) -> None:
    demand, memory = CASES[name]
    fit = choose(demand, memory * GB, Freedom())
    assert fit.fits and fit.demand.rank == demand.rank
    assert fit.demand.cache >= demand.longest * demand.shape.cache_bytes, "a row of the longest length has room"


def test_a_large_gpu_changes_nothing() -> None:
    for demand, _ in CASES.values():
        fit = choose(demand, 141 * GB, Freedom())
        assert fit.fits and not fit.changed
        assert fit.demand == as_it_is(demand, 141 * GB, Freedom()).demand


def test_less_memory_changes_more_and_in_the_order_of_cost() -> None:
    before: set[str] = set()
    for memory in (80, 64, 48, 40, 32):
        fit = choose(WINDOW, memory * GB, Freedom())
        assert fit.fits
        last = {"reference", "place"} & set(fit.changed)
        assert len(last) >= len(before)
        assert not last or {"cache", "tokens"} <= set(fit.changed), "what costs little is changed first"
        before = last
    assert [name for name in LEVERS if name in fit.changed] == list(fit.changed)


@pytest.mark.parametrize("memory", [16, 24, 44])
def test_of_the_settings_that_fit_the_fastest_are_chosen(memory: int) -> None:
    """Against every combination of three of them, set by hand."""
    best = choose(WINDOW, memory * GB, Freedom())
    assert best.fits
    others = 0
    for tokens in (1024, 4096, 16384):
        for place in ("device", "host"):
            for sleeps in (False, True):
                given = replace(WINDOW, tokens=tokens, logits=logit_chunk(tokens), place=place, sleeps=sleeps)
                fit = choose(given, memory * GB, Freedom(tokens=False, place=False, sleep=False, reference=False))
                if fit.peak <= (1 - MARGIN) * memory * GB:
                    others += 1
                    assert seconds(best.demand) <= seconds(fit.demand) * (1 + 1e-9), (tokens, place, sleeps)
    assert others


def test_adapters_are_chosen_only_if_they_are_asked_for() -> None:
    demand = replace(WINDOW, shape=SHAPES["7b"])
    assert not choose(demand, 24 * GB, Freedom()).fits
    fit = choose(demand, 24 * GB, Freedom(lora=True))
    assert fit.fits and fit.changed[-1] == "lora" and "reference" not in fit.changed


def test_host_memory_is_used_only_if_the_host_has_it() -> None:
    fit = choose(WINDOW, 20 * GB, Freedom(), host=64 * GB)
    assert fit.fits and fit.demand.place == "host"
    assert fit.demand.host_bytes >= 12 * SMALL.parameters
    assert not choose(WINDOW, 20 * GB, Freedom(), host=8 * GB).fits


# -- a recipe -----------------------------------------------------------------------------------------------------------------------

RECIPE = str(HERE / "recipes" / "alfworld.toml")
FIXED = ["learner.tokens_per_batch=32768"]
SMALL_MODEL = ["model.path=Qwen/Qwen2.5-0.5B-Instruct"]


def test_the_adapters_recipe_fits_into_24_gb_on_weights_of_4_bits() -> None:
    config = Config.load(HERE / "recipes" / "alfworld-7b-lora.toml", ["model.lora.base=4bit"])
    found = find(config, 24 * GB)
    assert found.fit.fits and found.fit.demand.four_bit and found.fit.demand.reference is None
    assert not found.fit.changed and found.fit.demand.graphs, "as it is, with the native engine"
    small = find(config, 16 * GB)
    assert small.fit.fits and small.settings["engine.options.cache_memory"] == small.fit.demand.cache
    assert find(with_settings(config, small.settings), 16 * GB).fit.fits
    half = find(Config.load(HERE / "recipes" / "alfworld-7b-lora.toml"), 24 * GB)
    assert found.fit.demand.totals["collect"] < half.fit.demand.totals["collect"]


def test_a_recipe_on_a_small_gpu_gets_settings_and_says_so() -> None:
    said: list[str] = []
    found = find(Config.load(RECIPE, SMALL_MODEL), 16 * GB)
    config, demand = fitted(found, said.append), found.fit.demand
    assert len(said) == 1 + len(found.fit.changed)
    assert config.engine.options["cache_memory"] == demand.cache and config.learner.tokens_per_batch == demand.tokens
    again = find(config, 16 * GB)
    assert again.fit.fits and set(again.fit.changed) <= {"recompute"}, "what was chosen stays"


def test_a_recipe_that_cannot_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(TurnwiseError, match=r"learner.tokens_per_batch=32768.*not changed.*learner.tokens_per_batch=0"):
        fitted(find(Config.load(RECIPE, FIXED), 10 * GB))
    with pytest.raises(TurnwiseError, match=r"has 4.0 GB.*at least.*\(gradients 6.2, weights 3.1, .*model.lora.rank=16"):
        fitted(find(Config.load(RECIPE), 4 * GB))
    # most while it collects
    with pytest.raises(TurnwiseError, match=r"at least 21.4 GB \(weights 15.2, engine's prompts 2.\d, .*in 4 bits \(model.lora.base=4bit"):
        fitted(find(Config.load(str(HERE / "recipes" / "alfworld-7b-lora.toml")), 12 * GB))


def test_on_a_cpu_and_on_a_cluster_nothing_is_chosen() -> None:
    for config in (Config.load(RECIPE, ["device=cpu"]), Config.load(RECIPE, ["cluster.engines=2"])):
        with fitted_to_gpu(config, None, pytest.fail) as here:
            assert here == (config, None)


def test_a_run_on_a_small_gpu_keeps_what_was_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("turnwise.planner.small_gpu.choose_device", lambda name: "cuda")
    monkeypatch.setattr("turnwise.engines.native.memory.free_bytes", lambda device: 15 * GB)
    with fitted_to_gpu(Config.load(RECIPE, SMALL_MODEL), None, lambda text: None) as (config, found):
        run = Run.create(tmp_path, "small", to_toml(config))
        keep_choice(run, found)
    kept = json.loads((run.folder / "memory.json").read_text())
    again = Config.load(run.folder / "config.toml")
    assert again.learner.tokens_per_batch == kept["settings"]["learner.tokens_per_batch"] == config.learner.tokens_per_batch
    assert kept["peak_gb"] <= kept["memory_gb"] < kept["as_it_is_gb"] and kept["choices"] and kept["terms_gb"]["weights"]


class LimitedCard:
    """A GPU of 141 GB whose process can be given a share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.part, total = 1.0, 141 * GB
        answers: dict[str, Any] = {
            "mem_get_info": lambda *device: (total - CONTEXT, total),
            "memory_reserved": lambda *device: 0,
            "memory_allocated": lambda *device: 0,
            "current_device": lambda: 0,
            "get_per_process_memory_fraction": lambda *device: self.part,
            "set_per_process_memory_fraction": lambda part: setattr(self, "part", part),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr("turnwise.planner.small_gpu.choose_device", lambda name: "cuda" if name == "auto" else name)


@pytest.mark.parametrize("memory", [12.0, 14.5, 16.0])
def test_a_limited_run_gets_the_settings_of_a_card_of_that_size(monkeypatch: pytest.MonkeyPatch, memory: float) -> None:
    config = Config.load(RECIPE, SMALL_MODEL)
    card = LimitedCard(monkeypatch)
    with fitted_to_gpu(config, None, pytest.fail) as here:
        assert here == (config, None), "the whole GPU is large enough"
    with fitted_to_gpu(config, memory, lambda text: None) as (chosen, _):
        assert card.part * 141 * GB == pytest.approx(memory * GB - CONTEXT)
    assert card.part == 1.0, "the next run of this process has the whole GPU"
    assert chosen == fitted(find(config, int(memory * GB), host=int(HOST_PART * all_memory()))) != config
    with fitted_to_gpu(config, memory, pytest.fail, resumed=True) as here:
        assert here == (config, None), "a resumed run keeps its settings"


@pytest.mark.parametrize(
    ("memory", "changes", "message"),
    [
        (200.0, [], "has 141.0 GB"),
        (0.5, [], "CUDA itself takes 0.9 GB"),
        (float("nan"), [], "has 141.0 GB"),
        (24.0, ["device=cpu"], "on a CPU"),
        (24.0, ["cluster.engines=2"], r"\[cluster\] section"),
        (24.0, ["engine.name=vllm"], "memory outside it"),
    ],
)
def test_a_limit_that_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch, memory: float, changes: list[str], message: str) -> None:
    card = LimitedCard(monkeypatch)
    with pytest.raises(TurnwiseError, match=message), fitted_to_gpu(Config.load(RECIPE, changes), memory, pytest.fail):
        pytest.fail("the run began")
    assert card.part == 1.0


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, ["fit", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_gives_the_same_as_json() -> None:
    found = json.loads(invoke(RECIPE, "--memory", "40", "--json"))
    assert found["fits"] and found["peak_gb"] <= 40 and found["settings"]["learner.tokens_per_batch"] > 0
    assert found["phases_gb"]["learn"] == pytest.approx(sum(one.get("learn", 0) for one in found["terms_gb"].values()), abs=0.01)
    several = json.loads(invoke(RECIPE, "--json"))
    assert [one["memory_gb"] for one in several] == sorted(one["memory_gb"] for one in several)


def test_a_model_is_known_by_its_size_its_config_or_its_name(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    for given in (str(tmp_path), str(tmp_path / "config.json")):
        assert (
            json.loads(invoke(RECIPE, "--memory", "24", "--model", given, "--json"))["parameters"]
            == 2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64) + 64 + 2 * 6400
        )
    assert json.loads(invoke(RECIPE, "--memory", "141", "--json"))["model"] == "1.5b", "the size in the name on the hub"
    name = "Qwen/Qwen2.5-Coder-7B-Instruct"
    assert invoke(RECIPE, "--memory", "80", "--model", name) == invoke(RECIPE, "--memory", "80", f"model.path={name}")
    result = CliRunner().invoke(app, ["fit", RECIPE, "model.path=somebody/unknown"])
    assert isinstance(result.exception, TurnwiseError) and "--model" in str(result.exception)


TEXT = {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("Llama", {**TEXT, "num_attention_heads": 6}),
        ("Qwen2", {**TEXT, "num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True}),
        ("Qwen3", {**TEXT, "num_attention_heads": 6, "num_key_value_heads": 2}),
        ("Gemma3Text", TEXT),
        ("SmolLM3", {**TEXT, "num_attention_heads": 6, "num_key_value_heads": 2}),
        ("Gemma2", {**TEXT, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32}),
    ],
)
def test_what_a_config_leaves_out_is_the_default_of_its_family(kind: str, values: dict[str, Any], tmp_path: Path) -> None:
    """Files of Gemma and SmolLM3 do not say that their output layer is the embedding, and those of Gemma 3 name few sizes."""
    config = getattr(transformers, f"{kind}Config")(**values)
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": config.model_type}))
    with torch.device("meta"):
        model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config)
    shape = shape_of(str(tmp_path))
    assert shape.parameters == pytest.approx(sum(weight.numel() for weight in model.parameters()), rel=0.001)
    assert shape.tied is (kind in ("Qwen2", "Gemma3Text", "SmolLM3", "Gemma2")) and (shape.family in FUSED) is (kind != "Gemma2")
    if kind == "Gemma3Text":
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {**values, "model_type": "gemma3_text"}}))
        with_pictures = shape_of(str(tmp_path))
        assert with_pictures == replace(shape, family="gemma3", vision=True) and with_pictures.family not in FUSED


def test_a_family_that_the_native_engine_does_not_take_is_predicted_with_the_one_that_serves_it(tmp_path: Path) -> None:
    sizes = {**TEXT, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": True}
    found = {}
    for family in ("mistral", "llama"):
        (tmp_path / "config.json").write_text(json.dumps({**sizes, "model_type": family}))
        config = Config.load(RECIPE, [f"model.path={tmp_path}"])
        found[family] = find(config, 24 * GB)
        text = invoke(RECIPE, "--memory", "24", "--model", str(tmp_path))
        assert ("native engine does not take models of the family mistral: transformers serves" in text) is (family == "mistral")
    other, own = found["mistral"], found["llama"]
    assert (other.engine, own.engine) == ("transformers", "native")
    assert own.fit.demand.graphs and not other.fit.demand.graphs and other.fit.demand.sleeps and not other.fit.demand.fused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "inf"], r"--memory takes gigabytes above 0 and up to 1,000,000, not inf"),
        (["--memory=-3"], r"--memory takes gigabytes above 0 and up to 1,000,000, not -3"),
        (["models.teacher.path=nowhere"], r"models.teacher.path nowhere: no such folder.*0.5b"),
        (["--model", "9b"], r"unknown model size '9b'. Did you mean '7b'"),
        (["--model", ""], r"unknown model size ''"),
        (["--model", "Qwen/Qwen3-4B"], r"--model Qwen/Qwen3-4B: no such folder, .* Give a size \(0.5b, .* or a config.json$"),
        (["engine.options.cache_memory=x"], r"engine.options of native: option cache_memory takes number"),
    ],
)
def test_bad_input_is_refused_in_one_line(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["fit", RECIPE, *words])
    assert isinstance(result.exception, TurnwiseError) and re.search(message, str(result.exception)), result.exception


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1, "mlp_only_layers": []}
MIXTURE = {**EXPERTS, "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 200, "num_hidden_layers": 5, "vocab_size": 100}
MIXTURE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "it is no table of settings"),
        ("{", "Expecting property name"),
        (json.dumps(MIXTURE | {"num_attention_heads": 0}), "num_attention_heads is 0"),
        (json.dumps(MIXTURE | {"vocab_size": "x"}), "vocab_size is 'x'"),
        (json.dumps(MIXTURE | {"mlp_only_layers": [0.5]}), "mlp_only_layers is [0.5]"),
        (json.dumps(MIXTURE | {"decoder_sparse_step": 0}), "decoder_sparse_step is 0"),
        (json.dumps({key: MIXTURE[key] for key in MIXTURE if key != "model_type"}), "a mixture of experts of another family"),
        ('{"model_type": "gpt2", "n_embd": 64}', "model_type 'gpt2', without num_attention_heads"),
    ],
)
def test_a_file_that_describes_no_known_model_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TurnwiseError, match=r"does not describe a dense decoder.*give the size") as error:
        shape_of(str(tmp_path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_every_setting_that_is_in_the_way_is_named() -> None:
    fixed = ["engine.sleep=false", "learner.optimiser_place=device", "learner.reference_place=device"]
    fixed += ["engine.options.cache_memory=20000000000", "engine.options.prefill_tokens=65536", "learner.gradient_checkpointing=false"]
    with pytest.raises(TurnwiseError) as error:
        fitted(find(Config.load(RECIPE, fixed), 12 * GB))
    named, advice = str(error.value).split("is not changed")
    assert all(setting in named for setting in fixed) and "tokens_per_batch=" not in named
    assert "learner.reference_place=auto, remove " in advice and "engine.sleep" in advice
    assert not fixed_settings(find(Config.load(RECIPE), 12 * GB)), "what is left open is not in the way"


def test_learners_of_several_processes_are_offered_nothing_that_they_refuse() -> None:
    found = find(Config.load(RECIPE, ["cluster.learners=2"]), 24 * GB)
    assert not {"place", "reference"} & set(found.fit.changed)
    assert not fixed_settings(found)
    assert "a [cluster] section" in invoke(RECIPE, "--memory", "24", "cluster.learners=2")


def test_a_dry_run_says_what_a_limited_run_would_choose() -> None:
    config = Config.load(RECIPE, SMALL_MODEL)
    said: list[str] = []
    fitted(find(config, 12 * GB), said.append)
    assert foreseen(config, 12.0) == said and len(said) > 1
    assert "fits into 80 GB as it is" in foreseen(config, 80.0)[0]
    assert "is not known" in foreseen(Config.load(RECIPE, ["model.path=somebody/unknown"]), 24.0)[0]
    for memory in (0.0, float("nan")):
        with pytest.raises(TurnwiseError, match="CUDA itself"):
            foreseen(config, memory)
    result = CliRunner().invoke(app, ["train", "--dry-run", "--memory", "24", "device=auto"])
    assert result.exit_code == 0 and "it fits into 24 GB as it is" in result.output


def test_a_run_that_is_tried_beyond_the_memory_is_not_said_to_fit() -> None:
    recipe = str(HERE / "recipes" / "numberline.toml")
    first = foreseen(Config.load(recipe), 11.0)[0]
    assert "predicted peak is 11.2 GB, so the run may run out" in first and "so that it fits" not in first
    assert "so that it fits (predicted peak 11.8 GB):" in foreseen(Config.load(recipe), 12.0)[0]
    text = invoke(recipe, "--memory", "11")
    assert "It does not fit" in text and "`turnwise train` would try it" in text
    assert "It fits" in invoke(recipe, "--memory", "12")


@pytest.mark.parametrize(
    ("recipe", "model", "memory", "lora"),
    [
        ("alfworld-0.5b", "0.5b", 24, False),  # as many tokens at once as without the other settings, and more with them
        ("numberline", "1.5b", 11, False),  # so few tokens that logits are made in smaller pieces
        ("prompts", "1.5b", 40, False),  # float32: layers of transformers
        ("alfworld-7b-lora", "7b", 13, True),  # adapters in 4 bits, with their optimiser in host memory
        ("blackjack", "0.5b", 4, True),
        ("sokoban-pictures", None, 24, False),  # served by transformers
    ],
)
def test_the_settings_that_are_shown_give_what_was_predicted(recipe: str, model: str | None, memory: int, lora: bool) -> None:
    path, shape = str(HERE / "recipes" / f"{recipe}.toml"), shape_of(model) if model else None
    found = find(Config.load(path), memory * GB, shape, lora)
    again = find(Config.load(path, found.settings), memory * GB, shape)
    assert found.fit.changed and not again.fit.changed
    assert again.fit.demand == again.plain.demand == found.fit.demand
    assert found.fit.fits == (recipe != "numberline")


# -- parameters, and mixtures of experts with dense layers ----------------------------------------------------------------------------


def numbers(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_shape_has_exactly_as_many_parameters_as_its_model(variant: str, tmp_path: Path) -> None:
    model = make(variant)
    (tmp_path / "config.json").write_text(model.config.to_json_string(use_diff=False))
    shape = shape_of(str(tmp_path))
    assert shape.parameters == numbers(model)
    output = model.get_output_embeddings()
    assert shape.linears == sum(own.weight.numel() for own in model.modules() if type(own) is torch.nn.Linear and own is not output)
    memory = Memory(PackedModel(model, fused=False), Weights(model.named_parameters()), None)
    assert replace(memory._shape, name=shape.name) == shape, "the learner sees the same"


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, ()),
        ({"mlp_only_layers": [0, 3]}, (0, 3)),
        ({"mlp_only_layers": None}, ()),
        ({"mlp_only_layers": [1, 7, -1]}, (1,)),
        ({"decoder_sparse_step": 2}, (0, 2, 4)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, None),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (0, 1, 2, 4)),
        ({"decoder_sparse_step": 9}, None),
        ({"num_experts": 0}, None),
        ({"attention_bias": True, "mlp_only_layers": [4]}, (4,)),
    ],
)
def test_dense_layers_of_a_mixture_are_counted_as_such(changes: dict[str, Any], dense: tuple[int, ...] | None, tmp_path: Path) -> None:
    """`dense`: None if no layer has experts."""
    values = MIXTURE | changes
    (tmp_path / "config.json").write_text(json.dumps(values))
    shape, config = (
        shape_of(str(tmp_path)),
        transformers.Qwen3MoeConfig(**{name: own for name, own in values.items() if name != "model_type"}),
    )
    with torch.device("meta"):
        model = transformers.Qwen3MoeForCausalLM(config)
    mixed = [hasattr(layer.mlp, "experts") for layer in model.model.layers]
    assert shape.parameters == numbers(model)
    assert [shape.mixed(number) for number in range(5)] == mixed and shape.dense == (dense or ()) and (shape.experts > 0) == any(mixed)
    assert shape.middles == tuple(96 if own else 200 for own in mixed) and shape.middle == max(shape.middles)
    unread = sum(mixed) * 6 * 3 * 64 * 48
    assert shape.used == shape.matrices - unread and weights_read(shape, 1) == pytest.approx(shape.used)
    layers = [sum(own.numel() for own in layer.parameters() if own.ndim > 1) for layer in model.model.layers]
    assert shape.largest == max(layers) and shape.matrices == sum(layers)
