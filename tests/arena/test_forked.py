"""Runs of an arena as copies of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os, sys, time
from pathlib import Path
from turnwise.arena import forked
from turnwise.arena.forked import Forked

forked.LOADED = ("torch", "no.such.module")
folder = Path(sys.argv[1])
variables = dict(os.environ, TURNWISE_TEST="told")
def ended(*words):
    log = folder / "log"
    log.unlink(missing_ok=True)
    copy = Forked(words, log, variables)
    while copy.poll() is None:
        time.sleep(0.02)
    return copy.returncode, log.read_text()

names, wrong = ended("recipes"), ended("train", "no-such-recipe")
killed = Forked(["play", "numberline", "--agent", "random", "-n", "1000000"], folder / "killed", variables)
killed.kill()
while killed.poll() is None:
    time.sleep(0.02)
print(json.dumps([names, wrong, killed.returncode, "TURNWISE_TEST" in os.environ, sorted(set(sys.modules) & {"torch"})]))
"""


def test_a_copy_has_the_output_and_the_exit_code_of_the_command_and_can_be_killed(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, env=os.environ, timeout=120)
    assert told.returncode == 0, told.stderr
    (code, names), (failed, message), killed, leaked, loaded = json.loads(told.stdout)
    assert code == 0 and "quickstart" in names and failed == 2 and "no-such-recipe" in message
    assert killed == -signal.SIGKILL and not leaked and loaded == ["torch"]
