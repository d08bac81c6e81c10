"""The distribution turnwise-experiments: Turnwise's listing is what it has, and without it errors say what to install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import in_one_process, same, trained
from conftest import ROOT

import turnwise as tw
from turnwise.config import addons, plugins
from turnwise.methods.registry import methods
from turnwise.recipe.names import REGISTRIES, registry
from turnwise.recipe.schema import Config
from turnwise.setup import catalogue
from turnwise.util.errors import TurnwiseError

EXPERIMENTS = ROOT / "experiments"
REGISTERED = {
    (family, entry.name) for family in REGISTRIES for entry in registry(family) if entry.function.__module__.startswith("turnwise_experi")
}


def test_the_listing_is_what_the_distribution_has_and_the_readme_dates_every_method() -> None:
    assert {name for _, name in REGISTERED} == set(addons.UNPROVEN)
    own = {name for family, name in REGISTERED if family == "method"}
    rows = re.findall(r"^\| \[`(\w+)`\]\(docs/(\w+)\.md\) \| \d{4}-\d\d-\d\d \|", (EXPERIMENTS / "README.md").read_text(), re.MULTILINE)
    assert {(name, name) for name in own} == set(rows) and {path.stem for path in (EXPERIMENTS / "docs").glob("*.md")} == own
    assert all(catalogue.page_of(methods[name]) == EXPERIMENTS / "docs" / f"{name}.md" for name in own)


def test_turnwise_never_imports_it_and_looks_into_it_only_for_names_that_it_does_not_have() -> None:
    naming = [path for path in (ROOT / "turnwise").rglob("*.py") if "turnwise_experiments" in path.read_text()]
    assert naming == []
    program = (
        "import sys, turnwise as tw; tw.credit.algorithms['gigpo']; print([one for one in sys.modules if 'turnwise_experiments.' in one])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the distribution were not installed."""
    monkeypatch.setattr(plugins, "_folders", [])
    for family in {family for family, _ in REGISTERED}:
        entries = registry(family)._entries
        monkeypatch.setattr(registry(family), "_entries", {name: one for name, one in entries.items() if (family, name) not in REGISTERED})


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize(("family", "name"), sorted(REGISTERED))
def test_without_it_names_say_what_to_install(family: str, name: str) -> None:
    with pytest.raises(TurnwiseError, match=rf"'{name}' .*turnwise-experiments.*pip install \./experiments"):
        registry(family)[name]
    with pytest.raises(TurnwiseError, match=rf"{family} '{name}' .*pip install \./experiments"):
        catalogue.find(name, family)


@pytest.mark.usefixtures("not_installed")
def test_without_it_recipes_and_credit_say_what_to_install() -> None:
    for recipe in ({"method": "t_star"}, {"agent": {"context": "workspace"}}, {"signal": [{"name": "potential"}]}):
        with pytest.raises(TurnwiseError, match=r"pip install \./experiments"):
            Config.load(recipe)
    with pytest.raises(TurnwiseError, match=r"pip install \./experiments"):
        tw.credit.compute("mica", tw.Rollouts.from_columns(group=[0], trajectory=[0], t=[0], reward=[0.0], anchor=["s"]))


@pytest.mark.parametrize("method", ["strata", "t_star"])
def test_one_engine_of_a_cluster_is_the_plain_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    changes: dict[str, Any] = {"method.name": method}
    plain = trained(tmp_path, "plain", **changes)
    in_one_process(monkeypatch, loses=lambda number: number % 3 == 0)
    assert same(plain, trained(tmp_path, "cluster", **changes, **{"cluster.engines": 1}))
