"""An engine as one side of a conversation, such as the simulated user of an environment.

    user = Speaker(engine, tokenizer)
    text = user([{"role": "system", "content": "…"}, {"role": "user", "content": "Hello"}], [], seed=7)

The engine must have no other requests: a response is waited for where it is asked for. The engine that a run trains with is therefore not
one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.agent.chat import Chat
from turnwise.agent.dialogue import Dialogue, Said
from turnwise.agent.parse import split_thought
from turnwise.engines.base import Engine, Finish, Request, Sampling
from turnwise.util.control_strings import for_server
from turnwise.util.errors import TurnwiseError

GREEDY = Sampling(temperature=0.0, max_tokens=512)


class Speaker:
    """Called with messages, the schemas of tools and a seed, it returns what the model says, without its thought. `template_options` go to
    the chat template."""

    def __init__(self, engine: Engine, tokenizer: Any, sampling: Sampling = GREEDY, template_options: Mapping[str, Any] | None = None):
        self.engine, self.sampling = engine, sampling
        self._dialogue = Dialogue(Chat(tokenizer, template_options=template_options))
        if not engine.in_process:
            self._dialogue.chat.control.for_text()
        self._lock = threading.Lock()

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), seed: int = 0) -> str:
        texts = [{"role": str(one["role"]), "content": str(one.get("content") or "")} for one in messages]
        prompt = self._dialogue.opening_ids([Said(one["role"], one["content"]) for one in texts], tools)
        request = Request(0, prompt, self.sampling, seed=seed, messages=tuple(for_server(texts)))
        with self._lock:
            if self.engine.pending:
                raise TurnwiseError("this engine has other requests: a speaker needs an engine that nobody else uses")
            self.engine.submit([request])
            (response,) = self.engine.poll()
            self.engine.release(request.sequence)
        if response.finish in (Finish.FAULT, Finish.REFUSED):
            raise TurnwiseError(f"the engine gave no response: {response.message}")
        said = response.text if response.text is not None else self._dialogue.chat.decode(response.token_ids)
        return split_thought(said)[2].strip()
