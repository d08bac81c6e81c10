"""The notebooks, cell after cell. `make notebooks` runs all of them in a kernel; here two run in
this process, and the one that trains does so with fewer iterations and attempts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import turnwise as tw

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


SMALL = {"iterations": 3, "collect.groups": 4, "eval.n": 2, "eval.repeats": 1}  # three: the notebook looks at the third


@pytest.mark.parametrize("name", ["credit", "train"])
def test_a_notebook_runs_from_its_first_cell_to_its_last(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tw, "train", lambda recipe, train=tw.train, **given: train(recipe, **given | SMALL))
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in cells(ROOT / "notebooks" / f"{name}.ipynb"):
        exec(compile(code, f"{name}.ipynb", "exec"), names)
    if name == "train":
        assert names["result"].summary["finished"] and len(names["outcomes"][names["shown"]]) == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_hosted_notebook_installs_from_the_clone_that_it_lies_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda command, check: called.append(command))
    monkeypatch.chdir(path.parent)
    exec(cells(path)[0], {})
    extras = "plots" if path.stem == "credit" else "train,plots"
    assert called == [[sys.executable, "-m", "pip", "install", "--quiet", f"{ROOT}[{extras}]"]]
    monkeypatch.chdir("/")
    with pytest.raises(SystemExit, match="Clone the repository first"):
        exec(cells(path)[0], {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_results(path: Path) -> None:
    assert not [cell for cell in json.loads(path.read_text())["cells"] if cell.get("outputs") or cell.get("execution_count")]
