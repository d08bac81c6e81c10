"""A run that goes on: it can be made longer, some settings may change, all others may not, and what a schedule then does is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import Killed, Kills
from train_cases import Heard, ended_alike, start, weights
from typer.testing import CliRunner

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cli.app import app
from turnwise.recipe.schema import Config


def test_a_finished_run_that_is_lengthened_equals_one_that_was_so_long_from_the_start(tmp_path: Path) -> None:
    short, heard = start(tmp_path, iterations=2, **{"eval.every": 2}), Heard()
    longer = tw.train(resume=short.folder, iterations=4, reporter=heard)
    whole = start(tmp_path / "whole", iterations=4, **{"eval.every": 2})
    assert longer.folder == short.folder and longer.summary["finished"] and longer.summary["iterations"] == 4
    assert ended_alike(longer, whole)
    assert Config.load(longer.folder / "config.toml").iterations == 4
    record = json.loads((longer.folder / "resumed.jsonl").read_text())
    assert record == {"iteration": 2, "changes": {"iterations": [2, 4]}}
    assert heard.notes[0] == "continuing with iterations = 4 instead of 2"
    assert not any("schedule" in note for note in heard.notes)


def test_a_schedule_follows_the_new_length_and_says_so(tmp_path: Path) -> None:
    short, heard = start(tmp_path, iterations=2, **{"learner.schedule": "linear"}), Heard()
    longer = tw.train(resume=short.folder, iterations=4, reporter=heard)
    rates = [line["learner/lr"] for line in longer.metrics if "learner/lr" in line]
    assert rates == pytest.approx([3e-3, 1.5e-3, 1.5e-3, 0.75e-3])
    [said] = [note for note in heard.notes if "schedule" in note]
    assert "follows the new length of 4 iterations" in said and "schedule=constant" in said


def test_cadence_and_names_may_change_and_nothing_else(tmp_path: Path) -> None:
    folder = start(tmp_path, iterations=1).folder
    for changes in ({"seed": 3}, {"learner.lr": 1.0}, {"credit.name": "grpo"}, {"eval.n": 2}, {"env.name": "numberline"}):
        with pytest.raises(TurnwiseError, match=rf"keeps its recipe: .*{next(iter(changes))}.* cannot change. What may: iterations, name"):
            tw.train(resume=folder, **changes)
    assert not (folder / "resumed.jsonl").exists() and (folder / "model").is_dir()
    same = {"iterations": 2, "seed": 0, "name": "renamed", "eval.every": 1, "run.checkpoint_every": 5, "run.keep_rollouts": "none"}
    longer = tw.train(resume=folder, **same)  # the seed is as it was
    assert longer.folder == folder and longer.summary["name"] == "renamed"
    changed = json.loads((folder / "resumed.jsonl").read_text())["changes"]
    assert set(changed) == {"iterations", "name", "eval.every", "run.checkpoint_every", "run.keep_rollouts"}


def test_a_run_is_never_made_shorter_than_what_is_done(tmp_path: Path) -> None:
    folder = start(tmp_path, iterations=2).folder
    with pytest.raises(TurnwiseError, match="has done 2 iterations already"):
        tw.train(resume=folder, iterations=1)


def test_a_finished_run_without_checkpoints_is_not_started_over_by_lengthening(tmp_path: Path) -> None:
    folder = start(tmp_path, iterations=1, **{"run.checkpoint_every": 0}).folder
    for changes in ({"iterations": 2}, {"run.checkpoint_every": 1}):
        with pytest.raises(TurnwiseError, match="keeps no checkpoint"):
            tw.train(resume=folder, **changes)
    assert weights(folder)


def test_the_shell_lengthens_a_run_and_shows_it_beforehand(tmp_path: Path) -> None:
    folder = start(tmp_path, iterations=1).folder
    runner = CliRunner()
    shown = runner.invoke(app, ["train", "--resume", str(folder), "iterations=2", "--dry-run"])
    assert shown.exit_code == 0 and "iterations = 2" in shown.stdout
    assert Config.load(folder / "config.toml").iterations == 1
    done = runner.invoke(app, ["train", "--resume", str(folder), "iterations=2"])
    assert done.exit_code == 0, done.output
    assert json.loads((folder / "summary.json").read_text())["iterations"] == 2


@pytest.mark.parametrize("plan", ["scaling_inter", "replay_success", "filtered"])
def test_a_run_that_was_killed_in_its_first_iteration_resumes_with_a_plan_that_has_a_state(plan: str, tmp_path: Path) -> None:
    changes = {"iterations": 2, "plan.name": plan, **({"plan.zero": True} if plan == "filtered" else {})}
    whole = start(tmp_path / "whole", **changes)
    with pytest.raises(Killed):
        start(tmp_path, reporter=Kills(1), **changes)
    assert ended_alike(tw.train(resume=tmp_path / "try"), whole)
