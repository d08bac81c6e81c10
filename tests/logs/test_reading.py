"""What is one task and one state, how an attempt ended, and logs that are damaged, hostile, or say too little."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.logs.attempts import Attempt, outcome_of, score_of, trajectory_of
from turnwise.logs.grouping import Words, group_tasks, name_states, normal
from turnwise.logs.messages import Message, error_of, messages_of
from turnwise.logs.reading import FORMATS, read_logs


def line(question: str = "Find it.", answer: str = "Found.", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], "success": True, **more}


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines), encoding="utf-8")
    return path


def groups(trajectories: Sequence[tw.Trajectory]) -> list[Any]:
    return [trajectory.group for trajectory in trajectories]


# -- tasks and states ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("run 3f2504e0-4f89-11d3-9a0c-0305e82c3301 ended", "run 0b0b0b0b-4f89-11d3-9a0c-0305e82c3301 ended"),
        ("at 2026-11-01T10:11:12Z: 3 items", "at 2025-01-31T01:01:01+02:00: 3 items"),
        ("at 2026-11-01 10:11:12.5 it began", "at 2026-11-02 00:00:00 it began"),
        ("done (10:11:12)", "done (23:59:59)"),
        ("took 0.31 s.", "took 12.5 s."),
        ("took 12ms", "took 9ms"),
        ("call_a8Bc9dEf0 failed", "call_Zz91817aa failed"),
        ("commit 9fceb02d0ae598e95dc970b7", "commit 1b2c3d4e5f60718293a4b5c6"),
        ("time 1790000000", "time 1790000123.25"),
        ("a  b\n c", "a b c"),
    ],
)
def test_texts_that_differ_in_ids_and_times_only_are_one_state(one: str, other: str) -> None:
    assert normal(one, Words()) == normal(other, Words())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("drawer 1", "drawer 2"),
        ("$12.50", "$13.50"),
        ("2026-11-01: no seats", "2026-11-02: no seats"),
        ("order 1234567", "order 1234568"),
        ("deadbeef is a word", "cafecafe is a word"),
        ("row 3 of 10", "row 4 of 10"),
        ("HTTP 404", "HTTP 500"),
    ],
)
def test_numbers_that_tell_states_apart_count(one: str, other: str) -> None:
    assert normal(one, Words()) != normal(other, Words())


def test_without_a_name_the_first_message_is_the_task_and_a_name_wins(tmp_path: Path) -> None:
    lines = [
        line("Refund order 1, now 10:00:01."),
        line("Refund order  1, now 11:30:59."),
        line("Refund order 2."),
        line("Refund order 2.", metadata={"case": "x"}),
    ]
    path = write(tmp_path / "log.jsonl", lines)
    named = groups(read_logs([path]).trajectories)
    assert named[0] == named[1] != named[2] == named[3]
    assert groups(read_logs([path], task="metadata.case").trajectories)[3] == "x"


def test_long_tasks_with_the_same_beginning_stay_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [line("x" * 100 + end) for end in "aab"])
    one, same, other = groups(read_logs([path]).trajectories)
    assert one == same != other and max(len(one), len(other)) < 90


def by_first_word(texts: Sequence[str]) -> Any:
    """A stand-in for a model of sentences: texts with the same first word mean the same."""
    words = sorted({text.split()[0] for text in texts})
    return np.eye(len(words), dtype=np.float32)[[words.index(text.split()[0]) for text in texts]] + 1e-3


def trajectories(*attempts: Sequence[str]) -> list[tw.Trajectory]:
    made = [tw.Trajectory("", number, turns=[tw.Turn(None, observation=text) for text in texts]) for number, texts in enumerate(attempts)]
    for trajectory in made:
        trajectory.goal = trajectory.turns[0].observation
    return made


def test_similar_tasks_and_states_are_joined_by_meaning() -> None:
    attempts = trajectories(["book a table", "red a"], ["book two seats", "red b", "blue c"], ["cancel it", "red a"])
    group_tasks(attempts, 0.9, by_first_word)
    assert groups(attempts)[0] == groups(attempts)[1] != groups(attempts)[2]
    name_states(attempts, 0.9, by_first_word)
    assert attempts[0].turns[1].anchor == attempts[1].turns[1].anchor != attempts[1].turns[2].anchor


def test_similar_texts_are_joined_by_letters_without_a_model() -> None:
    pytest.importorskip("rapidfuzz", reason="needs the extra similar")
    attempts = trajectories(["refund the order of Ann"], ["refund the order of Bob"], ["write a poem"])
    group_tasks(attempts, 0.8)
    assert groups(attempts)[0] == groups(attempts)[1] != groups(attempts)[2]


def test_too_many_texts_for_pairs_are_an_error() -> None:
    with pytest.raises(TurnwiseError, match="too many to compare pair by pair"):
        group_tasks(trajectories(*([f"task {number}"] for number in range(2001))), 0.8, by_first_word)


# -- outcomes -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "score"),
    [
        *(
            (True, 1),
            (False, 0),
            (0.4, 0.4),
            ("Passed", 1),
            (" FAILED ", 0),
            ("0.25", 0.25),
            ({"score": 3}, 3),
            ({"n": 2, "avg": 0.5}, 0.5),
        ),
        *((None, None), ("maybe", None), (float("nan"), None), ([1], None)),
    ],
)
def test_outcomes_are_read_as_scores(value: Any, score: float | None) -> None:
    assert score_of(value) == score


def test_the_score_from_which_on_an_attempt_is_won_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [{**line(), "success": None, "score": score} for score in (0.2, 0.7)])
    assert [each.success for each in read_logs([path]).trajectories] == [False, False]
    assert [each.success for each in read_logs([path], won_at=0.5).trajectories] == [False, True]


def test_several_scores_without_a_usual_name_ask_which_one() -> None:
    attempt = Attempt("a", [], outcomes={"tone": 1, "facts": 0})
    with pytest.raises(TurnwiseError, match=r"several scores: facts, tone.*--outcome"):
        outcome_of(attempt, None)
    assert outcome_of(attempt, "facts") == 0


def test_outcomes_can_come_from_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [line(id=name, success=None) for name in ("a", "b", "c")])
    table = write(tmp_path / "outcomes.csv", ["outcome,note,id", "pass,,a", "fail,,b"])
    logs = read_logs([path], outcomes=table)
    assert {each.id: each.success for each in logs.trajectories} == {"a": True, "b": False}
    assert logs.notes == ["1 attempt without an outcome left out"]
    with pytest.raises(TurnwiseError, match="id and outcome"):
        read_logs([path], outcomes=write(tmp_path / "empty.csv", ["what"]))


def test_logs_without_outcomes_say_what_is_there_and_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [{**line(), "success": None, "grade": "B"}])
    with pytest.raises(TurnwiseError, match=r"--outcome KEY \(there are: grade.*--outcomes FILE.csv"):
        read_logs([path])


# -- turns --------------------------------------------------------------------------------------------------------------------------------


def test_a_response_is_one_turn_whatever_it_consists_of() -> None:
    items = [
        {"role": "user", "content": [{"type": "text", "text": "Go."}, {"type": "image", "source": {}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Both."}]},
        {"type": "function_call", "call_id": "1", "name": "a", "arguments": '{"y": 2, "x": 1}'},
        {"type": "function_call", "call_id": "2", "name": "b", "arguments": "not JSON"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "fine"}]},
        {"type": "function_call_output", "call_id": "2", "output": "Traceback:\n  File\nKeyError: 'x'"},
    ]
    trajectory = trajectory_of(Attempt("a", list(messages_of(items))), 0.5, 1.0)
    (turn,) = trajectory.turns
    assert turn.observation == "Go.\n[image]" and turn.action == 'a {"x":1,"y":2}\nb {"input":"not JSON"}'
    assert turn.response == f"Both.\n{turn.action}" and turn.reward == 0.5 and not trajectory.success
    assert turn.info["tool"] == "a + b" and turn.info["error"] == "KeyError: 'x'"


def test_examples_in_a_prompt_are_not_turns(tmp_path: Path) -> None:
    prompt = [{"role": role, "content": text} for role, text in (("user", "1?"), ("assistant", "one"), ("user", "2?"))]
    path = write(tmp_path / "log.jsonl", [{"prompt": prompt, "completion": [{"role": "assistant", "content": "two"}], "reward": 1}])
    (turn,) = read_logs([path]).trajectories[0].turns
    assert (turn.observation, turn.action) == ("2?", "two")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "ai", "content": "", "tool_calls": [{"name": "f", "args": {"x": 1}, "id": "1", "type": "tool_call"}]},
        {"lc": 1, "id": ["langchain", "AIMessage"], "kwargs": {"content": "", "tool_calls": [{"name": "f", "args": {"x": 1}}]}},
        {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "f", "args": {"x": 1}}]}},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "f", "arguments": {"x": 1}}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x":1}'}}]},
        {"type": "function_call", "name": "f", "arguments": '{"x": 1}', "call_id": "1"},
    ],
)  # fmt: skip
def test_a_call_is_the_same_in_every_dialect(item: dict[str, Any]) -> None:
    (message,) = messages_of(item)
    assert message.role == "assistant" and list(map(str, message.calls)) == ['f {"x":1}']


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Error: no such order", "Error: no such order"),
        ("requests.exceptions.HTTPError: 500", "requests.exceptions.HTTPError: 500"),
        ('Traceback (most recent call last):\n  File "x"\nValueError: bad', "ValueError: bad"),
        ('{"error": {"message": "quota"}}', "quota"),
        ('{"ok": false, "message": "late"}', "late"),
        ('{"status": "failed"}', "error"),
        ("some output\nProcess finished, exit code: 2", "some output"),
        ("\x1b[31mfatal: not a git repository", "\x1b[31mfatal: not a git repository"),
        ('{"error": null, "ok": true}', None),
        ("No errors were found.", None),
        ("The error rate fell.", None),
        ("exit code 0", None),
        ("", None),
    ],
)
def test_errors_are_told_from_results(text: str, error: str | None) -> None:
    assert error_of(text) == error


KEYS = """role content type tool_calls messages id kwargs data parts function name arguments traces nodes steps resourceSpans scopeSpans
    spans attributes value run_type trace_id observations task rewards outputs inputs schema_version key score child_runs request response
    choices message"""
VALUES = ["assistant", "tool", "user", "llm", "GENERATION", "ATIF-v1.8", "tool_call"]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(st.sampled_from(KEYS.split()), inner | st.sampled_from(VALUES), max_size=6)
    return st.lists(inner, max_size=3) | named


plain_values: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
json_values: st.SearchStrategy[Any] = st.recursive(plain_values, nested, max_leaves=25)


@given(json_values)
def test_no_record_breaks_a_reader(value: Any) -> None:
    from turnwise.logs.files import Record

    assert all(isinstance(message.text, str) for message in messages_of(value))
    for fits, read in FORMATS.values():
        if fits(value):
            try:
                for attempt in read(iter([Record(Path("x.jsonl"), 1, value)])):
                    trajectory_of(attempt, 1.0, 1.0)
            except TurnwiseError:
                pass


# -- files --------------------------------------------------------------------------------------------------------------------------------


def test_lines_that_are_damaged_are_counted_and_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [line(), '{"messages": [', line(), "\x00", json.dumps(line())[:-9]])
    logs = read_logs([path])
    assert len(logs.trajectories) == 2 and logs.notes == ["3 lines left out: not JSON"]


def test_a_file_whose_first_line_is_damaged_is_read_from_the_second(tmp_path: Path) -> None:
    logs = read_logs([write(tmp_path / "log.jsonl", ['"messages": [', line(), line()])])
    assert len(logs.trajectories) == 2 and logs.notes == ["1 line left out: not JSON"]


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl.gz", gzip.compress), ("a.jsonl.xz", lzma.compress)])
def test_a_packed_file_that_is_damaged_is_read_up_to_there(tmp_path: Path, name: str, pack: Any) -> None:
    text = "".join(json.dumps(line(random.Random(number).randbytes(2000).hex())) + "\n" for number in range(200)).encode()
    (tmp_path / name).write_bytes(pack(text)[:-50_000])
    logs = read_logs([tmp_path / name])
    assert 50 < len(logs.trajectories) < 200 and "damaged after" in logs.notes[0]
    packed = bytearray(pack(text))
    packed[60_000:60_100] = bytes(100)
    (tmp_path / name).write_bytes(packed)
    assert 0 < len(read_logs([tmp_path / name]).trajectories) < 200
    (tmp_path / name).write_bytes(b"hello")
    with pytest.raises(TurnwiseError, match="cannot be read"):
        read_logs([tmp_path / name])


def test_numbers_and_structures_that_are_too_large_break_nothing(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": deep}}
    messages = [{"role": "user", "content": "x", "timestamp": 10**400}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    path = write(tmp_path / "log.jsonl", [{"messages": messages, "reward": 10**400, "success": True, "metadata": deep}])
    (read,) = read_logs([path], keep_attempts=True).trajectories
    assert read.success and read.turns[0].action == 'f {"input":"[nested too deeply]"}'


def test_an_array_and_an_indented_document_are_read_like_lines(tmp_path: Path) -> None:
    (tmp_path / "array.json").write_text(json.dumps([line("a"), line("b")], indent=2))
    (tmp_path / "one.json").write_text(json.dumps(line("c"), indent=2))
    logs = read_logs([str(tmp_path / "*.json")])
    assert [each.goal for each in logs.trajectories] == ["a", "b", "c"]


def test_a_folder_does_not_lead_out_of_itself(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    write(outside / "log.jsonl", [line()])
    (inside / "link.jsonl").symlink_to(outside / "log.jsonl")
    with pytest.raises(TurnwiseError, match="no logs in there"):
        read_logs([inside])


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([{"what": 1}], "1 record of unknown form. Known formats: otel, harbor"),
        ([{"messages": [{"role": "user", "content": "x"}], "success": True}], "none has a turn of the agent"),
        (["[" * 100_000], "no attempts: 1 line of no JSON"),
        ([], "no attempts: the files are empty"),
    ],
)
def test_logs_without_attempts_say_why(tmp_path: Path, lines: list[Any], error: str) -> None:
    with pytest.raises(TurnwiseError, match=re.escape(error)):
        read_logs([write(tmp_path / "log.jsonl", lines)])


def test_attempts_with_the_same_id_stay_apart(tmp_path: Path) -> None:
    logs = read_logs([write(tmp_path / "log.jsonl", [line(id="x")] * 3)])
    assert [each.id for each in logs.trajectories] == ["x", "x (2)", "x (3)"]


def test_an_unknown_format_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match="Did you mean 'langfuse'"):
        read_logs([write(tmp_path / "log.jsonl", [line()])], format="langfuze")


def test_files_of_trajectories_keep_states_rewards_and_invalid_actions(tmp_path: Path) -> None:
    turns = [tw.Turn("s0", 0.5, observation="look", action="go", response="I go."), tw.Turn("s1", -1, False, "there", action="?")]
    tw.write_trajectories(tmp_path / "turns.jsonl", [tw.Trajectory(3, 7, "t", turns, success=True)])
    (read,) = read_logs([tmp_path / "turns.jsonl"]).trajectories
    rows = [(turn.anchor, turn.reward, turn.observation, turn.action) for turn in read.turns]
    assert rows == [("s0", 0.5, "look", "go"), ("s1", -1, "there", "?")] and read.success and read.group == "t"
    assert read.turns[1].info["error"] and not read.turns[1].valid and Message("user").anchor is None
