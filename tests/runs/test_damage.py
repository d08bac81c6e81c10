"""Damaged files of a run: every command that reads them ends well or with one clear line, and nothing that was whole is lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from train_cases import Heard, start

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cli.watch import watch
from turnwise.evaluation.replay import replay
from turnwise.pages.answers import Answers
from turnwise.pages.report import write_report
from turnwise.pages.run_list import RunList
from turnwise.report.comparison import compare
from turnwise.runs.exchange import export_trajectories
from turnwise.runs.folder import Run

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) * 2 // 3],
    "a list": lambda data: b"[1, 2]\n",
    "wrong types": lambda data: b'{"iteration": "x", "outcomes": 3, "turns": 5, "version": 1, "step": "a", "score": {}, "files": []}\n',
    "null": lambda data: b"null\nnull\n",
    "binary": lambda data: bytes(random.Random(1).randbytes(300)),
}


def view(folder: Path) -> None:
    answers = Answers(RunList(folder.parent))
    for name, words in (
        ("runs", {}),
        ("run", {"run": folder.name}),
        ("config", {"run": folder.name}),
        ("metrics", {"run": folder.name}),
        ("batch", {"run": folder.name, "part": "rollouts", "iteration": "2"}),
        ("batch", {"run": folder.name, "part": "evals", "iteration": "2"}),
        ("search", {"run": folder.name, "part": "rollouts", "iteration": "2", "text": "pick"}),
    ):
        try:
            answers(name, words)
        except TurnwiseError as error:
            assert_clear(error)


LIGHT: dict[str, Callable[[Path], Any]] = {
    "view": view,
    "report": lambda folder: write_report(folder, folder.parent / "report.html"),
    "compare": lambda folder: compare([folder]),
    "replay": lambda folder: replay(folder),
    "trajectories": lambda folder: export_trajectories(folder, folder.parent / "out.jsonl"),
}
HEAVY: dict[str, Callable[[Path], Any]] = {
    "resume": lambda folder: tw.train(resume=folder, trust=True),
    "eval": lambda folder: tw.evaluate(folder, n=1, trust=True),
    "export": lambda folder: tw.export(folder, folder.parent / "exported"),
    "play": lambda folder: watch(str(folder), trust=True, console=Console(quiet=True)),
}
FILES = [
    "config.toml",
    "metrics.jsonl",
    "summary.json",
    "warnings.jsonl",
    "resumed.jsonl",
    "rollouts/000002.npz",
    "rollouts/000002.jsonl.gz",
    "rollouts/000002.tokens.npz",
    "rollouts/000002.tasks.jsonl.gz",
    "evals/000002.json",
    "evals/000002.jsonl.gz",
    "checkpoints/step-00000002/manifest.json",
    "checkpoints/step-00000002/state.json",
    "checkpoints/step-00000002/weights.safetensors",
    "model/config.json",
    "model/model.safetensors",
    "model/tokenizer.json",
    "tokenizer/tokenizer.json",
]
HEAVY_READS = {
    "resume": ["config.toml", "metrics.jsonl", "warnings.jsonl", "resumed.jsonl", "manifest.json", "state.json", "weights.safetensors"],
    "eval": ["config.toml", "config.json", "model.safetensors", "tokenizer.json"],
    "export": ["config.toml", "manifest.json", "state.json", "tokenizer/tokenizer.json"],
    "play": ["config.toml", "model.safetensors"],
}


def assert_clear(error: TurnwiseError) -> None:
    assert "\n" not in str(error) and 20 < len(str(error)) < 1000, str(error)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = start(tmp_path_factory.mktemp("whole"), iterations=2, **{"eval.every": 1, "eval.n": 2, "collect.group_size": 2}).folder
    run = Run.open(folder)
    run.warn({"iteration": 1, "name": "entropy", "text": "low"})
    (folder / "resumed.jsonl").write_text('{"iteration": 1, "changes": {}}\n')
    return folder


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_gives_a_clear_line_or_does_no_harm_and_costs_nothing_else(finished: Path, tmp_path: Path, file: str) -> None:
    assert (finished / file).is_file()
    chance = random.Random(file)
    heavy = [name for name, files in HEAVY_READS.items() if any(file.endswith(part) for part in files)]
    for kind, damage in DAMAGES.items():
        chosen = {name: HEAVY[name] for name in chance.sample(heavy, min(len(heavy), 1))}
        folder, before = tmp_path / kind / "try", None
        for command, act in (LIGHT | chosen).items():
            if before is None or contents(folder) != before:  # a command has changed something
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(finished, folder)
                (folder / file).write_bytes(damage((folder / file).read_bytes()))
                before = contents(folder)
            try:
                act(folder)
            except TurnwiseError as error:
                assert_clear(error)
                changed = {path.name for path, data in before.items() if not path.is_file() or path.read_bytes() != data}
                assert not changed, (command, kind, changed, str(error))
            except Exception as error:
                pytest.fail(f"{command} with {file} {kind}: {type(error).__name__}: {error}")
            lost = [path for path in before if not path.exists() and path != folder / file]
            assert not lost, (command, kind, lost)
        shutil.rmtree(folder.parent)


@pytest.mark.parametrize("kind", [*DAMAGES, "missing"])
def test_a_log_that_was_damaged_is_put_back_from_the_checkpoint_with_a_warning(finished: Path, tmp_path: Path, kind: str) -> None:
    folder, heard = Path(shutil.copytree(finished, tmp_path / "try")), Heard()
    whole, summary = (folder / "metrics.jsonl").read_bytes(), (folder / "summary.json").read_text()
    damaged = b"" if kind == "missing" else DAMAGES[kind](whole)
    (folder / "metrics.jsonl").write_bytes(damaged)
    if kind == "missing":
        (folder / "metrics.jsonl").unlink()
    tw.train(resume=folder, trust=True, reporter=heard)
    assert (folder / "metrics.jsonl").read_bytes() == whole and (folder / "summary.json").read_text() == summary
    assert any("metrics.jsonl" in note and "put back" in note for note in heard.notes)
    if damaged:
        assert (folder / "metrics.jsonl.damaged-1").read_bytes() == damaged


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew_over_its_log(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "try"))
    shutil.rmtree(folder / "checkpoints")
    before = contents(folder)
    for changes in ({}, {"iterations": 5}):
        with pytest.raises(
            TurnwiseError, match=r"has logged 2 iterations, and its checkpoints were deleted .*checkpoints is missing"
        ) as told:
            tw.train(resume=folder, trust=True, **changes)
        assert "checkpoint_every" not in str(told.value)
    assert contents(folder) == before


def test_files_that_are_missing_in_every_checkpoint_are_named(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "try"))
    for path in (folder / "checkpoints").iterdir():
        next(path.glob("*.safetensors")).unlink()
    with pytest.raises(TurnwiseError, match=r"none of the \d checkpoints .* is intact \(checkpoint .*safetensors is missing") as told:
        tw.train(resume=folder, trust=True)
    assert "checkpoint_every" not in str(told.value)
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "model")
    (folder / "checkpoints").mkdir()
    with pytest.raises(TurnwiseError, match=r"its checkpoints were deleted .*checkpoints is empty.*there is nothing to export"):
        tw.export(folder, tmp_path / "out")
