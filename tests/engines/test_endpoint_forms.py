"""What clients send and get: both forms, streams, tools, formats, stop strings, several choices, nulls and keys of their own."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from endpoint_cases import WEATHER, Scripted, ask, endpoint, post, qwen_chat, said, scripted, user
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.agent.dialogue import Said
from turnwise.agent.tool_calls import read_calls
from turnwise.engines.base import Sampling
from turnwise.engines.serve.asked import Asked
from turnwise.engines.serve.live import Growing

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
FLAT = [{"type": "function", "strict": True, **WEATHER["function"]}]  # type: ignore[dict-item]
ANSWERS = ["Plain words.", CALL, f"Let me see.  {CALL}", f"{CALL}{CALL}", "<tool_call>broken</tool_call>", '{"a": 1}', "Ünïcödé 🐈", ""]
PIECES = ["hello ", "<tool_call>", "</tool_call>", '{"name": "weather", "arguments": {}}', "<think>", "</think>", " \n", "STOP", "ST", "🐈"]


def client(opened: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=opened.base_url, api_key=opened.key, max_retries=0)


@pytest.mark.parametrize("form", ["chat", "responses"])
def test_a_stream_says_what_the_record_says(form: str) -> None:
    made, _ = scripted(*ANSWERS)
    with made:
        opened = made.open("a")
        api = client(opened)
        for _ in ANSWERS:
            if form == "chat":
                with api.chat.completions.stream(model="m", messages=[user("?")], tools=[WEATHER]) as stream:  # type: ignore[list-item]
                    message = stream.get_final_completion().choices[0].message
                text, calls = message.content, [(one.id, one.function.name, one.function.arguments) for one in message.tool_calls or ()]
            else:
                with api.responses.stream(model="m", input="?", tools=FLAT) as events:  # type: ignore[arg-type]
                    items = events.get_final_response()
                text = items.output_text
                calls = [(one.call_id, one.name, one.arguments) for one in items.output if one.type == "function_call"]
            recorded = made.recorder("a").calls[-1].message
            assert (text or "") == (recorded["content"] or "")
            wanted = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in recorded.get("tool_calls", ())]
            assert calls == wanted
        assert [bool(call.message.get("tool_calls")) for call in made.close("a").calls] == [False, True, True, True] + [False] * 4


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PIECES), max_size=7), st.booleans(), st.booleans())
def test_whatever_is_said_the_stream_has_sent_a_beginning_of_it(parts: list[str], tools: bool, stops: bool) -> None:
    chat, text = CHAT, "".join(parts)
    asked = Asked([], [Said("user")], [WEATHER] if tools else [], stop=("STOP",) if stops else ())
    growing = Growing(chat, asked)
    ids = chat.control.encode_response(text)
    sent = "".join(growing.push(token) for token in ids)
    whole = text.partition("STOP")[0] if stops else text
    content = read_calls(whole, asked.names).content
    assert sent + content[growing.sent :] == content


CHAT = qwen_chat()


def test_streams_of_the_real_engine_come_token_by_token() -> None:
    with endpoint(Sampling(max_tokens=24)) as made:
        opened = made.open("a", seed=3)
        parts = list(client(opened).chat.completions.create(model="m", messages=[user("hello")], stream=True, n=2))
        one, two = made.recorder("a").calls
        for call in (one, two):
            mine = [part.choices[0] for part in parts if part.choices[0].index == call.number]
            assert "".join(choice.delta.content or "" for choice in mine) == call.message["content"]
            assert mine[-1].finish_reason in ("stop", "length")
        assert one.response_ids != two.response_ids
        assert len({part.id for part in parts}) == 1


def test_the_responses_form_continues_by_items_and_by_id() -> None:
    made, _ = scripted(f"I look. {CALL}", "Sunny.", "Bye.", "Alone.")
    with made:
        api = client(made.open("a"))
        first = api.responses.create(model="m", instructions="Be kind.", input="Weather?", tools=FLAT)  # type: ignore[arg-type]
        assert [item.type for item in first.output] == ["message", "function_call"]
        output = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "25"}  # type: ignore[union-attr]
        items: Any = [user("Weather?"), *(item.model_dump() for item in first.output), output]
        second = api.responses.create(model="m", instructions="Be kind.", input=items, tools=FLAT)  # type: ignore[arg-type]
        third = api.responses.create(model="m", input="Thanks.", previous_response_id=second.id, tools=FLAT)  # type: ignore[arg-type]
        assert (second.output_text, third.output_text) == ("Sunny.", "Bye.")
        api.responses.create(model="m", instructions="Be rude.", input=items, tools=FLAT)  # type: ignore[arg-type]
        assert [call.parent for call in made.recorder("a").calls] == [None, 0, 1, None]
        assert made.recorder("a").calls[1].messages[-1]["role"] == "tool"
        ids = {first.id, second.id, third.id}
        assert len(ids) == 3
        with pytest.raises(openai.NotFoundError):
            api.responses.create(model="m", input="x", previous_response_id="resp_other")


def test_nulls_parts_and_keys_of_the_clients_own_are_taken() -> None:
    made, _ = scripted("One.", "Two.")
    with made:
        opened = made.open("a")
        nulls = dict.fromkeys(("tools", "tool_choice", "stop", "n", "seed", "stream", "stream_options", "response_format", "max_tokens"))
        answer = said(ask(opened, [user("a")], **nulls, extra_key={"x": 1}, parallel_tool_calls=True))
        ask(opened, [user([{"type": "text", "text": "a"}]), answer | {"annotations": [], "provider_specific_fields": {}}, user("b")])
        assert [call.parent for call in made.close("a").calls] == [None, 0]


@pytest.mark.parametrize(
    ("text", "calls", "content", "problem"),
    [
        (CALL, 1, "", ""),
        (f"<think>so</think>Well. {CALL}\n{CALL} ", 2, "<think>so</think>Well.", ""),
        ('{"name": "weather", "parameters": {"city": "x"}}', 1, "", ""),
        ('```json\n[{"name": "weather", "arguments": "{}"}]\n```', 1, "", ""),
        ('{"function": {"name": "weather", "arguments": {}}}', 1, "", ""),
        ('{"name": "Bob", "age": 3}', 0, None, ""),
        ("<tool_call>{not json}</tool_call>", 0, None, "tool call is not JSON"),
        ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', 0, None, "unknown tool"),
        ('<tool_call>{"name": "weather", "arguments": [1]}</tool_call>', 0, None, "bad arguments"),
        ('<tool_call>{"name": "weather"', 0, None, "unclosed tool call"),
        (f"<think>{CALL}</think>No.", 0, None, ""),
        (f"<think>{CALL}", 0, None, ""),
        ("[" * 5000, 0, None, ""),
    ],
)
def test_calls_are_read_and_malformed_ones_stay_text(text: str, calls: int, content: str | None, problem: str) -> None:
    found = read_calls(text, {"weather"})
    assert (len(found.calls), found.content, found.problem) == (calls, text if content is None else content, problem)
    assert all(isinstance(json.loads(call.arguments), dict) for call in found.calls)


def test_tool_choice_decides_what_is_a_call() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    made, engine = scripted(CALL, CALL.removeprefix("<tool_call>\n"), '{"city": "Rome"}}\n</tool_call>')
    with made:
        opened = made.open("a")
        assert "tool_calls" not in said(ask(opened, [user("a")], tools=[WEATHER], tool_choice="none"))
        for choice in ("required", named):
            answer = ask(opened, [user("a")], tools=[WEATHER], tool_choice=choice)
            assert said(answer)["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
        plain, required, _ = made.recorder("a").calls
        tail = engine.chat.tokenizer.decode(required.prompt_ids[len(required.prompt_ids) - required.forced :])
        assert tail == "<tool_call>\n", "a required call is begun for the model, in the prompt"
        assert required.prompt_ids[: -required.forced] == plain.prompt_ids, "the tools are described all the same"
        assert post(opened, "/chat/completions", {"messages": [user("a")], "tools": [WEATHER], "tool_choice": "some"})[0] == 400


def test_a_schema_is_told_to_the_model_and_checked_but_the_answer_stays_as_it_is() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    made, engine = scripted('{"age": 3}', '{"age": "three"}', "no JSON")
    with made:
        opened = made.open("a")
        good, bad, worse = (ask(opened, [user("who?")], response_format=form) for _ in range(3))
        assert "turnwise" not in good
        assert bad["turnwise"]["problems"] == ["the answer.age: 'three' is not of type 'integer'"]
        assert said(worse)["content"] == "no JSON"
        calls = made.close("a").calls
        assert [call.problem for call in calls] == ["", *bad["turnwise"]["problems"], "the answer is not JSON"]
        assert json.dumps(schema) in engine.chat.tokenizer.decode(calls[0].prompt_ids)


def test_stop_strings_choices_logprobs_and_lengths() -> None:
    made, _ = scripted("one STOP two", "left", "right", "long answer")
    with made:
        opened = made.open("a")
        cut = ask(opened, [user("a")], stop="STOP", logprobs=True)
        assert (said(cut)["content"], cut["choices"][0]["finish_reason"]) == ("one ", "stop")
        call = made.recorder("a").calls[0]
        scored = cut["choices"][0]["logprobs"]["content"]
        assert [one["logprob"] for one in scored] == list(call.logprobs), "what was sampled is recorded whole"
        two = ask(opened, [user("a")], n=2)
        assert [choice["message"]["content"] for choice in two["choices"]] == ["left", "right"]
        assert two["usage"]["completion_tokens"] == sum(len(one.response_ids) for one in made.recorder("a").calls[1:3])
        assert ask(opened, [user("a")], max_completion_tokens=2)["choices"][0]["finish_reason"] == "length"


def test_in_training_the_recipe_decides_how_tokens_are_drawn(caplog: pytest.LogCaptureFixture) -> None:
    chat = qwen_chat()
    for honour, wanted in ((False, (1.0, 1.0)), (True, (0.0, 0.5))):
        made, engine = scripted("a", "b", "c", chat=chat, honour=honour)
        with made:
            opened = made.open("a")
            for _ in range(2):
                ask(opened, [user("a")], temperature=0, top_p=0.5, seed=9, max_tokens=5)
            sampling = engine.requests[0].sampling
            assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (*wanted, 5)
            assert (engine.requests[0].seed == engine.requests[1].seed) == honour
    assert [record.message.startswith("a program asks for a temperature") for record in caplog.records] == [True], "once, in training"


def test_a_template_without_tools_gets_them_in_its_system_message() -> None:
    with endpoint() as made:
        tokenizer = made._service.caller.dialogue.chat.tokenizer
        opened = made.open("a")
        history = [user("a"), {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "weather"}}]}]
        ask(opened, [*history, {"role": "tool", "tool_call_id": "1", "content": "25"}], tools=[WEATHER])
        text = tokenizer.decode(made.close("a").calls[0].prompt_ids)
        assert text.startswith("<|system|>You can call these tools")
        assert '<|agent|><tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|end|><|user|><tool_response>\n25' in text


class Lost(Scripted):
    """An engine that takes no rules."""

    stop_rules = "none"

    def submit(self, requests: Any) -> None:
        assert all(request.sampling.rule is None for request in requests)
        super().submit(requests)


def test_an_engine_that_takes_no_rules_streams_at_the_end() -> None:
    from turnwise.engines.serve import Endpoint

    chat = qwen_chat()
    with Endpoint(Lost(chat, "All at once.", "Again."), chat, Sampling()) as made:
        parts = list(client(made.open("a")).chat.completions.create(model="m", messages=[user("hello")], stream=True))
        assert [part.choices[0].delta.content for part in parts] == ["", "All at once.", None]
