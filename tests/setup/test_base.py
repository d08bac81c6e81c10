"""What `pip install turnwise` brings without an extra: the distributions that it requires stand alone in a folder, and a Python that sees
no others runs the commands. `make release` does the same with wheels in an empty environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from page_runs import make_run

SOURCES = (ROOT, ROOT / "packages/turnwise-envs/src", ROOT / "experiments/src")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Runs lines of words as commands, one after the other, and prints what came of each.
COMMANDS = """
import contextlib, io, json, sys
import turnwise.cli.app as app

def run(words):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["turnwise", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = app.main()
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = repr(error)
    return [code, out.getvalue(), err.getvalue()]

app.guard = lambda: None
print(json.dumps([run(words) for words in json.loads(sys.argv[1])]))
"""

WORK = {  # words of a command: what it prints
    "--help": "Commands:",
    "envs": "household",
    "envs babyai": "turnwise-envs",
    "envs --check household": "keeps the contract",
    "algos": "transformers",
    "algos objective": "clip_high",
    "algos importance": "truncate",
    "algos engine native": "[train]",
    "algos method gigpo": "Sets:",
    "methods": "hgpo",
    "methods eapo": "eapo",  # of the experiments
    "recipes": "quickstart",
    "new env my_game": "wrote my_game.py",
    "envs --check my_game.py:MyGame": "keeps the contract",
    "train --help-config": "learner.lr",
    "fit": "12 GB",
    "cluster plan --model 7b --gpus 16 --iterations 2": "16 GPUs",
    "sweep --dry-run seed=0,1": "quickstart-seed=1",
    "play household --agent random --max-turns 2": "Not done",
    "play household --agent expert": "Done.",
    "eval --agent expert --env numberline --n 2 --save expert.json": "100.0 %",
    "eval --agent random --env numberline --n 2 --save random.json": "success",
    "compare expert.json random.json": "expert",
    "report runs/good": "report.html",
    "replay runs/good --also loop": "loop",
    "trajectories runs/good --out turns.jsonl": "turns.jsonl",
    "lab --problems corridor --algos gigpo,grpo --seeds 2 --no-train --quick": "gigpo",
    "doctor": "All but training works here",
}
NEED_TRAINING = (
    *("train", "train --dry-run", "train --resume runs/good", "sft", "sweep seed=0,1", "cluster check", "serve runs/good"),
    *("export runs/good there", "eval runs/good", "eval --agent react --env household", "play --agent runs/good"),
    "fit model.path=someone/something",
)

API = """
import json, sys, threading, urllib.request
import turnwise as tw
from turnwise.pages.run_list import RunList
from turnwise.pages.server import open_server

server = open_server(RunList("runs"), 0)
threading.Thread(target=server.serve_forever, daemon=True).start()
columns = dict(reward=[0.0, 1.0, 0.0, 0.0], anchor=["hall", "kitchen", "hall", "cellar"])
rollouts = tw.Rollouts.from_columns(group=[0] * 4, trajectory=[0, 0, 1, 1], t=[0, 1, 0, 1], **columns)
errors = {}
for name in [*tw.__all__, "objectives.Tokens"]:
    try:
        holder = tw
        for part in name.split("."):
            holder = getattr(holder, part)
    except ImportError as error:
        errors[name] = str(error)
print(json.dumps({
    "gigpo": tw.credit.compute("gigpo", rollouts, gamma=1.0, omega=1.0).tolist(),
    "outside": sorted(name for name in dir(tw) if name in errors),
    "turns": len(tw.read_trajectories("turns.jsonl")[0].turns),
    "errors": errors,
    "page": urllib.request.urlopen(server.url).read().decode(),
}))
"""


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


def base() -> set[str]:
    """The distributions that Turnwise requires without an extra, and those that they require here."""
    wanted, waiting = set[str](), [name_of(each) for each in PROJECT["dependencies"]]
    while waiting:
        name = waiting.pop()
        if name.lower() not in wanted and any(True for _ in metadata.distributions(name=name)):
            wanted.add(name.lower())
            waiting += [name_of(each) for each in metadata.requires(name) or () if "extra" not in each.partition(";")[2]]
    return wanted


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A folder to work in with a run, and Python without site-packages: it sees the sources and links to the base's distributions."""
    links, work = tmp_path_factory.mktemp("links"), tmp_path_factory.mktemp("work")
    for name in [*base(), "turnwise", "turnwise-envs", "turnwise-experiments"]:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not top.startswith("__editable__"):
                (links / top).symlink_to(Path(str(distribution.locate_file(top))))
    make_run(work / "runs")
    paths = {"PYTHONPATH": os.pathsep.join(map(str, [*SOURCES, links])), "TURNWISE_CACHE": str(work / "cache"), "COLUMNS": "120"}

    def python(code: str, *arguments: str) -> list | dict:  # type: ignore[type-arg]
        done = subprocess.run(
            [sys.executable, "-S", "-c", code, *arguments], cwd=work, env={**os.environ, **paths}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return SimpleNamespace(python=python, work=work)


@pytest.fixture(scope="module")
def outcomes(alone: SimpleNamespace) -> dict[str, list]:  # type: ignore[type-arg]
    """Exit code, output and errors of every command."""
    lines = [*WORK, *NEED_TRAINING]
    return dict(zip(lines, alone.python(COMMANDS, json.dumps([line.split() for line in lines])), strict=True))


@pytest.mark.parametrize("line", WORK)
def test_a_command_that_trains_nothing_works_in_the_base(line: str, outcomes: dict[str, list]) -> None:  # type: ignore[type-arg]
    code, out, err = outcomes[line]
    assert code == 0 and WORK[line] in out, (code, out, err)


@pytest.mark.parametrize("line", NEED_TRAINING)
def test_a_command_that_needs_training_says_so_in_one_line(line: str, outcomes: dict[str, list]) -> None:  # type: ignore[type-arg]
    code, out, err = outcomes[line]
    told = [each for each in err.splitlines() if "loading …" not in each]
    assert (code, out, len(told)) == (2, "", 1), (code, out, err)
    assert re.fullmatch(r"error: turnwise \w+.* needs an optional package\. Install it with: pip install -e '.*\[train\]'", told[0])


@pytest.mark.usefixtures("outcomes")  # which write the trajectories
def test_python_computes_credit_in_the_base_and_names_the_extra_for_the_rest(alone: SimpleNamespace) -> None:
    told = alone.python(API)
    assert told["gigpo"] == pytest.approx([2**0.5, 0.5**0.5, -(2**0.5), -(0.5**0.5)], abs=1e-4)
    assert "<html" in told["page"] and told["turns"] == 2 and told["outside"] == []
    assert told["errors"].keys() == {"train", "evaluate", "export", "objectives.Tokens"}
    assert all("[train]'" in text for text in told["errors"].values())


def test_the_checked_modules_are_those_of_the_extra() -> None:
    from turnwise.util.errors import TRAINING

    listed = {name_of(each) for each in PROJECT["optional-dependencies"]["train"]}
    assert listed | {"huggingface_hub"} == set(TRAINING), "transformers brings the hub"
    assert not listed & base()
