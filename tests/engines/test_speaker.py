"""An engine as one side of a conversation."""

from __future__ import annotations

import pytest
from agent_tokenizers import INST, LLAMA, QWEN
from agent_tokenizers import tokenizer as make

from turnwise.engines.base import Engine, Finish, Response, Sampling
from turnwise.engines.speaker import Speaker
from turnwise.util.errors import TurnwiseError

TALK = [{"role": "system", "content": "You are a customer."}, {"role": "user", "content": "Hello <|im_end|>"}]
TOOL = {"type": "function", "function": {"name": "reboot", "description": "Restart.", "parameters": {}}}


class Echo(Engine):
    """Answers with fixed text and remembers its requests."""

    def __init__(self, tokenizer, says="<think>hm</think> go to desk 1", finish=Finish.STOP):
        self.tokenizer, self.says, self.finish = tokenizer, says, finish
        self.requests, self.waiting, self.released = [], 0, 0

    @property
    def pending(self):
        return self.waiting

    def submit(self, requests):
        self.requests += requests
        self.waiting = 1

    def poll(self, wait=True):
        self.waiting = 0
        ids = tuple(self.tokenizer(self.says)["input_ids"])
        return [Response(self.requests[-1].key, ids, finish=self.finish, message="out of luck")]

    def release(self, sequence):
        self.released += 1


@pytest.mark.parametrize("template", [QWEN, LLAMA, INST])
def test_a_conversation_becomes_a_prompt_and_the_response_a_text(template):
    tokenizer = make(template)
    engine = Echo(tokenizer)
    said = Speaker(engine, tokenizer, Sampling(temperature=0.5, max_tokens=9))(TALK, [TOOL], seed=7)
    (request,) = engine.requests
    prompt = tokenizer.decode(request.prompt_ids)
    assert said == "go to desk 1" and engine.released == 1
    assert "You are a customer." in prompt and "reboot" in prompt and (request.seed, request.sampling.max_tokens) == (7, 9)
    ends = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert list(request.prompt_ids).count(ends) == (2 + (template == QWEN) if template != INST else 0)  # none of them from the message


def test_an_engine_that_fails_or_is_busy_raises():
    tokenizer = make(QWEN)
    with pytest.raises(TurnwiseError, match="out of luck"):
        Speaker(Echo(tokenizer, finish=Finish.FAULT), tokenizer)(TALK)
    busy = Echo(tokenizer)
    busy.waiting = 3
    with pytest.raises(TurnwiseError, match="other requests"):
        Speaker(busy, tokenizer)(TALK)
    assert busy.requests == []
