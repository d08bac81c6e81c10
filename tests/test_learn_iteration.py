"""The benchmark of a whole iteration runs at tiny size on a CPU: every phase, both contexts, and real games where they are present."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from iteration import TINY, Bench, measure, measure_rollout, measure_vllm

DATA = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data")) / "alfworld"


def check(result: dict[str, Any]) -> None:
    assert set(result["seconds"]) == {"rollout", "credit", "pack", "old_logprobs", "reference", "update", "total"}
    assert result["seconds"]["rollout"] > 0 and result["seconds"]["update"] > 0
    assert result["engine_gap"]["max"] < 1e-4  # the engine reports what the learner computes


@pytest.mark.parametrize("context", ["window", "full"])
def test_a_rollout_alone_needs_no_learner_and_counts_its_steps(context: str) -> None:
    shape = replace(TINY, context=context)
    bench = Bench(shape, only_rollout=True)
    found = measure_rollout(bench)
    assert bench.learner is None and found["turns"] == shape.groups * shape.members * shape.turns
    assert found["steps"] == {"prompts": shape.turns, "decode": shape.turns * (shape.response - 1)}
    seconds = found["seconds"]
    assert seconds["rollout"] >= seconds["host"] >= seconds["launching"]


@pytest.mark.parametrize("context", ["window", "full"])
def test_the_same_rollout_is_played_with_vllm(monkeypatch: pytest.MonkeyPatch, context: str) -> None:
    fake_vllm.install(monkeypatch)
    shape = replace(TINY, context=context, turns=2)
    found = measure_vllm(Bench(shape, only_rollout=True))
    turns = shape.groups * shape.members * shape.turns
    assert found["turns"] == turns and found["response_tokens"] == turns * shape.response and found["seconds"] > 0


@pytest.mark.parametrize("context", ["window", "full"])
def test_an_iteration_has_the_turns_tokens_and_steps_of_its_shape(context: str) -> None:
    shape = replace(TINY, context=context)
    result = measure(Bench(shape))
    check(result)
    turns = shape.groups * shape.members * shape.turns
    assert result["turns"] == turns and result["response_tokens"] == turns * shape.response
    sequences = turns if context == "window" else turns // shape.turns
    assert result["tokens_forward"] == sequences * shape.longest
    assert result["steps"] == turns // shape.turns_a_step
    assert not result["old_from_engine"]  # the default on a CPU
    assert set(result["share_of_floor"]) == {"rollout", "old_logprobs", "reference", "update", "total"}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no ALFWorld games in {DATA} (set TURNWISE_DATA)")
@pytest.mark.parametrize("context", ["window", "full"])
def test_real_games_are_played_through_the_same_path_and_end_early(context: str) -> None:
    from iteration_games import GamesBench

    shape = replace(TINY, context=context, turns=40, turns_a_step=40)
    bench = GamesBench(shape, DATA)
    assert bench.words <= shape.model["vocab_size"]
    result = measure(bench)
    check(result)
    assert 0 < result["length"] < 40 and result["success"] > 0
