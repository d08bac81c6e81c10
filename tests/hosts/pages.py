"""The example of a host's page, for the host's test to run."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "trainers"


def example_of(page: str) -> str:
    """The only Python block of a page."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(code)
