"""Every benchmark starts, pages show what the result files hold, and the iteration that is measured on a GPU runs on a CPU."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT
from launching import python

from turnwise.config.loading import load_file

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    import bench

    return bench


@pytest.mark.parametrize("script", sorted(path.name for path in BENCHMARKS.glob("*.py")))
def test_every_script_starts(script: str) -> None:
    shown = python(str(BENCHMARKS / script), "--help")
    assert shown.returncode == 0 and f"benchmarks/{script}" in shown.stdout, shown.stderr


def test_there_are_at_most_ten_scripts_with_one_result_file_each() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert len(scripts) <= 10 and {path.stem for path in BENCHMARKS.glob("*.json")} <= scripts


def test_the_pages_show_the_figures_of_the_result_files(bench: Any) -> None:
    stale = [str(path.relative_to(ROOT)) for path in bench.stale_pages()]
    assert not stale, f"python benchmarks/bench.py puts the results into {stale}"


def test_figures_are_formatted_where_a_page_asks_for_them(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "read_results", lambda script: {"a part": {"times": [1.234, -2.0], "share": 0.5}})
    page = "before\n<!-- figures\n| {x > a part > times > 0 : .1f} | {x > a part > times > 1} | {x > a part > share : .0%} |\n-->\nold\n"
    new = bench.renewed(page + "<!-- end of figures -->\nafter")
    assert new == page.replace("old\n", "| 1.2 | −2.0 | 50 % |\n") + "<!-- end of figures -->\nafter"


def commands() -> list[str]:
    """All calls of a benchmark in the pages, in code of a line or of a block."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    inline = [" ".join(code.split()) for code in re.findall(r"`[^`\n]*python\s+benchmarks/([^`]+)`", text)]
    block = [line.partition("#")[0].strip() for line in re.findall(r"^    .*python benchmarks/(.+)$", text, re.MULTILINE)]
    return sorted({command for command in inline + block if not command.startswith("bench.py")})


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_pages_have_the_options_that_they_name(bench: Any, command: str) -> None:
    script, *words = shlex.split(command)
    assert bench.parser_of(script, "", load_file(BENCHMARKS / script).PARTS).parse_args(words)  # ends the process for an unknown word


@pytest.mark.parametrize("context", ["window", "full"])
def test_an_iteration_has_the_turns_tokens_and_steps_of_its_shape(context: str) -> None:
    from iteration import TINY, Bench, measure_iteration

    shape = replace(TINY, context=context)
    result = measure_iteration(Bench(shape))
    turns = shape.groups * shape.members * shape.turns
    assert result["turns"] == turns and result["response_tokens"] == turns * shape.response
    assert result["tokens_forward"] == (turns if context == "window" else turns // shape.turns) * shape.longest
    assert result["steps"] == turns // shape.turns_a_step and not result["old_from_engine"]  # the default on a CPU
    assert result["engine_gap"]["max"] < 1e-4  # the engine reports what the learner computes
    assert set(result["share_of_floor"]) == {"rollout", "old_logprobs", "reference", "update", "total"}


def test_a_mark_of_the_speed_run_is_cleared_by_the_first_evaluation_above_it() -> None:
    import learning

    scores = {0: 0.5, 1: 0.86, 2: 0.84, 3: 0.9}
    lines = [{"iteration": i, "time/iteration": 2.0, "eval/success": score} for i, score in scores.items()]
    assert learning.cleared(lines) == {"0.85": {"iteration": 1, "seconds": 2.0}, "0.9": {"iteration": 3, "seconds": 6.0}}
    assert learning.cleared(lines[:1]) == {}
