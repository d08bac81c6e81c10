"""Another version of a trainer is one message that says what to install, before anything of it is imported. Needs none of them."""

from __future__ import annotations

import runpy
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

import turnwise.hosts.versions as versions
from turnwise import TurnwiseError


def run_file(name: str) -> Any:
    return lambda: runpy.run_path(str(Path(versions.__file__).with_name(f"{name}.py")))


def call(name: str, function: str, *arguments: Any) -> Any:
    return lambda: getattr(import_module(f"turnwise.hosts.{name}"), function)(*arguments)


@pytest.mark.parametrize(
    ("use", "package", "version", "remedy"),
    [
        (run_file("trl"), "trl", "1.16", "pip install 'trl==1.16.*'"),
        (run_file("verl"), "verl", "0.9.1", "pip install 'verl==0.9.1.*'"),
        (run_file("openenv"), "openenv", "0.10", "pip install 'openenv==0.10.*'"),
        (call("verifiers", "give", [], "gigpo"), "verifiers", "0.4", "pip install 'verifiers==0.4.*'"),
        (call("verifiers", "give_in_file", "a.jsonl", "b.jsonl", "gigpo"), "verifiers", "0.4", "pip install 'verifiers==0.4.*'"),
        (call("tinker", "assemble_with", "gigpo"), "tinker", "0.36", "pip install 'tinker==0.36.*'"),
        (call("tinker", "assemble_with", "gigpo"), "tinker-cookbook", "0.5.8", "pip install 'tinker-cookbook==0.5.8.*'"),
        (call("prime_rl", "install", "gigpo"), "prime-rl", "0.8", "git checkout 559b447"),
    ],
)
@pytest.mark.parametrize("installed", ["0.99.0", None])
def test_another_version_is_one_message(
    monkeypatch: pytest.MonkeyPatch, use: Any, package: str, version: str, remedy: str, installed: Any
) -> None:
    def version_of(name: str) -> str:
        if name != package:
            return "0.36.0"  # of tinker, before its cookbook is looked at
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return str(installed)

    monkeypatch.setattr(metadata, "version", version_of)
    with pytest.raises(TurnwiseError) as error:
        use()
    said = "is not installed" if installed is None else f"written for {package} {version}, and {installed} is installed"
    assert said in str(error.value) and remedy in str(error.value)
