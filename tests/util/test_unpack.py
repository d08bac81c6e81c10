"""Packed files that would unpack to far more than anybody needs are refused before the memory is gone."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnwise.data.images import load_pictures
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.data.tokens import read_tokens, write_tokens
from turnwise.envs.search.records import read_questions
from turnwise.envs.sokoban.boxoban import rooms
from turnwise.pages.packed import PackedLines
from turnwise.retrieval.corpus import Corpus
from turnwise.runs.folder import Run
from turnwise.util import unpack
from turnwise.util.errors import TurnwiseError

MUCH = 8 * 2**20


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unpack, "AT_LEAST", 2**20)
    monkeypatch.setattr("turnwise.data.tokens.AT_LEAST", 2**16)
    monkeypatch.delenv("TURNWISE_UNPACK_MB", raising=False)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))


def run_with(folder: Path, texts: bytes) -> Run:
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.toml").write_text("")
    (folder / "rollouts" / "000001.jsonl.gz").write_bytes(gzip.compress(texts))
    return Run.open(folder)


LINE = b'{"turns": [], "words": "' + b"0" * 10**5 + b'"}\n'


@pytest.mark.parametrize("texts", [b"0" * MUCH, LINE * 80], ids=["one line", "many lines"])
def test_the_texts_of_a_run(tmp_path: Path, texts: bytes) -> None:
    run = run_with(tmp_path / "run", texts)
    for read in (lambda: run.trajectories(1), lambda: PackedLines(tmp_path / "run" / "rollouts" / "000001.jsonl.gz")):
        with pytest.raises(TurnwiseError, match="unpack to more than"):
            read()


def test_texts_that_are_only_long_are_read(tmp_path: Path) -> None:
    line = json.dumps({"turns": [], "words": "abc " * 5000}).encode()
    run = run_with(tmp_path / "run", (line + b"\n") * 20)
    assert len(run.trajectories(1)) == 20
    assert len(PackedLines(tmp_path / "run" / "rollouts" / "000001.jsonl.gz")) == 20


def test_more_is_allowed_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "run", LINE * 80)
    monkeypatch.setenv("TURNWISE_UNPACK_MB", "20")
    assert len(run.trajectories(1)) == 80


@pytest.mark.parametrize("read", [Rollouts.load, load_pictures, read_tokens], ids=["rollouts", "pictures", "tokens"])
def test_archives_of_arrays(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    np.savez_compressed(tmp_path / "much.npz", header=np.array("{}"), zeros=np.zeros(MUCH, np.uint8))
    with pytest.raises(TurnwiseError, match="unpack to more than"):
        read(tmp_path / "much.npz")


def test_an_array_that_claims_more_than_it_holds(tmp_path: Path) -> None:
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": "|u1", "fortran_order": False, "shape": (4 * 10**12,)})
    raw.write(b"0000")
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("a.npy", raw.getvalue())
    with pytest.raises(TurnwiseError, match="claims to be larger"):
        load_pictures(tmp_path / "lie.npz")


def test_prompts_that_repeat_themselves_without_end(tmp_path: Path) -> None:
    write_tokens(tmp_path / "good.npz", [Trajectory(0, 0, turns=[Turn(None, prompt_ids=(1, 2), response_ids=(3,)) for _ in range(3)])])
    assert len(read_tokens(tmp_path / "good.npz")) == 3
    with np.load(tmp_path / "good.npz") as archive:
        arrays = dict(archive)
    turns = 48
    lengths = 2 ** np.arange(turns, dtype=np.int64)
    arrays |= {
        "opens": np.arange(turns) == 0,
        "start": np.concatenate([[0], lengths[:-1]]),
        "end": np.concatenate([[0], lengths[:-1]]),
        "middle": (np.arange(turns) == 0).astype(np.int64),
        "response": np.zeros(turns, np.int64),
        "middle_ids": np.ones(1, np.int64),
        "response_ids": np.zeros(0, np.int64),
    }
    np.savez_compressed(tmp_path / "bomb.npz", **arrays)
    with pytest.raises(TurnwiseError, match="longer than the file could hold"):
        read_tokens(tmp_path / "bomb.npz")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_corpora_and_questions(tmp_path: Path, suffix: str) -> None:
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix]
    path = tmp_path / f"much.jsonl{suffix}"
    path.write_bytes(pack(b"0" * MUCH))
    with pytest.raises(TurnwiseError, match="unpack to more than"):
        Corpus(path)
    with pytest.raises(TurnwiseError, match="unpack to more than"):
        read_questions(path)


def test_rooms_of_sokoban(tmp_path: Path) -> None:
    (tmp_path / "000.txt.xz").write_bytes(lzma.compress(b"#" * MUCH))
    with pytest.raises(TurnwiseError, match="unpack to more than"):
        list(rooms(tmp_path / "000.txt.xz"))


def test_tables(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"info": arrow.array(["a" * 1000] * (MUCH // 1000))})
    parquet.write_table(table, tmp_path / "much.parquet", compression="zstd", use_dictionary=False)
    from turnwise.runs.exchange import read_trajectories

    with pytest.raises(TurnwiseError, match="unpack to more than"):
        read_trajectories(tmp_path / "much.parquet")
