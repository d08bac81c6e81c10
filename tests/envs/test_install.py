"""What an environment needs, how pip brings it, and private folders for packages whose pins clash with ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Cli

from turnwise.envs import install as installing
from turnwise.envs.needs import Need, needs_private, private_folder
from turnwise.envs.pool import Pool
from turnwise.envs.registry import describe, make, register, tasks, unregister
from turnwise.util.errors import TurnwiseError

MODULE = "clashing_game"  # what only the private folder has
SOURCE = "WORD = 'private'\n"
ENV = """
import clashing_game
from turnwise.envs import Observation, Transition

class Says:
    max_turns = 2
    def reset(self, task, seed=0):
        return Observation(clashing_game.WORD)
    def step(self, action):
        return Transition(Observation(clashing_game.__file__), 1.0, True, True)
"""


@pytest.fixture
def clashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An environment whose package only its private folder may have."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "clashing_env.py").write_text(ENV)
    needs = [needs_private(MODULE, "clashing", "clashing-game==1.0", "helper"), Need("Java", lambda: False, "install a Java runtime")]
    register("clashing", "clashing_env:Says", needs=needs, splits={"train": 5, "valid": 5})
    yield
    unregister("clashing")
    for name in (MODULE, "clashing_env"):
        sys.modules.pop(name, None)


def fill(name: str = "clashing") -> Path:
    place = private_folder(name)
    place.mkdir(parents=True)
    (place / f"{MODULE}.py").write_text(SOURCE)
    return place


@pytest.mark.usefixtures("clashing")
def test_a_private_folder_is_importable_only_once_its_environment_is_loaded_and_comes_last() -> None:
    place = fill()
    assert describe("clashing")[0]["needs"][0]["present"]
    assert str(place) not in sys.path
    env = make("clashing")
    assert env.reset(tasks("clashing", "train", n=1)[0]).text == "private"
    assert sys.path[-1] == str(place)


@pytest.mark.usefixtures("clashing")
def test_a_worker_process_finds_the_private_folder() -> None:
    place = fill()
    with Pool("clashing", 1, workers=1, timeout=60) as pool:
        assert pool.reset(0, tasks("clashing", "train", n=1)[0], 0).observation.text == "private"
        assert pool.step(0, "go").transition.observation.text == str(place / f"{MODULE}.py")


@pytest.mark.usefixtures("clashing")
def test_installing_runs_pip_without_dependencies_into_the_private_folder(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def pip(arguments: list[str]) -> None:
        calls.append(list(arguments))
        (Path(arguments[2]) / f"{MODULE}.py").write_text(SOURCE)

    monkeypatch.setattr(installing, "_pip", pip)
    done = here("envs", "--install", "clashing")
    assert done.returncode == 1  # Java is still missing
    assert calls[0][:2] == ["--no-deps", "--target"] and calls[0][3:] == ["clashing-game==1.0", "helper"]
    lines = done.stdout.splitlines()
    assert lines[0] == "package clashing_game: installing clashing-game==1.0 helper"
    assert lines[1] == "Java is missing (not from pip): install a Java runtime"
    assert (private_folder("clashing") / f"{MODULE}.py").is_file()
    assert [path.name for path in private_folder("clashing").parent.iterdir()] == [private_folder("clashing").name]
    assert here("envs", "--install", "clashing").stdout.splitlines()[0] == "package clashing_game: present"
    assert len(calls) == 1


@pytest.mark.usefixtures("clashing")
def test_a_failed_installation_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(arguments: list[str]) -> None:
        (Path(arguments[2]) / "half.py").write_text("")
        raise TurnwiseError("no such package")

    monkeypatch.setattr(installing, "_pip", pip)
    with pytest.raises(TurnwiseError, match="no such package"):
        installing.install("clashing", print)
    assert list(private_folder("clashing").parent.iterdir()) == []


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        (
            "WARNING: Retrying after connection broken by 'X'\nERROR: No matching distribution\n",
            "pip reached no package index, so minigrid",
        ),
        ("noise\nERROR: No space left on device\nmore\n", r"not install minigrid \(exit code 2\): ERROR: No space left"),
    ],
)
def test_a_failure_of_pip_is_told_in_one_line(
    printed: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # what runs instead of pip: it prints this and ends so
    real = subprocess.Popen
    program = f"import sys; sys.stderr.write({printed!r}); sys.exit(2)"
    monkeypatch.setattr(installing.subprocess, "Popen", lambda command, **known: real([sys.executable, "-c", program], **known))
    with pytest.raises(TurnwiseError, match=message) as told:
        installing._pip(["minigrid"])
    assert "\n" not in str(told.value)
    assert printed.splitlines()[0] in capsys.readouterr().err  # pip's own words are shown while it runs
