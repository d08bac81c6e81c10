"""A small world for the tests of search: a corpus, question files in the published forms, and a tiny encoder."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

PASSAGES = [
    ("Ada Lovelace", "Ada Lovelace wrote the first program, for the Analytical Engine of Charles Babbage."),
    ("Charles Babbage", "Charles Babbage was born in London in 1791. He designed the Analytical Engine."),
    ("The Who", "The Who are an English rock band formed in London in 1964."),
    ("Beyoncé", "Beyoncé released the album Lemonade in 2016."),
    ("London", "London is the capital of England. London lies on the Thames."),
    ("Mount Everest", "Mount Everest is the highest mountain above the sea."),
]
QUESTIONS = [
    {"id": "q0", "question": "Who wrote the first program?", "golden_answers": ["Ada Lovelace", "Lovelace"], "evidence_ids": [0]},
    {"id": "q1", "question": "Where was the designer of the Analytical Engine born?", "golden_answers": ["London"], "evidence_ids": [1, 4]},
    {"id": "q2", "question": "When was The Who formed?", "golden_answers": ["1964"], "evidence_ids": [2]},
]


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def write_corpus(path: Path) -> Path:
    return write_lines(path, [{"id": place, "title": title, "text": text} for place, (title, text) in enumerate(PASSAGES)])


def write_data(folder: Path) -> Path:
    """A data folder: two test sets, a training pool of 200 questions, the corpus."""
    write_corpus(folder / "corpus" / "passages.jsonl.xz")
    write_lines(folder / "questions" / "nq_test.jsonl.xz", QUESTIONS)
    write_lines(folder / "questions" / "hotpotqa_dev.jsonl", [{**record, "id": f"h{record['id']}"} for record in QUESTIONS[:2]])
    train = [{"id": f"t{n}", "question": f"What is {n} and one?", "golden_answers": [str(n + 1)]} for n in range(200)]
    write_lines(folder / "questions" / "musique_train.jsonl", [*train, {**QUESTIONS[0], "id": "leak"}])
    return folder


def write_encoder(folder: Path) -> Path:
    """A BERT with random weights and a word for each letter, as sentence-transformers saves its models."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 128}
    BertModel(BertConfig(vocab_size=len(vocabulary), initializer_range=0.5, **size)).save_pretrained(folder)
    fast.save_pretrained(folder)
    listed = []
    for place, name in enumerate(("Transformer", "Pooling", "Normalize")):
        path = "" if name == "Transformer" else f"{place}_{name}"
        listed.append({"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{name}"})
        (folder / path).mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder
