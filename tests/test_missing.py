"""What an environment says when something that it needs is missing: one line with what to install. For all of them at once, in a process
that finds neither their packages nor any program nor data."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT

PROGRAM = """
import json, sys
import turnwise as tw
from turnwise.envs import registry
from turnwise.util.errors import TurnwiseError

packages = {need.install.module.split(".")[0] for name in registry.names() for need in registry.spec(name).needs if need.install}
for package in packages:
    sys.modules[package] = None  # as if it were not installed
options = {"openenv": {"url": "http://127.0.0.1:9"}, "verifiers": {"environment": "x"}}  # without these, that is the first complaint
found = {}
for row in registry.describe():
    if row["needs"]:
        remedies = [need["remedy"] for need in row["needs"] if not need["present"]]
        try:
            env = tw.make(row["name"], **options.get(row["name"], {}))
            env.reset(tw.tasks(row["name"], "train", n=1)[0])
            told, ours = "", True
        except Exception as error:
            told, ours = str(error), isinstance(error, TurnwiseError)
        found[row["name"]] = {"told": told, "ours": ours, "remedies": remedies, "what": [need["what"] for need in row["needs"]]}
print(json.dumps({"broken": registry.broken(), "found": found}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("bare")
    known = {"PATH": str(home), "HOME": str(home), "TURNWISE_CACHE": str(home), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    known |= {"TURNWISE_DATA": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=known, cwd=home)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_listing_needs_no_package(told: dict[str, Any]) -> None:
    assert told["broken"] == {}
    assert {"gymnasium", "scienceworld", "openenv", "shell", "reasoning", "verifiers"} <= set(told["found"])


def test_what_is_missing_is_said_in_one_line(told: dict[str, Any]) -> None:
    for name, row in told["found"].items():
        assert row["told"], f"{name} runs although it lacks {row['what']}"
        assert row["ours"], f"{name}: {row['told']}"
        assert "\n" not in row["told"] and len(row["told"]) < 600, f"{name}: {row['told']}"


def test_the_line_says_what_to_install(told: dict[str, Any]) -> None:
    for name, row in told["found"].items():
        installed = [remedy for remedy in row["remedies"] if "install" in remedy and "see docs" not in remedy]
        if installed and len(installed) == len(row["remedies"]):  # else data is missing, too, which may come first
            assert any(word in row["told"] for word in ("pip install", "turnwise envs --install", "apt")), f"{name}: {row['told']}"


def test_every_remedy_is_one_line(told: dict[str, Any]) -> None:
    for name, row in told["found"].items():
        assert row["remedies"], name
        assert all("\n" not in remedy and 10 < len(remedy) < 140 for remedy in row["remedies"]), name
