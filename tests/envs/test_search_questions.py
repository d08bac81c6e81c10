"""Question sets: the published file forms, sets as splits, fixed and disjoint training splits, and data that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import shared_folder
from search_data import QUESTIONS, write_data, write_lines

import turnwise as tw
from turnwise.data.tasks import TaskSet
from turnwise.envs.search.questions import Library, find_corpus, is_valid, words_key
from turnwise.envs.search.records import Question, read_questions
from turnwise.util.errors import TurnwiseError

MUSIQUE = {
    "id": "2hop", "question": "Q?", "answer": "A", "answer_aliases": ["B"], "answerable": True,
    "paragraphs": [{"title": "T", "is_supporting": True}, {"title": "U", "is_supporting": False}],
}  # fmt: skip
FORMS = [
    ("nq_test.jsonl", json.dumps({"id": "7", "question": "Q?", "golden_answers": ["A", "B"]}), Question("7", "Q?", ("A", "B"))),
    ("nq-open.jsonl", json.dumps({"question": "q", "answer": ["A", "A", " "]}), Question("nq-open-0", "q", ("A",))),
    ("musique.jsonl", json.dumps(MUSIQUE), Question("2hop", "Q?", ("A", "B"), titles=("T",))),
    (
        "mix.jsonl",
        json.dumps({"id": "9", "question": "Q?", "data_source": "nq", "reward_model": {"ground_truth": {"target": ["A"]}}}),
        Question("9", "Q?", ("A",), source="nq"),
    ),
    (
        "hotpot_dev_fullwiki_v1.json",
        json.dumps([{"_id": "5a", "question": "Q?", "answer": "yes", "supporting_facts": [["T", 0], ["U", 1], ["T", 2]], "context": []}]),
        Question("5a", "Q?", ("yes",), titles=("T", "U")),
    ),
    (
        "triviaqa-dev.json",
        json.dumps({"Data": [{"QuestionId": "tc_1", "Question": "Q?", "Answer": {"Value": "A", "Aliases": ["B", "A"]}}]}),
        Question("tc_1", "Q?", ("A", "B")),
    ),
    ("popQA.tsv", 'id\tquestion\tpossible_answers\n11\tQ?\t"[""A"", ""B""]"\n', Question("11", "Q?", ("A", "B"))),
    ("bamboogle.csv", 'Question,Answer\n"Q, or?",A\n', Question("bamboogle-0", "Q, or?", ("A",))),
]


@pytest.mark.parametrize(("name", "content", "question"), FORMS, ids=lambda value: str(value)[:12])
def test_the_published_forms_are_read(tmp_path: Path, name: str, content: str, question: Question) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_questions(tmp_path / name) == [question]


def test_a_parquet_file_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.Table.from_pylist([{"question": "Q?", "golden_answers": ["A"], "data_source": "nq"}]), tmp_path / "test.parquet"
    )
    assert Library(tmp_path).sizes() == {"nq": 1}


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"question": "q", "golden_answers": [1]}', '{"answer": "x"}', '{"question": " ", "answer": "x"}']
)
def test_a_damaged_record_is_an_error_with_its_place(tmp_path: Path, content: str) -> None:
    path = tmp_path / "nq_test.jsonl"
    path.write_text(json.dumps(QUESTIONS[0]) + "\n" + content + "\n")
    with pytest.raises(TurnwiseError, match=r"nq_test\.jsonl.*(line|record) 2\b"):
        read_questions(path)


def test_hidden_answers_are_told(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "musique_test.jsonl", [{"id": "1", "question": "q"}, {"id": "2", "question": "q", "answerable": False}])
    with pytest.raises(TurnwiseError, match="hidden"):
        read_questions(path)


def test_each_set_is_a_split_and_test_is_all_of_them(tmp_path: Path) -> None:
    library = Library(write_data(tmp_path))
    assert [task.id for task in library.split("nq")] == ["nq/q0", "nq/q1", "nq/q2"]
    assert [task.id for task in library.split("test")] == ["nq/q0", "nq/q1", "nq/q2", "hotpotqa/hq0", "hotpotqa/hq1"]
    assert library.split("hotpotqa+nq").hash != library.split("test").hash
    assert {task.data["task_type"] for task in library.split("test")} == {"nq", "hotpotqa"}
    assert all(task.split == task.data["task_type"] for task in library.split("test"))
    with pytest.raises(TurnwiseError, match="Did you mean 'hotpotqa'"):
        library.split("hotpot")


def test_train_and_valid_are_cut_by_the_words_and_leave_test_questions_out(tmp_path: Path) -> None:
    library = Library(write_data(tmp_path))
    train, valid = library.split("train"), library.split("valid")
    assert len(train) + len(valid) == 200 and 5 <= len(valid) <= 40  # one was in a test set
    assert not {words_key(task.data["question"]) for task in train} & {words_key(task.data["question"]) for task in valid}
    assert is_valid("What is 3 and one?") == is_valid("what is 3, and ONE")
    assert library.sizes() == {"train": len(train), "valid": len(valid), "nq": 3, "hotpotqa": 2}


def test_per_set_takes_the_same_few_of_each_set(tmp_path: Path) -> None:
    library = Library(write_data(tmp_path))
    few = library.split("test", per_set=1)
    assert [task.data["task_type"] for task in few] == ["nq", "hotpotqa"]
    assert few.hash == library.split("test", per_set=1).hash
    assert [task.id for task in few] == [library.split(name, per_set=1)[0].id for name in ("nq", "hotpotqa")]


def test_of_several_files_the_test_file_is_the_test_set(tmp_path: Path) -> None:
    for name in ("dev", "test", "train"):
        write_lines(tmp_path / "nq" / f"{name}.jsonl", [{"id": name, "question": f"In {name}?", "golden_answers": ["x"]}])
    library = Library(tmp_path)
    assert [task.id for task in library.split("nq")] == ["nq/test"]
    assert library.sizes()["train"] + library.sizes()["valid"] == 1


def test_files_may_be_named_and_records_may_name_their_set(tmp_path: Path) -> None:
    mixed = [
        {"id": "1", "question": "a?", "answer": "x", "data_source": "nq"},
        {"id": "2", "question": "b?", "answer": "x", "data_source": "popqa"},
    ]
    write_lines(tmp_path / "test.jsonl", mixed)
    own = write_lines(tmp_path / "elsewhere" / "corpus" / "mine.jsonl", [{"id": "3", "question": "c?", "answer": "x"}])
    library = Library(tmp_path, files={"mine": str(own), "mine-train": str(own)})
    assert [task.id for task in library.split("test")] == ["nq/1", "popqa/2", "mine/3"]


def test_training_sets_can_be_chosen(tmp_path: Path) -> None:
    write_lines(write_data(tmp_path) / "questions" / "nq_train.jsonl", [{"id": "n", "question": "Only this?", "golden_answers": ["x"]}])
    library = Library(tmp_path)
    chosen = [*library.split("train", train_sets=["nq"]), *library.split("valid", train_sets=["nq"])]
    assert [task.id for task in chosen] == ["nq/n"]
    with pytest.raises(TurnwiseError, match="unknown training set 'nqq'"):
        library.split("train", train_sets=["nqq"])


def test_absent_data_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(TurnwiseError, match="TURNWISE_DATA"):
        tw.tasks("search", split="train")
    with pytest.raises(TurnwiseError, match="no question files"):
        tw.tasks("search", split="train", data=str(tmp_path))
    with pytest.raises(TurnwiseError, match="found none"):
        find_corpus(tmp_path)
    with pytest.raises(TurnwiseError, match="answerable"):
        Library(tmp_path, "answerable")


@pytest.mark.parametrize("questions", ["answerable", "all"])
def test_the_shared_sets_are_complete_fixed_and_disjoint(questions: Any) -> None:
    library = Library(shared_folder("qa"), questions)
    sizes = library.sizes()
    assert list(sizes) == ["train", "valid", "nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle"]
    if questions == "all":
        assert [sizes[name] for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle")] == [
            3610, 1000, 1000, 7405, 12576, 2417, 125,
        ]  # fmt: skip
        assert sizes["train"] + sizes["valid"] == 8498 + 19938
    keys = {split: {words_key(task.data["question"]) for task in library.split(split)} for split in ("train", "valid", "test")}
    assert not keys["train"] & keys["valid"] and not (keys["train"] | keys["valid"]) & keys["test"]
    every = TaskSet([*library.split("train"), *library.split("valid"), *library.split("test")])  # refuses an id that comes twice
    assert len(every) == sum(sizes.values())
