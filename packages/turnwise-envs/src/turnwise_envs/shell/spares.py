"""Sandboxes that were started ahead, shared by all shell environments of this process.

    shell_box = take(limits, kind)        # one that is up already, if there is one; another one starts in its place

Each is handed out once. They are for one process and one thread, which ends them when it ends: a fork of the process has none. When the
last environment that asked for such a sandbox is closed or forgotten, those that wait are ended.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from turnwise_envs.shell.box import Box
from turnwise_envs.shell.start import Kind, Limits

AHEAD = {"bubblewrap": 3, "gvisor": 1}  # how many wait: one of gVisor takes about 100 MB; of those for a check, one
Key = tuple[Limits, Kind, bool, int]

_waiting: dict[Key, list[Box]] = {}
_users: dict[Key, set[int]] = {}
_lock = threading.RLock()


def _forked() -> None:
    """Sandboxes belong to the process that started them."""
    global _lock
    _lock = threading.RLock()
    _waiting.clear()
    _users.clear()


os.register_at_fork(after_in_child=_forked)


def take(limits: Limits, kind: Kind, user: Any, check: bool = False) -> Box:
    """A sandbox for `user`, which is forgotten by `leave`, or when nothing refers to it any more; or one for a check."""
    key = (limits, kind, check, threading.get_ident())
    with _lock:
        users = _users.setdefault(key, set())
        if id(user) not in users:
            users.add(id(user))
            weakref.finalize(user, _left, key, id(user))
        boxes = _waiting.setdefault(key, [])
        found = None
        while boxes and found is None:
            first = boxes.pop(0)
            if first.alive():
                found = first
            else:
                first.close()
        found = found or Box(limits, kind, check)
        try:
            while len(boxes) < (1 if check else AHEAD[kind]):
                boxes.append(Box(limits, kind, check))
        except OSError:  # no room for more processes or handles: this one is there
            pass
        return found


def leave(user: Any) -> None:
    """An environment needs no more of them."""
    with _lock:
        for key in [key for key, users in _users.items() if id(user) in users]:
            _left(key, id(user))


def _left(key: Key, user: int) -> None:
    with _lock:
        users = _users.get(key)
        if users is None:
            return
        users.discard(user)
        if not users:
            del _users[key]
            for box in _waiting.pop(key, []):
                box.close()
