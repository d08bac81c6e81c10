"""Where a model is: a local folder, or a name on a hub. The hub is probed once, with a short timeout. If it does not respond, the
downloaded copy is used, or an error says what to do, without delay."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from turnwise.util.errors import TurnwiseError

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
PATIENCE = 5.0  # timeout in seconds; a reachable hub responds faster


def find_model(path: str | Path) -> str:
    """What transformers should load: the folder itself, the hub name if the hub responds, otherwise the downloaded copy."""
    if (folder := folder_of(path)) is not None:
        return folder
    silence = why_silent()
    if silence is None:
        return str(path)
    copy = downloaded(str(path))
    if copy is None:
        raise TurnwiseError(f"model {path}: no such folder, no downloaded copy, and {silence}. Give the path of a model folder")
    return copy


@cache
def why_silent() -> str | None:
    """Why the hub cannot be used; none if it responds."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids using the hub"
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception as error:  # of whichever library sends the request
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return f"the hub {constants.ENDPOINT} cannot be reached ({reason})"
    return None


def at_hand(path: str | Path) -> str | None:
    """The folder of a model that is here: its own, or the downloaded copy. The hub is not asked."""
    folder = Path(path).expanduser()
    return str(folder) if folder.exists() else downloaded(str(path))


def folder_of(path: str | Path) -> str | None:
    """The folder that a path is; None if there is none, and it may be a name on a hub. An error if it cannot be one."""
    folder = Path(path).expanduser()
    if folder.exists():
        return str(folder)
    if not HUB_NAME.fullmatch(str(path)):
        raise TurnwiseError(f"model {path}: no such folder (looked in {Path.cwd()}). Give the path of a model folder")
    return None


def downloaded(name: str) -> str | None:
    """The folder of a downloaded model."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, local_files_only=True)
    except Exception:  # missing or incomplete
        return None
    return str(found) if (Path(found) / "config.json").is_file() else None
