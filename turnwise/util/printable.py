"""Text that somebody else wrote, made safe to show: it is read and never acts."""

from __future__ import annotations

import re
import unicodedata

# Whole sequences: colours and cursor, then titles, links and clipboard (only where they end: an open one would hide what follows it).
TERMINAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])|\x9b[0-?]*[ -/]*[@-~]")
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # control, invisible and direction-changing characters, halves of pairs, private ones


def plain(text: str) -> str:
    """Text that is safe to show: no terminal sequences, control, invisible or direction-changing characters but newline and tab."""
    if text.isascii() and text.isprintable():
        return text
    text = TERMINAL_SEQUENCE.sub("", text)
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in UNSEEN)
