"""Programs in processes of their own, to be asked, killed or stopped: copies of one process that has imported torch and has used it for
nothing. A new process would import it, which takes longer than what most tests do in it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_FRESH = multiprocessing.get_context("forkserver")
_FRESH.set_forkserver_preload(["turnwise.api", "turnwise.setup.training", "turnwise.cli.app", "transformers.models.llama.modeling_llama"])


def _play(words: Sequence[str], streams: tuple[str, str], folder: str, environment: dict[str, str]) -> None:
    gc.freeze()  # as in conftest.py
    for number, name in enumerate(streams, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    sys.argv = list(words[1:]) if words[0] == "-m" else list(words)
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        del sys.argv[1]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


class Program:
    """`python words…` in such a copy, with the part of `subprocess.Popen` that the tests and a sweep use."""

    def __init__(self, words: Sequence[str], streams: tuple[str, str], folder: Path | None = None, env: Mapping[str, str] | None = None):
        given = (list(words), streams, str(folder or Path.cwd()), dict(os.environ if env is None else env))
        self._process: ForkServerProcess = _FRESH.Process(target=_play, args=given, daemon=True)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it did not end in {timeout} seconds"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


class Launched(Program):
    """A training with these settings. What it writes, on both streams, is kept for the end."""

    def __init__(self, settings: dict[str, Any]):
        handle, log = tempfile.mkstemp(prefix="launched-")
        os.close(handle)
        self._log = Path(log)
        super().__init__(["-c", f"import turnwise as tw\ntw.train(**{settings!r})"], (log, log))

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end. What it wrote is the second text."""
        self.wait(timeout)
        said = self._log.read_text()
        self._log.unlink()
        return "", said


def python(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What `python words…` writes, and its exit code."""
    with tempfile.TemporaryDirectory(prefix="launched-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch(), err.touch()
        code = Program(words, (str(out), str(err)), cwd, env).wait(300)
        return subprocess.CompletedProcess(list(words), code, out.read_text(), err.read_text())
