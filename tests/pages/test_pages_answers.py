"""What the pages are told: runs and their state, curves that grow, credit that is the run's own, words that are true, search, pictures."""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_browser import open_page, texts
from page_runs import ATTACK, evaluated, log, make_run, place, turn

import turnwise as tw
from turnwise.collect.call_trees import SIDE
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Rollouts, Trajectory, Turn
from turnwise.pages.answers import Answers, as_json
from turnwise.pages.pictures import png
from turnwise.pages.reasons import signed
from turnwise.pages.run_list import RunList
from turnwise.runs.folder import Run
from turnwise.runs.tail import news


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    make_run(tmp_path)
    return Answers(RunList(tmp_path))


def test_a_card_says_what_a_run_is_and_how_good_it_became(answers: Answers) -> None:
    (card,) = answers("runs", {})["runs"]
    shown = {key: card[key] for key in ("run", "algorithm", "environment", "seed", "iterations", "planned", "before", "after", "state")}
    assert shown == {
        "run": "good", "algorithm": "gigpo", "environment": "household", "seed": 0, "iterations": 3, "planned": 4,
        "before": 0.25, "after": 0.75, "state": "finished",
    }  # fmt: skip


def test_runs_are_found_in_folders_below_and_not_inside_each_other(tmp_path: Path) -> None:
    make_run(tmp_path / "sweep", "one")
    make_run(tmp_path / "sweep" / "deeper", "two")
    make_run(tmp_path / "sweep" / "one", "inside")
    assert sorted(RunList(tmp_path).folders()) == ["sweep/deeper/two", "sweep/one"]
    assert list(RunList(tmp_path / "sweep" / "one").folders()) == ["one"]


def test_a_folder_without_runs_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match="holds no run"):
        RunList(tmp_path)
    with pytest.raises(tw.TurnwiseError, match="not a folder"):
        RunList(tmp_path / "absent")


def test_a_run_is_running_while_it_writes_and_stopped_when_it_is_quiet_for_long(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    listed = RunList(tmp_path)

    def state() -> str:
        return str(listed.card("good", run.folder)["state"])

    (run.folder / "summary.json").unlink()
    assert state() == "running"
    long_ago = time.time() - 3600
    for name in ("metrics.jsonl", "config.toml"):
        os.utime(run.folder / name, (long_ago, long_ago))
    assert state() == "stopped"
    run.write_facts("summary.json", {"finished": False})
    assert state() == "stopped"
    log(run, 4)
    os.utime(run.folder / "summary.json", (long_ago, long_ago))
    assert state() == "running", "a resumed run writes metrics after its summary"


def test_only_new_lines_are_sent_and_a_half_written_one_waits(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = run.folder / "metrics.jsonl"
    first = news(path)
    assert [line["iteration"] for line in first.lines] == [0, 1, 2, 3]
    with path.open("a") as file:
        file.write('{"iteration": 4, "x"')
    half = news(path, first.after, first.mark)
    assert (half.lines, half.after, half.anew) == ([], first.after, False)
    with path.open("a") as file:
        file.write(": 1}\n")
    whole = news(path, half.after, half.mark)
    assert whole.lines == [{"iteration": 4, "x": 1}] and not whole.anew


def test_a_history_that_was_rewritten_is_sent_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = run.folder / "metrics.jsonl"
    first = news(path)
    run.rewind(1)
    assert news(path, first.after, first.mark).anew
    log(run, 2, **{"other/metric": 1.0, "another/metric": 1.0})
    log(run, 3, **evaluated(0.5))
    assert path.stat().st_size > first.after
    found = news(path, first.after, first.mark)
    assert found.anew and [line["iteration"] for line in found.lines] == [0, 1, 2, 3]


def test_damaged_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = run.folder / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 0}\n\xff{broken\n[1]\n' + path.read_bytes())
    found = Answers(RunList(tmp_path))("metrics", {"run": "good"})
    assert found["damaged"] == 2 and found["columns"]["iteration"] == [0, 0, 1, 2, 3]


def test_the_credit_shown_is_the_runs_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, more="gamma = 0.5\nomega = 2.0")
    answers = Answers(RunList(tmp_path))
    r = Rollouts.load(run.folder / "rollouts" / "000003.npz")
    options: dict[str, Any] = {"gamma": 0.5, "omega": 2.0, "norm": "none"}
    total, why = tw.credit.compute("gigpo", r, **options), tw.credit.explain(r, **options)
    for code, label in enumerate(r.trajectory_labels.tolist()):
        shown = answers("attempt", place(id=label))["turns"]
        rows = np.flatnonzero(r.trajectory == code)[np.argsort(r.t[r.trajectory == code])]
        assert [turn["credit"] for turn in shown] == pytest.approx(total[rows].tolist(), rel=1e-4, abs=1e-6)
        assert [turn["step"] for turn in shown] == pytest.approx(why["step"][rows].tolist(), rel=1e-4, abs=1e-6)
        assert [turn["episode"] for turn in shown] == pytest.approx(why["episode"][rows].tolist(), rel=1e-4, abs=1e-6)


def test_words_say_what_a_return_was_compared_with(answers: Answers) -> None:
    first, *_ = answers("attempt", place(id=0))["turns"]
    mean = (0.95 + 0.95**2 + 0) / 3
    assert first["why"] == [
        f"Credit +{0.95 - mean + 1 / 3:.2f}: step +{0.95 - mean:.2f} and episode +0.33.",
        f"Step credit +{0.95 - mean:.2f}: return 0.95 against {mean:.2f} on average over 3 visits of this state.",
        "Episode credit +0.33: the attempt came to 1.00 against 0.67 on average over 3 attempts at this task.",
    ]


@pytest.mark.parametrize(
    ("more", "attempt", "t", "words"),
    [
        ("", 1, 2, "Step credit 0: the 2 visits of this state all came to 1.00, so none was better."),
        ("once = true", 2, 1, "over the 2 attempts that came to this state, 3 visits in all"),
        ("invalid_penalty = 0.5", 2, 1, "return −0.50 (after 0.5 for a response that could not be read)"),
    ],
)
def test_words_about_the_edges(tmp_path: Path, more: str, attempt: int, t: int, words: str) -> None:
    make_run(tmp_path, more=more)
    assert words in " ".join(Answers(RunList(tmp_path))("attempt", place(id=attempt))["turns"][t]["why"])


def test_a_group_tells_every_action_taken_from_the_same_state(answers: Answers) -> None:
    group = answers("group", place(group=0))
    hall = group["attempts"][0]["turns"][0]["state"]
    assert group["states"][str(hall)]["visits"] == [[0, 0, "go to kitchen"], [1, 0, "go to cellar"], [2, 0, "go to cellar"]]
    assert group["states"][str(hall)]["text"] == "hall"
    other = answers("group", place(group=1))["attempts"][0]["turns"][0]["state"]
    assert other != hall, "the same text in another group is another state"


ALONE = [e for e in tw.credit.algorithms if tw.credit.stands_alone(e)]
ONE_LEVEL = [e.name for e in ALONE if len(e.parts) < 2 and not any(need.endswith(".value") for need in e.needs)][:4]


@pytest.mark.parametrize("algorithm", ONE_LEVEL)
def test_algorithms_without_two_levels_show_their_total(tmp_path: Path, algorithm: str) -> None:
    run = make_run(tmp_path, algorithm=algorithm)
    answers = Answers(RunList(tmp_path))
    turns, scales = (answers("attempt", place(id=0))[name] for name in ("turns", "scales"))
    assert answers("runs", {})["runs"][0]["steps"] is False and "step" not in scales
    r = Rollouts.load(run.folder / "rollouts" / "000003.npz")
    rows = (r.trajectory == 0) & (r.group == 0)
    options = {"norm": "none"} if "norm" in tw.credit.algorithms[algorithm].options else {}
    assert [turn["credit"] for turn in turns] == pytest.approx(tw.credit.compute(algorithm, r, **options)[rows].tolist(), rel=1e-4)
    gamma = tw.credit.explained_options(algorithm, {"norm": "none"})["gamma"]  # the algorithm's own, where it has one
    assert "step" not in turns[0] and f"Return from here {gamma:.2f}; the 3 visits of this state came to" in " ".join(turns[0]["why"])


def test_every_algorithm_that_is_a_sum_shows_its_parts(tmp_path: Path) -> None:
    for entry in ALONE:
        if len(entry.parts) < 2:
            continue
        make_run(tmp_path, entry.name, algorithm=entry.name)
        found = Answers(RunList(tmp_path))("attempt", place(run=entry.name, id=0))
        assert found["split"] and set(found["scales"]) == {"credit", *entry.parts} and set(found["weights"]) == set(entry.parts)
        for own in found["turns"]:
            assert sum(found["weights"][part] * own[part] for part in entry.parts) == pytest.approx(own["credit"], rel=1e-4, abs=1e-5)
            assert all(f"{part} {words}" in own["why"][0] for part in entry.parts if (words := signed(own[part])))


def test_texts_without_columns_are_shown_without_credit(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.folder / "rollouts" / "000003.npz").write_bytes(b"damaged")
    answers = Answers(RunList(tmp_path))
    rows = answers("batch", place())["rows"]
    assert rows["turns"] == [2, 3, 3, 2, 3, 3] and rows["invalid"] == [0, 0, 1, 0, 0, 1] and rows["type"] == ["find"] * 3 + ["put"] * 3
    assert list(zip(rows["place"], rows["of"], strict=True)) == [(1, 3), (2, 3), (3, 3)] * 2
    assert "damaged" in answers("group", place(group=0))["problem"]


def test_an_evaluation_shows_outcomes_and_no_credit(answers: Answers) -> None:
    found = answers("batch", place(part="evals"))
    assert found["rows"]["success"] == [True, False] and found["rows"]["turns"] == [2, 3]
    assert not found["credited"] and "credit" not in answers("attempt", place(part="evals", id=0))["turns"][0]


def test_numbers_that_json_does_not_have_are_shown_as_words(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    told = {"env": {"odds": float("inf"), "nested": [float("nan"), 1.5]}}
    attempts = [Trajectory(0, 0, "find-mug", [Turn("hall", action="go", info=told)])]
    run.save_batch(3, Batch.of(attempts), keep=None)

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    sent = as_json(Answers(RunList(tmp_path))("attempt", place(id=0)))
    assert json.loads(sent, parse_constant=refuse)["turns"][0]["info"]["env"] == {"odds": "inf", "nested": ["nan", 1.5]}
    assert json.loads(as_json({"odds": float("nan"), "rest": (1, "a")}), parse_constant=refuse) == {"odds": "nan", "rest": [1, "a"]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("TAKE MUG", ["0", "1", "10", "11"]),
        ("from the cellar", ["1", "2", "11", "12"]),
        ("observation", []),
        ("<script>", ["10", "11", "12"]),
        ("É 🂡", ["10", "11", "12"]),
    ],
)
def test_search_finds_text_and_not_the_names_of_fields(answers: Answers, text: str, found: list[str]) -> None:
    hits = answers("search", place(text=text))["hits"]
    assert list(dict.fromkeys(hit["id"] for hit in hits)) == found


def test_a_picture_is_a_png_with_its_pixels(answers: Answers) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    data = png(pixels)
    size = struct.unpack(">I", data[33:37])[0]
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(5, 1 + 21)
    np.testing.assert_array_equal(rows[:, 1:].reshape(5, 7, 3), pixels)
    with pytest.raises(tw.TurnwiseError, match="no picture"):
        answers.picture(place(name="../../secret"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run", {}),
        ("batch", {"run": "good", "part": "rollouts", "iteration": "../3"}),
        ("batch", {"run": "good", "part": "rollouts", "iteration": "99"}),
        ("attempt", {"run": "good", "part": "rollouts", "iteration": "3", "id": "99"}),
        ("group", {"run": "good", "part": "rollouts", "iteration": "3", "group": "99"}),
        ("metrics", {"run": "good", "after": "x"}),
        ("__class__", {}),
    ],
)
def test_what_does_not_exist_is_refused_in_words(answers: Answers, name: str, words: dict[str, str]) -> None:
    with pytest.raises(tw.TurnwiseError):
        answers(name, words)


def test_the_recipe_shows_what_differs_from_the_defaults(answers: Answers) -> None:
    found = answers("config", {"run": "good"})
    assert ["iterations", "4", "150"] in found["differs"] and ["env.options.size", "tiny", None] in found["differs"]
    assert "env.name" not in {key for key, *_ in found["differs"]}


def test_a_recipe_that_cannot_be_read_is_shown_as_text(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run.folder / "config.toml").write_bytes(b"name = \xff broken")
    answers = Answers(RunList(tmp_path))
    assert answers("config", {"run": "good"})["problem"] and answers("runs", {})["runs"][0]["run"] == "good"


pytest_plugins = ["page_browser"]
# two attempts: a planner whose first call is continued twice, with a sub-agent; and one with a single call
LINES = [
    (0, 0, [(0, None, "plan"), (2, 0, "go on")]),
    (0, SIDE, [(1, None, ATTACK)]),
    (0, SIDE + 1, [(3, 0, "go back")]),
    (1, 1, [(0, None, "guess")]),
]


def with_calls(run: Run) -> Run:
    batch = [
        Trajectory(
            0,
            number,
            "task",
            [
                turn("hall", said, info={"call": {"number": call, "parent": parent}, "branch": [0, 3], "attempt": attempt})
                for call, parent, said in line
            ],
        )
        for attempt, number, line in LINES
    ]
    run.save_batch(4, Batch.of(batch), keep=None)
    return run


def test_the_calls_of_an_attempt_come_from_all_of_its_lines(tmp_path: Path) -> None:
    with_calls(make_run(tmp_path))
    answers = Answers(RunList(tmp_path))
    calls = answers("attempt", place(4, id=SIDE))["calls"]
    assert [(call["number"], call["parent"], call["id"], call["t"]) for call in calls] == [
        (0, None, "0", 0),
        (1, None, str(SIDE), 0),
        (2, 0, "0", 1),
        (3, 0, str(SIDE + 1), 0),
    ]
    assert [call["said"] for call in answers("attempt", place(4, id=1))["calls"]] == ["guess"]
    assert "calls" not in answers("attempt", place(3, id=0)), "an attempt in an environment has none"


def test_the_tree_of_calls_is_drawn_and_opens_any_of_them(page: Any, url: str, runs: Path) -> None:
    with_calls(Run.open(runs / "good"))
    open_page(page, f"{url}#/attempts?run=good&part=rollouts&iteration=4&id=0")
    page.wait_for_selector(".calls li")
    assert "The attempt: 4 calls in 2 conversations" in page.locator(".calls summary").inner_text()
    assert texts(page, ".calls li") == ["◆ call 1 plan", "↳ call 3 go on", "↳ call 4 go back", f"◆ call 2 {' '.join(ATTACK.split())}"]
    page.locator(".calls button", has_text="go back").click()
    page.wait_for_selector(".calls button.here:has-text('go back')")
    assert f"id={SIDE + 1}" in page.url
