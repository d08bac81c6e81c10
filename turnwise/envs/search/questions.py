"""Question sets as splits.

Each test set is a split under its own name; `test` is all of them, `nq+hotpotqa` any union. Files with "train" in their path are the
training pool, which a hash of the question's words splits into `train` and `valid`: the same split on every machine and for a question
that occurs twice. A question that is also in a test set is in neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.needs import find_folder
from turnwise.envs.search.records import Question, form_of, read_questions
from turnwise.retrieval.bm25 import words_of
from turnwise.retrieval.cache import file_key
from turnwise.util.errors import TurnwiseError, unknown_name

Which = Literal["auto", "answerable", "all"]
SETS = {  # the name of a set, and its names in files
    "nq": r"\bnq|natural ?questions",
    "triviaqa": r"trivia",
    "popqa": r"popqa",
    "hotpotqa": r"hotpot",
    "2wiki": r"2wiki",
    "musique": r"musique",
    "bamboogle": r"bamboogle",
}
ROLES = ("train", "test", "dev", "valid", "validation")  # if a set has several files, the first of these that exists is its test set
VALID_PART = 10  # one question of ten of the training pool
ANSWERABLE, QUESTIONS, CORPUS = "answerable", "questions", "corpus"
CORPUS_NAME = re.compile(r"passages|psgs|corpus|wiki-?18|wiki_?dump", re.IGNORECASE)
Sets = dict[str, list[Question]]


class Library:
    """The question sets of a folder. Files are read when a split is requested."""

    def __init__(self, folder: Path, which: Which = "auto", files: Mapping[str, str] | None = None):
        if which not in ("auto", "answerable", "all"):
            raise unknown_name("choice of questions", str(which), ("auto", "answerable", "all"))
        self.folder = folder
        root = _root(folder, which)
        self._files: dict[tuple[str, str], list[Path]] = {}  # (role, set) → files
        for path in sorted(root.rglob("*"), key=lambda path: path.as_posix()):
            inner = path.relative_to(root)
            in_corpus = CORPUS in inner.parts or CORPUS_NAME.match(path.name) is not None
            if path.is_file() and form_of(path) and not in_corpus and not path.name.startswith("."):
                self._files.setdefault(_place(inner), []).append(path)
        for name, given in (files or {}).items():
            place = ("train", name.removesuffix("-train")) if name.endswith("-train") else ("test", name)
            self._files[place] = [Path(given).expanduser()]
        if not self._files:
            raise TurnwiseError(f"{root}: no question files there. {EXPECTED}")

    def test_sets(self) -> Sets:
        """All test sets by name, in their usual order."""
        chosen: dict[str, tuple[int, list[Path]]] = {}
        for (role, name), files in self._files.items():
            rank = ROLES.index(role) if role in ROLES else len(ROLES)
            if role != "train" and rank <= chosen.get(name, (rank, []))[0]:
                chosen[name] = (rank, files)
        return _by_set((name, files) for name, (_, files) in chosen.items())

    def pool(self, only: Sequence[str] | None = None) -> Sets:
        """The training sets, without questions that are also in a test set."""
        sets = _by_set((name, files) for (role, name), files in self._files.items() if role == "train")
        if only is not None:
            if wrong := [name for name in only if name not in sets]:
                raise unknown_name("training set", wrong[0], sets)
            sets = {name: sets[name] for name in only}
        tested = {words_key(question.question) for found in self.test_sets().values() for question in found}
        return {name: [question for question in found if words_key(question.question) not in tested] for name, found in sets.items()}

    def split(self, split: str, per_set: int | None = None, train_sets: Sequence[str] | None = None) -> TaskSet:
        """The tasks of a split; with `per_set`, at most that many of each set, chosen by a hash of their ids."""
        if split in ("train", "valid"):
            pool = self.pool(train_sets)
            if not pool:
                raise TurnwiseError(f"{self.folder}: no training questions there (files with 'train' in their name). {EXPECTED}")
            sets = {name: [q for q in found if is_valid(q.question) == (split == "valid")] for name, found in pool.items()}
        else:
            tests = self.test_sets()
            names = list(tests) if split == "test" else split.split("+")
            if wrong := [name for name in names if name not in tests]:
                raise unknown_name("split of environment 'search':", wrong[0], [*tests, "test", "train", "valid"])
            sets = {name: tests[name] for name in dict.fromkeys(names)}
        tasks = [task for name, found in sets.items() for task in _tasks(name, split, found, per_set)]
        return TaskSet(tasks, name=f"search/{split}")

    def sizes(self) -> dict[str, int]:
        """How many tasks each split has; `test` and unions are not listed, because they share tasks with the sets."""
        pool = [question for found in self.pool().values() for question in found]
        held_out = sum(is_valid(question.question) for question in pool)
        sizes = {"train": len(pool) - held_out, "valid": held_out} if pool else {}
        return sizes | {name: len(found) for name, found in self.test_sets().items()}


def _tasks(name: str, split: str, found: list[Question], per_set: int | None) -> Sequence[Task]:
    tasks = TaskSet((_task(name, split if split in ("train", "valid") else name, question) for question in found), name=f"search/{name}")
    return tasks if per_set is None or per_set >= len(tasks) else tasks.panel(per_set)


def _task(name: str, split: str, question: Question) -> Task:
    data = {"task_type": name, "question": question.question, "answers": list(question.answers)}
    data |= {"evidence": list(question.evidence)} if question.evidence else {}
    data |= {"titles": list(question.titles)} if question.titles else {}
    return Task(f"{name}/{question.id}", split, data)


def words_key(question: str) -> str:
    """What makes two questions the same: their words."""
    return " ".join(words_of(question))


def is_valid(question: str) -> bool:
    """Whether a question of the training pool is held out."""
    return int.from_bytes(blake2b(words_key(question).encode(), digest_size=8).digest(), "big") % VALID_PART == 0


def _by_set(groups: Iterable[tuple[str, list[Path]]]) -> Sets:
    sets: Sets = {}
    for name, files in groups:
        for path in files:
            for question in _read(path, file_key(path)):
                own = name or set_name(question.source) or path.name.partition(".")[0]
                sets.setdefault(own, []).append(question)
    order = [*SETS, *sorted(set(sets) - set(SETS))]
    return {name: sets[name] for name in order if name in sets}


@lru_cache(maxsize=64)
def _read(path: Path, key: str) -> list[Question]:
    return read_questions(path)


def _root(folder: Path, which: Which) -> Path:
    if which == "answerable" and not (folder / ANSWERABLE).is_dir():
        raise TurnwiseError(f"{folder}: no folder {ANSWERABLE}/ there, with the questions that the corpus can answer. Use questions='all'")
    if which != "all" and (folder / ANSWERABLE).is_dir():
        return folder / ANSWERABLE
    return folder / QUESTIONS if (folder / QUESTIONS).is_dir() else folder


def _place(path: Path) -> tuple[str, str]:
    """Role and set of a file, by the words of its path."""
    words = re.sub(r"[^a-z0-9]+", " ", path.as_posix().lower())
    role = next((role for role in ROLES if re.search(rf"\b{role}\b", words)), "")
    return role, set_name(words)


def set_name(text: str) -> str:
    """The known sets that a text names, joined if it names several; empty if it names none."""
    words = re.sub(r"[^a-z0-9]+", " ", text.lower())
    return "-".join(name for name, pattern in SETS.items() if re.search(pattern, words))


EXPECTED = (
    "Expected a folder with question files (in questions/ or anywhere below it: nq_test.jsonl, hotpotqa/dev.jsonl, …) and, unless "
    "passages come from a server, corpus/passages.jsonl. Set TURNWISE_DATA to the folder that holds it as qa/, or pass data=…; "
    "docs/environments/search-qa.md lists the forms"
)


def find_data() -> Path:
    """The first of the usual folders that has question sets."""
    return find_folder("question sets", Path.is_dir, "qa", "turnwise/data/qa", "", EXPECTED)


def find_corpus(folder: Path) -> Path:
    """The file of passages in a data folder."""
    place = folder / CORPUS if (folder / CORPUS).is_dir() else folder
    files = [path for path in sorted(place.iterdir()) if form_of(path) in (".jsonl", ".tsv")] if place.is_dir() else []
    known = [path for path in files if CORPUS_NAME.match(path.name)]
    if len(known) != 1:
        names = ", ".join(path.name for path in known) or "none"
        raise TurnwiseError(f"{place}: expected one file of passages there, found {names}. Say which: corpus=…")
    return known[0]
