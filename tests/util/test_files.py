"""Files that others may read: who may is the umask's to say, whatever a library thinks. And extras that something uses."""

from __future__ import annotations

import ast
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from safetensors.torch import save_file

from turnwise.learn import checkpoint
from turnwise.learn.saving import write_folder
from turnwise.retrieval.cache import build_once
from turnwise.util import errors
from turnwise.util.files import write_atomically, write_text_atomically


@pytest.fixture(params=[0o022, 0o027, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


def test_files_and_models_are_as_readable_as_the_umask_says(umask: int, tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        save_file({"weights": torch.zeros(2)}, folder / "model.safetensors")
        (folder / "tokens").mkdir(mode=0o700)
        (folder / "tokens" / "words.json").write_text("{}")

    top = tmp_path / "top"
    write_text_atomically(top / "summary.json", "{}")
    write_atomically(top / "metrics.npz", lambda file: file.write(b"x"))
    write_folder(top / "model", fill)
    checkpoint.save(top / "checkpoints", 3, {"model/w": torch.zeros(2)}, {})
    build_once(top / "cache" / "index", fill)
    for name, mode in modes(top).items():
        wanted = (0o777 if (top / name).is_dir() else 0o666) & ~umask
        if not name.startswith("cache/") or name == "cache/index":
            assert mode == wanted, f"{name} is {mode:o}, not {wanted:o}"
    assert not [path for path in top.rglob("*") if "part" in path.name]


def test_an_existing_folder_that_is_replaced_stays_readable(tmp_path: Path) -> None:
    for _ in range(2):
        write_folder(tmp_path / "model", lambda folder: save_file({"w": torch.zeros(1)}, folder / "model.safetensors"))
    before = os.umask(0)
    os.umask(before)
    assert modes(tmp_path / "model")["model.safetensors"] == 0o666 & ~before


def extras_named_in(code: str) -> set[str]:
    """The texts in a piece of code: extras are named by themselves."""
    nodes = ast.walk(ast.parse(code))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_command_for_an_extra_works_in_a_clone_and_with_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert errors.install_command("serve") == "pip install -e '.[serve]'"
    assert errors.install_command("babyai", "turnwise-envs") == "pip install -e './packages/turnwise-envs[babyai]'"
    monkeypatch.chdir(tmp_path)
    assert errors.install_command("serve") == f"pip install -e '{ROOT}[serve]'"
    known = [
        "numpy>=2",
        "mcp>=2.0; extra == 'mcp'",
        "uvloop; sys_platform != 'win32' and extra == 'serve'",
        "x; platform_system=='Windows' and extra=='serve'",
    ]
    known += ["uvicorn>=0.30; extra == 'serve'", "turnwise[serve,mcp]; extra == 'all'"]
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "turnwise" / "util" / "errors.py"))
    monkeypatch.setattr("importlib.metadata.requires", {"turnwise": known}.__getitem__)
    monkeypatch.setattr("importlib.metadata.PackageNotFoundError", KeyError)
    monkeypatch.setattr("sys.platform", "linux")
    assert errors.install_command("mcp") == "pip install 'mcp>=2.0'"
    assert errors.pip_arguments("all") == ["mcp>=2.0", "uvloop", "uvicorn>=0.30"]
    assert errors.pip_arguments("babyai", "turnwise-envs") == [f"./turnwise_envs-{errors.VERSION}-py3-none-any.whl[babyai]"]


def test_every_extra_is_named_by_code_that_uses_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    missing = set(extras) - {"all", "quickstart", "dev", "docs", "oracle"}
    assert len(missing) > 12
    for path in sorted((ROOT / "turnwise").rglob("*.py")):
        code = path.read_text()
        if any(name in code for name in missing):  # to parse all files takes seconds
            missing -= extras_named_in(code)
    assert missing == set()
