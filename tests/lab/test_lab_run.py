"""`turnwise lab` as its users meet it: files, tables, the same results for the same seed, a credit of one's own, clear errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from typer.testing import CliRunner

import turnwise as tw
from turnwise import lab
from turnwise.cli.app import app
from turnwise.lab.experiment import Settings, run, write

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "lab.md"
SMALL: dict[str, Any] = {"group_sizes": (2, 4), "seeds": 3, "iterations": 6, "budget": 16}
TINY = ["--seeds", "2", "--group-sizes", "2,4"]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings(**SMALL))


def test_results_hold_every_problem_algorithm_group_size_and_reading(result: dict[str, Any]) -> None:
    labels = [line["label"] for line in result["lines"]]
    assert {entry.name for entry in tw.credit.algorithms if tw.credit.stands_alone(entry)} | {
        "oracle",
        "gigpo:once=true",
        "gigpo:omega=0",
    } <= set(labels)
    for problem in ("bifurcation", "corridor", "grid", "chain", "tree"):
        for label in labels:
            by_size = result["credit"][problem][label]
            assert list(by_size) == ["2", "4"]
            assert set(by_size["4"]) == {"correlation", "gradient_cosine"}
            curve = result["learning"][problem]["lines"][label]
            assert len(curve["curve"]) == len(result["learning"][problem]["iterations"]) == 3
        assert result["credit"][problem]["oracle"]["4"]["correlation"]["mean"] == pytest.approx(1)
        assert result["credit"][problem]["gigpo:omega=0"] == result["credit"][problem]["grpo"]


def test_the_same_seed_gives_the_same_files_byte_for_byte(tmp_path: Path) -> None:
    chosen = {**SMALL, "problems": ["chain"], "algos": ["grpo", "gigpo", "gae"]}
    first, second, other = (run(Settings(**chosen, seed=seed)) for seed in (0, 0, 1))
    for name, one in (("first", first), ("second", second)):
        write(one, tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert {"lab.json", "credit.png"} <= set(names)
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    assert other["credit"]["chain"] != first["credit"]["chain"]


def test_a_choice_of_algorithms_and_problems_changes_nothing_in_what_is_left(result: dict[str, Any]) -> None:
    part = run(Settings(**SMALL, problems=["chain"], algos=["gae", "gigpo"]))
    assert list(part["credit"]) == ["chain"] and list(part["credit"]["chain"]) == ["gae", "gigpo"]
    for label in ("gae", "gigpo"):
        assert part["credit"]["chain"][label] == result["credit"]["chain"][label]
        assert part["learning"]["chain"]["lines"][label] == result["learning"]["chain"]["lines"][label]


def test_without_the_plots_extra_there_is_still_everything_but_pictures(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files, note = write(result, tmp_path)
    assert [path.name for path in files] == ["lab.json"]
    assert "[plots]" in note


def test_the_command_writes_tables_json_and_pictures(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "folder"
    done = CliRunner().invoke(
        app, ["lab", "--quick", *TINY, "--algos", "gigpo,grpo", "--problems", "tree,chain:length=3", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "true advantages are known" in done.stdout.splitlines()[0]
    found = json.loads((out / "lab.json").read_text())
    assert list(found["credit"]) == ["tree", "chain:length=3"]
    assert found["credit"]["tree"]["gigpo"] == found["credit"]["tree"]["grpo"]
    assert {path.name for path in out.iterdir()} == {"lab.json", "credit.png", "learning.png"}
    assert (out / "credit.png").read_bytes().startswith(b"\x89PNG")


def test_the_documented_credit_of_ones_own_runs_in_the_lab(tmp_path: Path, here: Cli) -> None:
    example = re.search(r"```python\n(# my_credit.py.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert example, "docs/guides/lab.md has lost its example"
    (tmp_path / "my_credit.py").write_text(example[1], encoding="utf-8")
    chosen = ["--load", "my_credit.py", "--algos", "others_mean,gigpo,grpo", "--problems", "bifurcation,tree"]
    done = here("lab", *TINY, "--no-train", *chosen)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "lab-results" / "lab.json").read_text())
    assert found["learning"] == {} and not (tmp_path / "lab-results" / "learning.png").exists()  # as --no-train says
    credit = found["credit"]
    # it must at least be better than GRPO where states repeat
    ours, theirs = (credit["bifurcation"][label]["4"]["correlation"]["mean"] for label in ("others_mean", "grpo"))
    assert ours > theirs


def test_the_documented_problem_of_ones_own_runs_in_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.problems, "_entries", dict(lab.problems._ready()))
    example = re.search(r"```python\n(# my_problem.py.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert example, "docs/guides/lab.md has lost its example"
    exec(compile(example[1], "my_problem.py", "exec"), {"__name__": "my_problem"})
    problem = lab.make("doors", patience=1.0)
    fair = lab.skilled_policy(problem, 0.0)
    assert float(lab.expected_return(problem, fair)) == pytest.approx(0.5)
    assert lab.advantages(problem, fair)[0, 0].tolist() == pytest.approx([0.5, -0.5])
    found = run(Settings(**SMALL, problems=["doors:patience=0.9"], algos=["gigpo", "oracle"]))
    assert found["credit"]["doors:patience=0.9"]["oracle"]["4"]["correlation"]["mean"] == pytest.approx(1)


def test_a_registered_credit_that_cannot_run_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tw.credit.algorithms, "_entries", dict(tw.credit.algorithms._ready()))

    @tw.credit.register("needy")
    def needy(r: tw.Rollouts) -> Any:
        """Asks for what nobody has."""
        return r.need("screenshot", "needy")

    with pytest.raises(tw.TurnwiseError, match=r"needy cannot run in the lab.*screenshot"):
        run(Settings(**SMALL, problems=["chain"], algos=["grpo", "needy"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algos", "gigop"], "Did you mean 'gigpo'"),
        (["--problems", "corridoor"], "Did you mean 'corridor'"),
        (["--algos", ","], "names nothing"),
        (["--group-sizes", "2,eight"], "not 'eight'"),
        (["--group-sizes", "1"], r"group size takes an integer in \[2, 4096\], not 1"),
        (["--seeds", "1"], r"seeds takes an integer in \[2, 10000\], not 1"),
        (["--load", "nowhere.py"], "there is no file nowhere.py"),
    ],
)
def test_wrong_choices_are_refused_with_the_remedy_before_anything_runs(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", *arguments, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, tw.TurnwiseError)
    assert re.search(message, str(done.exception)), done.exception
    assert "true advantages" not in done.stdout
    assert not (tmp_path / "out" / "lab.json").exists()


def test_an_out_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    done = CliRunner().invoke(app, ["lab", "--quick", "--out", str(tmp_path / "taken")])
    assert isinstance(done.exception, tw.TurnwiseError) and "no folder can be made there" in str(done.exception)
    assert (tmp_path / "taken").read_text() == "mine"
