"""How fast search QA is: BM25 with and without the memory of answers, through a server, steps of the environment; and what BM25 finds.

    TURNWISE_DATA=… python benchmarks/search.py [--write]

Prints JSON. Every way gets the same queries in the same run; the ways take turns, and the median of the rounds is reported. The index is
built in a separate folder, so that building and opening are both measured. All times are CPU time of this one process (a server and its
client are both in it), because other work may run on the machine; one thread for numpy.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import publish

from turnwise.collect.players import RandomPlayer, Situation
from turnwise.data.tasks import Task
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.questions import find_corpus, find_data
from turnwise.envs.search.server import Server
from turnwise.retrieval.bm25 import Bm25
from turnwise.retrieval.cached import Cached
from turnwise.retrieval.corpus import Corpus
from turnwise.retrieval.remote import Remote

QUERIES, ROUNDS, TOPK, TASKS = 600, 5, 3, 200
RESULT = Path(__file__).with_suffix(".json")


def seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def rates(ways: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Operations per second for each way, alternating; a way returns how many things it did."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.process_time()
            count = way()
            found[name].append(count / (time.process_time() - start))
    return {name: round(statistics.median(values), 1) for name, values in found.items()}


def retrieval(bm25: Bm25, queries: list[str]) -> dict[str, float]:
    warm = Cached(bm25, 10 * QUERIES)
    warm.search(queries, TOPK)
    server = Server(bm25, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    remote = Remote(f"http://127.0.0.1:{server.server_address[1]}")

    def one_by_one(search: Callable[[list[str], int], Any], some: list[str]) -> Callable[[], int]:
        return lambda: sum(bool(search([query], TOPK)) for query in some)

    found = rates(
        {
            "bm25": one_by_one(bm25.search, queries),
            "bm25, remembered": one_by_one(warm.search, queries),
            "server, one query a request": one_by_one(remote.search, queries[:200]),
            "server, 200 queries a request": lambda: len(remote.search(queries[:200], TOPK)),
        }
    )
    server.shutdown()
    server.server_close()
    return found


def play(env: SearchEnv, task: Task, queries: list[str]) -> int:
    env.reset(task)
    for query in queries:
        env.step(f"<think>x</think><search>{query}</search>")
    env.step("answer[x]")
    return len(queries) + 1


def steps(data: Path, tasks: list[Task], queries: list[str]) -> dict[str, float]:
    """Episodes of three searches and an answer: every search new, and in groups of five that search for the same."""
    envs = {name: SearchEnv(data=data, cache=size) for name, size in (("steps, nothing remembered", 0), ("steps, groups of 5", 600))}

    def run(env: SearchEnv, repeats: int) -> int:
        return sum(play(env, task, queries[3 * n : 3 * n + 3]) for n, task in enumerate(tasks) for _ in range(repeats))

    def cold() -> int:
        return run(envs["steps, nothing remembered"], 1)

    def grouped() -> int:
        cached: Any = envs["steps, groups of 5"].retriever
        cached.search([f"forget {n}" for n in range(600)], TOPK)  # leaves nothing of the last round
        return run(envs["steps, groups of 5"], 5)

    return rates({"steps, nothing remembered": cold, "steps, groups of 5": grouped})


def recall(env: SearchEnv, split: str) -> float:
    """How often the question itself, as the query, brings up a passage that was marked as evidence."""
    tasks = env.tasks(split)
    found = env.retriever.search([task.data["question"] for task in tasks], TOPK)
    hits = [bool({hit.passage.id for hit in row} & set(task.data["evidence"])) for row, task in zip(found, tasks, strict=True)]
    return round(float(np.mean(hits)), 3)


def agents(env: SearchEnv) -> dict[str, dict[str, float]]:
    """Exact match and turns of a random agent and of the expert."""
    tasks = env.tasks("valid")
    result = {}
    for name in ("random", "expert"):
        won = turns = 0
        for task in tasks:
            observation, done = env.reset(task), False
            while not done:
                act = RandomPlayer().act(observation, Situation(task, 0, turns)) if name == "random" else env.expert_action()
                transition = env.step(str(act))
                observation, done, turns = transition.observation, transition.done, turns + 1
            won += transition.success
        result[name] = {"em": round(won / len(tasks), 3), "turns": round(turns / len(tasks), 2)}
    return result


def measure(data: Path) -> dict[str, Any]:
    corpus: Any = None

    def look() -> None:
        nonlocal corpus
        corpus = Corpus(find_corpus(data))

    times = {
        "unpack the corpus": seconds(look),
        "build the index": seconds(lambda: Bm25(corpus)),
        "open both again": seconds(lambda: (look(), Bm25(corpus))),
    }
    env = SearchEnv(data=data)
    tasks = list(env.tasks("test").panel(QUERIES))
    queries = [task.data["question"] for task in tasks]
    size = sum(path.stat().st_size for path in Path(os.environ["TURNWISE_CACHE"]).rglob("*") if path.is_file())
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "passages": len(corpus),
        "cpu_seconds": {name: round(value, 2) for name, value in times.items()},
        "cache_megabytes": round(size / 1e6, 1),
        "queries_a_cpu_second": retrieval(Bm25(corpus), queries),
        "steps_a_cpu_second": steps(data, tasks[:TASKS], queries),
        "evidence_in_the_first_3": {
            name: recall(env, name) for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle")
        },
        "agents_on_valid": agents(env),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="keep the result beside this script")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TURNWISE_CACHE"] = cache
        result = {"command": "python benchmarks/search.py --write"} | measure(find_data())
    publish(result, RESULT if given.write else None, indent=2)


if __name__ == "__main__":
    main()
