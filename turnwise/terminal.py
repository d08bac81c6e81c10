"""What models and environments write, as a terminal may show it: as text, which never acts."""

from __future__ import annotations

import re
import unicodedata

TERMINAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]")


def plain(text: str) -> str:
    """Text that is safe to show: no terminal sequences, control, invisible or direction-changing characters but newline and tab."""
    text = TERMINAL_SEQUENCE.sub("", text)
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co"))
