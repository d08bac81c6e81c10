"""A stand-in for a policy that attacks its sandbox: whatever the model says, one of these commands is run."""

from __future__ import annotations

from typing import Any

from turnwise.envs.base import Transition
from turnwise_envs.shell.env import ShellEnv

COMMANDS = (
    ":(){ :|:& };: ; sleep 30",
    "head -c 1G /dev/zero | tr '\\0' x",
    "head -c 1G /dev/zero > big; head -c 1G /dev/zero > /tmp/big; ls -l big",
    "sleep 100",
    "cat < /dev/tcp/127.0.0.1/80; cat ~root/.profile /root/.bashrc /etc/shadow",
    "rm -rf --no-preserve-root / /work /usr 2>/dev/null; kill -9 -1; exit",
)


class HostileShell(ShellEnv):
    """The shell environment under attack: the commands in turn, over all attempts of this process."""

    played = 0

    def __init__(self, **options: Any):
        super().__init__(families="rename", levels=1, seconds=0.05, memory_mb=256, disk_mb=4, breaks=2, **options)

    def step(self, action: str) -> Transition:
        command = COMMANDS[HostileShell.played % len(COMMANDS)]
        HostileShell.played += 1
        return super().step(command)
