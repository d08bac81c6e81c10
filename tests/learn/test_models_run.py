"""Auxiliary models in a run: built from a recipe, trained, saved, resumed exactly, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import Killed, Kills
from train_cases import TINY, start, without_times

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.learn import checkpoint
from turnwise.learn.auxiliary.models import build, dtype_of
from turnwise.learn.learner import Learner
from turnwise.learn.sections import Tiny
from turnwise.learn.tiny import build_model, build_tokenizer
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.setup.needs import columns_read

OWN_KIND = '''
from torch.nn.functional import binary_cross_entropy_with_logits


class Outcome:
    """The log-ratio to the sampling policy predicts success."""

    needs = ("token.logprob", "trajectory.success")

    def __init__(self, *, beta: float = 0.5):
        self.beta, self.seen = beta, 0

    def loss(self, said):
        self.seen += said.size("trajectory")
        ratio = said.sum(said.logprob - said["token.logprob"], "token", "trajectory")
        return binary_cross_entropy_with_logits(self.beta * ratio, said["trajectory.success"]), {"ratio": ratio.mean().detach()}

    def state(self):
        return {"seen": self.seen}

    def load_state(self, state):
        self.seen = state["seen"]
'''


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    """A small run with a frozen teacher, a process reward model and heads on the policy."""
    (tmp_path / "prm.py").write_text(OWN_KIND)
    return {
        "models.teacher.tiny": {"layers": 2, "hidden": 32, "heads": 2},
        "models.prm.copy_of": "policy",
        "models.prm.trained": True,
        "models.prm.lr": 3e-3,
        "models.prm.kind": f"{tmp_path / 'prm.py'}:Outcome",
        "models.prm.options": {"beta": 0.3},
        "models.critic.reads": "policy",
        "models.critic.trained": True,
        "models.critic.lr": 1e-2,
        "models.critic.kind": "heads",
        "models.critic.options": {"heads": {"value": "turn"}, "targets": {"value": "turn.reward"}},
    }


def auxiliary_tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest_good(folder / "checkpoints")
    assert found is not None
    return {name: tensor for name, tensor in found.tensors.items() if name.startswith(checkpoint.AUXILIARY)}


def test_a_run_with_models_that_was_killed_and_resumed_gives_the_same_weights(tmp_path: Path, recipe: dict[str, Any]) -> None:
    whole = start(tmp_path / "whole", **recipe, iterations=3, sft={"tasks": 2, "steps": 1, "required": False})
    losses = [line["model/prm/loss"] for line in whole.metrics if line["iteration"] > 0]
    assert len(losses) == 3 and all(np.isfinite(losses)) and "model/critic/loss_value" in whole.metrics[-1]
    weights = auxiliary_tensors(whole.folder)
    assert {name.partition("/")[0] for name in weights} == {"model_prm", "model_critic"}
    state = checkpoint.latest_good(whole.folder / "checkpoints").state["models"]  # type: ignore[union-attr]
    assert state["prm"]["updates"] == 3 and state["prm"]["kind"]["seen"] > 0 and not state["teacher"]["moved"]

    config = Config.load(whole.folder / "config.toml", {"out": str(tmp_path / "cut")})
    with pytest.raises(Killed):
        tw.train(config, reporter=Kills(3))
    resumed = tw.train(resume=tmp_path / "cut" / "try")
    assert without_times(resumed.metrics) == without_times(whole.metrics)
    again = auxiliary_tensors(resumed.folder)
    assert weights.keys() == again.keys() and all(torch.equal(weights[name], again[name]) for name in weights)


def test_a_trained_model_is_exported_and_read_again(tmp_path: Path, recipe: dict[str, Any]) -> None:
    result = start(tmp_path, **recipe, iterations=1)
    folder = tw.api.export(result.folder, tmp_path / "prm", model="prm")  # type: ignore[attr-defined]
    saved = {
        name.removeprefix("model_prm/weights/"): weight
        for name, weight in auxiliary_tensors(result.folder).items()
        if "prm/weights" in name
    }
    found = load_file(folder / "model.safetensors")
    assert found and all(torch.equal(weight, saved[name]) for name, weight in found.items())
    heads = tw.api.export(result.folder, tmp_path / "critic", model="critic")  # type: ignore[attr-defined]
    assert sorted(load_file(heads / "heads.safetensors")) == ["value.bias", "value.weight"]
    again = start(tmp_path / "again", **{"models.prm.path": str(folder)}, iterations=0)
    assert again.folder.exists()
    with pytest.raises(TurnwiseError, match=r"unknown model of .*'prn'.*Did you mean 'prm'"):
        tw.api.export(result.folder, tmp_path / "none", model="prn")  # type: ignore[attr-defined]


def test_a_model_with_another_tokenizer_is_rejected_before_the_run_starts_unless_it_reads_texts(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(["other words entirely"], 128)
    model = build_model(len(tokenizer), Tiny(layers=1, hidden=32, heads=2, max_length=128), 0, tokenizer)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "other")
    with pytest.raises(TurnwiseError, match=r"models.judge: its tokenizer is not the policy's.*other ids.*models.judge.texts=true"):
        start(tmp_path, **{"models.judge.path": str(tmp_path / "other")})
    start(tmp_path, **{"models.judge.path": str(tmp_path / "other"), "models.judge.texts": True}, iterations=0, name="texts")


def test_the_policys_weights_are_copied_and_neither_moves_the_other() -> None:
    tokenizer = build_tokenizer(["left right"], 128)
    learner = Learner(build_model(len(tokenizer), Tiny(layers=1, hidden=32, heads=2, max_length=128), 0, tokenizer))
    config = Config.load(None, {**TINY, "models.prm.copy_of": "policy", "models.prm.trained": True, "models.prm.lora": {"rank": 2}})
    plain = config.models["prm"].model_copy(update={"lora": None})
    model = build("prm", plain, learner, tokenizer, 0)
    assert all(torch.equal(weight, model.weights.masters[name]) for name, weight in learner.weights.masters.items())
    assert not {weight.data_ptr() for weight in model.weights.masters.values()} & {
        weight.data_ptr() for weight in learner.weights.masters.values()
    }
    pytest.importorskip("peft")
    adapted = build("prm", config.models["prm"], learner, tokenizer, 0)
    assert all("lora_" in name for name in adapted.weights.masters)
    adapted.follow(model)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"models.x.trained": True}, "models.x: say where its weights come from with exactly one of path, tiny, copy_of, reads"),
        ({"models.x.path": "a", "models.x.copy_of": "policy"}, "given: path and copy_of"),
        ({"models.policy.copy_of": "policy"}, "[models.policy]: every run has this model already"),
        ({"models.My-x.copy_of": "policy"}, "small letters, digits and _"),
        ({"models.x.copy_of": "policy", "models.x.lerning": 1}, "unknown key models.x.lerning. Did you mean"),
        ({"models.x.copy_of": "policy", "models.x.lora": {}}, "lora goes with trained = true"),
        ({"models.x.copy_of": "policy", "models.x.texts": True}, "texts = true is for a frozen model"),
        ({"models.x.reads": "policy"}, 'reads = "policy" needs a kind with heads'),
        ({"models.x.copy_of": "policy", "models.x.lr": True}, "models.x.lr: a number is needed"),
        ({"models.x.copy_of": "policy", "models.x.kind": "haeds"}, "unknown model kind 'haeds'. Did you mean 'heads'"),
        ({"models.x.copy_of": "policy", "models.x.kind": "heads"}, "model kind 'heads' needs the option 'heads'"),
    ],
)
def test_a_wrong_table_of_a_model_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TurnwiseError) as error:
        Config.load(None, {**TINY, **given})
    assert words in str(error.value)


def test_a_recipe_with_models_survives_writing_and_lists_what_stages_may_need(tmp_path: Path, recipe: dict[str, Any]) -> None:
    config = Config.load(None, {**TINY, **recipe})
    (tmp_path / "written.toml").write_text(to_toml(config))
    assert Config.load(tmp_path / "written.toml") == config
    assert columns_read(config) == {"models.prm": ("token.logprob", "trajectory.success"), "models.critic": ("turn.reward",)}


def test_a_run_is_rejected_if_a_stage_needs_a_model_that_the_recipe_lacks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        'def distil(rollouts):\n    """Uses a teacher."""\n    return rollouts.reward\n\n\n'
        'def close(rollouts):\n    """Uses the reference."""\n    return rollouts.reward\n\n\n'
        'distil.needs = ("model.teacher",)\nclose.needs = ("model.reference",)\n'
    )
    with pytest.raises(TurnwiseError, match=r"distil needs the model 'teacher': add it to the recipe with \[models.teacher\]"):
        start(tmp_path, **{"credit.name": f"{tmp_path / 'mine.py'}:distil"})
    kept = start(tmp_path, **{"credit.name": f"{tmp_path / 'mine.py'}:close"}, iterations=1)
    assert {name.partition("/")[0] for name in auxiliary_tensors(kept.folder)} == {"model_reference"}


def test_frozen_models_on_a_gpu_use_half_precision() -> None:
    config = Config.load(None, {**TINY, "models.a.copy_of": "policy", "models.b.copy_of": "policy", "models.b.trained": True})
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert dtype_of(config.models["a"], gpu, "float32") == torch.bfloat16
    assert dtype_of(config.models["a"], cpu, "float32") == dtype_of(config.models["b"], gpu, "float32") == torch.float32
