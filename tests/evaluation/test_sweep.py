"""Sweeps: what is asked for, what each run is called, and real tiny runs that are skipped, resumed, interrupted, or fail alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from conftest import ROOT, Cli
from hypothesis import given
from hypothesis import strategies as st
from launching import Program
from train_cases import BANDIT, TINY

from turnwise import TurnwiseError
from turnwise.evaluation.sweep import Job, Sweep, plan
from turnwise.evaluation.sweep_values import points, read_axes, split_values
from turnwise.learn import checkpoint
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.runs.folder import Run
from turnwise.runs.tail import news
from turnwise.util.lock import Lock


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(Config.load(None, TINY | {"name": "try", "iterations": 2, "eval.every": 1})))
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("credit.name=gigpo,grpo,rloo", ["gigpo", "grpo", "rloo"]),
        ("seed=0..4", [0, 1, 2, 3, 4]),
        ("seed=0..2,7", [0, 1, 2, 7]),
        ("seed=3..3", [3]),
        ("learner.lr=1e-4,3e-4", [1e-4, 3e-4]),
        ("agent.show_actions=true,false", [True, False]),
        ('engine.stop=["a","b"]', [["a", "b"]]),
        ("learner.betas=[0.9,0.99],[0.8,0.9]", [[0.9, 0.99], [0.8, 0.9]]),
        ('agent.system="one, two",three', ["one, two", "three"]),
        ("env.options={a = 1, b = [2, 3]}", [{"a": 1, "b": [2, 3]}]),
        ("agent.system=", [""]),
    ],
)
def test_lists_ranges_and_bracketed_values_are_read(text: str, values: list[Any]) -> None:
    assert list(read_axes([text]).values()) == [values]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (["seed=4..0"], "goes up"),
        (["seed=1,2,1"], "listed twice"),
        (["seed=0..3,2"], "listed twice"),
        (["seed=1", "seed=2"], "given twice"),
        (["seed=1,,2"], "missing"),
        (["engine.stop=[1,2"], "not closed"),
        (["seed"], "key=value"),
        (["seed=0..199", "learner.warmup=0..199"], "40,000 runs"),
    ],
)
def test_wrong_lists_are_refused(given_: list[str], message: str) -> None:
    with pytest.raises(TurnwiseError, match=message):
        points(read_axes(given_))


@given(st.lists(st.text("ab1.[]{}\"', ", max_size=6), min_size=1, max_size=4))
def test_splitting_loses_nothing_and_never_splits_inside_brackets(parts: list[str]) -> None:
    text = "key=" + ",".join(parts)
    try:
        found = split_values(text)
    except TurnwiseError:
        return
    assert ",".join(found) == text.removeprefix("key=")
    assert all(part.count("[") == part.count("]") for part in found if not re.search("[\"']", part) and "{" not in text and "}" not in text)


def test_the_product_has_a_name_for_every_run_that_a_folder_can_have() -> None:
    grid = read_axes(["credit.name=gigpo,grpo", "seed=0..1", "iterations=3", "model.path=/a/b,/a_b"])
    found = points(grid)
    assert len(found) == 8 and len({point.suffix for point in found}) == 8
    assert all(point.changes["iterations"] == 3 and re.fullmatch(r"[A-Za-z0-9._=-]+", point.suffix) for point in found)
    assert found[0].suffix.startswith("credit.name=gigpo-seed=0-model.path=a_b-")  # the two paths look alike: a digest tells them apart
    long = points(read_axes([f"agent.system={'x' * 50},{'y' * 50}", *(f"env.options.{'k' * 40}{i}=1,2" for i in range(4))]))
    assert len({point.suffix for point in long}) == 32 and max(len(point.suffix) for point in long) < 200
    assert [point.suffix for point in points(read_axes(["credit.name=gigpo,grpo", "seed=1,2"]))][1] == "credit.name=gigpo-seed=2"


def test_all_recipes_are_checked_before_anything_starts(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match="grpoo"):
        plan(recipe, ["credit.name=gigpo,grpoo"], tmp_path / "out")
    with pytest.raises(TurnwiseError, match="cannot vary"):
        plan(recipe, ["name=a,b"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    folder, jobs = plan(recipe, ["seed=0..1", f"out={tmp_path}"])
    assert folder == tmp_path / "try-sweep" and [job.name for job in jobs] == ["try-seed=0", "try-seed=1"]
    assert jobs[1].config.name == "try-seed=1" and jobs[1].config.seed == 1


def test_a_folder_with_another_recipe_stops_the_sweep_and_is_named(recipe: Path, tmp_path: Path) -> None:
    _, jobs = plan(recipe, ["seed=0..1"], tmp_path / "out")
    Run.create(tmp_path / "out", jobs[1].name, (ROOT / "recipes" / "quickstart.toml").read_text())
    with pytest.raises(TurnwiseError, match=r"try-seed=1 holds a run of another recipe.* and .* more"):
        plan(recipe, ["seed=0..1"], tmp_path / "out")
    (tmp_path / "out" / "try-seed=2").mkdir()
    plan(recipe, ["seed=2"], tmp_path / "out")  # an empty folder is nobody's
    (tmp_path / "out" / "try" / "notes").mkdir(parents=True)
    with pytest.raises(TurnwiseError, match="is not a run"):
        plan(recipe, ["seed=2"], tmp_path / "out")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a sweep are copies of a process that has imported torch, and get the same command, streams and variables."""

    def started(command: list[str], *, stdout: BinaryIO, env: dict[str, str], **others: Any) -> Any:
        assert command[0] == sys.executable and others == {"stdin": subprocess.DEVNULL, "stderr": stdout, "start_new_session": True}
        return Program(command[1:], (stdout.name, stdout.name), env=env)

    monkeypatch.setattr("turnwise.evaluation.sweep.subprocess.Popen", started)


def run(recipe: Path, given_: list[str], out: Path, at_once: int = 2, tell: Callable[[Job], None] = lambda job: None) -> Sweep:
    folder, jobs = plan(recipe, given_, out)
    sweep = Sweep(folder, jobs, at_once, threads=1, tell=tell)
    sweep.run()
    return sweep


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


@pytest.mark.usefixtures("copies")
def test_a_run_that_fails_does_not_stop_the_others_and_finished_ones_are_skipped(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    values = [f"env.name={BANDIT},{BANDIT.replace('Bandit', 'Broken')}"]
    sweep = run(recipe, values, out)
    good, bad = sweep.jobs
    assert (good.state, bad.state, sweep.exit_code) == ("finished", "failed", 1)
    assert "the lever came off" in bad.message and bad.exit_code == 2 and good.success is not None and good.iteration == 2
    kept = json.loads((out / "sweep.json").read_text())["runs"]
    assert [entry["state"] for entry in kept] == ["finished", "failed"] and kept[0]["changes"]["env.name"] == BANDIT
    stamp = (good.folder / "metrics.jsonl").stat().st_mtime_ns
    (again,) = [job for job in plan(recipe, values, out)[1] if job.name == good.name]
    assert again.found == again.state == "finished"
    only = Sweep(out, [again])
    only.run()
    assert only.exit_code == 0 and (good.folder / "metrics.jsonl").stat().st_mtime_ns == stamp
    assert len(json.loads((out / "sweep.json").read_text())["runs"]) == 2  # runs of earlier sweeps stay listed
    with pytest.raises(TurnwiseError, match="iterations is 2 there and 3 here"):
        plan(recipe, [*values, "iterations=3"], out)


@pytest.mark.usefixtures("copies")
def test_a_run_that_was_killed_goes_on_where_it_was(recipe: Path, tmp_path: Path) -> None:
    def kill(job: Job) -> None:
        if job.iteration >= 3 and job.process is not None and job.process.poll() is None:
            job.process.kill()

    values = ["seed=5", "iterations=15", "eval.every=5"]
    killed = run(recipe, values, tmp_path / "out", tell=kill)
    assert killed.jobs[0].state == "failed" and killed.jobs[0].exit_code == -signal.SIGKILL
    (job,) = plan(recipe, values, tmp_path / "out")[1]
    assert job.found == "cut off" and job.state == "waiting" and job.iteration >= 3
    resumed = run(recipe, values, tmp_path / "out")
    assert resumed.exit_code == 0 and resumed.jobs[0].iteration == 15
    metrics = Run.open(job.folder).metrics()
    assert [line["iteration"] for line in metrics] == list(range(16))


@pytest.mark.usefixtures("copies")
def test_ctrl_c_is_handed_on_and_every_run_saves(recipe: Path, tmp_path: Path, here: Cli) -> None:
    out = tmp_path / "out"
    runs = [out / f"try-seed={seed}" for seed in (0, 1)]

    def interrupt() -> None:
        wait_for(lambda: all((run / "metrics.jsonl").exists() and len(news(run / "metrics.jsonl").lines) > 2 for run in runs))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    asked = ["seed=0..2", "iterations=100000", "run.checkpoint_every=1000"]
    done = here("sweep", str(recipe), *asked, "--out", str(out), "--jobs", "2")
    assert done.returncode == 130, done.stdout + done.stderr
    for folder in runs:
        summary = json.loads((folder / "summary.json").read_text())
        assert not summary["finished"] and checkpoint.latest_good(folder / "checkpoints").step == summary["iterations"]  # type: ignore[union-attr]
    states = [entry["state"] for entry in json.loads((out / "sweep.json").read_text())["runs"]]
    assert states == ["stopped", "stopped", "waiting"] and "stopped: saved" in done.stdout


def test_two_sweeps_never_train_in_one_folder(recipe: Path, tmp_path: Path) -> None:
    folder, jobs = plan(recipe, ["seed=0"], tmp_path / "out")
    jobs[0].folder.mkdir(parents=True)
    lock = Lock(jobs[0].folder, "train")
    sweep = Sweep(folder, jobs)
    sweep.run()
    lock.release()
    assert sweep.exit_code == 1 and "is in use" in sweep.jobs[0].message


@pytest.mark.usefixtures("copies")
def test_the_command_shows_the_plan_and_compares_at_the_end(recipe: Path, tmp_path: Path, here: Cli) -> None:
    words = ["sweep", str(recipe), "credit.name=gigpo,grpo", "--out", str(tmp_path / "out")]
    planned = here(*words, "--dry-run")
    assert planned.returncode == 0 and "2 runs in" in planned.stdout and "2 to do" in planned.stdout and not (tmp_path / "out").exists()
    done = here(*words, "--jobs", "2", "--target", "0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gigpo − grpo" in done.stdout and "sweep.json" in done.stdout and "reached by" in done.stdout
