"""A shell in a sandbox, with limits on memory, time, processes, files and output.

    shell = Shell(tree, Limits())
    done = shell.run("ls -l")          # Done(output, code, cwd, ended="")
    tree = shell.tree()                # the working folder as it is now
    shell.close()

One bash lives as long as the shell, so `cd`, variables and functions last. A command that breaks a limit ends the whole sandbox: all of its
processes are killed, and `ended` says why. Between two commands all processes are stopped: those in the background go on with the next
command, and nothing changes the files while they are read. Without bubblewrap nothing is run at all.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from turnwise_envs.shell.box import LOOK, Box, readable
from turnwise_envs.shell.start import START, Kind, Limits
from turnwise_envs.shell.tree import Entry, read_exactly, read_tree

PATH_MAX = 4096
LINE_NUMBER = re.compile(r"^bash: (?:eval: )?line \d+: ", re.MULTILINE)  # counts the commands since the start, which says nothing

ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])")  # colours

KNOWN = (
    "builtin declare -p; builtin declare -f; builtin set +o; builtin shopt -p; builtin trap -p; builtin alias -p; builtin umask; "
    'builtin ulimit -Sa; builtin ulimit -Ha; builtin echo "$!" "$-" /proc/$$/fd/*; [ . -ef "$PWD" ] && builtin echo "before $OLDPWD."'
)
CHANGING = re.compile(  # variables that change without anybody's doing
    r"^declare -\S+ (?:_|BASHPID|BASH_\w+|EPOCH\w+|FUNCNAME|GROUPS|HISTCMD|LINENO|OLDPWD|PIPESTATUS|PPID|PWD|S?RANDOM|SECONDS)(?:=.*)?$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Done:
    """The outcome of a command: its output (cut to what is shown), exit code and the folder that the shell is in now. `ended` is empty,
    or says why the sandbox had to be ended."""

    output: str
    code: int
    cwd: str
    ended: str = ""


class Shell:
    """A bash in a sandbox of its own, in /work, which holds `tree`. `box` is a sandbox that was started ahead."""

    def __init__(
        self,
        tree: Mapping[str, Entry],
        limits: Limits | None = None,
        cwd: str = "/work",
        sandbox: Kind = "bubblewrap",
        box: Box | None = None,
    ):
        self.limits = limits or Limits()
        self.cwd, self.ended = cwd, ""
        self._box = box or Box(self.limits, sandbox)
        try:
            self._box.fill(tree)
            if cwd != "/work":
                self.run(f"cd -- {_quoted(cwd)} 2>/dev/null || cd /work", START)
        except BaseException:
            self.close()
            raise

    def run(self, command: str, seconds: float | None = None, shown: int | None = None) -> Done:
        """Run a command and wait for its end, or for a limit; `seconds` and `shown` take the place of these limits."""
        if self.ended:
            return Done("", 137, self.cwd, self.ended)
        mark = secrets.token_hex(16)
        line = f'eval {_quoted(command)} </dev/null 2>&1; printf "\\n%s %d %s\\n" {mark} "$?" "$PWD"\n'
        seconds = seconds or self.limits.seconds
        self._box.go_on()
        try:
            if not _written(self._box.stdin.fileno(), line.encode("utf-8", "surrogatepass"), seconds):
                return self._end("the shell does not read its commands", b"")
        except OSError:
            return self._end("the shell is gone", b"")
        return self._read(mark.encode(), seconds, shown or self.limits.shown)

    def _read(self, mark: bytes, seconds: float, shown: int) -> Done:
        """Output until the line with the mark."""
        limits, now = self.limits, time.monotonic()
        deadline, look = now + seconds, now + LOOK
        stream, last = self._box.stdout, re.compile(rb"\n" + mark + rb" (\d{1,3}) ([^\n]*)\n")
        output = bytearray()
        while True:
            ready = readable(stream.fileno(), min(look, deadline) - now)
            now = time.monotonic()
            if now > deadline:
                return self._end(f"a command took longer than {seconds:g} seconds", output)
            if now >= look:
                reason, pause = self._box.too_much()
                if reason:
                    return self._end(reason, output)
                look = time.monotonic() + pause
            if not ready:
                continue
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return self._end("the shell exited", output)
            output += chunk
            if found := last.search(output, max(0, len(output) - len(chunk) - 8192)):  # the line may be cut between two chunks
                self.cwd = os.fsdecode(found[2][:PATH_MAX])
                if not self._box.stop():
                    return self._end("its processes could not be stopped", output[: found.start()])
                return Done(_shown(output[: found.start()], shown), int(found[1]), self.cwd)
            if len(output) > limits.printed_mb << 20:
                return self._end(f"a command printed more than {limits.printed_mb} MB", output)

    def _end(self, reason: str, output: bytes | bytearray) -> Done:
        self._box.kill()
        self.ended = reason = self._box.reason() or reason
        return Done(_shown(output, self.limits.shown), 137, self.cwd, reason)

    def tree(self, largest: int | None = None) -> dict[str, Entry]:
        """The working folder as it is now. It can still be read after the sandbox has ended, but not after `close`."""
        return read_tree(self._box.root, largest or (self.limits.disk_mb << 20) + (1 << 20))

    def exact_tree(self, largest: int) -> dict[str, Entry] | None:
        """The same, or None if a copy would not be the same."""
        return read_exactly(self._box.root, largest)

    def memory(self) -> str | None:
        """All that this shell knows and a new one in the same folder with the same files does not: the folder before this one. None if it
        knows more: variables, functions, options, open files, background processes, files outside of the working folder."""
        if self.ended or not self._box.pristine():
            return None
        kind = (self.limits, os.getpid())
        if kind not in _fresh:
            other = Shell({}, self.limits)
            _fresh[kind] = _known(other)
            other.close()
        fresh, known = _fresh[kind], _known(self)
        return known[1] if known is not None and fresh is not None and known[0] == fresh[0] else None

    def recall(self, memory: str) -> None:
        """Put what `memory` gave into a new shell."""
        if memory:
            self.run(f"OLDPWD={_quoted(memory)}", START)

    def freeze(self) -> None:
        """End all processes, keep the working folder readable: nothing can change it while it is checked."""
        self.ended = self.ended or "the attempt is over"
        self._box.kill()

    def close(self) -> None:
        """End the sandbox and forget the working folder."""
        self.ended = self.ended or "the sandbox was closed"
        self._box.close()


_fresh: dict[tuple[Limits, int], tuple[str, str] | None] = {}  # what a new shell knows


def _known(shell: Shell) -> tuple[str, str] | None:
    """What a shell knows, and the folder that it was in before; None if it does not answer as a shell would."""
    done = shell.run(KNOWN, START, 1 << 20)
    body, split, before = done.output.rpartition("\nbefore ")
    if done.ended or done.code or not split or not before.endswith("."):
        return None
    return CHANGING.sub("", body), before[:-1]


def _shown(output: bytes | bytearray, most: int) -> str:
    """Output as text: what is not UTF-8 and what would act on a terminal is replaced. Of a long one the beginning and the end are kept."""
    text = ESCAPE.sub("", output.decode("utf-8", "replace").replace("\r\n", "\n"))
    text = LINE_NUMBER.sub("bash: ", text).strip("\n")
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are not shown …]\n{text[-half:]}"
    return printable(text)


def printable(text: str) -> str:
    """The text without what would act on a terminal."""
    return "".join(sign if sign in "\n\t" or sign.isprintable() else "�" for sign in text)


def _written(handle: int, data: bytes, seconds: float) -> bool:
    """Write to a pipe; False if its reader does not take it in time."""
    waiting, deadline, left = select.poll(), time.monotonic() + seconds, memoryview(data)
    waiting.register(handle, select.POLLOUT)
    while left:
        if not waiting.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            return False
        with suppress(BlockingIOError):
            left = left[os.write(handle, left) :]
    return True


def _quoted(text: str) -> str:
    """A text as one word of bash; bash has no zero bytes."""
    return "'" + text.replace("\0", "").replace("'", "'\\''") + "'"
