"""What a release is made of agrees: versions, the changelog's section, what has gone, and the workflows."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from conftest import ROOT
from docs_cases import section, tables

import turnwise as tw
from turnwise.config import addons
from turnwise.recipe.schema import RENAMED, RETIRED, fields

CHANGELOG = ROOT / "CHANGELOG.md"
ACTIONS = {f"actions/{name}" for name in ("checkout", "setup-python", "upload-artifact", "upload-pages-artifact", "deploy-pages")}


def test_all_versions_are_that_of_the_package() -> None:
    found = spec_from_file_location("release", ROOT / "packages" / "release.py")
    assert found is not None and found.loader is not None
    release = module_from_spec(found)
    found.loader.exec_module(release)
    assert release.versions_agree() == tw.__version__


def test_the_changelog_is_one_page_and_what_it_calls_gone_is_gone() -> None:
    assert len(CHANGELOG.read_text(encoding="utf-8").splitlines()) <= 60
    listed = {
        word
        for table in tables(section(CHANGELOG, "Gone, with what replaces it"))
        for row in table
        for word in re.findall(r"`([\w.]+)", row["gone"])
    }
    keys = {key for key, _, _ in fields() if "." in key} - {"cluster.transfer"}  # one of its values is gone
    assert {"learner.moments", "engine.min_p"} <= listed & RETIRED.keys() and not listed & keys
    assert listed & addons.FORMER.keys() == {"epo_hinge", "ipa_rollback"}


def test_what_is_deprecated_has_a_successor() -> None:
    assert RENAMED.keys() | RENAMED.values() <= {key for key, _, _ in fields()} | RENAMED.keys() and not RENAMED.keys() & RETIRED.keys()


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_uses_known_actions_and_targets_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"uses: ([\w/-]+)@", text)) <= ACTIONS
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert set(re.findall(r"run: make ([\w-]+)", text)) <= targets
