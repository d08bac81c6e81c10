"""Turnwise from Python: classes and functions as objects, recipes as dictionaries, progress that suits the place, names that are listed."""

from __future__ import annotations

import inspect
import json
import linecache
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bandit_env import Bandit
from launching import python
from train_cases import TINY, Heard
from typer.testing import CliRunner

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cli.app import main
from turnwise.config import objects

QUICK = {key: value for key, value in TINY.items() if key != "env.name"} | {"iterations": 1, "name": "try"}


class Cell(Bandit):
    """A class as a notebook's cell has it: nobody can import it."""

    def reset(self, task, seed=0):  # type: ignore[no-untyped-def]
        return super().reset(task, seed)


Cell.__module__ = "__main__"


def brevity(turn: Any, transition: Any, trajectory: Any) -> float:
    return -0.001 * len(turn.action)


brevity.__module__ = "__main__"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What one test hands in is not there for the next."""
    yield
    objects._given.clear()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tw.Result:
    """A run whose environment, credit and reward were handed in."""

    def mine(rollouts, *, scale=2.0):  # type: ignore[no-untyped-def]  # as people write it in a cell
        return scale * (rollouts.reward - rollouts.reward.mean())

    return tw.train(QUICK, env=Cell, credit=mine, reward=brevity, out=str(tmp_path_factory.mktemp("given")), quiet=True)


def test_what_was_handed_in_is_named_and_kept_honestly(run: tw.Result) -> None:
    config = tw.Recipe.load(run.folder / "config.toml")
    assert config.env.name == "python:Cell" and config.credit.name == "python:mine"
    assert [(term.name, term.function) for term in config.reward] == [("brevity", "python:brevity")]
    kept = {path.name: path.read_text() for path in (run.folder / "objects").iterdir()}
    assert set(kept) == {"Cell.py", "mine.py", "brevity.py"}
    assert kept["Cell.py"].startswith("# python:Cell was handed in as an object: class __main__.Cell\n")
    assert "class Cell(Bandit):" in kept["Cell.py"] and "return scale * (" in kept["mine.py"]
    assert run.metrics[-1]["collect/rewards/brevity"] < 0


def test_the_shell_refuses_what_it_cannot_import_and_says_what_helps(run: tw.Result, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for command in (["eval", str(run.folder)], ["train", "--resume", str(run.folder), "iterations=2"]):
        monkeypatch.setattr(sys, "argv", ["turnwise", *command])
        with pytest.raises(SystemExit) as end:
            main()
        said = " ".join(capsys.readouterr().err.split())
        assert end.value.code == 2 and "python:Cell was handed in as a Python object" in said and "--env my_file.py:Cell" in said
    assert tw.Recipe.load(run.folder / "config.toml").iterations == 1


def test_python_goes_on_and_evaluates_with_the_same_objects(run: tw.Result) -> None:
    with pytest.raises(TurnwiseError, match="cannot be imported here"):
        tw.evaluate(run, n=2, quiet=True)
    assert tw.evaluate(run, env=Cell, reward=brevity, n=2, quiet=True).panel_size == 2
    assert tw.evaluate(run.folder, n=2, quiet=True).panel_size == 2  # this Python knows it now

    def mine(rollouts, *, scale=2.0):  # type: ignore[no-untyped-def]
        return scale * rollouts.reward

    heard = Heard()
    longer = tw.train(resume=run.folder, env=Cell, credit=mine, reward=brevity, iterations=2, reporter=heard)
    assert longer.summary["iterations"] == 2
    assert any("python:mine is not what it was when the run began" in note for note in heard.notes)
    assert not any("python:Cell is not" in note for note in heard.notes)
    with pytest.raises(TurnwiseError, match=r"env\.name cannot change"):
        tw.train(resume=run.folder, env=Bandit, quiet=True)


def test_what_can_be_imported_is_named_so(tmp_path: Path) -> None:
    result = tw.train(QUICK, env=Bandit, out=str(tmp_path), quiet=True)
    assert tw.Recipe.load(result.folder / "config.toml").env.name == "bandit_env:Bandit"
    assert not (result.folder / "objects").exists()


def test_a_recipe_is_a_dictionary_a_file_or_an_object(tmp_path: Path) -> None:
    nested = {"seed": 3, "learner": {"lr": 0.5}, "credit.name": "rloo", "env": {"name": Cell, "options": {}}}
    (tmp_path / "base.toml").write_text('[learner]\nwarmup = 7\n[credit]\nname = "gigpo"\ngamma = 0.5\n')
    nested["extends"] = str(tmp_path / "base.toml")
    small = {"engine.max_tokens": 1, "agent.max_prompt_tokens": 8, "collect": {"groups": 2}}
    config = tw.api.read_config(nested, tw.api.Given(), small)
    assert (config.seed, config.learner.lr, config.learner.warmup, config.collect.groups) == (3, 0.5, 7, 2)
    assert config.credit.name == "rloo" and config.env.name == "python:Cell"  # gigpo's option does not carry over
    assert tw.Recipe.load(config, {"seed": 4}).seed == 4
    with pytest.raises(TurnwiseError, match=r"recipe given as a dictionary: unknown key learner.rl"):
        tw.train({"learner": {"rl": 1}}, quiet=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"env": Bandit()}, "env takes a name, its class, or a function that makes one.*object of Bandit"),
        ({"env": 3}, "env takes a name"),
        ({"credit": 3}, "credit takes a name, a function"),
        ({"env": Cell, "reward": 3}, "a function is needed"),
        ({"env": dict}, "is rejected: builtins"),
        ({"env": Cell, "credit": lambda: 0}, "credit algorithm"),
    ],
)
def test_what_is_no_class_and_no_function_is_refused(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        tw.train(QUICK, out=str(tmp_path), quiet=True, **wrong)
    assert not list(tmp_path.iterdir())


def test_options_of_an_environment_may_be_functions(tmp_path: Path) -> None:
    class Judged(Cell):
        def __init__(self, judge):  # type: ignore[no-untyped-def]
            super().__init__()
            assert callable(judge)

    Judged.__module__ = "__main__"
    env = {"name": Judged, "options": {"judge": lambda text: 1.0}}
    result = tw.train(QUICK, env=env, out=str(tmp_path), quiet=True)
    assert tw.Recipe.load(result.folder / "config.toml").env.options == {"judge": "python:lambda"}
    assert result.summary["finished"] and result.metrics[-1]["collect/turns"] == 16


def test_workers_refuse_a_class_that_only_this_process_has_in_words(tmp_path: Path) -> None:
    class Local(Bandit):
        pass

    with pytest.raises(TurnwiseError, match=r"worker processes cannot get this environment.*env\.workers=0"):
        tw.train(QUICK, env=Local, out=str(tmp_path), quiet=True, **{"env.workers": 1})


CELL = """
import turnwise as tw
class Typed:
    max_turns = 2
    def reset(self, task, seed=0):
        self.t = 0
        return tw.Observation("left or right?", actions=("left", "right"))
    def step(self, action):
        self.t += 1
        return tw.Transition(tw.Observation("left or right?"), 1.0 * (action == "left"), self.t == 2, action == "left")
"""


def test_a_script_without_a_guard_trains_on_its_own_class(tmp_path: Path) -> None:
    settings = json.dumps(QUICK | {"out": str(tmp_path)})
    script = tmp_path / "script.py"
    script.write_text(f"{CELL}\nimport json\nresult = tw.train(json.loads({settings!r}), env=Typed)\nprint(result.summary['iterations'])\n")
    done = python(str(script))
    assert done.stdout.strip() == "1", done.stderr  # what is shown goes to stderr
    assert "iteration 1/1" in done.stderr and "class Typed:" in (tmp_path / "try" / "objects" / "Typed.py").read_text()


def test_the_source_of_a_class_in_a_cell_is_found_by_its_methods() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    text = f"x = 1\n{CELL}\ny = 2\n"
    linecache.cache["<cell 7>"] = (len(text), None, text.splitlines(keepends=True), "<cell 7>")
    exec(compile(text, "<cell 7>", "exec"), space)
    said = objects.description("python:Typed", space["Typed"])
    assert "class Typed:\n    max_turns = 2" in said and "y = 2" not in said and "import turnwise" not in said
    exec(compile("class Bare:\n    x = 1\n", "<nowhere>", "exec"), space)
    assert "is not available" in objects.description("python:Bare", space["Bare"])


def test_everything_public_is_listed_there_and_explained() -> None:
    assert set(dir(tw)) == set(tw.__all__)
    for name in tw.__all__:
        assert getattr(tw, name) is not None
        assert name == "__version__" or (getattr(tw, name).__doc__ or "").strip(), f"tw.{name} has no explanation"
    for function in (tw.train, tw.evaluate):
        said = (function.__doc__ or "").partition("\n\n")[2]
        assert not [name for name in inspect.signature(function).parameters if name not in said]


FIRST = ["import turnwise.train", "import turnwise; turnwise.train", "from turnwise.api import train", "import turnwise.cli.train"]
USES = """
import inspect, pickle, sys
import turnwise, turnwise as tw
import turnwise.train as loop
from turnwise import train
from turnwise.api import train as function
from turnwise.train import run_iterations
assert tw.train is turnwise.train is train is loop is sys.modules["turnwise.train"] is pickle.loads(pickle.dumps(tw.train))
assert loop.run_iterations is tw.train.run_iterations is run_iterations
assert inspect.signature(tw.train) == inspect.signature(function) and tw.train.__doc__ == function.__doc__
try:
    tw.train(resume="no such run")
except tw.TurnwiseError as error:
    assert "no such run" in str(error)
else:
    raise AssertionError("the function was not called")
"""


COPIES = """
import os, sys, traceback
from transformers import AttentionInterface  # what takes seconds is imported once; Turnwise by each copy for itself
assert "turnwise" not in sys.modules
failed = []
for code in sys.argv[1:]:
    copy = os.fork()
    if copy == 0:
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(copy, 0)[1]:
        failed.append(code.splitlines()[0])
sys.exit("\\n".join(failed) or 0)
"""


def test_train_is_the_function_and_the_module_of_the_loop_whatever_is_imported_first() -> None:
    done = subprocess.run([sys.executable, "-c", COPIES, *(first + USES for first in FIRST)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_shell_knows_rewards_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent("def brief(turn, transition, trajectory):\n    return -len(turn.action)\n"))
    shown = CliRunner()
    from turnwise.cli.app import app

    result = shown.invoke(app, ["train", "--reward", f"{tmp_path}/mine.py:brief", "--dry-run", "env.tasks=10"])
    assert result.exit_code == 0, result.output
    assert 'name = "brief"' in result.stdout
