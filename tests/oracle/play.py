"""Starting the oracle's process and playing games with it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("TURNWISE_ORACLE_PYTHON", ROOT / ".venv" / "oracle" / "bin" / "python"))


class Oracle:
    """TextWorld in a process of its own. Commands go as JSON, so any text (but a lone surrogate) can be asked."""

    def __init__(self) -> None:
        if not PYTHON.exists():
            raise SystemExit(f"{PYTHON} does not exist: `make test-oracle` makes it")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        serve = [str(PYTHON), str(Path(__file__).with_name("serve.py"))]
        self._process = subprocess.Popen(
            serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=environment
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the oracle ended with {self._process.wait()} on {request}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def load(self, path: Path) -> dict[str, Any]:
        return self.ask({"game": str(path)})

    def reset(self) -> dict[str, Any]:
        return self.ask({"reset": True})

    def step(self, command: str) -> dict[str, Any]:
        return self.ask({"command": command})

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=30)
