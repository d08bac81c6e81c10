"""Whether a run folder is the user's own. A recipe that names code is code, and a run folder contains its recipe.

Whoever trains a run trusts what its recipe names. So `Run.create` leaves a mark outside the folder, under `$TURNWISE_STATE` (default
`~/.local/state/turnwise`): the folder's path, a random token that is also in the folder, and the code that the recipe named, with full
paths. A folder whose path, token and code agree with a mark is the user's own, and there is no question. Any other folder (downloaded,
moved, unpacked over another one, with another recipe, or opened where the same names mean other files) is from elsewhere: the code that
it names is imported only after confirmation, or with `--trust`. A recipe that names no code needs no mark.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from turnwise.config.objects import FOLDER, keep_objects
from turnwise.config.references import code_in, located
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import inside, write_text_atomically
from turnwise.util.printable import printable

TOKEN = ".origin"
Question = Callable[[Path, Sequence[str]], bool]


class Untrusted(TurnwiseError):
    """A run folder from elsewhere names code that is not trusted."""


def refuse(folder: Path, code: Sequence[str]) -> bool:
    """The answer in a script, which cannot ask the user."""
    return False


def accept(folder: Path, code: Sequence[str]) -> bool:
    """The answer with `--trust`."""
    return True


_ask: Question = refuse
_granted: set[tuple[Path, str]] = set()


def ask_with(question: Question) -> None:
    """Set how the question is answered from now on; the command line asks the user."""
    global _ask
    _ask = question
    _granted.clear()


def remember(folder: Path, values: Any) -> None:
    """Mark a run folder as this user's own. If the mark cannot be written, the user is asked about the folder later, and training
    continues."""
    code = sorted(map(located, code_in(values)))
    if not code:
        return
    token = secrets.token_hex(16)
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        write_text_atomically(folder / TOKEN, token + "\n")
        record = {"folder": str(folder.resolve()), "token": token, "code": code}
        write_text_atomically(_mark(folder), json.dumps(record, indent=1) + "\n")


def forget(folder: Path) -> None:
    """Remove the mark of a folder that is removed."""
    with contextlib.suppress(OSError, RuntimeError):
        _mark(folder).unlink(missing_ok=True)


def unknown_code(folder: Path, values: Any, vouched: Sequence[str] = ()) -> list[str]:
    """The code that a run folder's recipe names and that is not trusted; `vouched` is what the user has typed."""
    found = [text for text in code_in(values) if text not in set(vouched)]
    known = _known(folder) if found else set()
    return [text for text in found if located(text) not in known and not _missing(text)]


def _missing(text: str) -> bool:
    """A missing file cannot be imported either: the attempt to import it gives a clearer error."""
    place = located(text).rpartition(":")[0] if not text.endswith(".py") else located(text)
    return place.endswith(".py") and not Path(place).exists()


def require(folder: Path, values: Any, vouched: Sequence[str] = (), trust: bool = False) -> None:
    """Raises an error unless all code that the folder's recipe names is the user's own, or is trusted."""
    place = folder.resolve()
    code = [text for text in unknown_code(folder, values, vouched) if (place, text) not in _granted]
    if not code:
        return
    if trust or _ask(folder, code):
        _granted.update((place, text) for text in code)
        return
    named = ", ".join(printable(text)[:200] for text in code[:5]) + (" …" if len(code) > 5 else "")
    raise Untrusted(
        f"{folder} was not made here by you (or was moved or changed since), and its recipe names code that would be run: {named}. "
        "Read it; if you trust whoever wrote it, say so with --trust (in Python: trust=True)"
    )


def _mark(folder: Path) -> Path:
    base = os.environ.get("TURNWISE_STATE") or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "turnwise"
    return (
        Path(base).expanduser()
        / "runs"
        / f"{blake2b(str(folder.resolve()).encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}.json"
    )


def _known(folder: Path) -> set[str]:
    """The code of the user's own run in this folder; empty for any other folder."""
    try:
        token = (folder / TOKEN).read_text(encoding="ascii").strip()
        record = json.loads(_mark(folder).read_text(encoding="utf-8"))
        same = hmac.compare_digest(str(record["token"]), token) and record["folder"] == str(folder.resolve())
        return set(map(str, record["code"])) if same else set()
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return set()


# -- the code that a run has used ---------------------------------------------------------------------------------------------------

FILES = "files.json"  # in `objects/`: the full path and the hash of every file that the recipe names


def keep_code(folder: Path, values: Any, say: Callable[[str], None] = lambda text: None, write: bool = True) -> None:
    """Record the objects and the files that a recipe's values name, and warn about those that have changed since they were recorded."""
    keep_objects(folder, values, say, write)
    now = {text: found for text in code_in(values) if (found := _described(text)) is not None}
    path = inside(folder, folder / FOLDER / FILES)
    before = _recorded(path)
    for text, found in now.items():
        known = before.get(text)
        if isinstance(known, dict) and known.get("sha256") != found["sha256"]:
            say(f"warning: {found['path']} has changed since the run began; the new version is used")
    if write and any(text not in before for text in now):
        path.parent.mkdir(exist_ok=True)
        write_text_atomically(path, json.dumps(now | before, indent=1, sort_keys=True) + "\n")


def _described(text: str) -> dict[str, str] | None:
    place = located(text) if text.endswith(".py") else located(text).rpartition(":")[0]
    try:
        return {"path": place, "sha256": sha256(Path(place).read_bytes()).hexdigest()} if place.endswith(".py") else None
    except OSError:  # reported where it is needed
        return None


def _recorded(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
