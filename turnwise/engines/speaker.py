"""An engine as one side of a conversation, such as the simulated user of an environment.

    user = Speaker(engine, tokenizer)
    text = user([{"role": "system", "content": "…"}, {"role": "user", "content": "Hello"}], [], seed=7)

The engine must have no other requests: a response is waited for where it is asked for. The engine that a run trains with is therefore not
one of them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.agent.chat import Chat
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
        self._chat = Chat(tokenizer, template_options=template_options)
        if not engine.in_process:
            self._chat.control.for_text()
        self._lock = threading.Lock()

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), seed: int = 0) -> str:
        texts = [{"role": str(one["role"]), "content": str(one.get("content") or "")} for one in messages]
        request = Request(0, self._prompt(texts, tools), self.sampling, seed=seed, messages=tuple(for_server(texts)))
        with self._lock:
            if self.engine.pending:
                raise TurnwiseError("this engine has other requests: a speaker needs an engine that nobody else uses")
            self.engine.submit([request])
            (response,) = self.engine.poll()
            self.engine.release(request.sequence)
        if response.finish in (Finish.FAULT, Finish.REFUSED):
            raise TurnwiseError(f"the engine gave no response: {response.message}")
        said = response.text if response.text is not None else self._chat.decode(response.token_ids)
        return split_thought(said)[2].strip()

    def _prompt(self, texts: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """The token ids of a conversation. What a template cannot show (tools, a system message) goes into the first message."""
        marked = [{**one, "content": self._chat.marked(one["content"])} for one in texts]
        described = [self._chat.control.mark_deep(tool) for tool in tools]
        try:
            bare = self._chat.render(marked, [])
        except TurnwiseError:
            if len(marked) < 2 or marked[0]["role"] != "system":
                raise
            marked = _joined(marked)
            bare = self._chat.render(marked, [])
        if not described:
            return self._chat.encode(bare)
        shown = self._chat.render(marked, described)
        if shown == bare:
            listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in described)
            call = self._chat.control.mark('{"name": …, "arguments": {…}}')
            first = f"{marked[0]['content']}\n\nYour tools, called with one line of JSON {call}:\n{listed}"
            shown = self._chat.render([{**marked[0], "content": first}, *marked[1:]], [])
        return self._chat.encode(shown)


def _joined(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The system message at the start of the first other message."""
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *map(dict, rest)]
