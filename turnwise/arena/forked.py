"""Runs as copies of one process that has imported what training needs: to import it takes as long as a short run on a CPU.

A copy has the command, output, variables and session that a new process would have. Runs on a GPU, and systems that cannot copy a
process, get new ones.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

LOADED = (
    "turnwise.api",
    "turnwise.train",
    "turnwise.cli.app",
    "turnwise.setup.training",
    "turnwise.setup.evaluated",
    "turnwise.setup.resume",
    "turnwise.planner",
    "turnwise.engines.transformers",
    "turnwise.engines.vllm.engine",
    "turnwise.report.closing",
    "transformers.models.qwen2.modeling_qwen2",
    "matplotlib.pyplot",
)


class Forked:
    """`turnwise WORDS…` in a copy of this process, with the part of `subprocess.Popen` that a sweep uses."""

    def __init__(self, words: Sequence[str], log: Path, variables: dict[str, str]):
        for name in LOADED:
            with suppress(ImportError):  # what is missing, the run says itself
                import_module(name)
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(words, log, variables)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become(words: Sequence[str], log: Path, variables: dict[str, str]) -> None:
    """What the copy does; it does not return."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for old, new in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(old, new)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["turnwise", *words]
        runpy.run_module("turnwise", run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
