"""The hub, there and back: the model card of an export, pushing it, adapters as a start, and data sets; against a stand-in for the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hub_server import TOKEN, Hub, serving
from huggingface_hub import constants
from train_cases import start
from typer.testing import CliRunner

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cli.app import app
from turnwise.envs.prompts.prompt_file import read_rows
from turnwise.learn.models import load_folder
from turnwise.recipe.schema import Config
from turnwise.setup.card import describe
from turnwise.util import hub as ours


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that this process uses, with a valid token."""
    with serving() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        ours.why_silent.cache_clear()
        yield found
        ours.why_silent.cache_clear()


def shown(*words: str) -> Any:
    return CliRunner().invoke(app, ["export", *words])


def test_adapters_are_pushed_whole_and_start_another_run(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    base = tw.export(start(tmp_path, iterations=1).folder, tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    run = start(tmp_path, name="adapted", **{"model.path": str(base), "model.lora.rank": 2, "iterations": 1}).folder

    assert shown(str(run), "--adapters", "--push", "me/adapters").exit_code == 0
    assert shown(str(run), str(tmp_path / "merged"), "--push", "me/merged", "--public").exit_code == 0
    assert hub.private == {"me/adapters": True, "me/merged": False}
    files, merged = hub.repositories["me/adapters"], hub.repositories["me/merged"]
    assert merged == {file.name: file.read_bytes() for file in (tmp_path / "merged").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md", "recipe.toml"} <= set(files)
    everything = b"".join([*hub.seen, *files.values(), *merged.values()])
    for private in (TOKEN, str(tmp_path), str(Path.home()) + "/", os.environ.get("USER", TOKEN)):
        assert private.encode() not in everything
    card = files["README.md"].decode()
    measured = next(line for line in tw.runs.folder.Run.open(run).metrics() if line["iteration"] == 1)  # type: ignore[attr-defined]
    for words in ('library_name: "peft"', 'license: "apache-2.0"', "bandit_env.py", "gigpo", f"success {measured['eval/success']:.1%}"):
        assert words in card, words
    assert "base_model" not in card  # it is a folder of this machine

    local = tw.export(run, tmp_path / "adapters", merged=False)
    one, other = load_folder(local)[0].state_dict(), load_folder(tmp_path / "merged")[0].state_dict()
    assert all((one[name] - other[name]).abs().max() < 1e-6 for name in other)
    again = start(tmp_path, name="again", **{"model.path": str(local), "model.lora.rank": 2, "iterations": 1})
    with pytest.raises(TurnwiseError, match="leave --adapters out"):
        tw.export(again.folder, tmp_path / "none", merged=False)
    assert tw.evaluate(again.folder).panel_size == 4


def test_what_stops_a_push_is_told_before_anything_is_made(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")

    def problem(*words: str) -> str:
        result = shown(str(tmp_path / "run"), *words)
        assert isinstance(result.exception, TurnwiseError), result.output
        return str(result.exception)

    assert "say where to" in problem()
    assert "OWNER/NAME" in problem("--push", "mine")
    assert "publishes the policy" in problem("--push", "me/mine", "--model", "prm")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert "no token of the hub. Set HF_TOKEN" in problem("--push", "me/mine")
    ours.why_silent.cache_clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "nothing was pushed: the hub http://127.0.0.1:9 cannot be reached" in problem("--push", "me/mine")
    assert not hub.repositories


def test_a_token_that_may_not_write_is_named_and_not_shown(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_stranger")
    (tmp_path / "model").mkdir()
    with pytest.raises(TurnwiseError, match=r"me/mine was not pushed: .*The token must be valid") as caught:
        ours.push_folder(tmp_path / "model", "me/mine", public=False)
    assert "hf_stranger" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [None, "dapo"])
def test_the_recipe_of_an_export_is_read_again(tmp_path: Path, method: str | None) -> None:
    changes = {"model.path": "Qwen/Qwen2.5-0.5B-Instruct", "out": str(tmp_path)} | ({"method.name": method} if method else {})
    config = Config.load("quickstart", changes)
    describe(tmp_path, config, 7, {"eval/success": 0.5, "eval/low": 0.25, "eval/high": 0.75}, merged=True, local=True)
    again = Config.load(tmp_path / "recipe.toml")
    assert again.model_dump(exclude={"out", "run"}) == config.model_dump(exclude={"out", "run"})
    card = (tmp_path / "README.md").read_text()
    head = dict(line.split(": ", 1) for line in card.split("---\n")[1].splitlines())
    assert json.loads(head["base_model"]) == "Qwen/Qwen2.5-0.5B-Instruct" and (method or "gigpo") in json.loads(head["tags"])
    assert "success 50.0% (95 % interval 25.0% to 75.0%)" in card and "7 of 50" in card
    assert "out" not in tomllib.loads((tmp_path / "recipe.toml").read_text())


def test_a_recipe_for_others_has_no_folder_of_this_machine_and_keeps_its_texts(tmp_path: Path) -> None:
    texts = {"agent.system": "/think before you act, see /docs", "agent.instructions": f"cd {Path.home()}/secret/work and begin"}
    config = Config.load("quickstart", {**texts, "sft.file": str(tmp_path / "examples.jsonl")})
    describe(tmp_path, config, 1, {}, merged=True, local=True)
    written = (tmp_path / "recipe.toml").read_text()
    assert 'file = "examples.jsonl"' in written and "/think before you act, see /docs" in written and "cd ~/secret/work" in written
    assert "this checkpoint was not measured" in (tmp_path / "README.md").read_text()


ROWS = [{"question": f"{number} + 1 =", "answer": str(number + 1)} for number in range(4)]


def test_a_data_set_is_a_file_a_folder_or_a_name_on_a_hub(hub: Hub, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "sums"
    (folder / "main").mkdir(parents=True)
    parquet.write_table(arrow.Table.from_pylist(ROWS[:2]), folder / "main" / "train-0.parquet")
    (folder / "main" / "train-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[2:]))
    (folder / "main" / "test.jsonl").write_text(json.dumps({"question": "9 + 9 =", "answer": "18"}) + "\n")
    hub.repositories["datasets/me/sums"] = {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.*") if file.is_file()
    }
    wanted = [{**row, "prompt": row["question"], "id": str(number)} for number, row in enumerate(ROWS, 1)]
    assert read_rows(f"{folder}:main/train", column="question") == wanted
    assert len(read_rows(str(folder), column="question")) == 5
    code = "import json, sys; from turnwise.envs.prompts.prompt_file import read_rows\n"
    code += "print(json.dumps([read_rows(name, column='question') for name in sys.argv[1:]]))"
    environment = {**os.environ, **hub.environment(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, "me/sums:main/train", "me/sums:main/test"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == wanted and len(json.loads(done.stdout)[1]) == 1
    with pytest.raises(TurnwiseError, match=r"no file of this data set ends in .*begins with 'valid'"):
        read_rows(f"{folder}:valid")
    with pytest.raises(TurnwiseError, match='a row needs a "prompt"'):
        read_rows(f"{folder}:main/test")
