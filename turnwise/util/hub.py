"""Where a model lies: a folder here, or a name on a hub. Whether the hub answers is asked once and briefly; where it does not, what was
downloaded before is used, or one line says what to do, at once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from turnwise.util.errors import TurnwiseError

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
PATIENCE = 5.0  # seconds in which a hub that can be reached has answered


def place(path: str | Path) -> str:
    """What transformers should load: the folder itself, a hub's name where the hub answers, the downloaded copy where it does not."""
    folder = Path(path).expanduser()
    if folder.exists():
        return str(folder)
    if not HUB_NAME.fullmatch(str(path)):
        raise TurnwiseError(f"model {path}: there is no such folder here (looked in {Path.cwd()})")
    silence = why_silent()
    if silence is None:
        return str(path)
    copy = downloaded(str(path))
    if copy is None:
        raise TurnwiseError(
            f"model {path}: there is no such folder here, nothing of that name was downloaded before, and {silence}. "
            "Give the path of a model folder"
        )
    return copy


@cache
def why_silent() -> str | None:
    """Why the hub cannot be asked; none where it answers."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE says not to ask the hub"
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception as error:  # of whichever library sends the request
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return f"the hub {constants.ENDPOINT} cannot be reached ({reason})"
    return None


def downloaded(name: str) -> str | None:
    """The folder of a model that was downloaded before."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, local_files_only=True)
    except Exception:  # not there, or not whole
        return None
    return str(found) if (Path(found) / "config.json").is_file() else None
