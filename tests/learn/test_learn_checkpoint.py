"""Checkpoints: whole or not there, and the one before is always found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from launching import python

from turnwise.learn import checkpoint
from turnwise.learn.checkpoint import best, checkpoints, latest_good, load, save
from turnwise.learn.saving import OLD, PART
from turnwise.util.errors import TurnwiseError

TENSORS = {"weights/a.b": torch.arange(6.0).reshape(2, 3), "weights/c": torch.ones(3).bfloat16(), "optimiser/a.b/step": torch.tensor(7.0)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    path = save(tmp_path, 12, TENSORS, {"seed": 3, "nested": {"x": [1.5, None]}}, score=0.5)
    assert names(path) == ["manifest.json", "optimiser.safetensors", "state.json", "weights.safetensors"]
    found = latest_good(tmp_path)
    assert found is not None and (found.step, found.score, found.state) == (12, 0.5, {"seed": 3, "nested": {"x": [1.5, None]}})
    assert found.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(found.tensors[name], tensor) and found.tensors[name].dtype == tensor.dtype for name, tensor in TENSORS.items())


def test_no_folder_and_an_empty_one_hold_no_checkpoint(tmp_path: Path) -> None:
    assert latest_good(tmp_path / "none") is None and latest_good(tmp_path) is None and best(tmp_path) is None


@pytest.mark.parametrize(
    "damage", ["flip a byte", "cut a file", "lose a file", "lose the manifest", "empty the manifest", "swap the state"]
)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, damage: str) -> None:
    for step in (1, 2):
        save(tmp_path, step, TENSORS, {"step": step})
    path = tmp_path / "step-00000002"
    weights = path / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "flip a byte":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "cut a file":
        weights.write_bytes(data[:-4])
    elif damage == "lose a file":
        weights.unlink()
    elif damage == "lose the manifest":
        (path / "manifest.json").unlink()
    elif damage == "empty the manifest":
        (path / "manifest.json").write_text("")
    else:
        (path / "state.json").write_text('{"step": 3}')
    with pytest.warns(UserWarning, match="going back"):
        found = latest_good(tmp_path)
    assert found is not None and found.state == {"step": 1}
    with pytest.raises(TurnwiseError, match="damaged"):
        load(path)


def test_when_no_checkpoint_is_whole_it_says_so_instead_of_starting_anew(tmp_path: Path) -> None:
    (save(tmp_path, 1, TENSORS, {}) / "state.json").unlink()
    with pytest.warns(UserWarning), pytest.raises(TurnwiseError, match="none of the 1"):
        latest_good(tmp_path)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step, score in enumerate([0.1, 0.9, 0.3, None, float("nan"), 0.2]):
        save(tmp_path, step, TENSORS, {}, score=score, keep=2)
    assert names(tmp_path) == ["step-00000001", "step-00000004", "step-00000005"]
    assert best(tmp_path) == tmp_path / "step-00000001"
    latest = latest_good(tmp_path)
    assert latest is not None and latest.step == 5


def test_steps_are_ordered_by_number(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        save(tmp_path, step, TENSORS, {}, keep=5)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-99999999", "step-100000000"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1, TENSORS, {"try": 1})
    save(tmp_path, 1, TENSORS, {"try": 2})
    assert load(tmp_path / "step-00000001").state == {"try": 2} and names(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("moment", ["a tensor file", "the manifest", "the rename"])
def test_a_failure_while_saving_leaves_the_old_one_and_no_litter(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, TENSORS, {})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if moment == "a tensor file":
        monkeypatch.setattr(checkpoint, "save_file", full)
    elif moment == "the manifest":
        monkeypatch.setattr(checkpoint, "_sha256", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TurnwiseError, match="disk full"):
        save(tmp_path, 2, TENSORS, {})
    monkeypatch.undo()
    assert names(tmp_path) == ["step-00000001"]
    found = latest_good(tmp_path)
    assert found is not None and found.step == 1


def test_a_disk_that_takes_no_more_bytes_leaves_the_old_one(tmp_path: Path) -> None:
    """A real limit on file sizes, in a process of its own: the write itself fails, not a stand-in for it."""
    save(tmp_path, 1, TENSORS, {})
    program = """
import resource, sys, torch
from turnwise.learn.checkpoint import save
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
save(sys.argv[1], 2, {"weights/big": torch.zeros(100_000)}, {})
"""
    done = python("-c", program, str(tmp_path))
    assert done.returncode == 1 and "TurnwiseError" in done.stderr and "could not be written" in done.stderr, done.stderr[-800:]
    assert names(tmp_path) == ["step-00000001"]


def test_litter_of_a_killed_writer_is_swept_by_the_next_save(tmp_path: Path) -> None:
    path = save(tmp_path, 1, TENSORS, {})
    shutil.copytree(path, tmp_path / f".step-00000002.abc{PART}")
    assert [found.name for found in checkpoints(tmp_path)] == ["step-00000001"]
    save(tmp_path, 2, TENSORS, {})
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_folder_caught_between_two_renames_is_put_back(tmp_path: Path) -> None:
    path = save(tmp_path, 1, TENSORS, {"try": 1})
    path.rename(tmp_path / f".step-00000001{OLD}")
    found = latest_good(tmp_path)
    assert found is not None and found.state == {"try": 1}


def test_names_and_numbers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match="group/name"):
        save(tmp_path, 1, {"plain": torch.zeros(1)}, {})
    with pytest.raises(TurnwiseError, match="keep"):
        save(tmp_path, 1, TENSORS, {}, keep=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(TurnwiseError, match="not a folder"):
        save(tmp_path / "file", 1, TENSORS, {})


def test_a_checkpoint_of_another_format_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, 1, TENSORS, {})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(TurnwiseError, match="format 99"):
        load(path)
