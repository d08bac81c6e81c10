"""The official files: where to find them, and how to read gigabytes without loading them.

WebShop's product file is one JSON array, its attribute file one JSON object. `entries` iterates over either, one entry at a time, and
gives the offset of each entry in the file, so that it can be read again later. Only one block of the file is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.envs.needs import find_folder
from turnwise.util.errors import TurnwiseError

BLOCK = 1 << 20
LARGEST_ENTRY = 1 << 26  # an entry longer than this is a broken file, not a product
SMALL = 1000  # products of the small setting, which most papers use

EXPECTED = (
    "Expected a folder with items_shuffle_1000.json and items_ins_v2_1000.json (the 1,000-product setting), or items_shuffle.json and "
    "items_ins_v2.json (all 1.18 million products), as the script setup.sh of WebShop's repository (princeton-nlp/WebShop) downloads them "
    "into its data/ folder; for goals='human' also items_human_ins.json. Set WEBSHOP_DATA to the folder, or pass data=…"
)


@dataclass(frozen=True)
class Files:
    """The files of one setting."""

    products: Path
    attributes: Path
    human: Path | None


def find_data() -> Path:
    """The first of the usual folders that has WebShop's files."""
    names = (*_product_names(None), *_product_names(SMALL))
    return find_folder("WebShop's files", lambda place: _first(place, *names) is not None, "webshop", "webshop", "WEBSHOP_DATA", EXPECTED)


def _product_names(products: int | None) -> tuple[str, ...]:
    full = "items_shuffle.json"
    return (full,) if products is None or products > SMALL else ("items_shuffle_1000.json", full)


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def choose_files(folder: Path, products: int | None) -> Files:
    """The files for this many products (None: all): the small official pair if that is enough and present, otherwise the full one."""
    found = _first(folder, *_product_names(products))
    if found is None:
        wanted = " or ".join(_product_names(products))
        raise TurnwiseError(f"{folder}: there is no {wanted}. {EXPECTED}")
    small = found.name != "items_shuffle.json"
    names = ("items_ins_v2_1000.json", "items_ins_v2.json") if small else ("items_ins_v2.json",)
    attributes = _first(folder, *names)
    if attributes is None:
        raise TurnwiseError(f"{folder}: there is no {' or '.join(names)} beside {found.name}. {EXPECTED}")
    return Files(found, attributes, _first(folder, "items_human_ins.json", "items_human_ins_subset.json"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file: its key (None in an array), its value, and the byte offsets of the value."""

    key: str | None
    value: Any
    start: int
    length: int


def entries(path: Path) -> Iterator[Entry]:
    """The entries of a JSON array or object, one by one."""
    with path.open("rb") as file:
        yield from _Walk(path, file).entries()


def read_at(file: BinaryIO, start: int, length: int) -> Any:
    """The value at offsets that `entries` has given."""
    if hasattr(os, "pread"):  # no shared position: safe after a fork
        found = os.pread(file.fileno(), length, start)
    else:  # Windows, which does not fork
        file.seek(start)
        found = file.read(length)
    return json.loads(found.decode("utf-8"))


class _Walk:
    """A window that moves over the file; its first character is the file's byte number `place`. The text is read as Latin-1, in which a
    character is a byte and JSON's own signs are what they are in UTF-8; values are decoded when they are complete."""

    def __init__(self, path: Path, file: BinaryIO):
        self.path, self.file = path, file
        self.text, self.at, self.place = "", 0, 0
        self.decoder = json.JSONDecoder()

    def entries(self) -> Iterator[Entry]:
        opening = self._sign()
        if opening not in ("[", "{"):
            raise self._broken("a JSON array or object was expected")
        closing = "]" if opening == "[" else "}"
        self.at += 1
        if self._sign() == closing:
            return
        while True:
            key = self._key() if opening == "{" else None
            self._sign()
            begin = self.at
            yield Entry(key, self._value(), self.place + begin, self.at - begin)
            sign = self._sign()
            self.at += 1
            if sign == closing:
                return
            if sign != ",":
                raise self._broken(f"',' or '{closing}' was expected")
            if self.at > BLOCK // 2:  # drop what was read, from time to time
                self.text, self.at, self.place = self.text[self.at :], 0, self.place + self.at

    def _key(self) -> str:
        self._sign()
        key = self._value()
        if not isinstance(key, str) or self._sign() != ":":
            raise self._broken("a key and ':' were expected")
        self.at += 1
        return key

    def _sign(self) -> str:
        """The next character that is not white space; it is not consumed."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                raise self._broken("the file ends too early")

    def _value(self) -> Any:
        begin = self.at
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, begin)
                if end < len(self.text) or not self._more():  # a number at the window's end may continue
                    self.at = end
                    raw = self.text[begin:end]
                    return value if raw.isascii() else json.loads(raw.encode("latin-1").decode())
            except json.JSONDecodeError as error:
                if len(self.text) - begin > LARGEST_ENTRY or not self._more():
                    raise self._broken(error.msg) from None
            except UnicodeDecodeError as error:
                raise self._broken(f"not UTF-8: {error.reason}") from None

    def _more(self) -> bool:
        block = self.file.read(max(BLOCK, len(self.text) - self.at))  # doubling: a long entry is parsed again only a few times
        self.text += block.decode("latin-1")
        return bool(block)

    def _broken(self, what: str) -> TurnwiseError:
        return TurnwiseError(
            f"{self.path}, near byte {self.place + self.at}: {what}. Download the file again, or check that it is the official one"
        )
