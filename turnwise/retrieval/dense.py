"""Dense retrieval: passages and queries as vectors of one model, compared exactly by inner product.

The passages are encoded once, one shard at a time, into memory-mapped files; an interrupted build continues where it stopped. A search
reads the shards in blocks, so memory stays small for any corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.retrieval.base import Hit
from turnwise.retrieval.bm25 import best
from turnwise.retrieval.cache import cache_folder, file_key, key_of, locked
from turnwise.retrieval.corpus import Corpus
from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.files import write_atomically

SHARD = 50_000  # passages per file
BLOCK = 16_384  # vectors in memory during a search
Floats = NDArray[np.float32]


class Dense:
    """Finds passages by meaning. `model`: a sentence-transformers folder or name. `query_prefix`, `passage_prefix`: the prefixes that
    the model expects ("query: " and "passage: " for E5). `batch`: passages encoded at once. `max_length`: in tokens, none: the model's
    own. `device`: auto takes a GPU if there is one."""

    def __init__(
        self,
        corpus: Corpus,
        model: str,
        query_prefix: str = "",
        passage_prefix: str = "",
        batch: int = 64,
        max_length: int | None = None,
        device: str = "auto",
    ):
        self.corpus, self._query_prefix, self._passage_prefix, self._batch = corpus, query_prefix, passage_prefix, batch
        self.encoder = Encoder(model, device, max_length)
        name = key_of(corpus.key, _model_key(self.encoder.folder), passage_prefix, str(self.encoder.max_length), str(SHARD))
        self.folder = cache_folder() / "embeddings" / name
        with locked(self.folder):
            self._shards = [self._shard(number) for number in range(-(-len(corpus) // SHARD))]

    def _shard(self, number: int) -> Floats:
        """One file of vectors, encoded if it does not exist yet."""
        path = self.folder / f"{number:05d}.npy"
        start, end = number * SHARD, min((number + 1) * SHARD, len(self.corpus))
        if not path.is_file():
            passages = (self.corpus[place] for place in range(start, end))
            texts = [f"{self._passage_prefix}{passage.contents}" for passage in passages]
            vectors = self.encoder.encode(texts, self._batch)
            write_atomically(path, lambda file: np.save(file, vectors))
        shard: Floats = np.load(path, mmap_mode="r")
        if shard.shape != (end - start, self.encoder.width):
            raise TurnwiseError(f"{path}: {shard.shape} vectors where {(end - start, self.encoder.width)} are expected. Delete the file")
        return shard

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        topk = min(topk, len(self.corpus))
        if not queries or topk < 1:
            return [[] for _ in queries]
        vectors = self.encoder.encode([f"{self._query_prefix}{query}" for query in queries], self._batch)
        scores, places = self._best(vectors, topk)
        return [
            [Hit(self.corpus[int(place)], float(score)) for score, place in zip(row, where, strict=True)]
            for row, where in zip(scores, places, strict=True)
        ]

    def _best(self, vectors: Floats, topk: int) -> tuple[Any, Any]:
        scores = np.full((len(vectors), 0), 0, np.float32)
        places = np.full((len(vectors), 0), 0, np.int64)
        for number, shard in enumerate(self._shards):
            for start in range(0, len(shard), BLOCK):
                block = vectors @ shard[start : start + BLOCK].T
                here = np.broadcast_to(np.arange(block.shape[1]) + number * SHARD + start, block.shape)
                scores, places = np.hstack([scores, block]), np.hstack([places, here])
                kept = np.array([best(row, topk) for row in scores])  # in the order of positions, which decides equal scores
                scores, places = np.take_along_axis(scores, kept, 1), np.take_along_axis(places, kept, 1)
        return scores, places

    def close(self) -> None:
        """The vectors are shared with other environments: nothing to do."""


class Encoder:
    """`model`: a folder or a name on the model hub. `max_length`: in tokens, none: the model's own. `device`: auto takes a GPU if there is
    one."""

    def __init__(self, model: str, device: str = "auto", max_length: int | None = None):
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise MissingExtra("the dense retriever", "dense") from None
        self.folder = _folder(model)
        try:
            self._model: Any = SentenceTransformer(
                str(self.folder),
                device=None if device == "auto" else device,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True, "dtype": "float32"},
                processor_kwargs={"split_special_tokens": True},  # "[SEP]" in a passage is plain text
            )
        except (OSError, ValueError, ImportError, AttributeError) as error:  # the last two: a module that the library does not have
            raise TurnwiseError(f"encoder {model!r}: {str(error).splitlines()[0]}") from None
        if max_length is not None:
            self._model.max_seq_length = max_length
        self.max_length = self._model.max_seq_length
        self.width = int(self.encode(["width"]).shape[1])

    def encode(self, texts: Sequence[str], batch: int = 64) -> Floats:
        """One row per text. Long texts are truncated to `max_length` tokens."""
        if not texts:
            return np.empty((0, self.width), np.float32)
        vectors: Floats = self._model.encode(list(texts), batch_size=batch, show_progress_bar=False).astype(np.float32, copy=False)
        return vectors


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, ignore_patterns=["*.onnx", "*.h5", "*.ot", "*.msgpack", "onnx/*", "openvino/*"]))
    except Exception as error:  # no network, no such name, no access: the same for the caller
        raise TurnwiseError(
            f"encoder {model!r}: neither a local folder nor a model that can be downloaded ({type(error).__name__})"
        ) from None


def _model_key(folder: Path) -> str:
    """A name for this version of a model: the files that affect the vectors."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors", ".bin", ".txt", ".model"))
    return key_of(*(f"{path.relative_to(folder)} {file_key(path)}" for path in files))
