"""How long the tour's commands take, typed one after the other in an empty folder, as their pages have them. Prints JSON.

    python tests/docs/first_hour.py PATH/TO/VENV [102 103 …]      (default: the pages that need no GPU)

The commands run in that environment, with the extras that the pages name; this script needs the packages of the tests. Nothing else should
run meanwhile. Blocks that tests do not run (an installation, a server) are left out here, too.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from test_tour import TRIED, blocks


def main(venv: Path, wanted: list[str]) -> None:
    environment = os.environ | {"PATH": f"{venv.resolve() / 'bin'}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        for page in (page for page in TRIED if not wanted or page.stem[:3] in wanted):
            for block in blocks(page):
                if block.file:
                    (Path(folder) / block.file).write_text(block.text, encoding="utf-8")
                    continue
                for words in [] if block.skipped else block.commands():
                    start = time.monotonic()
                    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
                    seconds = round(time.monotonic() - start, 1)
                    last = (ended.stdout.strip() or ended.stderr.strip()).splitlines()[-1:]
                    row = {"page": page.stem, "command": shlex.join(words), "seconds": seconds, "status": ended.returncode, "last": last}
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
