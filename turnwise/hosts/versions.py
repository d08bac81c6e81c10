"""Which version of another trainer a host was written for. Trainers move what hosts rely on, so another version is an error and not a
guess."""

from __future__ import annotations

from importlib import metadata

from turnwise.util.errors import TurnwiseError


def need_version(package: str, version: str, command: str = "") -> None:
    """Stop unless this release of the package is installed; `version` is its beginning, such as "1.16" for 1.16.0 and 1.16.2. `command`
    installs it, if it is on no package index."""
    command = command or f"pip install '{package}=={version}.*'"
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise TurnwiseError(f"turnwise.hosts.{package} needs {package} {version}, which is not installed: {command}") from None
    if not f"{installed}.".startswith(f"{version}."):
        raise TurnwiseError(f"turnwise.hosts.{package} was written for {package} {version}, and {installed} is installed: {command}")
