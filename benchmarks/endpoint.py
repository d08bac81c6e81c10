"""What the endpoint costs, beside direct calls of the same engine in the same process. Prints JSON.

    python benchmarks/endpoint.py                                   # a tiny model on a CPU: milliseconds that the endpoint adds per call
    python benchmarks/endpoint.py --model Qwen2.5-0.5B-Instruct     # on a GPU: the collecting time of 64 attempts at once

Every attempt is a conversation of several turns with a fixed number of tokens per response. Directly: all attempts are submitted to the
engine, and a finished turn is followed by the next one. Through the endpoint: the same prompts, from programs in another process that
keep one connection each. Both sides take turns, and the median counts.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import torch
from results import publish

from turnwise.agent.chat import Chat
from turnwise.agent.dialogue import Dialogue, Said
from turnwise.engines.base import Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.serve import Endpoint
from turnwise.learn.models import load_folder
from turnwise.learn.tiny import build_tiny
from turnwise.util.seeds import derive

FIRST = "You are in the middle of a room. Looking quickly around you, you see a cabinet 12, a desk 1, and a drawer 3. " * 4
NEXT = "You arrive at desk 1. On the desk 1, you see a mug 2, a pencil 1 and a book 3. What do you do next?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model folder; without one a tiny model is made")
    parser.add_argument("--attempts", type=int, help="at once; default 1 with the tiny model, 64 with another one")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, help="per response; default 16 with the tiny model, 128 with another one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    attempts, tokens = args.attempts or (64 if args.model else 1), args.tokens or (128 if args.model else 16)
    model, tokenizer = load_folder(args.model) if args.model else build_tiny([FIRST, NEXT])
    model = model.to(args.device, torch.bfloat16 if args.device == "cuda" else torch.float32)
    chat = Chat(tokenizer)
    engine = NativeEngine(model, tokenizer, max_batch=attempts, max_length=4096, stop_token_ids=())
    sampling = Sampling(max_tokens=tokens)
    direct, served = [], []
    with Endpoint(engine, chat, sampling) as endpoint, multiprocessing.get_context("spawn").Pool(1) as programs:
        for number in range(args.rounds + 1):
            with endpoint.paused():
                direct.append(run_directly(engine, chat, sampling, attempts, args.turns, number))
            served.append(run_served(endpoint, programs, attempts, args.turns, number))
    once, through = statistics.median(direct[1:]), statistics.median(served[1:])  # the first round warms up
    calls = attempts * args.turns
    found = {
        "model": args.model or "tiny",
        "device": args.device,
        "attempts": attempts,
        "turns": args.turns,
        "tokens": tokens,
        "direct_seconds": round(once, 4),
        "endpoint_seconds": round(through, 4),
        "added_ms_per_call": round(1000 * (through - once) / calls, 3),
        "added_percent": round(100 * (through / once - 1), 1),
    }
    publish(found, None)


def run_directly(engine: Any, chat: Chat, sampling: Sampling, attempts: int, turns: int, number: int) -> float:
    """Seconds for all attempts, with the same prompts as through the endpoint."""
    dialogue = Dialogue(chat)
    base = number << 20
    begun = time.perf_counter()
    prompts = {base + one: dialogue.opening_ids([Said("user", f"{number} {one} {FIRST}")]) for one in range(attempts)}
    left = dict.fromkeys(prompts, turns)
    engine.submit([Request(key, ids, sampling, derive(key, 0), key) for key, ids in prompts.items()])
    while engine.pending:
        for response in engine.poll(wait=False):
            key = response.key
            left[key] -= 1
            if not left[key]:
                engine.release(key)
                continue
            bridge = dialogue.bridge_ids(response.token_ids, [Said("user", NEXT)])
            prompts[key] = [*prompts[key], *response.token_ids, *bridge]
            engine.submit([Request(key, prompts[key], sampling, derive(key, turns - left[key]), key)])
    return time.perf_counter() - begun


def run_served(endpoint: Endpoint, programs: Any, attempts: int, turns: int, number: int) -> float:
    """Seconds for all attempts, from programs in another process."""
    opened = [endpoint.open(f"{number}-{one}", seed=one) for one in range(attempts)]
    jobs = [(one.base_url, one.key, f"{number} {place} {FIRST}", turns) for place, one in enumerate(opened)]
    seconds = programs.apply(play_all, (jobs,))
    for one in range(attempts):
        recorder = endpoint.close(f"{number}-{one}")
        assert [call.parent for call in recorder.calls] == [None, *range(turns - 1)]
    return float(seconds)


def play_all(jobs: list[tuple[str, str, str, int]]) -> float:
    """All programs at once, one thread each."""
    gate = threading.Barrier(len(jobs) + 1)
    threads = [threading.Thread(target=play, args=(*job, gate)) for job in jobs]
    for thread in threads:
        thread.start()
    gate.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


def play(base_url: str, key: str, first: str, turns: int, gate: threading.Barrier) -> None:
    """One program: a conversation over one connection."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    connection.connect()
    messages: list[Any] = [{"role": "user", "content": first}]
    gate.wait()
    for _ in range(turns):
        body = json.dumps({"model": "m", "messages": messages})
        connection.request("POST", f"{address.path}/chat/completions", body, {"Authorization": f"Bearer {key}"})
        answer = json.loads(connection.getresponse().read())
        messages += [answer["choices"][0]["message"], {"role": "user", "content": NEXT}]
    connection.close()


if __name__ == "__main__":
    main()
