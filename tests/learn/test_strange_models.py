"""Models of strangers: their folders hold numbers and words, and nothing in them runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.agent.chat import Chat
from turnwise.agent.prompts import View, load_template
from turnwise.learn import checkpoint
from turnwise.learn.models import load_folder, load_vision, tokenizer_of
from turnwise.learn.tiny import build_tiny
from turnwise.recipe.schema import Config
from turnwise.util.errors import TurnwiseError

ESCAPE = "{{ cycler.__init__.__globals__.os.system('touch MARK') }}"


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    return build_tiny(["left right"], layers=1, hidden=32, heads=2, max_length=64)


def test_code_in_a_models_folder_is_not_run(tmp_path: Path, tiny: tuple[Any, Any]) -> None:
    folder = tmp_path / "model"
    tiny[1].save_pretrained(folder)
    names = {name: f"evil.{name}" for name in ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "AutoProcessor")}
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    for load in (load_folder, load_vision):
        with pytest.raises(TurnwiseError, match="cannot be loaded"):
            load(folder)  # type: ignore[operator]
    assert not (tmp_path / "mark").exists()


def test_pickled_weights_are_refused(tmp_path: Path, tiny: tuple[Any, Any]) -> None:
    folder = tmp_path / "model"
    for part in tiny:
        part.save_pretrained(folder)
    assert load_folder(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tiny[0].state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(TurnwiseError, match="safetensors"):
        load_folder(folder)


def test_a_models_chat_template_runs_in_a_sandbox(tmp_path: Path, tiny: tuple[Any, Any]) -> None:
    tiny[1].save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(ESCAPE.replace("MARK", str(tmp_path / "mark")))
    with pytest.raises(TurnwiseError):
        Chat(tokenizer_of(tmp_path / "model")).opening_ids("hello")
    assert not (tmp_path / "mark").exists()


def test_a_prompt_template_runs_in_a_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "evil.jinja"
    path.write_text(ESCAPE.replace("MARK", str(tmp_path / "mark")))
    with pytest.raises(TurnwiseError):
        load_template(str(path)).render(View("x"))
    assert not (tmp_path / "mark").exists()


def test_a_checkpoint_names_files_of_its_own(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "run" / "checkpoints", 1, {"weights/a": torch.zeros(2)}, {"x": 1})
    assert checkpoint.load(path).state == {"x": 1}
    manifest = json.loads((path / "manifest.json").read_text())
    for name in ("../../../secret.safetensors", "/etc/passwd", "a/../b.json"):
        wrong = manifest | {"files": {**manifest["files"], name: {"bytes": 1, "sha256": ""}}}
        (path / "manifest.json").write_text(json.dumps(wrong))
        with pytest.raises(TurnwiseError, match="not a file of a checkpoint"):
            checkpoint.load(path)
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "weights.safetensors").rename(tmp_path / "outside.safetensors")
    (path / "weights.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(TurnwiseError, match="is a link to a file outside"):
        checkpoint.load(path)


@pytest.mark.parametrize("name", ["..", ".", "...", "a/b", "a\\b", "../x", ""])
def test_a_runs_name_is_no_way_to_another_folder(name: str) -> None:
    with pytest.raises(TurnwiseError, match="name"):
        Config.load(None, {"agent.max_prompt_tokens": 400, "name": name})
    assert Config.load(None, {"agent.max_prompt_tokens": 400, "name": ".a..b"}).name == ".a..b"
