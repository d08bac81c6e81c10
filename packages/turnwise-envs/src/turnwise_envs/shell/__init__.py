"""A terminal in a sandbox."""

from __future__ import annotations

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.registry import Need, register


def _present() -> bool:
    from turnwise_envs.shell.start import present

    return present()


def _usable() -> bool:
    from turnwise_envs.shell.box import usable

    return usable()


register(
    "shell",
    "turnwise_envs.shell.env:ShellEnv",
    summary=ENVIRONMENTS["shell"],
    splits={"train": None, "valid": None, "test": None},
    max_turns=20,
    needs=[
        Need("bubblewrap", _present, "apt-get install bubblewrap, or your system's package of it"),
        Need("permission for user namespaces", _usable, "allow user namespaces, which bubblewrap needs: see docs/shell.md"),
    ],
)
