"""Whose run folder is it? A recipe that names code is code, and a run folder carries its recipe along.

Who trains a run vouches for what its recipe names. So `Run.create` leaves a mark outside the folder, under `$TURNWISE_STATE` (default
`~/.local/state/turnwise`): the folder's path, a random token that also lies in the folder, and which code the recipe named, with whole
paths. A folder whose path, token and code agree with a mark is the user's own, and nothing is asked. Any other folder (downloaded, moved,
unpacked over another one, with another recipe or opened where the same words mean other files) is from elsewhere: what it names is only
imported after a yes, or with `--trust`. A recipe that names no code needs no mark.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from turnwise.config.references import code_in, located
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically
from turnwise.util.printable import printable

TOKEN = ".origin"
Question = Callable[[Path, Sequence[str]], bool]


class Untrusted(TurnwiseError):
    """A run folder from elsewhere names code that nobody has vouched for."""


def nobody(folder: Path, code: Sequence[str]) -> bool:
    """Whom a script asks: there is nobody."""
    return False


def somebody(folder: Path, code: Sequence[str]) -> bool:
    """Who has said `--trust`."""
    return True


_ask: Question = nobody
_granted: set[tuple[Path, str]] = set()


def ask_with(question: Question) -> None:
    """Who is asked from here on; the command line asks the person."""
    global _ask
    _ask = question
    _granted.clear()


def state_folder() -> Path:
    """Where the marks lie."""
    base = os.environ.get("TURNWISE_STATE") or Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "turnwise"
    return Path(base).expanduser() / "runs"


def remember(folder: Path, values: Any) -> None:
    """Mark a run folder as this user's own. Without a place to write the mark the folder is asked about later, and training goes on."""
    code = sorted(map(located, code_in(values)))
    if not code:
        return
    token = secrets.token_hex(16)
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        write_text_atomically(folder / TOKEN, token + "\n")
        record = {"folder": str(folder.resolve()), "token": token, "code": code}
        write_text_atomically(_mark(folder), json.dumps(record, indent=1) + "\n")


def forget(folder: Path) -> None:
    """Remove the mark of a folder that is removed."""
    with contextlib.suppress(OSError, RuntimeError):
        _mark(folder).unlink(missing_ok=True)


def unknown_code(folder: Path, values: Any, vouched: Sequence[str] = ()) -> list[str]:
    """The code that a run folder's recipe names and nobody vouched for; `vouched` is what the user has typed."""
    found = [text for text in code_in(values) if text not in set(vouched)]
    known = _known(folder) if found else set()
    return [text for text in found if located(text) not in known and not _missing(text)]


def _missing(text: str) -> bool:
    """A file that is not here cannot be imported either: whoever tries says so more clearly."""
    place = located(text).rpartition(":")[0] if not text.endswith(".py") else located(text)
    return place.endswith(".py") and not Path(place).exists()


def require(folder: Path, values: Any, vouched: Sequence[str] = (), trust: bool = False) -> None:
    """An error unless all code that the folder's recipe names is the user's own, or somebody trusts it."""
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
    return state_folder() / f"{blake2b(str(folder.resolve()).encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}.json"


def _known(folder: Path) -> set[str]:
    """The code of this user's own run in this folder; nothing for any other folder."""
    try:
        token = (folder / TOKEN).read_text(encoding="ascii").strip()
        record = json.loads(_mark(folder).read_text(encoding="utf-8"))
        same = hmac.compare_digest(str(record["token"]), token) and record["folder"] == str(folder.resolve())
        return set(map(str, record["code"])) if same else set()
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return set()
