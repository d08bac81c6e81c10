"""Messages become tokens with the model's own chat template, and a dialogue grows without a single token being made again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from agent_tokenizers import ALL, AMNESIC, FORGETFUL, KEEPING, LLAMA, MOVING, QWEN, tokenizer
from transformers import AutoTokenizer

from turnwise.agent import Chat
from turnwise.learn.tiny import build_tokenizer
from turnwise.util.errors import TurnwiseError

TALK = ["You are in a room.\n\nYour task is to: put a mug in desk.", "Nothing happens.", "On the desk 1, you see a mug 2."]
SAID = ["<think>\nhm\n</think>\n\n<action>go to desk 1</action>", "<action>open drawer 3</action>"]
templates = {**ALL, "plain": None}


def grown(chat: Chat, said: list[list[int]]) -> list[int]:
    ids = chat.opening_ids(TALK[0])
    for response, message in zip(said, TALK[1:], strict=True):
        ids = ids + response + chat.bridge(response, message)
    return ids


def conversation(chat: Chat) -> list[dict[str, str]]:
    messages = chat.opening(TALK[0])
    for answer, message in zip(SAID, TALK[1:], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": message}]
    return messages


@pytest.mark.parametrize("name", templates)
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_the_first_prompt_is_what_the_models_own_template_says(name: str, system: str) -> None:
    made = tokenizer(templates[name])
    chat = Chat(made, system=system)
    if name == "plain":
        want = f"{system}\n\n" if system else ""
        assert made.decode(chat.opening_ids("Hello")) == f"{want}User: Hello\nAgent:"
        return
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "Hello"})
    if name == "inst" and system:  # no system role: the system message opens the first message
        messages = [{"role": "user", "content": "Be brief.\n\nHello"}]
    assert chat.opening_ids("Hello") == made.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("name", [*KEEPING, "tiny"])
@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_the_grown_dialogue_equals_a_full_render_where_the_template_keeps_history(name: str, merging: bool, system: str) -> None:
    made = build_tokenizer(TALK + SAID) if name == "tiny" else tokenizer(KEEPING[name], merging=merging)
    chat = Chat(made, system=system)
    ids = grown(chat, [chat.answer_ids(answer) for answer in SAID])
    again = chat.encode(chat.render(conversation(chat)))
    assert made.decode(ids) == made.decode(again)
    if name == "tiny" or not merging:
        assert ids == again
    elif name != "borders":
        assert ids != again  # a tokenizer that merges over the border of prompt and response: rendering again would lose what was sampled


@pytest.mark.parametrize("name", [*templates])
def test_sampled_tokens_stay_as_they_were_sampled(name: str) -> None:
    made = tokenizer(templates[name])
    chat = Chat(made)
    odd = [token for letter in "go to desk 1" for token in chat.encode(letter)]  # spelled letter by letter, as no tokenizer would
    assert odd != chat.encode("go to desk 1")
    said = [[*odd, *chat.stop_ids[:1]], odd]
    ids = grown(chat, said)
    opening = chat.opening_ids(TALK[0])
    assert ids[: len(opening)] == opening
    assert ids[len(opening) : len(opening) + len(said[0])] == said[0]
    assert chat.decode(said[0]) == chat.decode(said[1]) == "go to desk 1"


@pytest.mark.parametrize("name", [*templates])
def test_a_response_that_was_cut_off_is_ended_for_it(name: str) -> None:
    made = tokenizer(templates[name])
    chat = Chat(made)
    whole = chat.answer_ids("go to desk 1")
    assert whole[-1] == chat.end_id
    after_whole, after_cut = chat.bridge(whole, "Next."), chat.bridge(whole[:-1], "Next.")
    gap = after_cut[: len(after_cut) - len(after_whole)]
    assert gap[-1] == chat.end_id and after_cut[len(gap) :] == after_whole
    assert "Next." in made.decode(after_whole) and chat.end_id not in chat.encode(made.decode(after_whole).partition("Next.")[0])
    assert chat.bridge([], "Next.") == after_cut


def test_another_end_token_than_the_templates_is_kept_and_the_message_still_ended() -> None:
    made = tokenizer(QWEN, eos="<|endoftext|>")
    chat = Chat(made)
    assert [made.decode([token]) for token in chat.stop_ids] == ["<|im_end|>", "<|endoftext|>"]
    said = [*chat.encode("look"), made.eos_token_id]
    assert chat.decode(said) == "look"
    assert made.decode([*said, *chat.bridge(said, "Next.")]).startswith("look<|endoftext|><|im_end|>\n<|im_start|>user\nNext.")


def test_a_special_token_inside_a_response_stays_visible() -> None:
    chat = Chat(tokenizer(QWEN))
    said = chat.encode("<action>lo<|head|>ok</action><|im_end|>")
    assert chat.decode(said) == "<action>lo<|head|>ok</action>"  # otherwise it would be read as the action "look"


def test_thoughts_that_the_template_would_drop_stay_in_the_grown_dialogue() -> None:
    made = tokenizer(FORGETFUL)
    chat = Chat(made)
    assert "hm" not in chat.render(conversation(chat))
    assert SAID[0] in made.decode(grown(chat, [chat.answer_ids(answer) for answer in SAID]))


def test_a_system_message_does_not_come_back_with_every_turn() -> None:
    made = tokenizer(MOVING)
    chat = Chat(made, system="Be brief.")
    assert made.decode(grown(chat, [chat.answer_ids(answer) for answer in SAID])).count("Be brief.") == 1


def test_template_options_reach_the_template() -> None:
    made = tokenizer(FORGETFUL)
    quiet = Chat(made, template_options={"enable_thinking": False})
    assert made.decode(quiet.opening_ids("Hello")).endswith("<think>\n\n</think>\n\n")
    assert made.decode(quiet.bridge([], "Next.")).endswith("<think>\n\n</think>\n\n")


def test_an_option_that_the_template_does_not_know_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    Chat(tokenizer(QWEN), template_options={"enable_thinkng": False})
    assert "does not use enable_thinkng" in caplog.text


@pytest.mark.parametrize("name", [*templates])
def test_broken_unicode_becomes_tokens(name: str) -> None:
    chat = Chat(tokenizer(templates[name]))
    assert "\ufffd" in chat.tokenizer.decode(chat.opening_ids("a \ud800 b"))
    assert chat.bridge([], "a \udfff b")


def test_tools_are_told_by_templates_that_can() -> None:
    tool: dict[str, Any] = {"type": "function", "function": {"name": "act", "parameters": {"type": "object", "properties": {}}}}
    able, unable = Chat(tokenizer(QWEN), tools=[tool]), Chat(tokenizer(LLAMA), tools=[tool])
    assert able.native_tools and '"name": "act"' in able.tokenizer.decode(able.opening_ids("Hello"))
    assert not unable.native_tools
    assert "<tool_response>\nA desk.\n</tool_response>" in able.tokenizer.decode(able.bridge([], "A desk.", "tool"))
    quoted = unable.tokenizer.decode(unable.bridge([], 'A "desk".', "tool"))
    assert "<|im_start|>user<|head|>" in quoted and 'A "desk".' in quoted  # it would quote a tool's answer: an ordinary message then


def test_a_template_that_shows_no_history_is_refused_for_a_dialogue_alone() -> None:
    chat = Chat(tokenizer(AMNESIC))
    assert chat.opening_ids("Hello")
    assert chat.stop_ids == (chat.tokenizer.eos_token_id,)
    with pytest.raises(TurnwiseError, match="context = 'window'"):
        chat.bridge([], "Next.")


def test_a_template_that_fails_says_so() -> None:
    with pytest.raises(TurnwiseError, match=r"chat template fails on messages of the roles user: .*not today"):
        Chat(tokenizer("{{ raise_exception('not today') }}")).opening_ids("Hello")


def test_a_begin_token_is_written_once() -> None:
    made = tokenizer(LLAMA)
    assert Chat(made).opening_ids("Hello").count(made.bos_token_id) == 1
    assert made.bos_token_id not in Chat(made).bridge([], "Next.")


def test_real_tokenizers_keep_what_was_sampled() -> None:
    """Those of every model folder in TURNWISE_MODELS."""
    if not (folder := os.environ.get("TURNWISE_MODELS")):
        pytest.skip("set TURNWISE_MODELS to a folder of model folders to try real tokenizers")
    for path in sorted(Path(folder).glob("*/tokenizer_config.json")):
        chat = Chat(AutoTokenizer.from_pretrained(path.parent), system="Be brief.")
        said = [chat.answer_ids(answer) for answer in SAID]
        ids = grown(chat, said)
        start = len(chat.opening_ids(TALK[0]))
        assert ids[start : start + len(said[0])] == said[0]
