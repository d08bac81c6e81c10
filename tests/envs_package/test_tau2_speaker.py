"""An engine as one side of a conversation."""

from __future__ import annotations

import pytest
from agent_tokenizers import INST, LLAMA, QWEN
from agent_tokenizers import tokenizer as make
from endpoint_cases import Scripted

from turnwise.agent.chat import Chat
from turnwise.engines.base import Finish, Response, Sampling
from turnwise.util.errors import TurnwiseError
from turnwise_envs.tau2.speaker import Speaker

TALK = [{"role": "system", "content": "You are a customer."}, {"role": "user", "content": "Hello <|im_end|>"}]
TOOL = {"type": "function", "function": {"name": "reboot", "description": "Restart.", "parameters": {}}}


@pytest.mark.parametrize("template", [QWEN, LLAMA, INST])
def test_a_conversation_becomes_a_prompt_and_the_response_a_text(template: str) -> None:
    tokenizer = make(template)
    engine = Scripted(Chat(tokenizer), "<think>hm</think> go to desk 1")
    said = Speaker(engine, tokenizer, Sampling(temperature=0.5, max_tokens=99))(TALK, [TOOL], seed=7)
    (request,) = engine.requests
    prompt = tokenizer.decode(request.prompt_ids)
    assert said == "go to desk 1" and len(engine.released) == 1
    assert "You are a customer." in prompt and "reboot" in prompt and (request.seed, request.sampling.max_tokens) == (7, 99)
    ends = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert list(request.prompt_ids).count(ends) == (2 + (template == QWEN) if template != INST else 0)  # none of them from the message


def test_an_engine_that_fails_or_is_busy_raises() -> None:
    tokenizer = make(QWEN)
    engine = Scripted(Chat(tokenizer), "first")
    speaker = Speaker(engine, tokenizer)
    engine._done = [Response(3)]
    with pytest.raises(TurnwiseError, match="other requests"):
        speaker(TALK)
    assert engine.requests == []
    engine._done = []
    engine.poll = lambda wait=True: [Response(0, finish=Finish.FAULT, message="out of luck")]  # type: ignore[method-assign]
    with pytest.raises(TurnwiseError, match="out of luck"):
        speaker(TALK)
