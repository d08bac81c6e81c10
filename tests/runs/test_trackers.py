"""Trackers: the same numbers as metrics.jsonl, once each, and never in the way of training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import Launched
from train_cases import TINY, Heard, start, wait_for

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.recipe.schema import Config
from turnwise.runs.trackers import known, make_trackers
from turnwise.util.errors import MissingExtra

OWN = """
import json
import time
from pathlib import Path

class Notebook:
    def __init__(self, fails_at=None, title="notes"):
        self.fails_at, self.title = fails_at, title

    def open(self, folder, config):
        self.path = Path(folder) / f"{self.title}.jsonl"
        with self.path.open("a") as file:
            file.write(json.dumps({"opened": config["name"]}) + "\\n")

    def log(self, step, metrics):
        if step == self.fails_at:
            raise OSError("the pen is dry")
        self.wait(f"before-{step}")
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\\n")
        self.wait(f"after-{step}")

    def wait(self, moment):
        held = self.path.parent.parent / f"hold-{moment}"
        if held.exists():
            held.with_suffix(".reached").touch()
        while held.exists():
            time.sleep(0.01)

    def close(self):
        with self.path.open("a") as file:
            file.write(json.dumps({"closed": True}) + "\\n")
"""


@pytest.fixture
def notebook(tmp_path: Path) -> str:
    (tmp_path / "notebook.py").write_text(OWN)
    return f"{tmp_path / 'notebook.py'}:Notebook"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_tracker_gets_every_line_of_the_metrics_under_the_same_names(tmp_path: Path, notebook: str) -> None:
    options = {notebook: {"title": "diary"}}
    result = start(tmp_path, **{"run.trackers": [notebook], "run.tracker_options": options, "iterations": 2})
    opened, *steps, closed = lines_of(result.folder / "diary.jsonl")
    assert opened == {"opened": "try"} and closed == {"closed": True}
    assert steps == [{"step": line["iteration"], **line} for line in result.metrics] and len(steps) == 3


def test_a_tracker_that_fails_is_left_out_with_one_warning_and_training_goes_on(tmp_path: Path, notebook: str) -> None:
    heard = Heard()
    changes = {"run.trackers": [notebook], "run.tracker_options": {notebook: {"fails_at": 1}}}
    result = start(tmp_path, reporter=heard, **changes)
    assert result.summary["finished"] and len(result.metrics) == 5
    [warning] = [text for text in heard.notes if "tracker" in text]
    assert "the pen is dry" in warning and "left out" in warning
    assert [line.get("step") for line in lines_of(result.folder / "notes.jsonl")] == [None, 0, None]


@pytest.mark.parametrize(("moment", "lost"), [("after-5", set()), ("before-5", {5})])
def test_a_run_that_was_killed_and_resumed_sends_no_step_twice(tmp_path: Path, notebook: str, moment: str, lost: set[int]) -> None:
    changes = {"run.trackers": [notebook, "tensorboard"], "run.checkpoint_every": 3, "iterations": 8}
    settings = {**TINY, "out": str(tmp_path), "name": "try", **changes}
    held = tmp_path / f"hold-{moment}"
    held.touch()
    process = Launched(settings)
    wait_for(held.with_suffix(".reached").exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    held.unlink()
    result = tw.train(resume=tmp_path / "try")
    steps = [line["step"] for line in lines_of(result.folder / "notes.jsonl") if "step" in line]
    assert steps == [step for step in range(9) if step not in lost], "only a kill in the middle of sending loses that one step"
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found = []
    for path in sorted((result.folder / "tensorboard").glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            found += [(value.tag, event.step, float(make_ndarray(value.tensor))) for value in event.summary.value]
    assert sorted(step for name, step, _ in found if name == "iteration") == list(range(9))


@pytest.mark.parametrize("name", known.names())
def test_a_missing_package_is_named_with_its_pip_line_before_anything_is_made(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    with pytest.raises(MissingExtra, match=rf"pip install .*\[{name}\]'"):
        start(tmp_path, **{"run.trackers": [name]})
    assert not list(tmp_path.iterdir())


def test_wrong_trackers_and_options_are_named(tmp_path: Path, notebook: str) -> None:
    with pytest.raises(TurnwiseError, match=r"'tensorbord'.*'tensorboard'"):
        start(tmp_path, **{"run.trackers": ["tensorbord"]})
    with pytest.raises(TurnwiseError, match=r"'wandbb'.*'wandb'"):
        Config.load(None, {"agent.max_prompt_tokens": 500, "run.tracker_options.wandbb": {"project": "x"}})
    with pytest.raises(TurnwiseError, match=r"option of tracker .*'titel'. Did you mean 'title'"):
        start(tmp_path, **{"run.trackers": [notebook], "run.tracker_options": {notebook: {"titel": "x"}}})
    with pytest.raises(TurnwiseError, match=r"is not a valid tracker: it is the class pathlib\.Path"):
        make_trackers([notebook.replace("Notebook", "Path")])


SERVICES = {"wandb": ("WANDB_MODE", "offline"), "trackio": ("TRACKIO_DIR", "trackio-files")}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_tracks_a_run_and_its_resume_without_a_network(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    variable, value = SERVICES[name]
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom turnwise.runs.trackers import Trackers, make_trackers\n"
        "folder, name, steps = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])\n"
        "trackers = Trackers(folder, make_trackers([name]), lambda text: sys.exit(text))\n"
        "trackers.open({'name': 'try', 'seed': 1}, [{'iteration': step, 'eval/success': step / 10} for step in steps])\n"
        "trackers.close()\n"
    )
    folder = tmp_path / "try"
    folder.mkdir()
    for steps in ([0, 1], [0, 1, 2]):
        command = [sys.executable, "-c", code, str(folder), name, json.dumps(steps)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, variable: value}, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads((folder / "trackers" / f"{name}.json").read_text()) == {"step": 2}
    if name == "wandb":
        assert len(list((folder / "wandb").glob("offline-run-*"))) == 2
    else:
        assert trackio_steps(tmp_path / "trackio-files") == [0, 1, 2]


def trackio_steps(folder: Path) -> list[int]:
    import sqlite3

    [path] = folder.glob("turnwise*.db")
    with sqlite3.connect(path) as database:
        return sorted(step for (step,) in database.execute("SELECT step FROM metrics"))
