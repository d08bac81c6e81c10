"""Memory in segments that grow: when, and that a user's own settings of the allocator stay; gradients that have places in advance."""

from __future__ import annotations

import pytest
import torch
from learn_cases import credited, equal, trajectories, weights_of, with_layers
from native_models import make

from turnwise.learn import Learner, LearnerSettings, OptimiserSettings
from turnwise.planner import small_gpu
from turnwise.recipe.schema import Config

GB = 10**9


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the allocator was told; it is not told for real."""
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    for name in small_gpu.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return told


def test_the_allocator_is_told_once_asked(changes: list[str]) -> None:
    assert small_gpu.grow_segments() and changes == ["expandable_segments:True"]


@pytest.mark.parametrize("name", small_gpu.VARIABLES)
@pytest.mark.parametrize(
    ("said", "grows"),
    [("expandable_segments:False", False), ("max_split_size_mb:64,expandable_segments:True", True), ("backend:cudaMallocAsync", False)],
)
def test_what_a_user_has_set_up_stays(changes: list[str], monkeypatch: pytest.MonkeyPatch, name: str, said: str, grows: bool) -> None:
    monkeypatch.setenv(name, said)
    assert small_gpu.grow_segments() is grows and not changes


def on_gpu(monkeypatch: pytest.MonkeyPatch, free: int, *more: str) -> None:
    monkeypatch.setattr("turnwise.planner.small_gpu.choose_device", lambda name: "cuda")
    monkeypatch.setattr("turnwise.engines.native.memory.free_bytes", lambda device: free)
    config = Config.load({"model": {"path": "Qwen/Qwen2.5-0.5B-Instruct", "dtype": "bfloat16"}}, [*more])
    with small_gpu.fitted_to_gpu(config, None, lambda text: None):
        pass


def test_only_a_run_that_nearly_fills_its_gpu_has_growing_segments(changes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, 11 * GB)
    assert changes
    changes.clear()
    on_gpu(monkeypatch, 140 * GB)
    assert not changes


@pytest.mark.parametrize("setting", ["engine.name=vllm", "cluster.engines=2", "model.path=somebody/unknown"])
def test_other_engines_clusters_and_unknown_models_keep_the_usual_ones(
    changes: list[str], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    on_gpu(monkeypatch, 11 * GB, setting)
    assert not changes


def test_on_a_cpu_nothing_is_told(changes: list[str]) -> None:
    with small_gpu.fitted_to_gpu(Config.load({"model": {"path": "x"}, "device": "cpu"}), None, pytest.fail):
        assert not changes


# -- places for gradients -----------------------------------------------------------------------------------------------------------


def test_places_do_not_change_what_is_learned_and_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, found = credited(trajectories(5, context="full")), []
    settings = LearnerSettings(dtype="bfloat16", optimiser=OptimiserSettings(lr=0.05, eps=1.0), minibatches=2)
    for reserves in (True, False):
        learner = with_layers(Learner(make("qwen2"), settings), fused=True)
        if not reserves:
            monkeypatch.setattr(learner, "reserve", lambda: None)
        learner.update(batch, 0)
        assert not learner.weights.gradients(), "between updates they take no memory"
        found.append(weights_of(learner))
    assert equal(*found)
