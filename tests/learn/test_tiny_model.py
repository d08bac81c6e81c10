"""The embedded model: a tokenizer that loses nothing, a model that is the same everywhere, a folder that anything can load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.agent import Chat
from turnwise.learn.tiny import build_tiny, build_tokenizer
from turnwise.util.errors import TurnwiseError

TEXTS = ["go to cabinet 1", "You are in the middle of a room. You see a desk 2, and a mug.", "Your task is to: put a mug in desk."]


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any]:
    return build_tiny(TEXTS, layers=2, hidden=32, heads=4, max_length=256, seed=3)


@cache
def known() -> Any:
    return build_tokenizer(TEXTS)


ODD_TEXTS = ("go to cabinet 12", "  go  to\n\ncabinet\t1 ", "click[buy now]", "x" * 5000, "é" * 5000, "漢字 😀", "<|user|>", "")


@given(text=st.sampled_from(ODD_TEXTS) | st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back_exactly(text: str) -> None:
    tokenizer = known()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_token_id not in ids


def test_words_and_digits_are_one_token_each() -> None:
    tokenizer = known()

    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]

    assert pieces("go to cabinet 12") == ["go", " to", " cabinet", " 1", "2"]
    assert pieces("cabinet 907 to go") == ["cabinet", " 9", "0", "7", " to", " go"]
    assert pieces("to: mug.") == ["to", ":", " mug", "."]
    assert pieces("mugs") == ["mug", "s"]  # unknown words fall apart, the longest known piece first


def test_a_message_costs_one_token_and_the_answer_two() -> None:
    tokenizer = known()
    chat = Chat(tokenizer, system="go")
    size = len(tokenizer("go to cabinet 12")["input_ids"])
    assert len(chat.opening_ids("go to cabinet 12")) == 1 + 1 + 1 + size + 1  # system role and word, user role, text, the agent's turn
    answer = chat.answer_ids("go to cabinet 12")
    assert len(answer) == size + 1
    assert len(chat.bridge(answer, "go to cabinet 12")) == 1 + size + 1


def test_the_same_texts_sizes_and_seed_give_the_same_model(made: tuple[Any, Any]) -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    model, tokenizer = build_tiny(reversed(TEXTS), layers=2, hidden=32, heads=4, max_length=256, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's chance is its own
    assert tokenizer.get_vocab() == made[1].get_vocab()
    theirs = made[0].state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in model.state_dict().items())
    other = build_tiny(TEXTS, layers=2, hidden=32, heads=4, max_length=256, seed=4)[0].state_dict()
    assert not all(torch.equal(weight, other[name]) for name, weight in theirs.items())


def test_a_saved_folder_loads_like_any_other_without_a_network(made: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = made
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    text = "go to cabinet 12\nYou see a désk."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    code = (
        "import json, sys, torch\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "tokenizer, model = AutoTokenizer.from_pretrained(sys.argv[1]), AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "ids = tokenizer(sys.argv[2], return_tensors='pt')['input_ids']\n"
        "talk = [{'role': 'user', 'content': 'go'}]\n"
        "print(json.dumps([ids[0].tolist(), tokenizer.decode(ids[0]), tokenizer.apply_chat_template(talk, tokenize=False),\n"
        "    tokenizer.eos_token, model.config.eos_token_id, model(ids).logits[0, -1].tolist()]))\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), text], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded[:5] == [ids[0].tolist(), text, "<|user|>go", "<|end|>", tokenizer.eos_token_id]
    with torch.no_grad():
        assert torch.allclose(torch.tensor(loaded[5]), model(ids).logits[0, -1], atol=1e-5)


@pytest.mark.parametrize("sizes", [{"hidden": 30}, {"hidden": 12, "heads": 4}, {"layers": 0}, {"heads": 0}, {"max_length": 0.5}])
def test_impossible_sizes_are_clear_errors(sizes: dict[str, Any]) -> None:
    with pytest.raises(TurnwiseError, match=r"^Tiny: "):
        build_tiny(TEXTS, **sizes)


def test_the_words_of_a_text_without_end_are_taken_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.learn.tiny.LONGEST_TEXT", 8)
    vocabulary = build_tokenizer(["mug desk drawer", "cup"]).get_vocab()
    assert {"mug", "desk", "cup"} <= set(vocabulary) and "drawer" not in vocabulary


def test_names_of_several_words_are_one_token_if_asked_for() -> None:
    call = "get_stock_info(symbol='NVDA') my_list"
    plain, named = (build_tokenizer([call, "stock info"], names=names) for names in (False, True))
    assert named.tokenize(call)[0] == "get_stock_info" and "Ġmy_list" in named.tokenize(call)
    assert plain.tokenize(call)[:5] == ["get", "_", "stock", "_", "info"]
    for text in (call, "stock_info", "get_other_info", "_private_", "__", "a" * 40 + "_b" * 40, "ä_ö"):
        assert named.decode(named(text)["input_ids"]) == text
