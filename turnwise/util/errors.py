"""Errors that state what was wrong, where, and what to do."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from turnwise.util.version import VERSION

TRAINING = ("torch", "transformers", "safetensors", "tokenizers", "jinja2", "regex", "huggingface_hub")  # what the extra `train` brings
CONDITION = re.compile(r"""(\w+)\s*([=!]=)\s*["']([^"']*)["']""")  # of a requirement, joined by `and`
LONG_LIST = 60  # names: more than that hide the suggestion


class TurnwiseError(ValueError):
    """Invalid input. The message names the location and the remedy; the CLI prints it without a traceback."""


class Stopped(TurnwiseError):
    """Ctrl-C, or another termination signal, arrived before there was anything to save."""


class MissingExtra(TurnwiseError, ImportError):
    """A feature needs an optional package that is not installed: an extra of Turnwise or of another distribution."""

    def __init__(self, feature: str, extra: str, distribution: str = "turnwise"):
        super().__init__(f"{feature} needs an optional package. Install it with: {install_command(extra, distribution)}")


def lacks_training() -> list[str]:
    """The packages of the extra `train` that are not installed."""
    return [name for name in TRAINING if find_spec(name) is None]


def need_training(feature: str) -> None:
    """Report that a feature needs the extra `train`, before anything is loaded or shown for it."""
    if lacks_training():
        raise MissingExtra(feature, "train")


def deprecated(old: str, new: str) -> None:
    """Say once that a name works for one more minor version, and what replaces it."""
    warnings.warn(f"{old} is deprecated, and an error from the next minor version on: write {new}", FutureWarning, stacklevel=3)


def install_command(extra: str, distribution: str = "turnwise") -> str:
    """The command that installs what an extra needs."""
    return f"pip install {shlex.join(pip_arguments(extra, distribution))}"


def pip_arguments(extra: str, distribution: str = "turnwise") -> list[str]:
    """In a clone, the distribution with its extra; elsewhere the extra's requirements, or the wheel of a distribution that is missing."""
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if project.is_file():
        folder = "." if Path("pyproject.toml").is_file() and project.samefile("pyproject.toml") else project.parent
        return ["-e", f"{folder}{'' if distribution == 'turnwise' else f'/packages/{distribution}'}[{extra}]"]
    from importlib.metadata import PackageNotFoundError  # slow to import

    try:
        return requirements(extra, distribution)
    except PackageNotFoundError:
        return [f"./{distribution.replace('-', '_')}-{VERSION}-py3-none-any.whl[{extra}]"]


def requirements(extra: str, distribution: str = "turnwise") -> list[str]:
    """What an extra of an installed distribution of ours requires on this machine."""
    import platform
    from importlib import metadata  # slow to import

    facts = {"extra": extra, "sys_platform": sys.platform, "platform_system": platform.system()}  # all that our conditions ask
    wanted: list[str] = []
    for line in metadata.requires(distribution) or ():
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        conditions = CONDITION.findall(marker)
        if "extra" not in marker or any((facts[name] == value) != (sign == "==") for name, sign, value in conditions):
            continue
        inner = re.fullmatch(rf"{distribution}\[(.*)\]", requirement)
        wanted += [each for name in sorted(inner[1].split(",")) for each in requirements(name, distribution)] if inner else [requirement]
    return wanted


def unknown_name(kind: str, name: str, known: Iterable[str]) -> TurnwiseError:
    """The error for an unknown name: it suggests the closest match and lists all names. A long list is left out if there is a match."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if near and len(names) > LONG_LIST:
        return TurnwiseError(f"unknown {kind} {name!r}.{hint}")
    return TurnwiseError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}")
