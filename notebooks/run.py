"""Run every notebook from its first cell to its last, in an empty folder: `make notebooks`. An error in a cell is the exit code 1."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LIMIT = 900  # seconds for one cell


def main() -> int:
    failed = []
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                NotebookClient(nbformat.read(path, 4), timeout=LIMIT, resources={"metadata": {"path": folder}}).execute()
            except CellExecutionError as error:
                failed.append(path.name)
                print(error)
        print(f"{path.name}: {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
