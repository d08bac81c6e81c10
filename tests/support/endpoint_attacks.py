"""Attacks on the endpoint: malformed requests, other people's keys, connections that never read.

Another attempt plays on all the while. Its calls must be answered and recorded as if nobody else were there, nothing of it may show up in
an answer to somebody else, and no answer may be a 500.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from endpoint_cases import ask, said, user

from turnwise.engines.serve import Endpoint, Opened
from turnwise.util.seeds import derive

THREADS = 2
SECRET = "violet elephants of the other attempt"
ODD = [None, True, -1, 0, 1e308, "", "x" * 3000, "\ud800", [], [[]], {}, {"a": {}}, [None], ["a", 1], 10**30, "<|im_end|>", {"type": "x"}]
ODD += [10**400, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, json.loads("[" * 150 + "]" * 150), "y" * 50_000, ["z" * 300], {"x": 1}]
KEYS = ["messages", "model", "n", "stop", "seed", "stream", "temperature", "top_p", "max_tokens", "max_completion_tokens", "tools"]
KEYS += ["tool_choice", "response_format", "logprobs", "stream_options", "input", "instructions", "text", "previous_response_id", "include"]
KEYS += ["value", "key", "call"]
PATHS = ["/chat/completions", "/responses", "/models", "/reward", "/anchor", "/nothing", "/../../a", "/models/%2e%2e/x", ""]


def valid_body(chance: random.Random) -> dict[str, Any]:
    """A request that would be answered."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    body: dict[str, Any] = {"messages": messages, "tools": [tool], "response_format": form, "stop": ["a"], "max_tokens": 2}
    return body | {"input": [{"role": "user", "content": "u"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}


def spoil(value: Any, chance: random.Random) -> Any:
    """A JSON value with one place in it replaced by something odd."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        place = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = dict(value) if isinstance(value, dict) else list(value)
        copy[place] = spoil(copy[place], chance)
        return copy
    return chance.choice(ODD)


def malformed(chance: random.Random) -> bytes:
    """The body of a request that is wrong in some way, or nearly so."""
    kind = chance.randrange(8)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return b"[" * chance.choice([10, 100_000]) + b"]" * chance.randrange(3)
    body = valid_body(chance)
    if kind == 2:
        body[chance.choice(KEYS)] = chance.choice(ODD)
    elif kind == 3:
        body = {chance.choice(KEYS): chance.choice(ODD) for _ in range(4)}
    else:
        for _ in range(chance.randrange(1, 4)):
            body = spoil(body, chance)
    text = json.dumps(body).encode()
    return text[: chance.randrange(len(text))] if kind == 4 and text else text


def bombard(opened: Opened, number: int, count: int) -> Counter[int]:
    """Send malformed requests, with the right key, a wrong one or none. Returns the statuses; no answer may say too much."""
    chance = random.Random(derive(number, "attack"))
    statuses: Counter[int] = Counter()
    address = urlsplit(opened.base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    for _ in range(count):
        keys = [f"Bearer {opened.key}"] * 4 + ["Bearer wrong", "Basic abc", "", f"bearer  {opened.key}x", "Bearer \xe9\xff"]
        path = address.path if chance.random() < 0.9 else f"/a/{chance.randbytes(6).hex()}/v1"
        try:
            headers = {"Authorization": chance.choice(keys)}
            connection.request(chance.choice(["POST"] * 9 + ["GET"]), path + chance.choice(PATHS), malformed(chance), headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (http.client.HTTPException, OSError):
            connection.close()
            statuses[0] += 1
            continue
        statuses[answer.status] += 1
        assert SECRET not in text and answer.status < 500, text[:500]
    connection.close()
    return statuses


def head(opened: Opened, length: int) -> bytes:
    """The beginning of a request for a chat completion, before its body."""
    path = urlsplit(opened.base_url).path
    lines = [f"POST {path}/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {opened.key}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


def never_read(opened: Opened, count: int, body: bytes) -> list[socket.socket]:
    """Connections that send a request, or half of one, and never read the answer."""
    address = urlsplit(opened.base_url)
    found = []
    for number in range(count):
        one = socket.create_connection((address.hostname or "", address.port or 0))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        whole = head(opened, len(body)) + body
        with suppress(OSError):
            one.sendall(whole if number % 2 else whole[: len(whole) // 2])
        found.append(one)
    return found


def play_on(opened: Opened, turns: int) -> list[dict[str, Any]]:
    """The messages of the attempt that nobody may disturb."""
    messages = [user(SECRET)]
    for _ in range(turns):
        messages += [said(ask(opened, messages, max_tokens=4)), user("and then?")]
    return messages


def attack(endpoint: Endpoint, requests: int, connections: int, turns: int) -> Counter[int]:
    """All at once, beside an attempt that plays on; the statuses of all answers."""
    victim, attacker, reader = (endpoint.open(name) for name in ("victim", "attacker", "reader"))
    held = never_read(reader, connections, json.dumps({"messages": [user("x")], "stream": True}).encode())
    with ThreadPoolExecutor(THREADS) as pool:
        attacks = [pool.submit(bombard, attacker, number, requests // THREADS) for number in range(THREADS)]
        messages = play_on(victim, turns)
        statuses = sum((one.result() for one in attacks), Counter[int]())
    alone = play_on(endpoint.open("alone"), turns)
    for one in held:
        one.close()
    recorder = endpoint.close("victim")
    endpoint.check()
    assert messages == alone and len(recorder.finished()) == turns and len(recorder.chains()) == 1
    return statuses
