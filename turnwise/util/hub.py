"""Where a model or a data set is: a local folder, or a name on a hub. The hub is probed once, with a short timeout. If it does not respond,
the downloaded copy is used, or an error says what to do, without delay. Also the way back: a folder is pushed to a hub."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.util.errors import TurnwiseError
from turnwise.util.secret import redact

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
DATA = (".jsonl", ".parquet")  # the forms of data files that are read
ADAPTERS = "adapter_config.json"  # in a folder of LoRA adapters
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
        return f"the hub {constants.ENDPOINT} cannot be reached ({_in_a_line(error)})"
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


def base_of(path: str | Path) -> str:
    """The model that LoRA adapters are for, where a folder or a name on a hub has such; the path itself where it has a model."""
    where = Path(find_model(path))
    if (where / "config.json").is_file():
        return str(path)
    try:
        from huggingface_hub import hf_hub_download

        file = where / ADAPTERS if where.is_dir() else Path(hf_hub_download(str(path), ADAPTERS))
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except Exception:  # there are no adapters; whoever loads the model says what is wrong with it
        return str(path)
    if not base:
        raise TurnwiseError(f"model {path}: its {ADAPTERS} names no model that the adapters are for: set base_model_name_or_path there")
    return str(base)


def data_files(source: str, what: str = "data") -> list[Path]:
    """The files of a data set: of a file itself, a folder, or a name on a hub. What follows a colon is how their paths in it begin."""
    name, _, part = source.partition(":")
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if not REPOSITORY.fullmatch(name) or name.endswith(DATA):
            raise TurnwiseError(f"there is no file of {what} {source} (looked in {Path.cwd()})")
        folder = _downloaded_data(name, part)
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in DATA and file.relative_to(folder).as_posix().startswith(part)]
    if not files:
        raise TurnwiseError(f"{source}: no file of this data set ends in {' or '.join(DATA)}" + f" and begins with {part!r}" * bool(part))
    return files


@cache
def _downloaded_data(name: str, part: str) -> Path:
    from huggingface_hub import snapshot_download

    silence = why_silent()
    wanted = [f"{part}*{form}" for form in DATA]
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=wanted, local_files_only=silence is not None))
    except Exception as error:
        reason = silence or _in_a_line(error)
        raise TurnwiseError(f"data set {name}: there is no such folder here, and no downloaded copy, and {reason}") from None


def check_push(name: str) -> None:
    """Reports what would stop a push, before anything is made."""
    if not REPOSITORY.fullmatch(name):
        raise TurnwiseError(f"--push takes OWNER/NAME, not {name!r}")
    if (silence := why_silent()) is not None:
        raise TurnwiseError(f"nothing was pushed: {silence}")
    from huggingface_hub import get_token

    if get_token() is None:
        raise TurnwiseError("nothing was pushed: there is no token of the hub. Set HF_TOKEN, or log in once with: hf auth login")


def push_folder(folder: Path, name: str, public: bool) -> str:
    """Upload a folder as a model to a hub, into a new repository, private unless `public`, or one that is there. Returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        url = str(api.create_repo(name, private=not public, exist_ok=True))
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Model trained with Turnwise")
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        remedy = ". The token must be valid and may write there" if status in (401, 403) else ""
        raise TurnwiseError(f"{name} was not pushed: {_in_a_line(error)}{remedy}") from None
    except OSError as error:
        raise TurnwiseError(f"{name} was not pushed: {_in_a_line(error)}") from None
    return url


def _in_a_line(error: Any) -> str:
    return redact(" ".join(str(error).split())[:200]) or type(error).__name__
