"""A folder as a value: its files, folders and links, read through a directory handle.

Reading follows no symbolic link, at any level, and opens nothing but plain files: what a sandboxed command leaves behind (a link to
/etc, a named pipe, a folder that is swapped for a link while it is read) cannot lead out of the folder or block the reader. A name is
looked up once; everything else, a change of permissions too, is done through the handle that this gave.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b, sha1
from pathlib import Path
from typing import Any

from turnwise.util.errors import TurnwiseError

TIME = 1_700_000_000 * 10**9  # of everything that a task starts from, so that listings are the same everywhere
DEEPEST = 64  # levels of folders
OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # errors that no entry of a folder can cause


class TooLarge(TurnwiseError):
    """A folder holds more than what is read of it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file (`data`), a folder (neither) or a symbolic link (`link`), with its permission bits. The time of its last change, in
    nanoseconds, is no part of what makes two entries equal."""

    mode: int
    data: bytes | None = None
    link: str | None = None
    time: int = field(default=TIME, compare=False)

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


FOLDER = folder()  # one that a path implies


def with_folders(tree: Mapping[str, Entry]) -> dict[str, Entry]:
    """The tree with the folders that its paths imply, each before what is in it."""
    whole: dict[str, Entry] = {}
    for path in sorted(tree):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            whole.setdefault("/".join(parts[:depth]), tree.get("/".join(parts[:depth]), FOLDER))
        whole[path] = tree[path]
    return whole


def write_tree(root: int, tree: Mapping[str, Entry], owner: int | None = None) -> None:
    """Write a tree into the empty folder that `root` is a handle of, for the user `owner` if that is not this process's.

    Every entry is made anew in a folder that was made before it: no link is followed, and no path leads out of the folder."""
    with _acting_as(owner):
        open_folders = [("", root)]  # those on the way to the entry: as many handles as the tree is deep
        try:
            for path, entry in sorted(with_folders(tree).items(), key=lambda item: item[0].split("/")):
                parent, _, name = path.rpartition("/")
                while parent != open_folders[-1][0] and len(open_folders) > 1:
                    _finish(*open_folders.pop(), tree)
                if parent != open_folders[-1][0] or name in ("", ".", "..") or "\0" in name:
                    raise TurnwiseError(f"a tree cannot hold the path {path!r}: its folder is missing or is not a folder")
                if (handle := _write(open_folders[-1][1], name, entry)) is not None:
                    open_folders.append((path, handle))
            while len(open_folders) > 1:
                _finish(*open_folders.pop(), tree)
            os.utime(root, ns=(TIME, TIME))
        finally:
            for _, handle in open_folders[1:]:
                os.close(handle)


def _finish(path: str, handle: int, tree: Mapping[str, Entry]) -> None:
    """Give a folder its permissions and its time, after everything in it was written."""
    made = tree.get(path, FOLDER)
    try:
        os.fchmod(handle, made.mode)
        os.utime(handle, ns=(made.time, made.time))
    finally:
        os.close(handle)


def _write(parent: int, name: str, entry: Entry) -> int | None:
    """Make an entry; a folder's handle is returned."""
    if entry.link is not None:
        os.symlink(entry.link, name, dir_fd=parent)
        os.utime(name, ns=(entry.time, entry.time), dir_fd=parent, follow_symlinks=False)
    elif entry.data is None:
        os.mkdir(name, 0o700, dir_fd=parent)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    else:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        try:
            left = memoryview(entry.data)
            while left:
                left = left[os.write(handle, left) :]
            os.fchmod(handle, entry.mode)
            os.utime(handle, ns=(entry.time, entry.time))
        finally:
            os.close(handle)
    return None


@contextmanager
def _acting_as(owner: int | None) -> Iterator[None]:
    """What this thread does to files is done as that user: the administrator is unknown to the file systems of a sandbox."""
    if owner is None:
        yield
        return
    libc = ctypes.CDLL(None)
    group, user = libc.setfsgid(owner), libc.setfsuid(owner)
    try:
        yield
    finally:
        libc.setfsuid(user)
        libc.setfsgid(group)


def read_tree(root: int, largest: int = 8 << 20, most: int = 20_000) -> dict[str, Entry]:
    """Everything in the folder that `root` is a handle of. More than `largest` bytes or `most` entries raise `TooLarge`."""
    reader = _Reader(largest, most)
    reader.walk(root, "", 0)
    return reader.found


def read_exactly(root: int, largest: int) -> dict[str, Entry] | None:
    """The same, or None if a copy of it would not be the same: it holds too much, or what a tree does not hold (hard links, pipes)."""
    reader = _Reader(largest, 20_000)
    try:
        reader.walk(root, "", 0)
    except TooLarge:
        return None
    return None if reader.more or stat.S_IMODE(os.fstat(root).st_mode) != FOLDER.mode else reader.found


class _Reader:
    """Reads a folder, entry by entry, within bounds."""

    def __init__(self, largest: int, most: int, trusted: bool = False):
        self.found: dict[str, Entry] = {}
        self.trusted = trusted  # a folder of the user's: nothing of it is changed, and what cannot be read is an error
        self.largest, self.left, self.most = largest, largest, most
        self.more = False  # whether there is something that a tree does not hold

    def walk(self, folder: int, prefix: str, depth: int) -> None:
        if depth > DEEPEST:
            raise TooLarge(f"folders are nested deeper than {DEEPEST} levels")
        with self._allowed(folder, 0o500), os.scandir(folder) as listing:
            for name in sorted(os.fsencode(item.name) for item in self._bounded(listing)):
                try:
                    self._entry(name, folder, prefix + os.fsdecode(name), depth)
                except OSError as error:  # removed or changed in the meantime by a process of the sandbox
                    if self.trusted or error.errno in OURS:
                        raise

    def _bounded(self, listing: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for number, item in enumerate(listing):
            if number > self.most:
                raise TooLarge(f"the folder holds more than {self.most:,} entries")
            yield item

    def _entry(self, name: bytes, parent: int, path: str, depth: int) -> None:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
        try:
            status = os.fstat(handle)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                self._add(path, Entry(0o777, link=os.fsdecode(os.readlink("", dir_fd=handle)), time=status.st_mtime_ns))
            elif stat.S_ISREG(status.st_mode):
                self.more |= status.st_nlink > 1
                self._add(path, Entry(mode, self._content(handle), time=status.st_mtime_ns))
            elif stat.S_ISDIR(status.st_mode):
                self._add(path, Entry(mode, time=status.st_mtime_ns))
                with self._allowed(handle, 0o500), _reopened(handle) as folder:
                    self.walk(folder, path + "/", depth + 1)
            else:
                self.more = True
        finally:
            os.close(handle)

    def _add(self, path: str, entry: Entry) -> None:
        self.left -= len(entry.data or b"") + 64
        if self.left < 0 or len(self.found) >= self.most:
            raise TooLarge(f"the folder holds more than {self.largest:,} bytes or {self.most:,} entries")
        self.found[path] = entry

    def _content(self, handle: int) -> bytes:
        with self._allowed(handle, 0o400), _reopened(handle) as opened, os.fdopen(opened, "rb", closefd=False) as file:
            return file.read(max(self.left, 0) + 1)

    @contextmanager
    def _allowed(self, handle: int, bits: int) -> Iterator[None]:
        """Give the owner of a file or folder these permissions meanwhile. The path in /proc leads to what the handle is of, whatever has
        its name by now."""
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & bits == bits or self.trusted:
            yield
            return
        path = Path(f"/proc/self/fd/{handle}")
        path.chmod(mode | bits)
        try:
            yield
        finally:
            path.chmod(mode)


@contextmanager
def _reopened(handle: int) -> Iterator[int]:
    """A handle to read with, of the plain file or folder that this handle of a path is of."""
    opened = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield opened
    finally:
        os.close(opened)


INDEX = struct.Struct(">4sII")  # the head of git's index: its name, its version, how many entries it has


def plain(tree: Tree) -> dict[str, Entry]:
    """The tree without times, and without what git notes about them, which differs from one machine and moment to the next."""
    return {
        path: Entry(entry.mode, _plain_index(entry.data) if _is_index(path, entry) else entry.data, entry.link)
        for path, entry in tree.items()
    }


def _is_index(path: str, entry: Entry) -> bool:
    return path.rpartition("/")[2] == "index" and entry.data is not None and entry.data[:4] == b"DIRC"


def _plain_index(data: bytes | None) -> bytes:
    """Git's index with zeros for the times, the numbers and the size of each file: git then compares contents. Another format than that of
    versions 2 and 3 is left as it is."""
    made = bytearray(data or b"")
    try:
        _, version, count = INDEX.unpack_from(made)
        if version not in (2, 3):
            return bytes(made)
        at = INDEX.size
        for _ in range(count):
            flags = int.from_bytes(made[at + 60 : at + 62], "big")
            name = at + (64 if flags & 0x4000 else 62)
            made[at : at + 24], made[at + 28 : at + 40] = bytes(24), bytes(12)
            end = made.index(0, name + (flags & 0xFFF))
            at += (end - at) // 8 * 8 + 8
    except (struct.error, ValueError):
        return bytes(data or b"")
    return bytes(made[:-20]) + sha1(made[:-20], usedforsecurity=False).digest()


def digest(tree: Tree, *more: str) -> bytes:
    """16 bytes that are the same for equal trees (and texts) alone. What git notes about times does not count."""
    whole = blake2b(digest_size=16)
    for path, entry in sorted(plain(tree).items()):
        head = f"{path}\0{entry.mode:o}\0{entry.link!r}\0{entry.data is None}\0{len(entry.data or b'')}\0"
        whole.update(head.encode("utf-8", "surrogateescape") + (entry.data or b""))
    for text in more:
        whole.update(b"\1" + text.encode("utf-8", "surrogateescape"))
    return whole.digest()


def as_json(tree: Tree) -> dict[str, Any]:
    """The tree as JSON values."""
    return {
        path: {"mode": entry.mode}
        | ({} if entry.time == TIME else {"time": entry.time})
        | ({} if entry.data is None else {"data": b64encode(entry.data).decode("ascii")})
        | ({} if entry.link is None else {"link": entry.link})
        for path, entry in tree.items()
    }


def from_json(values: Mapping[str, Any]) -> dict[str, Entry]:
    """The tree that `as_json` wrote."""
    return {
        str(path): Entry(
            int(own["mode"]), b64decode(own["data"], validate=True) if "data" in own else None, own.get("link"), int(own.get("time", TIME))
        )
        for path, own in values.items()
    }


def read_folder(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """The tree of a folder on disk."""
    reader, handle = _Reader(8 << 20, 20_000, trusted=True), os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        reader.walk(handle, "", 0)
        return plain(reader.found)
    finally:
        os.close(handle)
