"""How fast the two servers are: the endpoint that programs talk to, and the pages of a run.

python benchmarks/servers.py endpoint --write                          a tiny model on a CPU: milliseconds that the endpoint adds per call
python benchmarks/servers.py endpoint --instant --write instant        the same with an engine that takes no time
python benchmarks/servers.py endpoint --shape 0.5b --write 0.5b        on a GPU: 64 attempts at once, random weights
python benchmarks/servers.py pages --turns 200000 --write
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from bench import WORDS as MODEL_WORDS
from bench import Part, main, need_gpu, random_model

from turnwise.agent.chat import Chat
from turnwise.agent.dialogue import Dialogue, Said
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.serve import Endpoint
from turnwise.pages.report import write_report
from turnwise.pages.run_list import RunList
from turnwise.pages.server import SCRIPT, STYLE, Server
from turnwise.runs.folder import Run
from turnwise.util.seeds import derive

# -- the endpoint -------------------------------------------------------------------------------------------------------------------------

FIRST = "You are in the middle of a room. Looking quickly around you, you see a cabinet 12, a desk 1, and a drawer 3. " * 4
NEXT = "You arrive at desk 1. On the desk 1, you see a mug 2, a pencil 1 and a book 3. What do you do next?"


def endpoint_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="a model folder; without one a tiny model is made")
    parser.add_argument("--shape", choices=("0.5b", "1.5b"), help="random weights of this size, on a GPU")
    parser.add_argument("--instant", action="store_true", help="an engine that takes no time, to see the endpoint alone")
    parser.add_argument("--attempts", type=int, help="at once; default 1 with the tiny model, 64 with another one")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, help="per response; default 16 with the tiny model, 128 with another one")
    parser.add_argument("--rounds", type=int, default=7)


def measure_endpoint(options: argparse.Namespace) -> dict[str, Any]:
    """What the endpoint costs, beside direct calls of the same engine in the same process.

    Every attempt is a conversation of several turns; responses have half to one and a half times `--tokens` tokens, the same ones on both
    sides. Directly: all attempts are submitted to the engine, and a finished turn is followed by the next one. Through the endpoint: the
    same prompts, from programs in another process that keep one connection each. Both sides take turns, and the median counts. The time of
    the model varies by more than the endpoint costs; `--instant` leaves it out: the engine answers at once with tokens of the prompt. On a
    machine that does other work, look at the fastest rounds (`at_best`) and at the CPU time of the endpoint's process."""
    import torch

    from turnwise.engines.native import NativeEngine
    from turnwise.learn.models import use_threads

    large = bool(options.model or options.shape)
    attempts, tokens = options.attempts or (64 if large else 1), options.tokens or (128 if large else 16)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load(options)
    model = model.to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    use_threads(model)
    chat = Chat(tokenizer)
    engine: Any = Instant() if options.instant else NativeEngine(model, tokenizer, max_batch=attempts, max_length=4096, stop_token_ids=())
    sampling = Sampling(max_tokens=2 * tokens)
    lengths = [[tokens // 2 + derive(0, one, turn) % (tokens + 1) for turn in range(options.turns)] for one in range(attempts)]
    direct: list[tuple[float, float]] = []  # seconds by the clock, and CPU seconds of this process
    served: list[tuple[float, float]] = []
    with Endpoint(engine, chat, sampling) as endpoint, multiprocessing.get_context("spawn").Pool(1) as programs:
        for number in range(options.rounds + 1):
            with endpoint.paused():
                direct.append(with_work(lambda number=number: run_directly(engine, chat, sampling, lengths, number)))
            served.append(with_work(lambda number=number: run_served(endpoint, programs, lengths, number)))
    once, through = (statistics.median(clock for clock, _ in rounds[1:]) for rounds in (direct, served))  # the first round warms up
    work, more_work = (statistics.median(cpu for _, cpu in rounds[1:]) for rounds in (direct, served))
    fastest = min(clock for clock, _ in served[1:]) - min(clock for clock, _ in direct[1:])
    calls = attempts * options.turns
    return {
        "model": options.model or options.shape or ("none" if options.instant else "tiny"),
        "device": device,
        "attempts": attempts,
        "turns": options.turns,
        "tokens": tokens,
        "direct_seconds": round(once, 4),
        "endpoint_seconds": round(through, 4),
        "added_ms_per_call": round(1000 * (through - once) / calls, 3),
        "added_ms_per_call_at_best": round(1000 * fastest / calls, 3),
        "added_cpu_ms_per_call": round(1000 * (more_work - work) / calls, 3),
        "added_percent": round(100 * (through / once - 1), 1),
    }


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


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """Model and tokenizer."""
    from turnwise.learn.models import load_folder
    from turnwise.learn.tiny import build_tiny, build_tokenizer

    if options.model:
        return load_folder(options.model)
    if not options.shape:
        return build_tiny([FIRST, NEXT])
    need_gpu("without --shape")
    words = ["".join(letters) for letters in product("abcdefghijklmnopqrst", repeat=4)]  # every id has a text
    texts = [" ".join(words[start : start + 10_000]) for start in range(0, len(words), 10_000)]
    return random_model(options.shape), build_tokenizer([FIRST, NEXT, *texts], vocabulary=MODEL_WORDS)


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


# -- the pages ----------------------------------------------------------------------------------------------------------------------------

WORDS = [f"{a}{b}" for a in ("shelf", "cabinet", "drawer", "table", "lamp", "mug", "door", "soap", "towel") for b in ("", " 1", " 2", "s")]
LENGTH, MEMBERS, TOKENS = 50, 10, 60
CONFIG = 'name = "large"\nseed = 0\niterations = {iterations}\n[env]\nname = "household"\n[credit]\nname = "gigpo"\n'


def attempts(iteration: int, turns: int) -> Iterator[Trajectory]:
    """Attempts of 50 turns, ten at each task, over 40 states per task; texts of about 600 characters per turn."""
    chance = random.Random(iteration)
    sentences = [" ".join(chance.choices(WORDS, k=14)) for _ in range(2000)]
    for number in range(turns // LENGTH):
        group, won = number // MEMBERS, chance.random() < 0.4
        made = []
        for t in range(LENGTH):
            text = ", ".join(chance.choices(sentences, k=4))
            thought = ", ".join(chance.choices(sentences, k=2))
            action = f"go to {chance.choice(WORDS)}"
            made.append(
                Turn(
                    anchor=f"state {min(t, chance.randrange(40))} of {group}",
                    reward=float(won and t == LENGTH - 1),
                    observation=f"You see {text}.",
                    thought=thought,
                    action=action,
                    response=f"<think>{thought}</think><action>{action}</action>",
                    response_ids=range(TOKENS),
                    logprobs=[-0.5] * TOKENS,
                )
            )
        stop = Stop.DONE if won else Stop.STEP_LIMIT
        yield Trajectory(group, number, f"find-{group:05d}", made, stop, "", won)


def make_run(folder: Path, name: str, iterations: int, turns: int) -> Run:
    run = Run.create(folder, name, CONFIG.format(iterations=iterations))
    chance = random.Random(0)
    for iteration in range(iterations + 1):
        metrics = {f"learner/value_{k}": chance.random() for k in range(70)} | {"collect/success": chance.random(), "time/collect": 9.0}
        if iteration % 5 == 0:
            metrics |= {"eval/success": 0.5, "eval/low": 0.4, "eval/high": 0.6}
        run.log({"iteration": iteration} | metrics)
        if iteration:
            batch = list(attempts(iteration, turns))
            run.save_batch(iteration, Batch.of(batch), keep=None)
    return run


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def get(url: str) -> bytes:
    with urlopen(url) as answer:
        return bytes(answer.read())


def asked(folder: Path, name: str, last: int, members: int) -> dict[str, Any]:
    """First and repeated times of every kind of answer, on a fresh server."""
    server = Server(RunList(folder), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, place = server.url, f"run={name}&part=rollouts&iteration={last}"
    first = ["", f"static/{SCRIPT}", f"static/{STYLE}", "api/runs"]
    found: dict[str, Any] = {}
    for title, paths in {
        "first page (page, scripts, list of runs)": first,
        "overview (run, metrics)": [f"api/run?run={name}", f"api/metrics?run={name}"],
        "attempts of an iteration": [f"api/batch?{place}"],
        "one attempt": [f"api/attempt?{place}&id={members - 3}"],
        "its group": [f"api/group?{place}&group={(members - 3) // MEMBERS}"],
        "search, rare text": [f"api/search?{place}&text=absent+words"],
        "search, common text": [f"api/search?{place}&text=towel"],
    }.items():

        def ask(paths: list[str] = paths) -> None:
            for path in paths:
                get(url + path)

        used = time.process_time()
        first_time = timed(ask)
        used = 1000 * (time.process_time() - used)
        again = statistics.median(timed(ask) for _ in range(5))
        found[title] = {"first": round(first_time, 1), "first_cpu": round(used, 1), "again": round(again, 1)}
    server.shutdown()
    server.server_close()
    return found


def in_chromium(folder: Path, name: str, last: int, chromium: str) -> dict[str, float] | None:
    """From opening an address to the drawn page, on a fresh server and a fresh browser page; the median of three."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if not Path(chromium).exists():
        return None
    server = Server(RunList(folder), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    places = {
        "an empty page": ("static/style.css", "body"),
        "list of runs": ("#/", "table.runs tbody tr"),
        "overview": (f"#/run?run={name}", ".chart .curve"),
        "attempts": (f"#/attempts?run={name}&part=rollouts&iteration={last}", ".turn.current"),
    }
    found = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for title, (place, sign) in places.items():
            times = []
            for _ in range(3):
                page = browser.new_page(viewport={"width": 1280, "height": 720})

                def open_page(page: Any = page, place: str = place, sign: str = sign) -> None:
                    page.goto(server.url + place)
                    page.wait_for_selector(sign, state="attached")

                times.append(timed(open_page))
                page.close()
            found[title] = round(statistics.median(times), 1)
        browser.close()
    server.shutdown()
    server.server_close()
    return found


def measure_shape(turns: int, iterations: int, chromium: str) -> dict[str, Any]:
    """One shape of run: `turns` turns in this many iterations. Runs in a separate process, so that its peak memory is not that of
    others."""
    with tempfile.TemporaryDirectory() as folder:
        each = turns // iterations
        subprocess.run([sys.executable, __file__, "pages", "--make", folder, str(iterations), str(each)], check=True)
        members = each // LENGTH
        texts = sum(path.stat().st_size for path in Path(folder).glob("large/rollouts/*.jsonl.gz"))
        result: dict[str, Any] = {"iterations": iterations, "turns": turns, "packed_texts_mb": round(texts / 1e6, 1)}
        result["http_ms"] = asked(Path(folder), "large", iterations, members)
        result["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        result["chromium_ms"] = in_chromium(Path(folder), "large", iterations, chromium)
        out = Path(folder) / "report.html"
        result["report_seconds"] = round(timed(lambda: write_report(Path(folder) / "large", out)) / 1000, 2)
        result["report_mb"] = round(out.stat().st_size / 1e6, 1)
        return result


def pages_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=200_000)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--make", nargs=3, metavar=("FOLDER", "ITERATIONS", "TURNS"), help=argparse.SUPPRESS)
    parser.add_argument("--iterations", type=int, help=argparse.SUPPRESS)


def measure_pages(options: argparse.Namespace) -> dict[str, Any] | None:
    """How fast the pages of a large run are: a made run of 200,000 turns, asked as a browser asks.

    The run is made twice: as 25 iterations of 8,000 turns, and with all its turns in one single iteration, the worst case. Every answer is
    asked for over HTTP on a server that has just started (`first`) and again (`again`, the median of five). If a Chromium is found, the
    time from opening an address to the drawn page is measured in it, and that of an empty page. Times are wall time in milliseconds;
    `first_cpu` is the processor time of server and client, which other work on the machine does not change."""
    if options.make:
        make_run(Path(options.make[0]), "large", int(options.make[1]), int(options.make[2]))
        return None
    if options.iterations:
        return measure_shape(options.turns, options.iterations, options.chromium)
    result: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    for title, iterations in (("many_iterations", 25), ("one_iteration", 1)):
        command = [sys.executable, __file__, "pages", "--iterations", str(iterations), "--turns", str(options.turns)]
        result[title] = json.loads(subprocess.run([*command, "--chromium", options.chromium], check=True, stdout=subprocess.PIPE).stdout)
    return result


PARTS = {"endpoint": Part(measure_endpoint, endpoint_options), "pages": Part(measure_pages, pages_options)}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
