"""Names and shapes that nobody expects: goals in words, attempts by number, files and folders with odd names, hostile run folders."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from page_runs import group, make_run, place, turn

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory
from turnwise.pages import packed
from turnwise.pages.answers import Answers, as_json
from turnwise.pages.packed import PackedLines
from turnwise.pages.report import write_report
from turnwise.pages.run_list import RunList
from turnwise.pages.settings import settings_of
from turnwise.runs.folder import Run, write_texts
from turnwise.runs.reading import stored_trajectories

ODD_NAMES = ["%2e%2e", "a#b?c&d=e", "new\nline", "back\\slash", "static", "x" * 200, "ü🂡", "'\"<b>", "+", "__proto__"]


def save(run: Run, batch: list[Trajectory], iteration: int = 3) -> None:
    run.save_batch(iteration, Batch.of(batch), keep=None)
    write_texts(run.folder / "rollouts" / f"{iteration:06d}.jsonl.gz", batch)  # earlier runs kept attempts without turns too


def goals(tmp_path: Path, batch: list[Trajectory]) -> list[tuple[Any, Any]]:
    save(make_run(tmp_path), batch)
    rows = Answers(RunList(tmp_path))("batch", place())["rows"]
    return list(zip(rows["goal"], rows["opening"], strict=True))


def test_a_stored_goal_is_shown_in_words(tmp_path: Path) -> None:
    batch = group(0, "hash-0123")
    for attempt in batch:
        attempt.goal = "Your task is to: put a mug\n in the sink."
    assert goals(tmp_path, batch) == [("Put a mug in the sink.", None)] * 3
    assert Answers(RunList(tmp_path))("attempt", place(id=1))["goal"] == "Put a mug in the sink."
    assert stored_trajectories(Run(tmp_path / "good"), 3)[0].goal == batch[0].goal


def test_older_runs_show_the_goal_of_the_first_observation_or_how_it_begins(tmp_path: Path) -> None:
    told = [turn("hall", "go", observation="Welcome.\n\nYour task is to: find two keys.\nGood luck.")]
    untold = [turn("hall", "go", observation="  Question:\nwho wrote it? " + "long " * 99)]
    found = goals(tmp_path, [Trajectory(0, 0, "a", told), Trajectory(1, 1, "b", untold), Trajectory(2, 2, "c", [])])
    assert found[0] == ("Find two keys.", None) and found[2] == (None, None)
    assert found[1][0] is None and found[1][1].startswith("Question: who wrote it? long") and len(found[1][1]) == 160


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_run_of_any_name_is_found_again_by_it(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / "runs", name)
    answers = Answers(RunList(tmp_path / "runs"))
    (card,) = answers("runs", {})["runs"]
    shown = json.loads(as_json(card))["run"]
    assert answers("run", {"run": shown})["rollouts"] == [3]
    written, _ = write_report(tmp_path / "runs" / name, tmp_path / "report.html")
    assert written.stat().st_size > 0


@pytest.mark.parametrize("name", ["²", "٣", "000003x", "3", "...", "000003 (copy).jsonl", "é"])
def test_files_that_only_look_like_an_iteration_are_passed_over(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path)
    for part in ("rollouts", "evals"):
        (run.folder / part / f"{name}.jsonl.gz").write_bytes(b"")
    found = Answers(RunList(tmp_path))("run", {"run": "good"})
    assert found["rollouts"] == found["evals"] == [3]


def test_ids_with_half_characters_are_asked_for_as_they_are_shown(tmp_path: Path) -> None:
    save(make_run(tmp_path), [Trajectory("g\ud800", "a\udfff", "task\ud800", [turn("hall", "go")])])
    answers = Answers(RunList(tmp_path))
    rows = answers("batch", place())["rows"]
    json.dumps(rows, ensure_ascii=False).encode()
    assert answers("attempt", place(id=rows["id"][0]))["turns"][0]["credit"] == 0
    assert len(answers("group", place(group=rows["group"][0]))["attempts"]) == 1
    write_report(tmp_path / "good", tmp_path / "report.html")


def test_one_run_that_cannot_be_read_leaves_the_list_alone(tmp_path: Path) -> None:
    make_run(tmp_path, "fine")
    (tmp_path / "broken" / "metrics.jsonl").mkdir(parents=True)
    (tmp_path / "broken" / "config.toml").write_text('name = "broken"')
    cards = {card["run"]: card for card in Answers(RunList(tmp_path))("runs", {})["runs"]}
    assert cards["fine"]["state"] == "finished" and cards["broken"]["state"] == "unreadable" and cards["broken"]["problem"]


def test_a_small_file_that_unpacks_to_very_much_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.util.unpack.LONGEST_LINE", 1 << 16)
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"a" * (1 << 22)))
    with pytest.raises(tw.TurnwiseError, match="a line of more than"):
        PackedLines(path)
    monkeypatch.setattr(packed, "MOST_LINES", 100)
    path.write_bytes(gzip.compress(b'{"turns": []}\n' * 200))
    with pytest.raises(tw.TurnwiseError, match="more than 100 attempts"):
        PackedLines(path)


def test_settings_are_runs_that_differ_by_their_seed_alone(tmp_path: Path) -> None:
    folders = {
        f"{name}-{seed}": make_run(tmp_path, f"{name}-{seed}", algorithm=name, seed=seed).folder
        for name in ("gigpo", "grpo")
        for seed in (0, 1)
    }
    folders["again"] = make_run(tmp_path, "again", algorithm="grpo", seed=1).folder
    found = settings_of(folders)
    assert [each["label"] for each in found["settings"]] == ["gigpo", "grpo"] and found["keys"] == ["credit.name"]
    assert [each["values"] for each in found["settings"]] == [["gigpo"], ["grpo"]]
    assert [(run["seed"], run["twice"]) for run in found["settings"][1]["runs"]] == [(0, False), (1, False), (1, True)]
    answers = Answers(RunList(tmp_path))
    asked = answers("settings", {"runs": json.dumps(["grpo-0", "grpo-1", "absent"])})
    assert [len(each["runs"]) for each in asked["settings"]] == [2] and asked["keys"] == []
    for wrong in ("", "{", "5", "[1]", '"a"'):
        with pytest.raises(tw.TurnwiseError):
            answers("settings", {"runs": wrong})
