"""What an environment needs: a package, a program, data. And the private folders for packages whose pins clash with ours.

A package that pins another numpy, say, cannot be installed next to Turnwise. Its files alone do no harm: `turnwise envs --install NAME`
puts them, without their dependencies, into a private folder under the user's cache folder. That folder is appended to `sys.path` when its
environment is loaded, in this process or in a worker: last, so that it never hides a package of ours, and never for another environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnwise.util.errors import MissingExtra, TurnwiseError, install_command, pip_arguments
from turnwise.util.files import cache_folder


@dataclass(frozen=True)
class Install:
    """What pip can do about a need. `module` is what can be imported afterwards. With a name in `private`, the requirements go without
    their dependencies into the private folder of that name; list all that is really imported."""

    module: str
    requirements: tuple[str, ...]
    private: str = ""


@dataclass(frozen=True)
class Need:
    """A requirement of an environment. `present` is called only when the environments are listed or created; `install` says how pip
    can meet it, if it can."""

    what: str
    present: Callable[[], bool]
    remedy: str = ""
    install: Install | None = None

    def met(self) -> bool:
        try:
            return bool(self.present())
        except Exception:  # a failing probe is a result, and must not hide the other environments
            return False


def needs_package(module: str, extra: str, distribution: str = "turnwise") -> Need:
    """The requirement of an optional package, installed with an extra of Turnwise or of another distribution."""
    install = Install(module, tuple(pip_arguments(extra, distribution)))
    return Need(f"package {module}", lambda: find_spec(module) is not None, install_command(extra, distribution), install)


def needs_data(what: str, module: str, remedy: str) -> Need:
    """The requirement of data, which `find_data` in this module below `turnwise.envs` looks for."""
    return Need(what, lambda: import_module(f"turnwise.envs.{module}").find_data().is_dir(), remedy)


def needs_private(module: str, name: str, *requirements: str) -> Need:
    """The requirement of a package whose pins clash with ours. It is installed without dependencies into the private folder of the
    environment called `name`; the requirements list all that it really imports and we do not have. A usual installation of it counts."""
    install = Install(module, requirements, private=name)

    def present() -> bool:
        return find_spec(module) is not None or PathFinder.find_spec(module, [str(private_folder(name))]) is not None

    return Need(f"package {module}", present, f"turnwise envs --install {name}", install)


def private_folder(name: str) -> Path:
    """Where the private packages of an environment are, whether there are any or not: one folder per version of Python."""
    return cache_folder("packages") / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"


def use_private(names: Iterable[str]) -> None:
    """Make the private packages of these environments importable in this process, behind all others."""
    for name in names:
        folder = str(private_folder(name))
        if folder not in sys.path and Path(folder).is_dir():
            sys.path.append(folder)
            invalidate_caches()


def private_names(needs: Iterable[Need]) -> tuple[str, ...]:
    """The private folders that these needs name."""
    return tuple(dict.fromkeys(need.install.private for need in needs if need.install is not None and need.install.private))


def explain_missing(error: ModuleNotFoundError, name: str, needs: Iterable[Need]) -> TurnwiseError | None:
    """The one line for a package that could not be imported, if a need of the environment names it."""
    missing = (error.name or "").partition(".")[0]
    for need in needs:
        if need.install is not None and missing and need.install.module.partition(".")[0] == missing:
            return TurnwiseError(f"environment {name!r} needs the {need.what}. Install it with: {need.remedy}")
    return None


def load(package: str, feature: str, extra: str, distribution: str = "turnwise") -> Any:
    """The package, or the error that names the extra. A package that is there but fails to load keeps its own error."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or package.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(feature, extra, distribution) from None


def find_folder(what: str, has_data: Callable[[Path], bool], shared: str, cache: str, variable: str, expected: str) -> Path:
    """The first of the usual folders that has the data of an environment: `$TURNWISE_DATA/<shared>`, the folder that the environment's own
    variable names, `~/.cache/<cache>`."""
    named = os.environ.get(variable) if variable else None
    everything = os.environ.get("TURNWISE_DATA")
    places = [Path(everything).expanduser() / shared] if everything else []
    places += [Path(named).expanduser()] if named else []
    places.append(Path.home() / ".cache" / cache)
    for place in places:
        if has_data(place):
            return place
    raise TurnwiseError(f"{what} were not found (looked in {', '.join(map(str, places))}). {expected}")
