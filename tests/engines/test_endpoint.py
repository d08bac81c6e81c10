"""The endpoint for programs: calls are recorded as they were sampled, and continue each other's tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import openai
import pytest
from endpoint_cases import WEATHER, ask, endpoint, post, said, scripted, tiny, trajectories, user

from turnwise.agent.chat import Chat
from turnwise.engines.base import Sampling
from turnwise.engines.serve import Endpoint, Limits
from turnwise.engines.transformers import TransformersEngine
from turnwise.learn.learner import Learner
from turnwise.learn.packing import pack
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'


@pytest.fixture(scope="module")
def served() -> Iterator[Endpoint]:
    with endpoint(Sampling(max_tokens=12)) as made:
        yield made


def test_the_openai_client_is_answered_and_the_call_recorded(served: Endpoint) -> None:
    opened = served.open("client", seed=5)
    client = openai.OpenAI(base_url=opened.base_url, api_key=opened.key)
    assert client.models.retrieve(client.models.list().data[0].id).id == "turnwise"
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello world"}])
    (call,) = served.close("client").calls
    assert answer.choices[0].message.content == call.message["content"] == call.text
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(call.prompt_ids), len(call.response_ids))
    assert (call.version, call.parent, len(call.logprobs)) == (0, None, len(call.response_ids))
    assert call.seed == derive(5, 0), "the first line of an attempt has the seeds of an environment's turns"


def with_transformers() -> Endpoint:
    model, tokenizer = tiny()
    chat = Chat(tokenizer)
    return Endpoint(TransformersEngine(model, tokenizer, stop_token_ids=chat.stop_ids), chat, Sampling(max_tokens=12))


@pytest.mark.parametrize("made", [partial(endpoint, Sampling(max_tokens=12)), with_transformers], ids=["native", "transformers"])
def test_learner_and_engine_agree_on_the_recorded_calls(made: Callable[[], Endpoint]) -> None:
    with made() as own:
        opened = own.open("agree", seed=1)
        talk = [user("hello world")]
        for _ in range(3):
            talk = [*talk, said(ask(opened, talk)), user("go north")]
        ask(opened, talk, n=2)
        found = trajectories(own.close("agree"))
    assert [len(one.turns) for one in found] == [4, 1], "a second choice is a line of its own, with the same beginning"
    packed = pack(found)
    scored = Learner(tiny()[0]).logprobs(packed)
    sampled = [token for one in found for turn in one.turns for token in turn.response_ids]
    assert packed.target.tolist() == sampled, "the ids that are trained are those that were sampled"
    assert len(packed.lengths) == 2, "a line of calls is one packed sequence"
    engine = np.concatenate([turn.logprobs for one in found for turn in one.turns])
    assert np.abs(np.asarray(scored) - engine).max() < 1e-4


def test_a_continued_conversation_keeps_its_tokens(served: Endpoint) -> None:
    opened = served.open("continued")
    first = said(ask(opened, [user("hello world")]))
    ask(opened, [user("hello world"), first, user("go south")])
    ask(opened, [user("hello world"), {**first, "content": f"{first['content']}."}, user("go south")])
    one, two, other = served.close("continued").calls
    assert two.parent == 0
    assert two.prompt_ids[: len(one.prompt_ids) + len(one.response_ids)] == [*one.prompt_ids, *one.response_ids]
    assert other.parent is None, "a changed answer is another conversation"


def test_a_client_that_rewrites_the_json_of_a_call_continues_it() -> None:
    made, engine = scripted(CALL, "Sunny.")
    with made:
        opened = made.open("a")
        answer = ask(opened, [user("weather?")], tools=[WEATHER])
        message = said(answer)
        call = message["tool_calls"][0]
        assert (answer["choices"][0]["finish_reason"], message["content"]) == ("tool_calls", None)
        assert (call["function"]["name"], call["function"]["arguments"]) == ("weather", '{"city": "Rome", "days": 2}')
        back = {"role": "assistant", "content": "", "tool_calls": [{**call, "function": {**call["function"]}}], "extra": None}
        back["tool_calls"][0]["function"]["arguments"] = '{"days":2,"city":"\\u0052ome"}'
        result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "25 degrees"}]}
        ask(opened, [user("weather?"), back, result], tools=[WEATHER])
        one, two = made.close("a").calls
        assert two.parent == one.number
        tail = two.prompt_ids[len(one.prompt_ids) + len(one.response_ids) :]
        text = engine.chat.tokenizer.decode(tail)
        assert text == "\n<|im_start|>user\n<tool_response>\n25 degrees\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert engine.released == [engine.requests[0].sequence] == [engine.requests[1].sequence], "a line keeps its place in the cache"


def test_rewards_and_anchors_reach_their_calls(served: Endpoint) -> None:
    opened = served.open("rewarded")
    assert post(opened, "/reward", {"value": 0.5})[0] == 200
    post(opened, "/anchor", {"key": "start"})
    ask(opened, [user("a")])
    assert post(opened, "/reward", {"value": 0.25, "note": "found it"}) == (200, {"reward": 0.75})
    post(opened, "/chat/completions", {"messages": [user("b")]}, {"X-Turnwise-Anchor": "later"})
    ask(opened, [user("c")])
    assert post(opened, "/reward", {"value": "1"})[0] == 400
    recorder = served.close("rewarded")
    assert [call.anchor for call in recorder.calls] == ["start", "later", None]
    assert (recorder.early_reward, recorder.calls[0].reward, recorder.calls[0].notes) == (0.5, 0.25, ["found it"])


def test_a_reward_that_cannot_be_given_is_refused_with_the_reason(served: Endpoint) -> None:
    opened = served.open("strict", limits=Limits(rewards=3, note_bytes=10))
    calls = [ask(opened, [user(text)])["id"] for text in ("a", "b")]
    for body, words in (
        ({"value": 1, "call": "chatcmpl_7"}, calls),
        ({"value": 1, "call": 7}, ["the id of a response", "7"]),
        ({"value": 10**400}, ["value takes a number"]),
        ({"value": True}, ["value takes a number"]),
        ({"note": "none"}, ["value takes a number"]),
        (b'{"value": 1e400}', ["not JSON"]),
    ):
        status, answer = post(opened, "/reward", body)
        assert status == 400
        assert all(word in answer["error"]["message"] for word in words)
    assert post(opened, "/reward", {"value": 1, "note": "x" * 11})[1]["error"]["code"] == "reward_limit"
    assert [post(opened, "/reward", {"value": 1, "note": "four", "call": call})[0] for call in (calls[0], calls[1])] == [200, 200]
    assert [post(opened, "/reward", {"value": 1})[0] for _ in range(2)] == [200, 403]
    recorder = served.close("strict")
    assert [call.reward for call in recorder.calls] == [1.0, 2.0]


def test_calls_wait_while_the_engine_is_with_the_learner(served: Endpoint) -> None:
    opened = served.open("waits")
    with ThreadPoolExecutor(1) as pool:
        with served.paused() as engine:
            waiting = pool.submit(ask, opened, [user("hello")])
            engine.publish(3)
            assert not waiting.done()
        waiting.result(30)
    assert [call.version for call in served.close("waits").calls] == [3]


def test_calls_of_one_attempt_may_overlap_and_have_the_seeds_that_they_would_have_alone(served: Endpoint) -> None:
    found = []
    for at_once in (1, 6):
        opened = served.open(f"overlap {at_once}", seed=2)
        main = [user("plan")]
        main = [*main, said(ask(opened, main)), user("go")]
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(partial(ask, opened), [[user(f"sub-agent {number}")] for number in range(6)]))
        ask(opened, main)
        recorder = served.close(f"overlap {at_once}")
        assert sorted(len(line) for line in recorder.chains()) == [1] * 6 + [2]
        assert recorder.calls[-1].parent == 0
        assert sum(len(call.response_ids) for line in recorder.chains() for call in line) == recorder.sampled
        found.append({call.messages[0]["content"]: call.seed for call in recorder.calls[1:-1]})
    assert found[0] == found[1]


def test_what_a_conversation_repeats_is_kept_once(served: Endpoint) -> None:
    opened = served.open("repeated")
    first = [user("hello world")]
    ask(opened, [*first, said(ask(opened, first)), user("go")])
    one, two = served.close("repeated").calls
    assert two.messages[0] is one.messages[0]
    assert two.messages[1] is one.message


def test_a_call_of_a_closed_attempt_is_not_recorded(served: Endpoint) -> None:
    opened = served.open("closing")
    with ThreadPoolExecutor(1) as pool:
        with served.paused():
            waiting = pool.submit(post, opened, "/chat/completions", {"messages": [user("hello")]})
            while not served.recorder("closing").calls:
                time.sleep(0.005)
            recorder = served.close("closing")
        assert waiting.result(30)[0] == 401
    assert not recorder.finished()


def test_a_taken_port_is_named() -> None:
    with endpoint() as made, pytest.raises(TurnwiseError, match=f"port {made.port}"):
        endpoint(port=made.port)
