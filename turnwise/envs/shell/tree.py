"""A folder as a value: its files, folders and links, read through a directory handle.

Reading follows no symbolic link, at any level, and opens nothing but plain files: what a sandboxed command leaves behind (a link to
/etc, a named pipe, a folder that is swapped for a link while it is read) cannot lead out of the folder or block the reader.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from turnwise.util.errors import TurnwiseError

MTIME = 1_700_000_000  # of everything that is written, so that listings are the same everywhere
DEEPEST = 64  # levels of folders


class TooLarge(TurnwiseError):
    """A folder holds more than what is read of it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file (`data`), a folder (neither) or a symbolic link (`link`), with its permission bits."""

    mode: int
    data: bytes | None = None
    link: str | None = None

    @property
    def text(self) -> str:
        """A file's content as text; empty for folders and links."""
        return "" if self.data is None else self.data.decode("utf-8", "replace")

    @property
    def is_file(self) -> bool:
        return self.data is not None

    @property
    def is_folder(self) -> bool:
        return self.data is None and self.link is None


Tree = Mapping[str, Entry]  # path relative to the folder → entry


def file(text: str | bytes, mode: int = 0o644) -> Entry:
    """A file."""
    return Entry(mode, text.encode() if isinstance(text, str) else text)


def folder(mode: int = 0o755) -> Entry:
    """A folder."""
    return Entry(mode)


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry(0o777, link=target)


def with_folders(tree: Mapping[str, Entry]) -> dict[str, Entry]:
    """The tree with the folders that its paths imply, each before what is in it."""
    whole: dict[str, Entry] = {}
    for path in sorted(tree):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            whole.setdefault("/".join(parts[:depth]), tree.get("/".join(parts[:depth]), folder()))
        whole[path] = tree[path]
    return whole


def packed(tree: Mapping[str, Entry]) -> bytes:
    """The tree as a tar archive: how it travels into a sandbox."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        for path, entry in with_folders(tree).items():
            member = tarfile.TarInfo(path)
            member.mode, member.mtime = entry.mode, MTIME
            if entry.link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
            elif entry.data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(entry.data)
            archive.addfile(member, io.BytesIO(entry.data or b""))
    return out.getvalue()


def read_tree(root: int, largest: int = 8 << 20, most: int = 20_000) -> dict[str, Entry]:
    """Everything in the folder that `root` is a handle of. More than `largest` bytes or `most` entries raise `TooLarge`."""
    reader = _Reader(largest, most)
    reader.walk(root, "", 0)
    return reader.found


class _Reader:
    """Reads a folder, entry by entry, within bounds."""

    def __init__(self, largest: int, most: int):
        self.found: dict[str, Entry] = {}
        self.largest, self.left, self.most = largest, largest, most

    def walk(self, parent: int, prefix: str, depth: int) -> None:
        if depth > DEEPEST:
            raise TooLarge(f"folders are nested deeper than {DEEPEST} levels")
        with os.scandir(parent) as listing:
            names = sorted(os.fsencode(item.name) for item in listing)
        for name in names:
            try:
                self._entry(name, parent, prefix + os.fsdecode(name), depth)
            except FileNotFoundError:  # removed in the meantime by a process of the sandbox
                continue

    def _entry(self, name: bytes, parent: int, path: str, depth: int) -> None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            self._add(path, Entry(0o777, link=os.fsdecode(os.readlink(name, dir_fd=parent))))
        elif stat.S_ISREG(status.st_mode):
            self._add(path, Entry(mode, self._content(name, parent, mode)))
        elif stat.S_ISDIR(status.st_mode):
            self._add(path, Entry(mode))
            handle = _opened(name, parent, os.O_DIRECTORY, mode)
            try:
                self.walk(handle, path + "/", depth + 1)
            finally:
                os.close(handle)

    def _add(self, path: str, entry: Entry) -> None:
        self.left -= len(entry.data or b"") + 64
        if self.left < 0 or len(self.found) >= self.most:
            raise TooLarge(f"the folder holds more than {self.largest:,} bytes or {self.most:,} entries")
        self.found[path] = entry

    def _content(self, name: bytes, parent: int, mode: int) -> bytes:
        handle = _opened(name, parent, 0, mode)
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return b""
            return opened.read(max(self.left, 0) + 1)


def _opened(name: bytes, parent: int, flags: int, mode: int) -> int:
    """A handle; an entry that forbids its owner to read it is opened by allowing that for a moment."""
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        os.chmod(name, mode | 0o700, dir_fd=parent)
        try:
            return os.open(name, flags, dir_fd=parent)
        finally:
            os.chmod(name, mode, dir_fd=parent)


def digest(tree: Tree, *more: str) -> bytes:
    """16 bytes that are the same for equal trees (and texts) alone."""
    whole = blake2b(digest_size=16)
    for path, entry in sorted(tree.items()):
        head = f"{path}\0{entry.mode:o}\0{entry.link!r}\0{entry.data is None}\0{len(entry.data or b'')}\0"
        whole.update(head.encode("utf-8", "surrogateescape") + (entry.data or b""))
    for text in more:
        whole.update(b"\1" + text.encode("utf-8", "surrogateescape"))
    return whole.digest()


def as_json(tree: Tree) -> dict[str, Any]:
    """The tree as JSON values."""
    return {
        path: {"mode": entry.mode}
        | ({} if entry.data is None else {"data": b64encode(entry.data).decode("ascii")})
        | ({} if entry.link is None else {"link": entry.link})
        for path, entry in tree.items()
    }


def from_json(values: Mapping[str, Any]) -> dict[str, Entry]:
    """The tree that `as_json` wrote."""
    return {
        str(path): Entry(int(own["mode"]), b64decode(own["data"], validate=True) if "data" in own else None, own.get("link"))
        for path, own in values.items()
    }


def read_folder(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """The tree of a folder on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return read_tree(handle)
    finally:
        os.close(handle)
