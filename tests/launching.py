"""Runs in processes of their own, to be killed or stopped: copies of one process that has imported torch and has used it for nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_FRESH = multiprocessing.get_context("forkserver")
_FRESH.set_forkserver_preload(["turnwise.api", "transformers.models.llama.modeling_llama"])


def _train(settings: dict[str, Any], log: str) -> None:
    os.dup2(os.open(log, os.O_WRONLY), 1)
    os.dup2(1, 2)
    import torch

    import turnwise as tw

    torch.set_num_threads(1)
    try:
        tw.train(**settings)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Launched:
    """A training in a process of its own, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, settings: dict[str, Any]):
        handle, log = tempfile.mkstemp(prefix="launched-")
        os.close(handle)
        self._log = Path(log)
        self._process: ForkServerProcess = _FRESH.Process(target=_train, args=(settings, log), daemon=True)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end. What it wrote, on both streams, is the second text."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it did not end in {timeout} seconds"
        said = self._log.read_text()
        self._log.unlink()
        return "", said
