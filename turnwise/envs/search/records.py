"""Reading question files in the forms in which they are published, each record to one `Question`.

| form | where from |
|---|---|
| JSON lines with `question` and `golden_answers` | FlashRAG's collections |
| JSON list with `question`, `answer`, `supporting_facts` | HotpotQA, 2WikiMultiHopQA |
| JSON lines with `question`, `answer`, `answer_aliases`, `paragraphs` | MuSiQue |
| JSON lines with `question` and `answer` (a list) | NQ-open |
| `{"Data": [{"Question": …, "Answer": {"Aliases": …}}]}` | TriviaQA |
| table with `question` and `possible_answers` (JSON) | PopQA |
| table with `Question` and `Answer` | Bamboogle |
| parquet with `data_source` and `golden_answers` | Search-R1's mix (needs pyarrow) |

All except parquet may be packed with xz, gzip or bzip2. A record that cannot be read raises an error with file and number.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from turnwise.retrieval.corpus import PACKED
from turnwise.util.errors import TurnwiseError
from turnwise.util.unpack import json_lines, open_packed, read_parquet

FORMS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


class Question(NamedTuple):
    """A question with its accepted answers. `source` is the set that the record itself names; `evidence` and `titles` say where the
    answer is, as passages of the corpus or as titles, if the data contains that."""

    id: str
    question: str
    answers: tuple[str, ...]
    source: str = ""
    evidence: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


def form_of(path: Path) -> str:
    """The suffix that decides how to read a file, without that of its compression; empty if it is not a question file."""
    plain = path.with_suffix("") if path.suffix in PACKED else path
    return plain.suffix if plain.suffix in FORMS else ""


def read_questions(path: Path) -> list[Question]:
    """The questions of a file that have an answer."""
    stem = path.name.partition(".")[0]
    found: list[Question] = []
    try:
        for number, record in enumerate(_records(path)):
            try:
                question = question_of(record, f"{stem}-{number}")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                why = f"{type(error).__name__}: {error}"
                raise TurnwiseError(
                    f"{path}, record {number + 1}: not a question with its answers ({why}). See docs/environments/search-qa.md"
                ) from None
            if question is not None:
                found.append(question)
    except (OSError, EOFError, ValueError, csv.Error) as error:
        if isinstance(error, TurnwiseError):
            raise
        raise TurnwiseError(f"{path}: cannot be read ({type(error).__name__}: {error})") from None
    if not found:
        raise TurnwiseError(f"{path}: no question in this file has an answer. A test set whose answers are hidden cannot be played")
    return found


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    form = form_of(path)
    if form == ".parquet":
        yield from read_parquet(path)
        return
    if form == ".jsonl":
        yield from json_lines(path)
        return
    with open_packed(path) as file:
        if form == ".json":
            content = json.load(file)
            yield from content if isinstance(content, list) else content.get("Data") or content["data"]
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            yield from csv.DictReader(text, delimiter="\t" if form == ".tsv" else ",")


def question_of(record: Mapping[str, Any], otherwise: str) -> Question | None:
    """A record as a question; None if it has no answer. `otherwise` is the id of a record that has none."""
    if record.get("answerable") is False:  # MuSiQue marks questions whose evidence was taken out
        return None
    text = record["question"] if "question" in record else record["Question"]
    answers = tuple(dict.fromkeys(answer.strip() for answer in _answers(record) if answer.strip()))
    if not isinstance(text, str) or not text.strip():
        raise ValueError("the question is empty")
    if not answers:
        return None
    name = next((str(record[key]) for key in ("id", "_id", "QuestionId") if record.get(key) not in (None, "")), otherwise)
    evidence = tuple(str(place) for place in record.get("evidence_ids") or ())
    return Question(name, " ".join(text.split()), answers, str(record.get("data_source") or ""), evidence, _titles(record))


def _answers(record: Mapping[str, Any]) -> list[str]:
    if (given := record.get("golden_answers")) is not None:
        return _texts(given)
    if "possible_answers" in record:
        given = record["possible_answers"]
        return _texts(json.loads(given) if isinstance(given, str) else given)
    if "reward_model" in record:
        return _texts(record["reward_model"]["ground_truth"]["target"])
    given = record.get("answer", record.get("Answer"))
    if isinstance(given, Mapping):
        return _texts([given["Value"], *given.get("Aliases", ())])
    return [*_texts(given), *_texts(record.get("answer_aliases"))]


def _texts(given: Any) -> list[str]:
    if given is None:
        return []
    listed = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(text, str) for text in listed):
        raise ValueError(f"answers are texts, not {listed!r}"[:200])
    return listed


def _titles(record: Mapping[str, Any]) -> tuple[str, ...]:
    facts = record.get("supporting_facts")
    if isinstance(facts, list):
        return tuple(dict.fromkeys(str(fact[0]) for fact in facts))
    paragraphs = record.get("paragraphs")
    if isinstance(paragraphs, list):
        return tuple(dict.fromkeys(str(p["title"]) for p in paragraphs if p.get("is_supporting")))
    return ()
