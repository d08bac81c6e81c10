"""Whether a recipe fits into a GPU's memory: the formulas against measurements and against what torch saves, and the choice of settings."""

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
from turnwise.cli.fit import CARDS
from turnwise.cluster.service_times import weights_read
from turnwise.config.schema import Config
from turnwise.config.writing import to_toml
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.engines.native import NativeEngine, prompt_sizes
from turnwise.engines.native.families import FAMILIES
from turnwise.engines.native.memory import free_bytes, own_bytes
from turnwise.engines.native.weights import Weights as NativeWeights
from turnwise.engines.prefill import default_prefill
from turnwise.learn import footprint
from turnwise.learn.fitting import LEVERS, MARGIN, Fit, Freedom, as_it_is, as_it_runs, choose, left_for_activations
from turnwise.learn.footprint import LEARN, OUTSIDE, PHASES, USABLE, Beside, Demand, in_use, terms, totals, wanted_cache
from turnwise.learn.forward import PackedModel
from turnwise.learn.fused.stack import Kept
from turnwise.learn.lora import add_lora
from turnwise.learn.memory import Memory
from turnwise.learn.optimiser import Weights
from turnwise.learn.packing import pack
from turnwise.learn.shapes import SHAPES, shape_from, shape_of
from turnwise.report.fitting import LABELS
from turnwise.runs.folder import Run
from turnwise.setup.fit import GB, find, freedom, sampled_share, with_settings
from turnwise.setup.fit_costs import seconds
from turnwise.setup.fit_words import fixed_settings
from turnwise.setup.small_gpu import HOST_PART, fitted, for_this_gpu, foreseen, keep_choice, limited
from turnwise.util.errors import TurnwiseError
from turnwise.util.machine import all_memory

HERE = Path(__file__).parent.parent
SMALL = SHAPES["1.5b"]

# -- against what was measured on an H200 -----------------------------------------------------------------------------------------


def measured(name: str) -> Any:
    return json.loads((HERE / "benchmarks" / name).read_text())


def iteration(longest: int, tokens: int) -> Demand:
    """The settings of benchmarks/iteration.py: 128 rows, a cache that holds all of them, a reference."""
    cache = int(1.15 * 128 * (longest + 64) * SMALL.cache_bytes)
    return Demand(SMALL, cache=cache, longest=longest + 1, sequence=longest, tokens=tokens)


@pytest.mark.parametrize(("context", "longest"), [("window", 800), ("full", 8440)])
def test_what_stays_between_updates_is_as_measured(context: str, longest: int) -> None:
    """benchmarks/iteration-*.json: the peak since the end of the update, that is, without gradients and activations."""
    inside = totals([term for term in terms(iteration(longest, 32768)) if term.name not in OUTSIDE])
    found = measured(f"iteration-{context}.json")
    assert inside["publish"] / GB == pytest.approx(found.get("between_gb", found["peak_gb"]), rel=0.02)


def as_kept(demand: Demand, kept: dict[str, Any]) -> Demand:
    """With what a benchmark's learner kept of its largest micro-batch. Files from before slopes were kept do not say it."""
    if "tokens" not in kept:
        return demand
    layers = {name: kept[name] for name in ("tokens", "attention", "mlp", "slopes")}
    return replace(demand, sequence=0, responses=kept["sampled"] / kept["tokens"], inputs=kept.get("inputs", 0), **layers)


@pytest.mark.parametrize(("context", "longest", "tokens", "peak"), [("window", 800, 40 * 800, 80.8), ("full", 8440, 3 * 8440, 104.7)])
def test_the_peak_of_an_iteration_is_as_measured(context: str, longest: int, tokens: int, peak: float) -> None:
    """An earlier run of the same benchmark, before slopes were kept; and the present one if it says what was kept."""
    demand, found = iteration(longest, tokens), measured(f"iteration-{context}.json")
    assert in_use(terms(demand)) / GB == pytest.approx(peak, rel=0.04)
    assert "kept" not in found or in_use(terms(as_kept(demand, found["kept"]))) / GB == pytest.approx(found["peak_gb"], rel=0.04)


@pytest.mark.parametrize(("context", "longest"), [("window", 800), ("full", 8440)])
def test_the_peak_of_an_iteration_with_kept_slopes_is_as_measured(context: str, longest: int) -> None:
    found = measured(f"iteration-{context}-auto.json")
    assert found["kept"]["slopes"]
    demand = as_kept(iteration(longest, 32768), found["kept"])
    assert in_use(terms(demand)) / GB == pytest.approx(found["peak_gb"], rel=0.03)
    inside = totals([term for term in terms(demand) if term.name not in OUTSIDE])
    assert inside["publish"] / GB == pytest.approx(found["between_gb"], rel=0.01)


@pytest.mark.parametrize("number", [0, 1])
def test_the_peak_of_an_update_alone_with_kept_slopes_is_as_measured(number: int) -> None:
    compared = measured("learner-1.5b-now.json")["compared"][number]
    demand = as_kept(Demand(SMALL, slots=0, graphs=False), compared["kept"])
    assert demand.slopes and in_use(terms(demand)) / GB == pytest.approx(compared["packed"]["peak_gb"], rel=0.02)
    assert totals(terms(demand))[LEARN] / GB == pytest.approx(compared["packed"]["reserved_gb"], rel=0.02)


@pytest.mark.parametrize(("number", "tokens", "mlp"), [(0, 40 * 830, 22), (1, 3 * 8509, 28)])
def test_the_peak_of_an_update_alone_is_as_measured(number: int, tokens: int, mlp: int) -> None:
    """benchmarks/learner-1.5b.json, without an engine. Of the longer sequences fewer fit into a batch, so all layers keep everything."""
    compared = measured("learner-1.5b.json")["compared"][number]
    found, demand = compared["packed"], Demand(SMALL, slots=0, graphs=False, tokens=tokens, attention=28, mlp=mlp)
    demand = as_kept(demand, compared["kept"])
    assert in_use(terms(demand)) / GB == pytest.approx(found["peak_gb"], rel=0.05)
    assert totals(terms(demand))[LEARN] / GB == pytest.approx(found["reserved_gb"], rel=0.08)


def test_the_peak_of_training_on_real_games_is_as_measured() -> None:
    """docs/results/alfworld: a 0.5B model, 144 rows of 4,120 tokens, 16,384 tokens at once."""
    rows = [json.loads(line) for line in (HERE / "docs/results/alfworld/gigpo-2/metrics.jsonl").read_text().splitlines()]
    peak = max(row["learner/memory_peak_gib"] for row in rows if "learner/memory_peak_gib" in row)
    demand = Demand(SHAPES["0.5b"], slots=144, longest=4120, sequence=4120, tokens=16384)
    found = in_use(terms(replace(demand, cache=wanted_cache(demand))))
    assert found / 2**30 == pytest.approx(peak, rel=0.05)


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


def saved_per_token(
    rank: int = 0, fused: bool = False, kept: Kept | None = None, again: bool = False, variant: str = "", **sizes: Any
) -> tuple[float, Demand]:
    """What a small model keeps per token, in bfloat16, from two lengths; and the demand that describes it."""
    small = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3}
    model = (make(variant) if variant else tiny(**small | sizes)).bfloat16()
    shape = shape_from(model.config.to_dict(), "tiny")
    model = add_lora(model, rank=rank) if rank else model
    policy = PackedModel(model, fused=fused)
    if again:
        policy.recompute()
    if policy.fused is not None and kept is not None:
        policy.fused.kept = kept
    model.train()
    found = []
    for length in (64, 128):
        ids = [1] * (length - 1)
        packed = pack([Trajectory(0, number, turns=[Turn(anchor="a", prompt_ids=ids, response_ids=[2])]) for number in range(2)])
        with policy.attention():
            found.append(saved_bytes(model, lambda packed=packed: policy.hidden(packed)))  # type: ignore[misc]
    layers = (kept.attention, kept.mlp) if kept is not None else (0, 0) if again else (9, 9)
    demand = Demand(shape, rank=rank, fused=fused, attention=layers[0], mlp=layers[1])
    return (found[1] - found[0]) / 128, demand


SHAPED: list[dict[str, Any]] = [{}, {"num_attention_heads": 8, "head_dim": 16, "hidden_size": 96, "num_hidden_layers": 2}]
MIXED = ("qwen3-moe", "qwen3-moe, a dense layer", "qwen3-moe, every other layer")
SHAPED += [{"variant": name} for name in ("qwen3", *MIXED)]


@pytest.mark.parametrize("sizes", SHAPED)
@pytest.mark.parametrize("kept", [Kept(9, 9, 9), Kept(9, 9, 1), Kept(9, 9), Kept(9, 1), Kept(2, 0), Kept(0, 0)])
@pytest.mark.parametrize("rank", [0, 8])
def test_the_fused_layers_keep_exactly_what_the_formula_says(sizes: dict[str, Any], kept: Kept, rank: int) -> None:
    saved, demand = saved_per_token(rank=rank, fused=True, kept=kept, **sizes)
    shape = demand.shape
    outside = 2 * shape.hidden + 4 + (0 if rank else 8)  # the norm after the last layer, and the token's id if its embedding is trained
    assert saved == footprint.fused_bytes(shape, kept.attention, kept.mlp, kept.inputs) + outside


@pytest.mark.parametrize("sizes", SHAPED)
@pytest.mark.parametrize("rank", [0, 8])
def test_layers_of_transformers_keep_what_the_formula_says(sizes: dict[str, Any], rank: int) -> None:
    saved, demand = saved_per_token(rank=rank, **sizes)
    kept = footprint.kept_bytes(demand)
    if rank and demand.shape.experts:  # experts without adapters keep less
        assert 0.7 * kept < saved < kept
    else:
        assert saved == pytest.approx(kept, rel=0.12)


@pytest.mark.parametrize("rank", [0, 8])
def test_layers_that_compute_again_keep_their_input_only(rank: int) -> None:
    saved, demand = saved_per_token(rank=rank, again=True, num_hidden_layers=4)
    outside = saved - footprint.kept_bytes(demand)  # the embedding, positions and the last norm
    assert 0 <= outside < 8 * demand.shape.hidden
    assert saved < 0.1 * footprint.kept_bytes(replace(demand, attention=4, mlp=4))


@pytest.mark.parametrize("variant", ["qwen2", *MIXED[1:]])
def test_adapters_have_as_many_parameters_as_peft_gives_them_and_the_engine_copies(variant: str) -> None:
    """In mixtures, attention alone has them."""
    shape = shape_from(make(variant).config.to_dict(), "tiny")
    for targets in (None, ["q_proj", "o_proj" if shape.experts else "down_proj"]):
        adapted = add_lora(make(variant), rank=4, targets=targets)
        trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
        names = footprint.TARGETS if targets is None else targets
        assert footprint.adapter_parameters(shape, 4, names) == trained
        linears = [linear for layer in NativeWeights(adapted).layers for linear in layer.linears]
        copied = sum(tensor.numel() for own in linears for tensor in (own.down, own.up) if tensor is not None)
        assert footprint.engine_factors(shape, 4, names) == copied


# -- slopes of log-probs: memory that is taken if there is room ------------------------------------------------------------------------


def size_of(name: str, demand: Demand) -> int:
    return sum(term.bytes[LEARN] for term in terms(demand) if term.name == name)


def test_products_add_up_the_output_layers_gradient_in_16_bits_and_float32_makes_it_apart() -> None:
    piece = Demand(SMALL).piece
    for demand in (Demand(SMALL), Demand(SMALL, rank=8, width=4)):
        assert footprint.logits_bytes(SMALL, piece, demand.apart) == 8 * piece
    assert footprint.logits_bytes(SMALL, piece, Demand(SMALL, width=4).apart) == 8 * piece + 8 * SMALL.head


def test_slopes_are_there_with_the_logits_and_gone_when_the_layers_go_back() -> None:
    demand = Demand(SMALL, tokens=3 * 8440, responses=100 * 50 / 8440, slopes=True)
    assert size_of("slopes of log-probs", demand) == 2 * SMALL.words * 3 * 5000
    without = replace(demand, slopes=False)
    assert size_of("logits", demand) == 8 * demand.piece
    taken = size_of("slopes of log-probs", demand) + size_of("logits", demand)
    assert 0 < in_use(terms(demand)) - in_use(terms(without)) == taken - size_of("a layer's work", without)
    few = replace(demand, shape=SHAPES["7b"], rank=16, responses=0.01)
    assert size_of("a layer's work", few) and not size_of("slopes of log-probs", few) and not size_of("logits", few)
    assert in_use(terms(few)) == in_use(terms(replace(few, slopes=False)))


@pytest.mark.parametrize("keep", [None, True, False])
def test_the_prediction_keeps_what_the_learner_keeps(keep: bool | None) -> None:
    model = tiny(hidden_size=64, intermediate_size=512, num_hidden_layers=4)
    memory = Memory(PackedModel(model, fused=True), Weights(model.named_parameters()), keep)
    layers = 0 if keep is False else footprint.EVERY
    demand = Demand(memory._shape, tokens=4096, responses=0.1, slots=0, prefill=0, graphs=False, piece=2**16, attention=layers, mlp=layers)
    base = totals(terms(replace(demand, attention=0, mlp=0)))[LEARN]
    seen = set()
    for size in range(base, base + 10**8, 10**6):
        found = as_it_runs(demand, size, Freedom(recompute=keep is None))
        memory.room = USABLE * left_for_activations(demand, size)
        memory.prepare(demand.read, demand.sampled)
        kept = memory.policy.fused.kept  # type: ignore[union-attr]
        assert found.slopes == memory.keeps_slopes
        assert [min(number, 4) for number in (found.attention, found.mlp)] == [min(number, 4) for number in (kept.attention, kept.mlp)]
        seen.add(found.slopes)
    assert seen == ({False} if keep is False else {False, True})


def test_slopes_never_decide_whether_a_recipe_fits() -> None:
    for memory in (12, 24, 40, 80):
        plain, found = (choose(replace(WINDOW, responses=share), memory * GB, Freedom()) for share in (0.0, 0.2))
        assert found.fits == plain.fits and not plain.demand.slopes
        chosen = [replace(fit.demand, slopes=False, responses=0.0, attention=0, mlp=0) for fit in (plain, found)]
        assert chosen[0] == chosen[1], "they change no setting"


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


def test_a_large_gpu_keeps_slopes_and_the_command_says_so() -> None:
    text, found = (invoke(RECIPE, "--memory", "141", *more) for more in ((), ("--json",)))
    assert "slopes of log-probs" in text and "2.0 GB of slopes of log-probs are optional" in text and json.loads(found)["keeps_slopes"]
    for setting in ("learner.gradient_checkpointing=true", "objective.entropy_coef=0.01"):
        assert "slopes" not in invoke(RECIPE, "--memory", "141", setting)


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
        last = {"reference", "moments", "place"} & set(fit.changed)
        assert len(last) >= len(before)
        assert not last or {"cache", "tokens"} <= set(fit.changed), "what costs little is changed first"
        before = last
    assert [name for name in LEVERS if name in fit.changed] == list(fit.changed)


def test_a_choice_that_fits_is_within_the_memory_in_every_phase() -> None:
    for memory in (14, 18, 24, 30, 36, 44, 60):
        fit = choose(WINDOW, memory * GB, Freedom())
        assert fit.fits and all(size <= memory * GB for size in totals(fit.terms).values())


@pytest.mark.parametrize("memory", [16, 24, 44])
def test_of_the_settings_that_fit_the_fastest_are_chosen(memory: int) -> None:
    """Against every combination of three of them, set by hand."""
    best = choose(WINDOW, memory * GB, Freedom(), seconds=seconds)
    assert best.fits
    others = 0
    for tokens in (1024, 4096, 16384):
        for place in ("device", "host"):
            for sleeps in (False, True):
                given = replace(WINDOW, tokens=tokens, piece=footprint.piece_of(tokens), place=place, sleeps=sleeps)
                fit = choose(given, memory * GB, Freedom(tokens=False, place=False, sleep=False, reference=False, moments=False))
                if fit.peak <= (1 - MARGIN) * memory * GB:
                    others += 1
                    assert seconds(best.demand) <= seconds(fit.demand) * (1 + 1e-9), (tokens, place, sleeps)
    assert others


def test_what_costs_time_takes_more_of_it() -> None:
    fast = replace(WINDOW, cache=wanted_cache(WINDOW))
    slower: dict[str, Any] = {"tokens": 2048, "mlp": 4, "sleeps": True, "place": "host", "moments": "8bit", "reference": "host"}
    for name, value in {**slower, "cache": 4 * GB, "prefill": 4096}.items():
        other = replace(fast, sequence=0, **{name: value})
        assert seconds(other) > seconds(replace(fast, sequence=0)), name


def test_moments_are_rounded_only_if_nothing_exact_fits() -> None:
    for memory, host in ((34, None), (42, 0)):
        fit = choose(WINDOW, memory * GB, Freedom(), host=host, seconds=seconds)
        assert fit.fits and "moments" not in fit.changed
    fit = choose(WINDOW, 34 * GB, Freedom(), host=0, seconds=seconds)
    assert fit.fits and fit.demand.moments == "8bit" and fit.demand.place == "device"


def test_host_memory_is_used_only_if_the_host_has_it() -> None:
    fit = choose(WINDOW, 20 * GB, Freedom(), host=64 * GB)
    assert fit.fits and fit.demand.place == "host"
    assert footprint.host_bytes(fit.demand) >= 12 * SMALL.parameters
    assert not choose(WINDOW, 20 * GB, Freedom(), host=8 * GB).fits


def test_nothing_that_is_fixed_is_chosen() -> None:
    fixed = Freedom(cache=False, sleep=False, tokens=False, recompute=False, reference=False, moments=False, place=False)
    given = replace(WINDOW, cache=4 * GB)
    fit = choose(given, 24 * GB, fixed)
    assert not fit.fits and not fit.changed and fit.demand == given


def test_adapters_are_chosen_only_if_they_are_asked_for() -> None:
    demand = replace(WINDOW, shape=SHAPES["7b"])
    assert not choose(demand, 24 * GB, Freedom()).fits
    fit = choose(demand, 24 * GB, Freedom(lora=True))
    assert fit.fits and fit.changed[-1] == "lora" and "reference" not in fit.changed


def test_every_term_is_named_once_and_grows_with_the_model() -> None:
    demand = replace(WINDOW, beside=(Beside("prm", 10**8, 2, trained=True),), place="host", moments="8bit")
    names = [term.name for term in terms(demand)]
    assert len(names) == len(set(names)) and "model prm" in names
    smaller, larger = (totals(terms(replace(demand, shape=SHAPES[size]))) for size in ("1.5b", "7b"))
    assert all(smaller[phase] < larger[phase] for phase in PHASES)
    page = (HERE / "docs" / "performance.md").read_text()
    shown = {term.name for given, _ in CASES.values() for term in terms(replace(given, cache=GB))} | {*names} - {
        "model prm",
        "optimiser of prm",
    }
    assert all(f"| {name} |" in page for name in shown), "docs/performance.md has the formula of every term"


# -- a recipe -----------------------------------------------------------------------------------------------------------------------

RECIPE = str(HERE / "recipes" / "alfworld.toml")
FIXED = ["learner.tokens_per_batch=32768"]


def test_the_adapters_recipe_fits_into_24_gb_on_weights_of_4_bits() -> None:
    config = Config.load(HERE / "recipes" / "alfworld-7b-lora.toml", ["model.lora.base=4bit"])
    found = find(config, 24 * GB)
    assert found.fit.fits and found.fit.demand.four_bit and found.fit.demand.reference is None
    assert not found.fit.changed and found.fit.demand.graphs, "as it is, with the native engine"
    small = find(config, 16 * GB)
    assert small.fit.fits and small.settings["engine.options.cache_memory"] == small.fit.demand.cache
    assert find(with_settings(config, small.settings), 16 * GB).fit.fits
    half = find(Config.load(HERE / "recipes" / "alfworld-7b-lora.toml"), 24 * GB)
    assert found.fit.terms[0].most < 0.45 * half.fit.terms[0].most


def test_a_reference_may_decide_by_itself_where_it_is() -> None:
    for memory, place in ((24, "host"), (141, "device")):
        assert find(Config.load(RECIPE, ["learner.reference_place=auto"]), memory * GB).plain.demand.reference == place


def test_what_a_recipe_sets_is_not_free() -> None:
    free = freedom(Config.load(RECIPE, FIXED))
    assert not free.tokens and free.cache and free.sleep and free.recompute and not free.lora
    given = ["engine.options.cache_memory=1e9", "engine.sleep=false", "learner.gradient_checkpointing=true"]
    free = freedom(Config.load(RECIPE, given))
    assert free.tokens and not (free.cache or free.sleep or free.recompute)


def test_recipes_for_large_models_leave_open_what_a_small_gpu_needs() -> None:
    """Apart from those whose documented runs had another number of tokens at once."""
    config = {path.stem: Config.load(path) for path in (HERE / "recipes").glob("*.toml")}
    large = {name: one for name, one in config.items() if one.model.path and not name.startswith("alfworld-0.5b-g") and "start" not in name}
    assert len(large) > 8 and {name for name, one in large.items() if not freedom(one).tokens} == set()
    for name in ("alfworld", "alfworld-full", "alfworld-7b-lora", "search-qa", "webshop", "sokoban", "bfcl-0.5b"):
        assert find(large[name], 24 * GB).fit.fits, name


def test_a_recipe_on_a_small_gpu_gets_settings_and_says_so() -> None:
    said: list[str] = []
    config = Config.load(RECIPE, ["model.path=Qwen/Qwen2.5-0.5B-Instruct"])
    found, choice = fitted(config, 16 * GB, said.append)
    assert choice is not None and len(said) == 1 + len(choice.fit.changed)
    assert found.engine.options["cache_memory"] == choice.fit.demand.cache and found.learner.tokens_per_batch == choice.fit.demand.tokens
    assert find(found, 16 * GB).fit.fits
    again, second = fitted(found, 16 * GB)
    assert again == found or (second is not None and set(second.fit.changed) <= {"recompute"}), "what was chosen stays"


def test_a_recipe_on_a_large_gpu_stays_as_it_is() -> None:
    said: list[str] = []
    config = Config.load(RECIPE)
    assert fitted(config, 141 * GB, said.append) == (config, None) and not said


def test_a_recipe_that_cannot_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(TurnwiseError, match=r"learner.tokens_per_batch=32768.*not changed.*learner.tokens_per_batch=0"):
        fitted(Config.load(RECIPE, FIXED), 10 * GB)
    with pytest.raises(TurnwiseError, match=r"has 4.0 GB.*at least.*\(gradients 6.2, weights 3.1, .*model.lora.rank=16"):
        fitted(Config.load(RECIPE), 4 * GB)
    with pytest.raises(TurnwiseError, match=r"at least 21.6 GB \(weights 15.2, engine's prompts 2.\d, "):  # most while it collects
        fitted(Config.load(str(HERE / "recipes" / "alfworld-7b-lora.toml")), 12 * GB)


def test_on_a_cpu_and_on_a_cluster_nothing_is_chosen() -> None:
    for config in (Config.load(RECIPE, ["device=cpu"]), Config.load(RECIPE, ["cluster.engines=2"])):
        assert for_this_gpu(config, pytest.fail) == (config, None)


def test_a_run_on_a_small_gpu_keeps_what_was_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("turnwise.setup.small_gpu.choose_device", lambda name: "cuda")
    monkeypatch.setattr("turnwise.engines.native.memory.free_bytes", lambda device: 15 * GB)
    config, found = for_this_gpu(Config.load(RECIPE, ["model.path=Qwen/Qwen2.5-0.5B-Instruct"]), lambda text: None)
    run = Run.create(tmp_path, "small", to_toml(config))
    keep_choice(run, found)
    kept = json.loads((run.folder / "memory.json").read_text())
    again = Config.load(run.folder / "config.toml")
    assert again.learner.tokens_per_batch == kept["chosen"]["learner.tokens_per_batch"] == config.learner.tokens_per_batch
    assert kept["predicted_peak_gb"] <= kept["memory_gb"] < kept["as_it_is_gb"] and kept["words"] and kept["terms"]["weights"]


class LimitedCard:
    """A GPU of 141 GB whose process can be given a share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.part, total = 1.0, 141 * GB
        answers: dict[str, Any] = {
            "mem_get_info": lambda *device: (total - footprint.CONTEXT, total),
            "memory_reserved": lambda *device: 0,
            "memory_allocated": lambda *device: 0,
            "current_device": lambda: 0,
            "get_per_process_memory_fraction": lambda *device: self.part,
            "set_per_process_memory_fraction": lambda part: setattr(self, "part", part),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr("turnwise.setup.small_gpu.choose_device", lambda name: "cuda" if name == "auto" else name)


@pytest.mark.parametrize("memory", [12.0, 14.5, 16.0])
def test_a_limited_run_gets_the_settings_of_a_card_of_that_size(monkeypatch: pytest.MonkeyPatch, memory: float) -> None:
    config = Config.load(RECIPE, ["model.path=Qwen/Qwen2.5-0.5B-Instruct"])
    card = LimitedCard(monkeypatch)
    assert for_this_gpu(config, pytest.fail) == (config, None), "the whole GPU is large enough"
    with limited(config, memory):
        assert card.part * 141 * GB == pytest.approx(memory * GB - footprint.CONTEXT)
        chosen = for_this_gpu(config, lambda text: None)[0]
    assert card.part == 1.0, "the next run of this process has the whole GPU"
    assert chosen == fitted(config, int(memory * GB), host=int(HOST_PART * all_memory()))[0] != config


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
    with pytest.raises(TurnwiseError, match=message), limited(Config.load(RECIPE, changes), memory):
        pytest.fail("the run began")
    assert card.part == 1.0


def test_train_on_the_command_line_takes_the_limit() -> None:
    result = CliRunner().invoke(app, ["train", "--memory", "24", "device=cpu"])
    assert isinstance(result.exception, TurnwiseError) and "on a CPU: leave it out" in str(result.exception)


def test_settings_are_set_where_they_belong() -> None:
    changes = {"engine.options.cache_memory": 5, "engine.sleep": True, "learner.tokens_per_batch": 7}
    config = with_settings(Config.load(RECIPE), {**changes, "model.lora.rank": 16, "model.lora.base": "4bit"})
    assert config.engine.options == {"cache_memory": 5} and config.engine.sleep and config.learner.tokens_per_batch == 7
    assert config.model.lora is not None and (config.model.lora.rank, config.model.lora.base) == (16, "4bit")


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, ["fit", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_shows_terms_phases_choices_and_costs() -> None:
    text = invoke(RECIPE, "--memory", "40")
    for word in (
        "As it is",
        "fits",
        "optimiser state",
        "engine's cache",
        "publishing",
        "learner.tokens_per_batch=",
        "of an update",
        "estimate",
    ):
        assert word in text, word
    assert "It fits" in invoke(RECIPE, "--memory", "141")
    assert "learner.tokens_per_batch=0" in invoke(RECIPE, *FIXED), "a setting that is in the way, and how to leave it open"


def test_the_page_about_performance_shows_what_the_command_says() -> None:
    config, rows = (
        Config.load(RECIPE),
        re.findall(r"\| (\d+) GB \| ([\d.]+) \| (.+) \|", (HERE / "docs" / "performance.md").read_text()),
    )
    assert len(rows) == len(CARDS)
    for memory, peak, words in rows:
        fit = find(config, int(memory) * GB).fit
        assert fit.fits and f"{fit.peak / GB:.1f}" == peak
        assert words == (", ".join(LABELS[name] for name in fit.changed) or "nothing: as it is")


def test_the_page_about_performance_shows_commands_for_small_cards_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = re.findall(r"^    turnwise fit (.+?) +# ([\d.]+) GB$", (HERE / "docs" / "performance.md").read_text(), re.MULTILINE)
    assert len(shown) == 4
    monkeypatch.chdir(HERE)
    for words, peak in shown:
        found = json.loads(invoke(*words.split(), "--json"))
        assert found["fits"] and f"{found['peak_gb']:.1f}" == peak, words


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
    assert shape.tied is (kind in ("Qwen2", "Gemma3Text", "SmolLM3", "Gemma2")) and (shape.family in footprint.FUSED) is (kind != "Gemma2")
    if kind == "Gemma3Text":
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {**values, "model_type": "gemma3_text"}}))
        with_pictures = shape_of(str(tmp_path))
        assert with_pictures == replace(shape, family="gemma3", vision=True) and with_pictures.family not in footprint.FUSED


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
    named = find(Config.load(RECIPE, ["engine.name=transformers"]), 24 * GB, other.shape)
    assert named.fit == other.fit, "as if the recipe had named it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "inf"], r"--memory takes gigabytes above 0 and up to 1,000,000, not inf"),
        (["--memory", "1e300"], r"--memory takes gigabytes above 0 and up to 1,000,000, not 1e\+300"),
        (["--memory", "0"], r"--memory takes gigabytes above 0 and up to 1,000,000, not 0"),
        (["--memory=-3"], r"--memory takes gigabytes above 0 and up to 1,000,000, not -3"),
        (["models.teacher.path=nowhere"], r"models.teacher.path nowhere: no such folder.*0.5b"),
        (["--model", "9b"], r"unknown model size '9b'. Did you mean '7b'"),
        (["--model", ""], r"unknown model size ''"),
        (["--model", "Qwen/Qwen3-4B"], r"--model Qwen/Qwen3-4B: no such folder, .* Give a size \(0.5b, .* or a config.json$"),
        (["engine.options.cache_memory=x"], r"engine.options of native: option cache_memory takes number"),
        (["engine.options.cache_memory=-4"], r"option cache_memory takes number ≥ 0"),
        (["engine.options.prefill_tokens=0"], r"option prefill_tokens takes integer ≥ 1"),
        (["engine.options.cache_dtype=4bit"], r"cache_dtype '4bit'.*8bit"),
        (["engine.options.cache=3"], r"unknown option of the native engine.*cache"),
    ],
)
def test_bad_input_is_refused_in_one_line(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["fit", RECIPE, *words])
    assert isinstance(result.exception, TurnwiseError) and re.search(message, str(result.exception)), result.exception


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1, "mlp_only_layers": []}
MIXTURE = {**EXPERTS, "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 200, "num_hidden_layers": 5, "vocab_size": 100}
MIXTURE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "it is no table of settings"),
        ('{"text_config": null}', "it is no table of settings"),
        ("{", "Expecting property name"),
        (json.dumps(LLAMA | {"num_attention_heads": 0}), "num_attention_heads is 0"),
        (json.dumps(LLAMA | {"num_hidden_layers": -2}), "num_hidden_layers is -2"),
        (json.dumps(LLAMA | {"vocab_size": "x"}), "vocab_size is 'x'"),
        (json.dumps(MIXTURE | {"mlp_only_layers": "0"}), "mlp_only_layers is '0'"),
        (json.dumps(MIXTURE | {"mlp_only_layers": [0.5]}), "mlp_only_layers is [0.5]"),
        (json.dumps(MIXTURE | {"decoder_sparse_step": 0}), "decoder_sparse_step is 0"),
        ('{"model_type": "llama", "hidden_size": "x"}', "hidden_size"),
        ('{"model_type": "gpt2", "n_embd": 64}', "model_type 'gpt2', without num_attention_heads"),
    ],
)
def test_a_file_that_describes_no_known_model_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TurnwiseError, match=r"does not describe a dense decoder.*give the size") as error:
        shape_of(str(tmp_path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_every_setting_that_is_in_the_way_is_named() -> None:
    fixed = ["engine.sleep=false", "learner.optimiser_place=device", "learner.moments=float32", "learner.reference_place=device"]
    fixed += ["engine.options.cache_memory=20000000000", "engine.options.prefill_tokens=65536", "learner.gradient_checkpointing=false"]
    with pytest.raises(TurnwiseError) as error:
        fitted(Config.load(RECIPE, fixed), 12 * GB)
    named, advice = str(error.value).split("is not changed")
    assert all(setting in named for setting in fixed) and "tokens_per_batch=" not in named
    assert "learner.reference_place=auto, remove " in advice and "engine.sleep" in advice
    assert not fixed_settings(find(Config.load(RECIPE), 12 * GB)), "what is left open is not in the way"


def test_learners_of_several_processes_are_offered_nothing_that_they_refuse() -> None:
    found = find(Config.load(RECIPE, ["cluster.learners=2"]), 24 * GB)
    assert not {"place", "moments", "reference"} & set(found.fit.changed)
    assert not fixed_settings(found)
    assert "a [cluster] section" in invoke(RECIPE, "--memory", "24", "cluster.learners=2")


def test_a_vision_language_model_is_known_by_its_name_and_its_vision_part_is_said_to_be_missing() -> None:
    found = find(Config.load(RECIPE, ["model.path=Qwen/Qwen2.5-VL-3B-Instruct"]), 80 * GB)
    assert found.shape.vision and found.engine == "transformers" and not found.fit.demand.fused
    assert found.shape.parameters == SHAPES["3b"].parameters
    assert "vision part is not counted" in invoke(RECIPE, "model.path=Qwen/Qwen2.5-VL-3B-Instruct")
    assert "vision part" not in invoke(RECIPE, "--model", "3b")


def test_a_dry_run_says_what_a_limited_run_would_choose() -> None:
    config = Config.load(RECIPE, ["model.path=Qwen/Qwen2.5-0.5B-Instruct"])
    said: list[str] = []
    fitted(config, 12 * GB, said.append)
    assert foreseen(config, 12.0) == said and len(said) > 1
    assert "fits into 80 GB as it is" in foreseen(config, 80.0)[0]
    assert "is not known" in foreseen(Config.load(RECIPE, ["model.path=somebody/unknown"]), 24.0)[0]
    for memory, changes, message in ((24.0, ["device=cpu"], "on a CPU"), (0.0, [], "CUDA itself"), (float("nan"), [], "CUDA itself")):
        with pytest.raises(TurnwiseError, match=message):
            foreseen(Config.load(RECIPE, changes), memory)
    result = CliRunner().invoke(app, ["train", "--dry-run", "--memory", "24", "device=auto"])
    assert result.exit_code == 0 and "it fits into 24 GB as it is" in result.output


SMALLEST = ["learner.optimiser_place=host", "learner.reference_place=host", "engine.sleep=true", "learner.tokens_per_batch=1024"]
SMALLEST += ["engine.options.cache_memory=100000000", "learner.moments=8bit", "learner.gradient_checkpointing=true"]


def test_a_run_that_is_tried_beyond_the_memory_is_not_said_to_fit() -> None:
    recipe = str(HERE / "recipes" / "numberline.toml")
    first = foreseen(Config.load(recipe), 11.0)[0]
    assert "predicted peak is 11.2 GB, so the run may run out" in first and "so that it fits" not in first
    assert "so that it fits (predicted peak 11.8 GB):" in foreseen(Config.load(recipe), 12.0)[0]
    (only,) = foreseen(Config.load(recipe, SMALLEST), 11.0)
    assert "has 11.0 GB, and no setting that saves memory is left: the predicted peak is 11.2 GB" in only
    assert fixed_settings(find(Config.load(recipe, SMALLEST), 11 * GB)) == [], "none of them can be smaller"
    text = invoke(recipe, "--memory", "11")
    assert "It does not fit" in text and "`turnwise train` would try it" in text
    assert "would try it" not in invoke(recipe, "--memory", "10") + invoke(recipe, "--memory", "12")


@pytest.mark.parametrize(
    ("recipe", "words", "advice"),
    [
        ("numberline", [], "Use adapters (model.lora.rank=16), a smaller model"),
        ("alfworld-7b-lora", [], "Use a base in 4 bits (model.lora.base=4bit), a smaller model"),
        ("alfworld-7b-lora", ["model.lora.base=4bit"], "Use a smaller model"),
        ("alfworld-0.5b-start", [], "Or use adapters"),
    ],
)
def test_what_does_not_fit_comes_with_what_else_would_help(recipe: str, words: list[str], advice: str) -> None:
    path = str(HERE / "recipes" / f"{recipe}.toml")
    assert advice in invoke(path, "--memory", "4", *words)
    if "Or" not in advice:
        with pytest.raises(TurnwiseError, match=re.escape(advice)):
            fitted(Config.load(path, words), 4 * GB)


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


def test_the_size_of_a_run_agrees_with_its_settings() -> None:
    recipe = str(HERE / "recipes" / "numberline.toml")

    def last(*words: str) -> str:
        return CliRunner().invoke(app, ["train", recipe, "--dry-run", *words]).output.splitlines()[-1]

    weights = SHAPES["1.5b"].parameters / GB
    assert f"model: about {SHAPES['1.5b'].parameters:,} parameters; about {20 * weights:.2f} GB for weights" in last()
    assert f"about {8 * weights:.2f} GB for" in last("learner.optimiser_place=host")
    adapted = last("model.lora.rank=16", "objective.kl=loss")
    assert "about 3.44 GB for" in adapted and adapted == last("model.lora.rank=16", "objective.kl=off"), "the base is the reference"
    assert last("--memory", "24") == f"model: about {SHAPES['1.5b'].parameters:,} parameters", "the rest was said"
    assert "model: not known yet" in (unknown := last("model.path=somebody/unknown")) and "`turnwise fit --model` takes" in unknown


def test_a_setting_is_not_wrapped_and_one_that_the_recipe_makes_is_named() -> None:
    text = invoke(RECIPE, "--memory", "24", *FIXED)
    found = re.findall(r"engine.options.cache_memory=(\d+)", text)
    assert found == [str(json.loads(invoke(RECIPE, "--memory", "24", "--json", *FIXED))["settings"]["engine.options.cache_memory"])]
    assert "It fits" in text and "The recipe sets learner.tokens_per_batch=32768" in text
    assert "The recipe sets" not in invoke(RECIPE, "--memory", "141", *FIXED)


def test_the_smallest_settings_have_a_small_cache_although_the_update_decides() -> None:
    found = find(Config.load(RECIPE), 8 * GB)
    assert not found.fit.fits and found.fit.demand.rows > 0 and found.fit.totals["collect"] <= 8 * GB


def test_an_unknown_mixture_of_experts_is_not_taken_for_a_dense_model(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "num_experts": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    result = CliRunner().invoke(app, ["fit", RECIPE, "--model", str(tmp_path)])
    assert isinstance(result.exception, TurnwiseError) and "mixture of experts" in str(result.exception)


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


@pytest.mark.parametrize("name", SHAPES)
def test_a_size_stands_for_exactly_as_many_parameters_as_the_model_of_that_size_has(name: str) -> None:
    own = SHAPES[name]
    sizes = {"hidden_size": own.hidden, "intermediate_size": own.mlp, "num_hidden_layers": own.layers, "vocab_size": own.words}
    heads = {"num_attention_heads": own.heads, "num_key_value_heads": own.key_heads, "tie_word_embeddings": own.tied}
    config = transformers.Qwen2Config(**sizes, **heads)
    with torch.device("meta"):
        assert own.parameters == numbers(transformers.Qwen2ForCausalLM(config))
    assert shape_from(config.to_dict(), name) == own


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


@pytest.mark.parametrize("missing", sorted(EXPERTS))
def test_what_a_mixtures_file_leaves_out_is_the_default_of_its_family(missing: str, tmp_path: Path) -> None:
    values = {name: own for name, own in MIXTURE.items() if name != missing}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = transformers.Qwen3MoeConfig(**{name: own for name, own in values.items() if name != "model_type"})
    with torch.device("meta"):
        assert shape_of(str(tmp_path)).parameters == numbers(transformers.Qwen3MoeForCausalLM(config))


def test_memory_follows_the_dense_layers_of_a_mixture() -> None:
    """Weights, gradients and moments by the parameters; what is kept by the layers that keep it; a layer's work by the widest of them."""
    pure, some = (shape_from(MIXTURE | {"mlp_only_layers": only}, "mixture") for only in ([], [0, 1, 2]))
    demands = [Demand(shape, tokens=4096, slots=8, graphs=False) for shape in (pure, some)]
    sizes = [{term.name: term.bytes[LEARN] for term in terms(demand) if LEARN in term.bytes} for demand in demands]
    for name, each in (("weights", 2), ("float32 masters", 4), ("gradients", 4), ("optimiser state", 8)):
        assert sizes[0][name] - sizes[1][name] == each * (pure.parameters - some.parameters) > 0, name
    assert [footprint.fused_work(shape) for shape in (pure, some)] == [8 * 96 + 16 * 64, 8 * 200 + 16 * 64]
    for layers, more in ((2, 0), (3, 104), (5, 3 * 104)):
        kept = [footprint.fused_bytes(shape, mlp=layers) - shape.mixtures * (4 * 8 + 18 * 2) for shape in (pure, some)]
        assert kept[1] - kept[0] == 4 * more, "the last two have experts"
    assert footprint.joined_bytes(some) == 2 * 64 * 2 * 200 and footprint.joined_bytes(pure) == 2 * 64 * (64 + 2 * 32)
    four = [footprint.weight_bytes(replace(demand, rank=8, four_bit=True)) for demand in demands]
    assert four[1] == int(some.linears * footprint.FOUR_BIT) + 2 * (some.parameters - some.linears)
    again = [Demand(shape, fused=False, attention=0, mlp=0) for shape in (pure, some)]
    assert footprint.work_bytes(again[1]) == footprint.layer_bytes(some, 0) + 2 * (5 * 200 + 8 * 64)
    costs = [seconds(replace(demands[1], sequence=0, mlp=layers)) for layers in (0, 2, 3, 5)]
    assert costs[1] - costs[2] == pytest.approx((costs[0] - costs[3]) * 200 / sum(some.middles))


def test_families_and_sizes_of_recorded_steps_are_those_of_the_engine() -> None:
    assert set(footprint.FUSED) == set(FAMILIES)
    assert (footprint.PROMPTS, footprint.PROMPT_WORK) == (prompt_sizes.SIZES, prompt_sizes.WORK)
    assert footprint.recorded_prompts(SHAPES["7b"])[-1] == 256


@pytest.mark.parametrize("variant", ["qwen2", *MIXED])
def test_the_engine_records_steps_of_the_sizes_that_are_predicted(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, shape = NativeWeights(model := make(variant)), shape_from(make(variant).config.to_dict(), variant)
    assert numbers(model) > shape.used
    for work, sizes in ((1000 * shape.used, 1000), (1024 * shape.used, 1024), (10**15, 4096)):
        monkeypatch.setattr(footprint, "PROMPT_WORK", work)
        monkeypatch.setattr(prompt_sizes, "WORK", work)
        found = footprint.recorded_prompts(shape)
        assert found == prompt_sizes.prompt_sizes(weights) and found[-1] == max(size for size in footprint.PROMPTS if size <= sizes)
    widest = max(3 * shape.middle, 2 * (shape.queries + shape.keys))
    assert prompt_sizes.capture_bytes(weights, 8) == 4096 * (4 * shape.hidden + widest) * 4 + 8 * shape.words * 4


# -- prompt tokens at once ------------------------------------------------------------------------------------------------------------


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, total: int, free: int | None = None, part: float = 1.0, held: int = 0, used: int = 0) -> int:
    """What the engine takes by default on a GPU with this memory."""
    known = {
        "mem_get_info": lambda device: ((total if free is None else free) - held, total),
        "memory_reserved": lambda device: held,
        "memory_allocated": lambda device: used,
        "get_per_process_memory_fraction": lambda device: part,
    }
    for name, answer in known.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    device = torch.device("cuda", 0)
    assert own_bytes(device) == free_bytes(device) + used
    return default_prefill(own_bytes(device))


def test_a_large_gpu_reads_prompts_in_longer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [on_a_gpu(monkeypatch, size * GB) for size in (12, 24, 48, 63, 64, 80, 141)] == [16384] * 4 + [32768] * 3
    assert on_a_gpu(monkeypatch, 141 * GB, held=90 * GB, used=80 * GB) == 32768, "what the process holds itself is its own"
    assert on_a_gpu(monkeypatch, 141 * GB, free=60 * GB) == 16384, "others have the rest"
    assert on_a_gpu(monkeypatch, 141 * GB, part=40 / 141) == 16384, "the process is limited"
    assert default_prefill(own_bytes(torch.device("cpu"))) == 1024 == NativeEngine(tiny(), max_length=64).prefill_tokens


@pytest.mark.parametrize("memory", [48, 64, 66, 80, 141])
def test_the_prediction_reads_prompts_as_the_engine_does(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    """The engine sees what CUDA itself leaves."""
    taken = on_a_gpu(monkeypatch, memory * GB, free=memory * GB - footprint.CONTEXT)
    found = {
        name: find(Config.load(RECIPE, [f"engine.name={name}"]), memory * GB).plain.demand.prefill
        for name in ("native", "transformers", "vllm")
    }
    assert found == {"native": taken, "transformers": 16384, "vllm": 0}
    given = Config.load(RECIPE, ["engine.options.prefill_tokens=5000"])
    assert find(given, memory * GB).fit.demand.prefill == 5000 and not freedom(given).prefill


def test_a_large_gpu_that_is_nearly_full_reads_prompts_in_shorter_steps() -> None:
    """With adapters on a 32B model, a step of 32,768 prompt tokens takes 7 GB."""
    config = Config.load(HERE / "recipes" / "alfworld-7b-lora.toml", ["engine.max_batch=32"])
    tight, less, plenty = (find(config, size * GB, SHAPES["32b"]) for size in (78, 92, 100))
    assert tight.fit.fits and tight.settings["engine.options.prefill_tokens"] == 16384
    assert less.fit.fits and less.fit.changed and "prefill" not in less.fit.changed, "not where other settings are enough"
    assert plenty.fit.fits and not plenty.fit.changed and plenty.fit.demand.prefill == 32768
    again = find(with_settings(config, tight.settings), 78 * GB, SHAPES["32b"])
    assert again.fit.fits and again.fit.demand.prefill == 16384
    assert not find(with_settings(config, {"engine.options.prefill_tokens": 32768}), 78 * GB, SHAPES["32b"]).fit.fits


def test_a_fit_knows_its_peak() -> None:
    fit = Fit(WINDOW, 10 * GB)
    assert fit.peak == footprint.peak(terms(WINDOW))[1] and not fit.fits
