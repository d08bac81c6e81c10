"""`turnwise envs --install NAME`: pip for what an environment needs, and one line for everything that pip cannot bring."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from turnwise.config import addons
from turnwise.envs.needs import Install, private_folder
from turnwise.envs.registry import discover_again, not_installed, spec
from turnwise.util.errors import TurnwiseError, pip_arguments
from turnwise.util.files import folder_beside
from turnwise.util.terminal import say

RETRIES, SECONDS = 2, 20  # of a connection
UNREACHABLE = ("connection broken", "ConnectionError", "Connection refused", "name resolution", "Network is unreachable", "ReadTimeout")

Tell = Callable[[str], None]


def install(name: str, tell: Tell) -> list[str]:
    """Install what pip can bring for an environment. Returns what is still missing, one line each."""
    if not_installed(name):
        arguments = tuple(pip_arguments(name, addons.DISTRIBUTION))
        tell(f"package {addons.DISTRIBUTION}: installing {arguments[-1]}")
        _run(Install(addons.MODULE, arguments))
        discover_again()
    entry = spec(name)
    for need in entry.needs:
        if need.install is None:
            continue
        if need.met():
            tell(f"{need.what}: present")
            continue
        tell(f"{need.what}: installing {' '.join(need.install.requirements)}")
        _run(need.install)
        if not need.met():
            raise TurnwiseError(f"pip has finished, but the {need.what} is not found. Which Python runs Turnwise? It is {sys.executable}")
    left = [need for need in entry.needs if not need.met()]
    return [f"{need.what} is missing{'' if need.install else ' (not from pip)'}: {need.remedy}" for need in left]


def _run(wanted: Install) -> None:
    if not wanted.private:
        _pip(wanted.requirements)
        invalidate_caches()
        return
    folder = private_folder(wanted.private)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder_beside(folder, ".part")
    try:
        _pip(["--no-deps", "--target", str(fresh), *wanted.requirements])
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    invalidate_caches()


def _pip(arguments: Sequence[str]) -> None:
    """Run pip; its progress goes to the terminal, and its last words into the error."""
    if find_spec("pip") is None:
        shown = " ".join(arguments)
        raise TurnwiseError(f"this Python ({sys.executable}) has no pip. Install with your own tool what pip would: pip install {shown}")
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--retries", str(RETRIES), "--timeout", str(SECONDS)]
    output = []
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            say(line.rstrip("\n"), err=True)
            output.append(line.strip())
    if process.returncode == 0:
        return
    what = " ".join(word for word in arguments if not word.startswith("-") and not Path(word).is_dir())
    if any(sign in line for line in output for sign in UNREACHABLE):
        raise TurnwiseError(
            f"pip reached no package index, so {what} cannot be installed. Connect this machine, or give pip a mirror or wheels "
            "(PIP_INDEX_URL, PIP_FIND_LINKS)"
        )
    last = next((line for line in reversed(output) if line.startswith("ERROR")), output[-1] if output else "no message")
    raise TurnwiseError(f"pip could not install {what} (exit code {process.returncode}): {last}")
