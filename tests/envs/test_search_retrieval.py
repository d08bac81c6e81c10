"""Retrievers: BM25 against its definition, dense against all inner products, the cache on the disk, the memory of answers, options."""

from __future__ import annotations

import gzip
import math
import multiprocessing
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_data import PASSAGES, write_corpus, write_encoder, write_lines

from turnwise.retrieval import Hit, Passage, make_retriever
from turnwise.retrieval import dense as dense_module
from turnwise.retrieval.base import passage_of_contents
from turnwise.retrieval.bm25 import Bm25, best, query_words, words_of
from turnwise.retrieval.cache import cache_folder
from turnwise.retrieval.corpus import Corpus
from turnwise.retrieval.dense import Dense, Encoder
from turnwise.retrieval.kinds import Cached
from turnwise.util.errors import TurnwiseError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(write_corpus(tmp_path / "passages.jsonl"))


def test_bm25_leaves_jax_alone_which_would_take_most_of_a_gpu(tmp_path: Path) -> None:
    """bm25s runs JAX as it is imported, where there is one. A stand-in notes each import of it."""
    package = tmp_path / "standin" / "jax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('jax ')\n")
    (package / "lax.py").write_text("def top_k(scores, k):\n    return scores, k\n")
    program = f"""
import os
from turnwise.retrieval import make_retriever
print(len(make_retriever("bm25", {str(write_corpus(tmp_path / "passages.jsonl"))!r}).search(["river"], 1)))
print(os.path.exists({str(tmp_path / "imported")!r}))
import jax.lax
print(os.path.exists({str(tmp_path / "imported")!r}))
"""
    known = os.environ | {"PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=known)
    assert done.stdout.split() == ["1", "False", "True"], done.stderr  # whoever wants it can still have it


def random_corpus(path: Path, seed: int, size: int = 60) -> Corpus:
    chance = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(25)]
    rows = [
        {"id": n, "title": chance.choice(vocabulary), "text": " ".join(chance.choices(vocabulary, k=chance.randint(1, 30)))}
        for n in range(size)
    ]
    return Corpus(write_lines(path, rows))


def test_a_corpus_reads_every_form_to_the_same_passages(tmp_path: Path) -> None:
    expected = [Passage(str(place), title, text) for place, (title, text) in enumerate(PASSAGES)]
    plain, packed = write_corpus(tmp_path / "passages.jsonl"), write_corpus(tmp_path / "p.jsonl.xz")
    contents = write_lines(tmp_path / "wiki-18.jsonl", [{"id": str(p.id), "contents": p.contents} for p in expected])
    table = tmp_path / "psgs_w100.tsv.gz"
    table.write_bytes(gzip.compress(("id\ttext\ttitle\n" + "".join(f"{p.id}\t{p.text}\t{p.title}\n" for p in expected)).encode()))
    for path in (plain, packed, contents, table):
        corpus = Corpus(path)
        assert list(corpus) == expected and len(corpus) == len(expected)
        assert corpus[3] == expected[3]


def test_contents_give_back_title_and_text() -> None:
    for passage in (Passage("1", 'He said "x"', "a\nb"), Passage("1", '"quoted"', ""), Passage("1", "", "text")):
        assert passage_of_contents("1", passage.contents) == passage


def test_a_damaged_passage_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "passages.jsonl"
    path.write_text('{"title": "a", "text": "b"}\n{"title": 3}\n')
    corpus = Corpus(path)
    assert corpus[0].title == "a"
    with pytest.raises(TurnwiseError, match=r"passages\.jsonl, passage 1"):
        corpus[1]
    with pytest.raises(TurnwiseError, match="no such corpus"):
        Corpus(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(TurnwiseError, match="no passages"):
        Corpus(tmp_path / "empty.jsonl")


def test_a_changed_file_is_looked_at_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "passages.jsonl", [{"title": "a", "text": "b"}])
    assert len(Corpus(path)) == 1
    write_lines(path, [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}])
    assert len(Corpus(path)) == 2


def test_words_are_folded_and_stop_words_leave_queries_that_have_others() -> None:
    assert words_of("Beyoncé's ALBUM, № 4") == ["beyonce", "s", "album", "no", "4"]
    assert query_words("Who wrote the program?") == ["wrote", "program"]
    assert query_words("The Who") == ["the", "who"]


def slow_bm25(corpus: Corpus, query: str, k1: float, b: float) -> list[float]:
    documents = [words_of(f"{passage.title} {passage.text}") for passage in corpus]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        count, score = Counter(words), 0.0
        for word in query_words(query):
            holding = sum(word in other for other in documents)
            if holding:
                idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
                score += idf * count[word] / (count[word] + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75)])
def test_bm25_is_its_definition(tmp_path: Path, k1: float, b: float) -> None:
    chance = random.Random(1)
    corpus = random_corpus(tmp_path / "passages.jsonl", 0)
    retriever = Bm25(corpus, k1, b)
    for _ in range(40):
        query = " ".join(chance.choices([f"w{n}" for n in range(27)], k=chance.randint(1, 4)))
        wanted = slow_bm25(corpus, query, k1, b)
        (hits,) = retriever.search([query], 5)
        top = sorted((score for score in wanted if score > 0), reverse=True)[:5]
        assert [hit.score for hit in hits] == pytest.approx(top, rel=1e-5)
        assert [wanted[int(hit.passage.id)] for hit in hits] == pytest.approx(top, rel=1e-5)


def test_bm25_finds_what_a_person_expects(corpus: Corpus) -> None:
    retriever = Bm25(corpus)
    found = retriever.search(["the who", "beyonce album", "capital of England", "zzz", "", "\x00 ?!"], 2)
    assert [hits[0].passage.title if hits else None for hits in found] == ["The Who", "Beyoncé", "London", None, None, None]
    assert len(retriever.search(["london"], 100)[0]) == 3  # what shares no word is no hit


def test_equal_scores_stand_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    corpus = Corpus(write_lines(tmp_path / "passages.jsonl", [{"id": n, "title": "x", "text": "same words"} for n in range(50)]))
    assert [hit.passage.id for hit in Bm25(corpus).search(["same"], 5)[0]] == ["0", "1", "2", "3", "4"]
    chance = np.random.default_rng(0)
    for _ in range(50):
        scores = chance.integers(0, 4, 30).astype(np.float32)
        assert best(scores, 7) == sorted(range(30), key=lambda place: (-scores[place], place))[:7]


def test_an_index_is_built_once_and_read_from_the_disk(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Bm25(corpus).search(["london"], 3)
    monkeypatch.setattr(Bm25, "_build", lambda *_: pytest.fail("built again"))
    assert Bm25(corpus).search(["london"], 3) == first
    with pytest.raises(pytest.fail.Exception):
        Bm25(corpus, k1=2.0)
    assert not [path for path in (cache_folder() / "bm25").iterdir() if path.name.startswith(".") and path.is_dir()]


def _search(path: Path, queue: multiprocessing.Queue[list[str]]) -> None:
    queue.put([hit.passage.id for hit in Bm25(Corpus(path)).search(["london"], 3)[0]])


def test_processes_that_start_together_build_one_index_and_agree(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "passages.jsonl.xz")
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[list[str]] = context.Queue()
    processes = [context.Process(target=_search, args=(path, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert answers[0] and all(answer == answers[0] for answer in answers)
    assert len([folder for folder in (cache_folder() / "bm25").iterdir() if folder.is_dir()]) == 1


def test_a_cache_that_cannot_be_written_is_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(TurnwiseError, match="TURNWISE_CACHE"):
        Corpus(write_corpus(tmp_path / "passages.jsonl"))


class Counting:
    """A retriever that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.asked += queries
        return [[Hit(Passage(query, query, query), float(topk))] for query in queries]

    def close(self) -> None:
        self.asked.append("closed")


def test_answers_are_remembered_within_a_bound() -> None:
    inner = Counting()
    cached = Cached(inner, 2)
    assert [hits[0].passage.id for hits in cached.search(["a", "b", "a"], 3)] == ["a", "b", "a"]
    cached.search(["a"], 3)
    assert inner.asked == ["a", "b"]
    cached.search(["c"], 3)  # pushes out b, which was used longest ago
    cached.search(["a"], 3)
    assert inner.asked == ["a", "b", "c"]
    cached.search(["b"], 3)
    assert inner.asked[-1] == "b"
    assert cached.search(["b"], 1)[0][0].score == 1.0  # another number of passages is another question
    cached.search(["b"], 1)[0].clear()
    assert cached.search(["b"], 1)[0], "an answer that was remembered cannot be spoiled"


@pytest.fixture
def model(tmp_path: Path) -> str:
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers: pip install sentence-transformers")
    return str(write_encoder(tmp_path / "model"))


def test_dense_search_is_the_order_of_all_inner_products(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_module, "SHARD", 7)
    monkeypatch.setattr(dense_module, "BLOCK", 3)
    corpus = random_corpus(tmp_path / "passages.jsonl", 3, 31)
    retriever = Dense(corpus, model, query_prefix="query: ", passage_prefix="passage: ")
    passages = retriever.encoder.encode([f"passage: {passage.contents}" for passage in corpus])
    queries = ["w1 w2", "w3", "unrelated words"]
    scores = retriever.encoder.encode([f"query: {query}" for query in queries]) @ passages.T
    assert np.allclose(np.linalg.norm(passages, axis=1), 1, atol=1e-5)
    for query, row in zip(queries, scores, strict=True):
        (hits,) = retriever.search([query], 6)
        assert [hit.score for hit in hits] == pytest.approx(sorted(row, reverse=True)[:6], abs=1e-5)
        assert [row[int(hit.passage.id)] for hit in hits] == pytest.approx(sorted(row, reverse=True)[:6], abs=1e-5)
    assert len(retriever.search(["w1"], 100)[0]) == 31 and retriever.search([], 3) == []


def test_embeddings_are_kept_and_an_interrupted_build_goes_on(model: str, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_module, "SHARD", 2)
    first = Dense(corpus, model)
    wanted = first.search(["london"], 3)
    files = sorted(first.folder.glob("*.npy"))
    assert len(files) == 3 and all(isinstance(np.load(path, mmap_mode="r"), np.memmap) for path in files)
    times = [path.stat().st_mtime_ns for path in files]
    files[1].unlink()
    again = Dense(corpus, model)
    assert again.search(["london"], 3) == wanted
    assert [path.stat().st_mtime_ns for path in (files[0], files[2])] == [times[0], times[2]]
    assert Dense(corpus, model, passage_prefix="x ").folder != again.folder


def test_a_passage_cannot_write_the_encoders_control_tokens_and_long_ones_are_cut(model: str) -> None:
    encoder = Encoder(model)
    seen: list[Any] = []
    encoder._model[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]["input_ids"]))
    encoder.encode(["a [SEP] b [CLS] [MASK]"])
    own = [encoder._model.tokenizer.convert_tokens_to_ids(token) for token in ("[CLS]", "[SEP]", "[MASK]")]
    assert [int((seen[0] == token).sum()) for token in own] == [1, 1, 0]
    assert np.allclose(encoder.encode(["cut " * 300]), encoder.encode(["cut " * 200]), atol=1e-5)
    assert encoder.encode([]).shape == (0, encoder.width)
    with pytest.raises(TurnwiseError, match="neither a local folder"):
        Encoder("no/such-model-anywhere-0")


def test_a_retriever_is_made_once_and_options_are_checked(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "passages.jsonl")
    assert make_retriever("bm25", path) is make_retriever({"name": "bm25"}, path)
    assert make_retriever({"name": "bm25", "k1": 1.2}, path) is not make_retriever("bm25", path)
    for wrong, message in (
        ("bm52", "Did you mean 'bm25'"),
        ({"name": "bm25", "kl": 1}, "Did you mean 'k1'"),
        ({"name": "bm25", "b": 2}, "b between 0 and 1"),
        ({"name": "dense"}, "needs the option 'model'"),
        ({"name": "dense", "model": "x", "index": "faiss"}, "index is gone"),
        ({"name": "http"}, "needs the option 'url'"),
        (3, "not int"),
    ):
        with pytest.raises(TurnwiseError, match=message):
            make_retriever(wrong, path)  # type: ignore[arg-type]
    with pytest.raises(TurnwiseError, match="needs a corpus"):
        make_retriever("bm25")
