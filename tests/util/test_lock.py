"""One process per run: a second one hears who is there, readers are not held up, and a crash leaves no lock behind."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from train_cases import start

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.runs import folder as runs
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.reporter import Reporter
from turnwise.util import lock
from turnwise.util.lock import LOCK, Lock, is_held

HOLD = """
import sys
from pathlib import Path
from turnwise.util.lock import Lock
lock = Lock(Path(sys.argv[1]), "train")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("runs"), iterations=1).folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "try"))


def test_writers_are_refused_while_another_process_holds_the_run_and_readers_are_not(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with held_elsewhere(folder) as other:
        for write in (
            lambda: tw.train(resume=folder, trust=True),
            lambda: tw.train(resume=folder, iterations=2, trust=True),
            lambda: tw.export(folder, folder / "mine"),
        ):
            with pytest.raises(TurnwiseError) as caught:
                write()
            words = str(caught.value)
            assert f"process {other.pid} on " in words and "since 20" in words and f"kill {other.pid}" in words and "\n" not in words
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK} == before
        assert tw.export(folder, folder.parent / "elsewhere").is_dir()
        assert Run.open(folder).metrics()
        assert tw.evaluate(folder, n=1, split="valid", trust=True).panel_size == 1
    resumed = tw.train(resume=folder, iterations=2, trust=True)  # its holder was killed
    assert resumed.summary["finished"] and not is_held(folder) and not (folder / LOCK).exists()


def test_a_run_is_locked_from_before_it_can_be_seen_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    write = runs.write_text_atomically

    def watched(path: Path, text: str) -> Path:
        seen.append((Path(path).name, is_held(tmp_path / "try")))
        return write(path, text)

    class Second(Reporter):
        def begin(self, *rest: Any, **more: Any) -> None:
            with pytest.raises(TurnwiseError, match="in use by this process"):
                tw.train(resume=tmp_path / "try")

    monkeypatch.setattr(runs, "write_text_atomically", watched)
    result = start(tmp_path, iterations=1, reporter=Second())
    assert seen[0] == (CONFIG, True) and ("summary.json", True) in seen and all(held for _, held in seen)
    assert not is_held(result.folder)


def test_two_that_start_at_the_same_moment_get_a_folder_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: Run.create(tmp_path, "same", "", doing="train"), range(4)))
    assert sorted(run.folder.name for run in made) == ["same", "same-2", "same-3", "same-4"]
    assert all(is_held(run.folder) for run in made)


def test_what_killed_writers_left_is_removed_by_the_next_holder(folder: Path) -> None:
    litter = [
        folder / ".metrics.jsonl.0badcafe.part",
        folder / "rollouts" / ".000001.npz.0badcafe.part",
        folder / "evals" / ".000000.json.0badcafe.part",
        folder / ".model.0badcafe.turnwise-part" / "config.json",
        folder / "checkpoints" / ".step-00000009.0badcafe.turnwise-part" / "state.json",
    ]
    theirs = folder / ".report.html.0badcafe.part"  # whoever writes that needs no lock, and may be at it
    for path in [*litter, theirs]:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    tw.train(resume=folder, trust=True)
    assert not any(path.exists() for path in litter) and theirs.exists()


def test_a_file_system_without_locks_is_told_of_and_does_not_stop_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*rest: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(lock, "_lock", refuse)
    said: list[str] = []
    Lock(folder, "train", say=said.append).release()
    assert "does not support locks" in said[0]


def test_windows_has_a_lock_of_its_own_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[int, int]] = set()

    def locking(handle: int, mode: int, count: int) -> None:
        key = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        if key in taken:
            raise OSError(errno.EACCES, "locked")
        taken.add(key)

    monkeypatch.setattr(lock, "POSIX", False)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    Lock(tmp_path, "train")
    with pytest.raises(TurnwiseError, match="in use"):
        Lock(tmp_path, "train")
