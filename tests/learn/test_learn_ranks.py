"""Two processes that train one model together do what one process does: gradients and weights agree to 1e-6."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from launching import Program
from learn_cases import tiny, trajectories
from ranks_cases import CASES

from turnwise.data.batch import Batch
from turnwise.learn.forward import PackedModel
from turnwise.learn.learner import Learner
from turnwise.learn.lora import add_lora
from turnwise.learn.packing import pack
from turnwise.learn.ranks.group import Ranks
from turnwise.learn.ranks.sharding import dealt, may_fuse, passes, shares
from turnwise.util.errors import TurnwiseError

RUN = "import sys; from pathlib import Path; import ranks_cases as r; r.everyone(3, Path(sys.argv[1]))"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of three processes has found in all cases."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"
    with FileLock(f"{folder}.lock"):  # other workers of this run that need it wait and read the same
        if not folder.exists():
            folder.mkdir()
            settings = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            printed = folder / "printed"
            printed.touch()
            started = Program(["-c", RUN, str(folder)], (str(printed), str(printed)), env=settings)
            try:
                started.wait(timeout=900)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
    errors = [file.read_text() for file in sorted(folder.glob("error *"))]
    assert not errors, "\n".join(errors)
    return [torch.load(folder / f"found {rank}", weights_only=False) | {"folder": folder} for rank in range(3)]


def agree(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-6) -> None:
    assert one.keys() == other.keys()
    assert len(one) > 3
    for name, value in one.items():
        left, right = (torch.as_tensor(x, dtype=torch.float64) for x in (value, other[name]))
        scale = max(1.0, float(right.abs().max())) if right.numel() else 1.0
        gap = float((left - right).abs().max()) if right.numel() else 0.0
        assert left.shape == right.shape and gap <= tolerance * scale, f"{name}: {gap:.3g}"


@pytest.mark.parametrize("name", [name for name in CASES if name != "in_half_precision"])
def test_two_processes_do_what_one_does(found: list[dict[str, Any]], name: str) -> None:
    agree(found[0][name], found[2][name])
    agree(found[0][name], found[1][name], 0.0)  # and both of them have exactly the same


def test_in_half_precision_gradients_are_added_up_in_float32(found: list[dict[str, Any]]) -> None:
    own, alone = found[0]["in_half_precision"], found[2]["in_half_precision"]
    for name, gradient in alone.items():
        assert own[name].dtype == torch.float32
        assert float((own[name] - gradient).norm()) <= 0.02 * float(gradient.norm()) + 1e-6, name


@pytest.mark.parametrize("start", ["pair", "single"])
def test_a_checkpoint_continues_on_any_number_of_processes(found: list[dict[str, Any]], start: str) -> None:
    alone = found[2][f"{start} on single"]
    agree(found[0][f"{start} on pair"], alone)
    for own in found:
        agree(own[f"{start} on trio"], alone)
    assert alone["steps"] == 8
    folder = found[0]["folder"]
    assert [path.name for path in (folder / "pair").iterdir()] == ["step-00000001"]
    assert not list((folder / "pair").rglob("*.distcp")) and len(list((folder / "pair").rglob("shard-*"))) == 2


def test_an_exported_model_is_a_plain_one(found: list[dict[str, Any]]) -> None:
    from transformers import AutoModelForCausalLM

    folder = found[0]["folder"]
    model = AutoModelForCausalLM.from_pretrained(folder / "exported_and_copied pair" / "model")
    wanted = {name: value for name, value in found[2]["exported_and_copied"].items() if name.startswith("exported ")}
    agree({f"exported {name}": value.detach() for name, value in model.named_parameters()}, wanted)
    assert model.config.tie_word_embeddings and model.lm_head.weight is model.model.embed_tokens.weight
    assert "exported lm_head.weight" not in wanted
    files = {file.name for file in (folder / "adapters_with_a_reference pair" / "adapters").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= files


def test_shares_are_equal_in_number_balanced_in_tokens_and_complete() -> None:
    packed = pack(trajectories(1, groups=6))
    for size in (1, 2, 3, 40):
        own = dealt(packed, size)
        assert sorted(np.concatenate(own).tolist()) == list(range(len(packed)))
        tokens = [int(packed.lengths[which].sum()) for which in own]
        assert max(tokens) - min(tokens) <= packed.lengths.max()
        parts = shares(packed, 24, size)
        assert len({len(part) for part in parts}) == 1
        assert sorted(np.concatenate([run for part in parts for run in part]).tolist()) == list(range(len(packed)))
    for own in dealt(packed, 3, whole_trajectories=True):
        mine = set(packed.sequence_trajectory[own].tolist())
        assert not mine & set(packed.sequence_trajectory[np.setdiff1d(np.arange(len(packed)), own)].tolist())


def test_a_process_that_runs_out_of_memory_in_a_pass_says_what_to_set() -> None:
    def no_memory(part: Any) -> None:
        raise torch.OutOfMemoryError("a test")

    policy: Any = SimpleNamespace(sharded=SimpleNamespace(passes=0))
    with pytest.raises(TurnwiseError, match=r"rank 1 ran out of memory .*\(a test\)\. Set learner\.tokens_per_batch lower"):
        passes(policy, Ranks(1, 2), pack(trajectories()), 48, no_memory, no_memory)
    assert policy.sharded.passes == 1


def test_a_single_process_keeps_the_plain_path() -> None:
    learner = Learner(tiny(), ranks=Ranks(0, 1))
    assert learner.ranks is None and learner.policy.sharded is None
    names = dict(learner.full_weights())
    assert list(names) == [name for name, _ in learner.model.named_parameters()]
    assert len(learner.score(pack(Batch.of(trajectories()).trajectories)).logprob)


def test_a_model_that_fused_layers_do_not_take_is_named_by_one_process_and_trained_without_them(recwarn: pytest.WarningsRecorder) -> None:
    adapted = PackedModel(add_lora(tiny(), rank=2), fused=False)
    with pytest.warns(UserWarning, match=r"^Qwen2ForCausalLM: .* \(it has adapters\): transformers' own layers train it$"):
        assert not may_fuse(adapted, Ranks(0, 2, device="cuda"), torch.bfloat16)
    assert not may_fuse(adapted, Ranks(1, 2, device="cuda"), torch.bfloat16)
    assert not [warning for warning in recwarn if "has adapters" in str(warning.message)]
    with pytest.raises(TurnwiseError, match="adapters"):
        may_fuse(adapted, Ranks(1, 2), torch.float32, True)


def test_a_rank_outside_the_group_is_an_error() -> None:
    with pytest.raises(TurnwiseError, match="ranks are numbered"):
        Ranks(2, 2)
