"""How weights reach engines: through plain arrays, through a group of torch.distributed, and into a model in place."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cluster_runs import SMALL, in_one_process, same, trained
from conftest import ROOT
from safetensors.torch import load_file
from small_runs import Killed, Kills

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cluster.weights import Ipc, Stored, close_handles, copy_into
from turnwise.recipe.schema import Config
from turnwise.setup.cluster import transfer
from turnwise.setup.training import build_training, check_old_logprobs, with_8bit_cache, with_staleness

CPU = torch.device("cpu")


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a": torch.randn(3, 4), "b": torch.randn(5).bfloat16(), "tied": torch.randn(2, 3).t()}


def test_stored_weights_come_back_bit_by_bit_in_their_own_precision() -> None:
    back = pickle.loads(pickle.dumps(Stored.of(weights().items()))).tensors(CPU)
    assert {name: tensor.dtype for name, tensor in back.items()} == {name: tensor.dtype for name, tensor in weights().items()}
    assert same(back, weights())


SHARED: list[torch.Tensor] = []


def opened(number: int, *rest: Any) -> torch.Tensor:
    """What opens a handle in another process: here, the tensor that was shared."""
    return SHARED[number]


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Handles on a CPU: the tensors themselves. Gives those that were shared."""
    shared = SHARED

    def reduce(tensor: torch.Tensor) -> Any:
        shared.append(tensor)
        return opened, (len(shared) - 1, *[None] * 6)

    monkeypatch.setattr("torch.multiprocessing.reductions.reduce_tensor", reduce)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("turnwise.cluster.weights.gpu_name", lambda index: "the only one")
    yield shared
    shared.clear()
    close_handles()


def test_handles_are_made_once_and_again_if_a_weight_is_elsewhere(handles: list[torch.Tensor]) -> None:
    own = weights()
    ipc = Ipc(own.items)
    sent: list[Any] = []
    actor = SimpleNamespace(publish=SimpleNamespace(remote=lambda version, given: sent.append((version, given))))
    for version in range(4):
        own["a"] += 1
        if version == 3:
            own["b"] = own["b"].clone()
        ipc.publish(version)
        ipc.send(actor)
    assert [version for version, _ in sent] == [0, 1, 2, 3]
    assert len(handles) == 2 * len(own), "every sharing is recorded by torch until the memory is freed"
    first, again, other = (sent[k][1].tensors(CPU) for k in (0, 2, 3))
    assert first is again and other is not first
    assert other["b"] is not first["b"] and same(other, own)


def rebuilt(*arguments: Any) -> torch.Tensor:
    """What opens a handle in another process: here, of numbers."""
    assert arguments[6] == 0, "the number that the GPU has there"
    return torch.tensor(arguments[0])


def test_handles_travel_as_bytes_that_an_engine_reads_once(handles: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"a": torch.arange(3), "b": torch.ones(2)}
    monkeypatch.setattr("torch.multiprocessing.reductions.reduce_tensor", lambda one: (rebuilt, (one.tolist(), *[None] * 6)))
    ipc = Ipc(own.items)
    sent: list[Any] = []
    actor = SimpleNamespace(publish=SimpleNamespace(remote=lambda version, given: sent.append(pickle.loads(pickle.dumps(given)))))
    for version in range(2):
        ipc.publish(version)
        ipc.send(actor)
    first, again = sent
    assert isinstance(first.pickled, bytes) and same(first.tensors(CPU), own)
    monkeypatch.setattr("turnwise.cluster.weights.pickle.loads", lambda given: pytest.fail("they are open already"))
    assert again.tensors(CPU) is first.tensors(CPU)


def test_memory_that_was_shared_is_free_when_the_sender_is_closed(handles: list[torch.Tensor]) -> None:
    own = weights()
    ipc = Ipc(own.items)
    ipc.publish(0)
    ipc.close()
    assert {tensor.untyped_storage().nbytes() for tensor in own.values()} == {0}


def test_weights_are_copied_in_place_or_not_at_all() -> None:
    own = {"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.bfloat16)}
    kept = own["a"]
    with pytest.raises(TurnwiseError, match="no weight 'tied'"):
        copy_into(own, weights())
    with pytest.raises(TurnwiseError, match="has the shape"):
        copy_into(own, {"a": torch.ones(3, 4), "b": torch.zeros(6)})
    assert not kept.any()
    copy_into(own, {"a": weights()["a"]})
    assert own["a"] is kept and torch.equal(kept, weights()["a"])


def test_the_transfer_follows_from_where_learner_and_engines_are() -> None:
    def chosen(device: str, *changes: str) -> str:
        config = Config.load(ROOT / "recipes" / "quickstart.toml", ["cluster.engines=1", "device=auto", *changes])
        assert config.cluster is not None
        return transfer(config.cluster, device)

    assert (chosen("cpu"), chosen("cuda")) == ("store", "ipc")
    assert chosen("cuda", "cluster.engines=2") == chosen("cuda", "cluster.placement=apart") == "store"
    assert chosen("cuda", "cluster.transfer=store") == chosen("cuda", "cluster.transfer=broadcast") == "store"


def test_old_data_is_corrected_unless_the_recipe_says_otherwise() -> None:
    said: list[str] = []

    def importance(*changes: str) -> tuple[str, str]:
        found = with_staleness(Config.load(ROOT / "recipes" / "quickstart.toml", list(changes)), said.append)
        return found.objective.importance, found.learner.old_logprobs

    assert importance("cluster.staleness=1") == ("truncate", "learner") and "staleness 1" in said[0]
    assert importance("cluster.staleness=0") == importance("cluster.staleness=2", "cluster.correct=false") == ("none", "engine")
    assert importance("cluster.staleness=4", "objective.importance=mask") == ("mask", "learner") and "instead of engine" in said[1]
    assert importance("cluster.staleness=4", "objective.importance=mask", "cluster.correct=false") == ("mask", "engine") and len(said) == 2


GUIDED = ("method.name=actguide", "learner.old_logprobs=engine")


@pytest.mark.parametrize(
    "changes",
    [
        ("cluster.staleness=2",),
        ("engine.name=native", "engine.options.cache_dtype=8bit"),
        ("cluster.staleness=1", "plan.name=filtered", "plan.base=actguide"),
    ],
    ids=["staleness", "8-bit cache", "inside another plan"],
)
def test_guided_attempts_are_compared_with_the_policy_that_sampled_them_whatever_its_age_and_cache(changes: tuple[str, ...]) -> None:
    said: list[str] = []
    config = Config.load(ROOT / "recipes" / "quickstart.toml", [*GUIDED, *changes])
    found = with_staleness(with_8bit_cache(config, said.append), said.append)
    assert (found.objective.importance, found.learner.old_logprobs) == ("none", "engine")
    assert len(said) == 1 and "the ratio itself corrects for it" in said[0]
    check_old_logprobs(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.importance=truncate"], r"every weight would be 1: set learner.old_logprobs = \"learner\""),
        ([*GUIDED, "objective.importance=truncate"], r"every weight would be 1: set objective.importance = \"none\""),
        (["method.name=actguide", "learner.old_logprobs=learner"], r"other prompts .* set learner.old_logprobs = \"engine\""),
    ],
)
def test_old_log_probs_that_make_a_correction_or_a_plan_void_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        build_training(Config.load(ROOT / "recipes" / "quickstart.toml", changes))


# -- whole runs with the engines in this process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model.lora.rank": 2},
        {"model.dtype": "bfloat16", "learner.value.level": "turn"},
        {"method.name": "vineppo"},
        {"env.workers": 2, "eval.every": 1},
    ],
    ids=lambda changes: " ".join(f"{key}={value}" for key, value in changes.items()),
)
def test_one_engine_is_the_plain_run_whatever_is_trained_and_planned(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    if "model.lora.rank" in changes:
        pytest.importorskip("peft")
    plain = trained(tmp_path, "plain", **changes)
    in_one_process(monkeypatch, loses=lambda number: number % 3 == 0)
    assert same(plain, trained(tmp_path, "cluster", **changes, **{"cluster.engines": 1}))


def test_a_driver_that_dies_resumes_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_one_process(monkeypatch)
    whole = trained(tmp_path, "whole", **{"cluster.engines": 2, "iterations": 3})
    with pytest.raises(Killed):
        settings = SMALL | {"out": str(tmp_path), "name": "dies", "cluster.engines": 2, "iterations": 3}
        tw.train(ROOT / "recipes" / "own-env.toml", reporter=Kills(2), **settings)
    tw.train(resume=tmp_path / "dies", quiet=True)
    assert same(whole, load_file(tmp_path / "dies" / "model" / "model.safetensors"))
