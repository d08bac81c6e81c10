"""Run folders from elsewhere: no code that they name runs unasked, and looking at one runs nothing at all."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from train_cases import TINY
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.cli.train import start as start_training
from turnwise.cli.watch import watch
from turnwise.config import trust
from turnwise.config.trust import Untrusted
from turnwise.evaluation.replay import replay
from turnwise.learn.checkpoint import latest_good
from turnwise.pages.report import write_report
from turnwise.recipe.reading import parse_override
from turnwise.recipe.schema import Config
from turnwise.report.comparison import compare
from turnwise.runs.exchange import export_trajectories
from turnwise.runs.folder import Run
from turnwise.setup.evaluated import source_config
from turnwise.setup.training import build_training
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside

pytestmark = pytest.mark.usefixtures("refusing")

ENV = """
from pathlib import Path
import turnwise as tw
with Path({mark!r}).open("a") as file:
    file.write("ran\\n")

class Game:
    max_turns = 1
    def reset(self, task, seed=0):
        return tw.Observation("left or right", actions=("left", "right"))
    def step(self, action):
        return tw.Transition(tw.Observation("over"), 1.0, True, True)
"""
SMALL = TINY | {"iterations": 1, "collect.groups": 1, "collect.group_size": 2, "eval.n": 2}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment, a run that was trained on it, and the marks of this machine's user."""
    place = tmp_path_factory.mktemp("home")
    (place / "game.py").write_text(ENV.format(mark=str(place / "mark")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_STATE", str(place / "state"))
        tw.train(None, name="own", out=str(place / "runs"), **{**SMALL, "env.name": f"{place}/game.py:Game"})
    return place


@pytest.fixture
def own(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNWISE_STATE", str(home / "state"))
    return home / "runs" / "own"


@pytest.fixture
def strange(home: Path, own: Path, tmp_path: Path) -> Path:
    """The run and its file as another user gets them; its file was never read here."""
    folder = tmp_path / "strange"
    shutil.copytree(own, folder)
    (tmp_path / "evil.py").write_text(ENV.format(mark=str(tmp_path / "mark")))
    config = (folder / "config.toml").read_text().replace(f"{home}/game.py:Game", f"{tmp_path}/evil.py:Game")
    (folder / "config.toml").write_text(config)
    return folder


def ran(folder: Path) -> bool:
    return (folder.parent / "mark").exists()


def test_ones_own_run_is_never_asked_about(own: Path) -> None:
    assert tw.evaluate(own, n=2).panel_size == 2
    tw.train(resume=own)
    assert watch(str(own), n=1)


@pytest.mark.parametrize(
    "act",
    [
        lambda run: tw.evaluate(run, n=2),
        lambda run: tw.train(resume=run),
        lambda run: tw.train(run / "config.toml", out=str(run.parent / "new")),
        lambda run: watch(str(run), n=1),
        lambda run: build_training(Config.load(run / "config.toml")),
    ],
    ids=["evaluate", "resume", "recipe", "watch", "training"],
)
def test_a_run_from_elsewhere_imports_nothing_unasked(strange: Path, act: Any) -> None:
    with pytest.raises(Untrusted, match=r"evil\.py:Game.*--trust"):
        act(strange)
    assert not ran(strange)


def test_with_trust_a_run_from_elsewhere_is_played(strange: Path) -> None:
    assert tw.evaluate(strange, n=2, trust=True).panel_size == 2
    assert ran(strange)


def test_somebody_is_asked_once(strange: Path) -> None:
    asked: list[Any] = []
    trust.ask_with(lambda folder, code: bool(asked.append((folder, list(code)))) or True)
    assert tw.evaluate(strange, n=2).panel_size == 2
    assert asked == [(strange, [f"{strange.parent}/evil.py:Game"])]


def test_looking_at_a_run_or_a_recipe_runs_nothing_of_it(strange: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tw.export(strange, tmp_path / "model")
    shutil.rmtree(strange / "model")
    tw.export(strange, tmp_path / "again")
    write_report(strange, tmp_path / "report.html")
    compare([strange])
    export_trajectories(strange, tmp_path / "t.jsonl")
    replay(strange)
    assert start_training(str(strange / "config.toml"), {}, dry_run=True) == 0
    assert "not executed, only checked" in capsys.readouterr().out
    assert not ran(strange)
    one, other = (sorted((tmp_path / name).iterdir()) for name in ("model", "again"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_the_weights_that_are_written_without_the_environment_are_the_checkpoints(own: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    found = latest_good(own / "checkpoints")
    assert found is not None
    written = load_file(tw.export(own, tmp_path / "model") / "model.safetensors")
    assert written.keys() <= {name.partition("/")[2] for name in found.tensors}
    assert all((found.tensors[f"weights/{name}"] == tensor).all() for name, tensor in written.items())


def test_a_dry_run_names_what_is_wrong_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Game: ...\nclass Half(\n")
    (tmp_path / "half.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Game:\n    def reset(self): ...\n")
    for changes, message in (
        ([f"env.name={tmp_path}/bad.py:Game"], r"bad\.py, line 3"),
        ([f"env.name={tmp_path}/half.py:Game"], r"no method step\(\)"),
        ([f"env.name={tmp_path}/none.py:Game"], "there is no file"),
        (["env.name=subprocess:Popen", 'env.options={args="touch mark", shell=true}'], "is rejected"),
        ([f'run.trackers=["{tmp_path}/half.py:Game"]'], r"no method open\(\)"),
        ([f'reward=[{{name="x", function="{tmp_path}/none.py:f"}}]'], "there is no file"),
        (["engine.name=native", "engine.options.cache_dtype=fp8"], r"cache_dtype 'fp8'\. Known: 8bit, model"),
        (["engine.name=native", "engine.options.switches.overlap=false"], "no option 'switches' any more"),
        (["engine.name=transformers", "engine.options.cache_dtype=8bit"], "unknown option of the transformers engine"),
    ):
        with pytest.raises(TurnwiseError, match=message):
            start_training(None, dict(map(parse_override, changes)), dry_run=True)
    assert not (tmp_path / "mark").exists()


def test_a_program_that_an_environment_would_start_counts_as_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\n")
    program.chmod(0o755)
    changes = ["env.name=appworld", f"env.options.python={program}", f"env.options.root={tmp_path}"]
    assert start_training(None, dict(map(parse_override, changes)), dry_run=True) == 0
    assert str(program) in capsys.readouterr().out and not (tmp_path / "mark").exists()


def test_a_mark_holds_for_one_folder_one_token_and_one_recipe(
    own: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = Config.load(own / "config.toml").model_dump(mode="json")
    assert not trust.unknown_code(own, values)
    moved = tmp_path / "moved"
    shutil.copytree(own, moved)
    assert trust.unknown_code(moved, values)  # another path
    other = {**values, "env": {**values["env"], "name": __file__ + ":Other"}}
    assert trust.unknown_code(own, other) == [__file__ + ":Other"]  # other code
    assert not trust.unknown_code(own, other, vouched=[__file__ + ":Other"])  # which the user has typed
    token = (own / trust.TOKEN).read_text()
    (own / trust.TOKEN).write_text("0" * 32)
    assert trust.unknown_code(own, values)  # another folder in the same place
    (own / trust.TOKEN).write_text(token)
    monkeypatch.setenv("TURNWISE_STATE", str(tmp_path / "nothing"))
    assert trust.unknown_code(own, values)  # another machine


def test_the_same_words_in_another_folder_are_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_STATE", str(tmp_path / "state"))
    values = {"env": {"name": "game.py:Game"}}
    for name in ("here", "there", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "game.py").write_text("")
    monkeypatch.chdir(tmp_path / "here")
    trust.remember(tmp_path / "run", values)
    assert not trust.unknown_code(tmp_path / "run", values)
    monkeypatch.chdir(tmp_path / "there")
    assert trust.unknown_code(tmp_path / "run", values) == ["game.py:Game"]


def test_a_recipe_without_code_leaves_no_mark_and_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_STATE", str(tmp_path / "state"))
    run = Run.create(tmp_path, "plain", 'name = "plain"\n[agent]\nmax_prompt_tokens = 400\n')
    assert not (tmp_path / "state").exists() and not (run.folder / trust.TOKEN).exists()
    (run.folder / "checkpoints").mkdir()
    assert Config.load(run.folder / "config.toml").trusted().name == "plain"


def test_the_command_line_refuses_where_nobody_can_be_asked_and_takes_trust(strange: Path) -> None:
    done = CliRunner().invoke(app, ["eval", str(strange), "--n", "2"])
    assert isinstance(done.exception, Untrusted) and not ran(strange)
    done = CliRunner().invoke(app, ["eval", str(strange), "--n", "2", "--trust", "--json"])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["panel_size"] == 2 and ran(strange)


def test_a_question_names_the_code_and_a_no_is_a_no(strange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def say_no(text: str, **how: Any) -> bool:
        shown.append(text)
        return False

    monkeypatch.setattr("turnwise.cli.shared.typer.confirm", say_no)
    monkeypatch.setattr("turnwise.cli.shared.say", lambda text, **how: shown.append(text))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    from turnwise.cli.shared import ask_about

    trust.ask_with(ask_about)
    with pytest.raises(Untrusted):
        source_config(strange, None, {})
    assert any("evil.py:Game" in line for line in shown) and "trust" in shown[-1]


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json", "rollouts", "evals", "checkpoints", "trackers"])
def test_a_link_out_of_a_run_folder_is_not_followed(strange: Path, tmp_path: Path, name: str) -> None:
    outside, link = tmp_path / "outside", strange / name
    if link.is_dir():
        shutil.move(link, outside)
    else:
        outside.write_text(link.read_text() if link.exists() else "{}")
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    with pytest.raises(TurnwiseError, match="is a link to a file outside"):
        Run.open(strange)
    with pytest.raises(TurnwiseError, match="is a link to a file outside"):
        write_report(strange, tmp_path / "report.html")
    if name == "config.toml":
        with pytest.raises(TurnwiseError, match="is a link to a file outside"):
            Config.load(strange / "config.toml")


def test_a_path_leads_out_by_a_link_in_its_middle_by_dots_or_by_a_circle(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    (folder / "evals").mkdir(parents=True)
    other.mkdir()
    (folder / "away").symlink_to(other)
    (folder / "circle").symlink_to(folder / "circle")
    for path in ("away", "away/deeper/file", "../other/file", "evals/../../other", "circle", "circle/file"):
        with pytest.raises(TurnwiseError, match="is a link to a file outside"):
            inside(folder, folder / path)
    with pytest.raises(TurnwiseError, match="is a link to a file outside"):
        inside(folder, tmp_path / "run-2")
    (folder / "here").symlink_to(folder / "evals")
    for path in ("evals", "evals/absent", "here/file", "evals/../other"):
        assert inside(folder, folder / path) == folder / path


def test_links_to_single_iterations_and_folders_inside_are_told_apart(strange: Path, tmp_path: Path) -> None:
    kept = sorted((strange / "evals").glob("*.json"))[0]
    shutil.move(kept, tmp_path / "outside.json")
    kept.symlink_to(tmp_path / "outside.json")
    with pytest.raises(TurnwiseError, match="is a link to a file outside"):
        Run.open(strange).evaluation(int(kept.stem))
    (strange / "latest").symlink_to(strange / "checkpoints")
    assert inside(strange, strange / "latest") == strange / "latest"
    assert Run.open(strange).folder == strange
    (tmp_path / "link").symlink_to(strange)  # a link to a whole run is a name for it
    assert Run.open(tmp_path / "link").metrics()


def test_the_record_of_a_run_extends_nothing(strange: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.toml").write_text("seed = 3\n")
    (strange / "config.toml").write_text('extends = "../secret.toml"\n')
    with pytest.raises(TurnwiseError, match="stands alone"):
        Config.load(strange / "config.toml")
