"""What the endpoint costs, beside direct calls of the same engine in the same process. Prints JSON.

    python benchmarks/endpoint.py                                   # a tiny model on a CPU: milliseconds that the endpoint adds per call
    python benchmarks/endpoint.py --instant                         # the same with an engine that takes no time
    python benchmarks/endpoint.py --shape 0.5b                      # on a GPU: the collecting time of 64 attempts at once, random weights
    python benchmarks/endpoint.py --model Qwen2.5-0.5B-Instruct     # the same with a model folder

Every attempt is a conversation of several turns; responses have half to one and a half times `--tokens` tokens, the same ones on both
sides. Directly: all attempts are submitted to the engine, and a finished turn is followed by the next one. Through the endpoint: the same
prompts, from programs in another process that keep one connection each. Both sides take turns, and the median counts. The time of the
model varies by more than the endpoint costs; `--instant` leaves it out: the engine answers at once with tokens of the prompt. On a machine
that does other work, look at the fastest rounds (`at_best`) and at the CPU time of the endpoint's process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import torch
from results import publish

from turnwise.agent.chat import Chat
from turnwise.agent.dialogue import Dialogue, Said
from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.serve import Endpoint
from turnwise.learn.models import load_folder, use_threads
from turnwise.learn.tiny import build_tiny, build_tokenizer
from turnwise.util.seeds import derive

FIRST = "You are in the middle of a room. Looking quickly around you, you see a cabinet 12, a desk 1, and a drawer 3. " * 4
NEXT = "You arrive at desk 1. On the desk 1, you see a mug 2, a pencil 1 and a book 3. What do you do next?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model folder; without one a tiny model is made")
    parser.add_argument("--shape", choices=("0.5b", "1.5b"), help="random weights of this size, on a GPU")
    parser.add_argument("--instant", action="store_true", help="an engine that takes no time, to see the endpoint alone")
    parser.add_argument("--attempts", type=int, help="at once; default 1 with the tiny model, 64 with another one")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, help="per response; default 16 with the tiny model, 128 with another one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    large = bool(args.model or args.shape)
    attempts, tokens = args.attempts or (64 if large else 1), args.tokens or (128 if large else 16)
    model, tokenizer = load(args)
    model = model.to(args.device, torch.bfloat16 if args.device == "cuda" else torch.float32)
    use_threads(model)
    chat = Chat(tokenizer)
    engine: Any = Instant() if args.instant else NativeEngine(model, tokenizer, max_batch=attempts, max_length=4096, stop_token_ids=())
    sampling = Sampling(max_tokens=2 * tokens)
    lengths = [[tokens // 2 + derive(0, one, turn) % (tokens + 1) for turn in range(args.turns)] for one in range(attempts)]
    direct: list[tuple[float, float]] = []  # seconds by the clock, and of this process's own work
    served: list[tuple[float, float]] = []
    with Endpoint(engine, chat, sampling) as endpoint, multiprocessing.get_context("spawn").Pool(1) as programs:
        for number in range(args.rounds + 1):
            with endpoint.paused():
                direct.append(with_work(lambda number=number: run_directly(engine, chat, sampling, lengths, number)))
            served.append(with_work(lambda number=number: run_served(endpoint, programs, lengths, number)))
    once, through = (statistics.median(clock for clock, _ in found[1:]) for found in (direct, served))  # the first round warms up
    work, more_work = (statistics.median(work for _, work in found[1:]) for found in (direct, served))
    fastest = min(clock for clock, _ in served[1:]) - min(clock for clock, _ in direct[1:])
    calls = attempts * args.turns
    found = {
        "model": args.model or args.shape or ("none" if args.instant else "tiny"),
        "device": args.device,
        "attempts": attempts,
        "turns": args.turns,
        "tokens": tokens,
        "direct_seconds": round(once, 4),
        "endpoint_seconds": round(through, 4),
        "added_ms_per_call": round(1000 * (through - once) / calls, 3),
        "added_ms_per_call_at_best": round(1000 * fastest / calls, 3),
        "added_cpu_ms_per_call": round(1000 * (more_work - work) / calls, 3),
        "added_percent": round(100 * (through / once - 1), 1),
    }
    publish(found, None)


class Instant:
    """An engine that answers at once, with tokens of the prompt."""

    version = 0

    def __init__(self) -> None:
        self._waiting: list[Request] = []

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting += requests

    def poll(self, wait: bool = True) -> list[Response]:
        found, self._waiting = self._waiting, []
        return [self._answer(request, request.sampling.max_tokens) for request in found]

    def _answer(self, request: Request, tokens: int) -> Response:
        return Response(request.key, tuple(request.prompt_ids[1 : 1 + tokens]), (-1.0,) * tokens, Finish.LENGTH)

    def release(self, sequence: int) -> None: ...


def with_work(run: Callable[[], float]) -> tuple[float, float]:
    """The seconds that something took by the clock, and those that this process worked: other processes do not count there."""
    begun = time.process_time()
    return run(), time.process_time() - begun


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    """Model and tokenizer."""
    if args.model:
        return load_folder(args.model)
    if not args.shape:
        return build_tiny([FIRST, NEXT])
    from engine import make_model
    from engine_shapes import WORDS

    words = ["".join(letters) for letters in product("abcdefghijklmnopqrst", repeat=4)]  # every id has a text
    texts = [" ".join(words[start : start + 10_000]) for start in range(0, len(words), 10_000)]
    return make_model(args.shape), build_tokenizer([FIRST, NEXT, *texts], vocabulary=WORDS)


def run_directly(engine: Any, chat: Chat, sampling: Sampling, lengths: list[list[int]], number: int) -> float:
    """Seconds for all attempts, with the same prompts as through the endpoint."""
    dialogue, turns = Dialogue(chat), len(lengths[0])
    begun = time.perf_counter()
    prompts = [dialogue.opening_ids([Said("user", f"{number} {one} {FIRST}")]) for one in range(len(lengths))]
    done = [0] * len(lengths)

    def request(one: int) -> Request:
        drawn = replace(sampling, max_tokens=lengths[one][done[one]])
        return Request(one, prompts[one], drawn, derive(one, done[one]), (number << 20) + one)

    engine.submit([request(one) for one in range(len(lengths))])
    while engine.pending:
        for response in engine.poll(wait=False):
            one = response.key
            done[one] += 1
            chat.decode(response.token_ids)
            if done[one] == turns:
                engine.release((number << 20) + one)
                continue
            bridge = dialogue.bridge_ids(response.token_ids, [Said("user", NEXT)])
            prompts[one] = [*prompts[one], *response.token_ids, *bridge]
            engine.submit([request(one)])
    return time.perf_counter() - begun


def run_served(endpoint: Endpoint, programs: Any, lengths: list[list[int]], number: int) -> float:
    """Seconds for all attempts, from programs in another process."""
    opened = [endpoint.open(f"{number}-{one}", seed=one) for one in range(len(lengths))]
    jobs = [(one.base_url, one.key, f"{number} {place} {FIRST}", lengths[place]) for place, one in enumerate(opened)]
    seconds = programs.apply(play_all, (jobs,))
    for one, wanted in enumerate(lengths):
        recorder = endpoint.close(f"{number}-{one}")
        assert [call.parent for call in recorder.calls] == [None, *range(len(wanted) - 1)]
        assert [len(call.response_ids) for call in recorder.calls] == wanted
    return float(seconds)


def play_all(jobs: list[tuple[str, str, str, list[int]]]) -> float:
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


def play(base_url: str, key: str, first: str, lengths: list[int], gate: threading.Barrier) -> None:
    """One program: a conversation over one connection."""
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    connection.connect()
    messages: list[Any] = [{"role": "user", "content": first}]
    gate.wait()
    for tokens in lengths:
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": tokens})
        connection.request("POST", f"{address.path}/chat/completions", body, {"Authorization": f"Bearer {key}"})
        answer = json.loads(connection.getresponse().read())
        messages += [answer["choices"][0]["message"], {"role": "user", "content": NEXT}]
    connection.close()


if __name__ == "__main__":
    main()
