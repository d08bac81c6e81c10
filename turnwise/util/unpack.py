"""Reads compressed files from untrusted sources: a few megabytes may expand to terabytes of zeros.

The unpacked size is bounded relative to the file size: texts and columns of runs compress to a tenth or a fiftieth, so 200 times (at least
512 MB) leaves room. `TURNWISE_UNPACK_MB` raises the bound for your own files that are more repetitive than that.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from turnwise.util.errors import MissingExtra, TurnwiseError

PACKED: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
TIMES, AT_LEAST = 200, 512 * 2**20
LONGEST_LINE = 256 * 2**20


def limit_of(path: Path) -> int:
    """The maximum unpacked size of a file in bytes."""
    own = os.environ.get("TURNWISE_UNPACK_MB", "")
    return max(int(own) * 2**20 if own.isdecimal() else AT_LEAST, TIMES * path.stat().st_size)


def too_much(path: Path, limit: int) -> TurnwiseError:
    """The error for a file that unpacks to more than its bound."""
    return TurnwiseError(
        f"{path}: {path.stat().st_size:,} bytes unpack to more than {limit:,}. If the file is yours, allow more with TURNWISE_UNPACK_MB"
    )


class _Bounded(io.RawIOBase):
    """A stream that raises an error if more data arrives than is allowed."""

    def __init__(self, inner: Any, path: Path):
        self._inner, self._path, self._limit, self._count = inner, path, limit_of(path), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read1(len(buffer))  # what is there, although the file may be damaged after it
        self._count += len(data)
        if self._count > self._limit:
            raise too_much(self._path, self._limit)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def open_packed(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked by its suffix (.gz, .xz, .bz2; any other unchanged), within its bound."""
    if path.suffix not in PACKED:
        return path.open("rb")
    return io.BufferedReader(_Bounded(PACKED[path.suffix](path, "rb"), path), 2**20)


def packed_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, compressed or not, each of bounded length."""
    with open_packed(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise TurnwiseError(f"{path}: a line of more than {LONGEST_LINE:,} bytes")
            yield line


def json_lines(path: Path) -> Iterator[Any]:
    """The values of a file with one JSON value per line, compressed or not; empty lines are left out."""
    for number, line in enumerate(packed_lines(path), start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            raise TurnwiseError(f"{path}, line {number}: not JSON") from None
        except UnicodeDecodeError as error:
            raise TurnwiseError(f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start})") from None
        except RecursionError:
            raise TurnwiseError(f"{path}, line {number}: JSON that is nested too deeply") from None


@contextmanager
def open_archive(path: Path, only: str | None = None) -> Iterator[Any]:
    """A numpy archive (without pickles), after checking that its arrays have the declared size and are within the bound. `only`: the array
    that will be read, if it is one of many."""
    with zipfile.ZipFile(path) as members:
        if sum(member.file_size for member in members.infolist()) > limit_of(path):
            raise too_much(path, limit_of(path))
        for member in members.infolist():
            if only is not None and member.filename != f"{only}.npy":
                continue
            with members.open(member) as file:
                if _claimed(file) > member.file_size:
                    raise TurnwiseError(f"{path}: damaged: {member.filename} claims to be larger than it is")
    with np.load(path, allow_pickle=False) as archive:
        yield archive


def _claimed(file: Any) -> int:
    """The size of an array in bytes, according to its header."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    count = 1
    for length in shape:
        count *= int(length)
    return count * dtype.itemsize


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file. One whose tables are far larger than the file is an error."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("a Parquet file", "parquet") from None
    try:
        _check_parquet(path, parquet.read_metadata(path))
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise TurnwiseError(f"{path}: damaged, or not a Parquet file ({error})") from None
    return rows


def _check_parquet(path: Path, metadata: Any) -> None:
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if size > limit_of(path) or metadata.num_rows > max(10**6, path.stat().st_size):
        raise too_much(path, limit_of(path))
