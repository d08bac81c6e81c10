"""Sanitises untrusted text, so that it is safe to print."""

from __future__ import annotations

import re
import unicodedata
from threading import Event

SHOWN = Event()  # set once this process has shown anything: see `terminal.still_loading`
# Whole sequences: colours and cursor, then titles, links and clipboard (only if terminated: an open one would hide what follows it).
TERMINAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control, invisible and bidirectional characters, lone surrogates, private-use characters


def counted(number: int, word: str) -> str:
    """A number of things in words: 1 turn, 2 turns, 1,000 turns."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Text that is safe to print: no terminal sequences, and no control, invisible or bidirectional characters except newline and tab."""
    if text.isascii() and text.isprintable():
        return text
    text = TERMINAL_SEQUENCE.sub("", text)
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in UNSEEN)
