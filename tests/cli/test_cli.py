"""What a stranger meets at the command line: names that tell the truth, figures that say when they were measured, mistakes said at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from train_cases import TINY, start
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.recipe.reading import shipped_recipes
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.report.closing import closing_words, measured_words
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter

# names


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_runs_name_follows_the_algorithm_that_is_trained(tmp_path: Path) -> None:
    recipe = write(tmp_path / "mine.toml", 'name = "mine-gigpo-small"\n[model]\npath = "x"\n[credit]\nname = "gigpo"\n')
    assert Config.load(recipe).name == "mine-gigpo-small"
    assert Config.load(recipe, ["credit.name=grpo"]).name == "mine-grpo-small"
    assert Config.load(recipe, ["credit.name=grpo", "name=other"]).name == "other"
    assert Config.load(recipe, ["credit.omega=0.5"]).name == "mine-gigpo-small"
    assert Config.load(ROOT / "recipes" / "quickstart.toml", ["credit.name=grpo"]).name == "quickstart-grpo"
    child = write(tmp_path / "child.toml", 'extends = "mine.toml"\n[credit]\nname = "reinforce_pp_baseline"\n')
    assert Config.load(child).name == "mine-reinforce_pp_baseline-small"
    assert Config.load(child, ["credit.name=rloo"]).name == "mine-rloo-small"
    own = Config.load(recipe, {"credit.name": "my folder/file.py:my_credit"})
    assert own.name == "mine-my_credit-small"


@pytest.mark.parametrize("path", shipped_recipes().values(), ids=lambda path: path.stem)
def test_no_shipped_recipe_is_named_after_another_algorithm(path: Path) -> None:
    config = Config.load(path)
    named = set(re.split(r"[.=-]", config.name)) & set(tw.credit.algorithms.names())
    assert named <= {config.credit.name}


# figures


class Counted(Reporter):
    """Remembers every state that a display could have shown."""

    def __init__(self) -> None:
        self.name, self.done, self.total = "", 0, 0
        self.seen: list[tuple[str, int, int]] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, name: str, total: int | None = None, unit: str = "") -> None:
        self.name, self.done, self.total = name, 0, total or 0

    def expect(self, amount: int) -> None:
        self.total += amount

    def advance(self, amount: int = 1, unit: str = "attempts") -> None:
        self.done += amount
        self.seen.append((self.name, self.done, self.total))


def test_progress_counts_attempts_and_never_exceeds_its_total(tmp_path: Path) -> None:
    shown = Counted()
    dynamic = {"plan.name": "dynamic", "plan.refills": 3, "env.reward_scale": 0.0}  # all returns are equal: every refill is used
    run = start(tmp_path, iterations=1, reporter=shown, **dynamic)
    before = Run.open(run.folder).evaluation(0)["success"]
    assert f"before the first iteration: held-out {before:.1%}" in shown.notes
    assert all(done <= total for _, done, total in shown.seen)
    collected = [entry for entry in shown.seen if entry[0] == "collecting"]
    attempts = TINY["collect.groups"] * TINY["collect.group_size"]
    assert collected[-1][1:] == (4 * attempts, 4 * attempts)
    assert {total for _, _, total in collected} == {k * attempts for k in (1, 2, 3, 4)}  # the total grows when more is planned


def summary_of(metrics: Sequence[dict[str, Any]], iteration: int, planned: int, tmp_path: Path) -> dict[str, Any]:
    from turnwise.report.closing import summarise_run
    from turnwise.setup.state import State

    config = Config.load(None, TINY | {"iterations": planned})
    return summarise_run(metrics, State(iteration=iteration, prepared=True), config, 2)


def line(iteration: int, success: float | None = None) -> dict[str, Any]:
    measured = {} if success is None else {"eval/success": success, "eval/low": 0.1, "eval/high": 0.9, "eval/turns": 5.0}
    return {"iteration": iteration} | measured


def test_a_summary_never_gives_an_old_figure_as_the_new_one(tmp_path: Path) -> None:
    metrics = [line(0, 0.25), line(1), line(2, 0.5), line(3)]
    cut = summary_of(metrics, 3, 10, tmp_path)
    assert (cut["success_before"], cut["success_after"]) == (0.25, None)
    assert cut["last_evaluation"] == {"iteration": 2, "success": 0.5}
    assert measured_words(cut) == "25.0 % before, 50.0 % after iteration 2, not measured after the last one (3)"
    early = summary_of(metrics[:2], 1, 10, tmp_path)
    assert (early["success_before"], early["success_after"]) == (0.25, None)
    assert measured_words(early) == "25.0 % before, not measured after the last iteration (1)"
    fresh = summary_of(metrics[:1], 0, 10, tmp_path)
    assert (fresh["success_before"], fresh["success_after"]) == (0.25, None)
    whole = summary_of([*metrics, line(4, 0.75)], 4, 4, tmp_path)
    assert (whole["success_before"], whole["success_after"]) == (0.25, 0.75)
    assert "25.0 % before, 75.0 % after (95 % interval 10–90 %)" in closing_words(whole, Run(tmp_path))[0]
    warm = summary_of(metrics[:1], 0, 0, tmp_path)  # a warm start alone: measured once, after it
    assert (warm["success_before"], warm["success_after"]) == (None, 0.25)


def test_the_card_of_an_unfinished_run_says_when_it_was_measured(tmp_path: Path) -> None:
    from turnwise.pages.run_list import RunList

    (tmp_path / "config.toml").write_text("iterations = 10\n")
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(each) + "\n" for each in (line(0, 0.25), line(1))))
    card = RunList(tmp_path).cards()[0]
    assert (card["before"], card["after"], card["iterations"]) == (0.25, None, 1)
    metrics.write_text("".join(json.dumps(each) + "\n" for each in (line(0, 0.25), line(1), line(2, 0.5), line(3))))
    card = RunList(tmp_path).cards()[0]
    assert (card["after"], card["measured"], card["iterations"]) == (0.5, 2, 3)


# help and mistakes


MISTAKES = {
    "train credit.nmae=grpo": "unknown key nmae. Did you mean credit.name?",
    "train --env nowhere.py:Env": "there is no file nowhere.py",
    "train env.name=housold": "Did you mean 'household'?",
    "train env.options.siez=tiny": "Did you mean 'size'?",
    "train --resume nowhere": "nowhere is not a folder",
    "train method.name=grop": "Did you mean 'grpo'?",
    "train quikstart": "Did you mean quickstart?",
    "train .": "is a folder, not a recipe",
    "train quickstart --resume {free}": "a resumed run keeps its recipe",
    "train --resume {free} collect.groups=3": "a resumed run keeps its recipe: collect.groups cannot change",
    "train --resume {held}": "is in use: process",
    "sft leaner.lr=1": "Did you mean learner",
    "sft sft=none": "no [sft] section",
    "sweep seed=0..2 credit.name=gigpo,grop": "Did you mean 'grpo'?",
    "eval": "nothing to evaluate",
    "eval .": "neither a run",
    "eval nowhere": "nowhere: there is no such folder",
    "eval --agent exprt": "unknown agent 'exprt'. Did you mean 'expert'?",
    "eval nowhere --n few": "--n must be a number of tasks, or all, not 'few'",
    "play household --agent nowhere": "nowhere: there is no such folder",
    "export nowhere model": "nowhere is not a folder",
    "trian": "Did you mean 'train'?",
}


TYPED = """
import json, os, sys, traceback
from pathlib import Path
from turnwise.cli.app import main
import turnwise.recipe.schema  # before the copies are made

for typed, folder in json.loads(sys.argv[1]).items():
    copy = os.fork()  # each command has a process to itself, and all share one start
    if not copy:
        os.dup2(os.open(f"{folder}.stderr", os.O_WRONLY | os.O_CREAT), 2)
        os.chdir(folder)
        sys.argv = ["turnwise", *typed.split()]
        code = 99
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    Path(f"{folder}.code").write_text(str(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])))
"""


@pytest.fixture(scope="module")
def typed_without_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder in which each of the commands was called. Torch cannot be imported there: what needs its seconds fails."""
    torch = tmp_path_factory.mktemp("without_torch") / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise RuntimeError('torch was imported')")
    folders = {typed: tmp_path_factory.mktemp("typed") for typed in MISTAKES}
    runs = {name: Run.create(tmp_path_factory.mktemp(name), "run", to_toml(Config.load("quickstart"))) for name in ("free", "held")}
    words = {typed: typed.format(**{name: run.folder for name, run in runs.items()}) for typed in MISTAKES}
    given = json.dumps({words[typed]: str(folder) for typed, folder in folders.items()})
    environment = {**os.environ, "PYTHONPATH": f"{torch.parent}{os.pathsep}{ROOT}", "COLUMNS": "80"}
    with runs["held"].locked("train"):
        subprocess.run([sys.executable, "-c", TYPED, given], check=True, timeout=120, env=environment, stdout=subprocess.DEVNULL)
    return folders


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_wrong_word_is_reported_before_torch_is_imported(typed: str, typed_without_torch: dict[str, Path]) -> None:
    folder = typed_without_torch[typed]
    said = Path(f"{folder}.stderr").read_text()
    assert Path(f"{folder}.code").read_text() == "2" and MISTAKES[typed] in said, said
    assert not list(folder.iterdir())


HELP = """
import contextlib, sys
from turnwise.cli.app import main
sys.argv = ["turnwise", "--help"]
with contextlib.suppress(SystemExit):
    main()
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import turnwise; assert 'train' in dir(turnwise)", ("torch", "pydantic")),  # as each worker process does
        ("import turnwise.recipe.schema", ("torch",)),
        ("from turnwise.setup.catalogue import find; assert find('own.py:mine', 'credit')[0][0] == 'credit'", ("torch",)),
        (HELP, ("torch", "transformers", "turnwise.envs.household")),
    ],
    ids=["package", "recipe", "credit of a file", "help"],
)
def test_nothing_is_loaded_before_it_is_needed(tmp_path: Path, code: str, absent: tuple[str, ...]) -> None:
    (tmp_path / "own.py").write_text('def mine(rollouts):\n    """Rewards."""\n    return rollouts.reward\n')
    code = f"{code}\nimport sys\nprint('loaded:', [name for name in {absent} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("loaded: []\n"), done.stdout + done.stderr


def test_something_is_printed_before_torch_is_imported_and_while_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('torch is imported', flush=True)\nraise SystemExit(7)")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    call = [sys.executable, "-m", "turnwise", "train", "quickstart"]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"turnwise {tw.__version__}", "  loading torch …", "torch is imported"], done.stderr
    assert done.returncode == 7


# panels


class Told(Reporter):
    def __init__(self) -> None:
        self.title = ""

    def begin(self, title: str, iterations: int, done: int) -> None:
        self.title = title


SPLITS = f"""{(ROOT / "tests" / "support" / "bandit_env.py").read_text()}

from pathlib import Path

from turnwise import Task, TaskSet, TurnwiseError


class Splits(Bandit):
    def __init__(self, data):
        super().__init__()
        self.data = Path(data)

    def tasks(self, split):
        if not (self.data / split).is_file():
            raise TurnwiseError(f"unknown split {{split!r}}")
        return TaskSet([Task(f"{{split}} {{number}}", split) for number in range(int((self.data / split).read_text()))])
"""


def test_an_evaluation_needs_only_the_split_that_it_is_asked_for(tmp_path: Path) -> None:
    source, data = tmp_path / "splits.py", tmp_path / "data"
    source.write_text(SPLITS)
    data.mkdir()
    for split, size in (("train", 8), ("valid_seen", 7), ("valid_unseen", 6)):
        (data / split).write_text(str(size))
    asked = {"env.name": f"{source}:Splits", "env.options.data": str(data), "eval.split": "valid_seen", "eval.n": 7}
    run = start(tmp_path, iterations=1, **asked)
    (data / "train").unlink()
    (data / "valid_seen").unlink()
    reporter = Told()
    assert tw.evaluate(run.folder, split="valid_unseen", reporter=reporter).panel_size == 6
    assert reporter.title.endswith("not the panel of valid_seen that training measures on")
    assert tw.evaluate(run.folder, quiet=True, **{"eval.split": "valid_unseen"}).panel_size == 6
    assert tw.evaluate(run.folder, split="valid_unseen", quiet=True, **{"eval.split": "valid_unseen"}).panel_size == 6
    with pytest.raises(tw.TurnwiseError, match="unknown split 'valid_seen'"):
        tw.evaluate(run.folder, quiet=True)
    with pytest.raises(tw.TurnwiseError, match="has 6 tasks in its split 'valid_unseen', not 8"):
        tw.evaluate(run.folder, split="valid_unseen", n=8, quiet=True)


def test_an_evaluation_takes_the_panel_of_training_or_says_that_it_does_not(tmp_path: Path) -> None:
    source, data = tmp_path / "splits.py", tmp_path / "data"
    source.write_text(SPLITS)
    data.mkdir()
    for split in ("train", "valid", "test"):
        (data / split).write_text("8")
    asked = {"env.name": f"{source}:Splits", "env.options.data": str(data), "eval.n": 3, "eval.seed": 5}
    run = start(tmp_path, iterations=1, **asked)
    own = Run.open(run.folder).evaluation(1)

    def told(**asked: Any) -> tuple[Any, str]:
        reporter = Told()
        return tw.evaluate(run.folder, reporter=reporter, **asked), reporter.title

    same, words = told()
    assert (same.panel_hash, same.panel_size, same.settings["seed"]) == (own["panel_hash"], 3, 5)
    assert words.endswith("the panel that training measures on")
    assert same.success.rate == own["success"]  # the same weights, tasks and chance
    for asked in ({"n": 2}, {"seed": 6}, {"n": "all"}, {"split": "test"}):
        other, words = told(**asked)
        assert other.panel_hash != own["panel_hash"]
        assert f"not the 3 tasks of valid that training measures on (panel {own['panel_hash']})" in words
    assert told(n=3, seed=5, split="valid")[1].endswith("the panel that training measures on")


def test_the_version_is_known_in_a_source_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0 and said.stdout.strip() == f"turnwise {tw.__version__}"
