"""Our environments beside what they replace: the household simulator beside TextWorld, WebShop's search beside Lucene, search QA with BM25.

    make test-oracle N=1 && python benchmarks/references.py household --write
    python benchmarks/references.py webshop --write
    TURNWISE_DATA=… python benchmarks/references.py search --write

All read the published data (TURNWISE_DATA). CPU times are those of one process; other work on the machine changes them little.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench import ROOT, Part, machine, main

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.household.alfworld import AlfworldEnv, _world
from turnwise.envs.household.games import Library
from turnwise.envs.household.packed import PackedLibrary
from turnwise.envs.search.env import SearchEnv
from turnwise.envs.search.questions import find_corpus, find_data
from turnwise.envs.search.web import Server
from turnwise.envs.webshop.catalogue import Catalogue
from turnwise.envs.webshop.env import WebShopEnv
from turnwise.envs.webshop.files import choose_files, entries
from turnwise.retrieval.bm25 import Bm25
from turnwise.retrieval.corpus import Corpus
from turnwise.retrieval.kinds import Cached
from turnwise.retrieval.remote import Remote

DATA = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data"))

# -- households and TextWorld -------------------------------------------------------------------------------------------------------------

STEPS, ROUNDS = 40, 25
Spent = dict[str, float]


def household_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--games", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)


def measure_household(options: argparse.Namespace) -> dict[str, Any]:
    """The household simulator compared with TextWorld, on the same games and commands in one run.

    TextWorld plays each game once, ours the same commands several times over; both are given per step, with the admissible commands.
    `seconds` is wall-clock time, `cpu` the CPU time of the process. Without the oracle's virtual environment only our side is measured."""
    sys.path.insert(0, str(ROOT / "tests" / "oracle"))
    from play import PYTHON

    result: dict[str, Any] = {"index": measure_index()}
    env = AlfworldEnv(DATA / "alfworld")
    tasks = list(env.tasks("train").panel(options.games, options.seed))
    scripts = {task.id: commands_for(env, task, options.seed) for task in tasks}
    result["turnwise"] = ours = measure_ours(env, tasks, scripts)
    if PYTHON.exists():
        result["textworld"] = theirs = measure_textworld(env, tasks, scripts)
        result["times faster"] = {
            f"{what}, {clock}": round(theirs[what][clock] / ours[what][clock]) for what in ("step", "reset") for clock in ("seconds", "cpu")
        }
    result |= {"memory": measure_memory(tasks), "expert": measure_expert(env)}
    return result | {"games": options.games, "steps a game": STEPS, "seed": options.seed, "machine": machine()}


def commands_for(env: AlfworldEnv, task: Task, seed: int) -> list[str]:
    """A game's commands: kinds drawn evenly, one in ten senseless; it stops short of winning."""
    rng = random.Random(f"{seed}/{task.id}")
    actions = env.reset(task).actions or ()
    commands: list[str] = []
    while len(commands) < STEPS:
        verb = rng.choice(sorted({action.split()[0] for action in actions}))
        command = rng.choice([action for action in actions if action.split()[0] == verb]) if rng.random() < 0.9 else "dance"
        move = env.step(command)
        if move.done:
            return commands_for(env, task, seed + 1)
        commands.append(command)
        actions = move.observation.actions or ()
    return commands


def spend(action: Callable[[], Any]) -> Spent:
    clock, cpu = time.perf_counter(), time.process_time()
    action()
    return {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - cpu}


def mean(spent: list[Spent], count: int) -> Spent:
    return {key: sum(one[key] for one in spent) / count for key in ("seconds", "cpu")}


def measure_ours(env: AlfworldEnv, tasks: list[Task], scripts: dict[str, list[str]]) -> dict[str, Any]:
    first, resets, steps = [], [], []
    _world.cache_clear()
    for task in tasks:
        first.append(spend(lambda task=task: env.reset(task)))  # type: ignore[misc]
        for _ in range(ROUNDS):
            resets.append(spend(lambda task=task: env.reset(task)))  # type: ignore[misc]
            steps.append(spend(lambda task=task: [env.step(command) for command in scripts[task.id]]))  # type: ignore[misc]
    step = mean(steps, len(steps) * STEPS)
    return {
        "step": step,
        "reset": mean(resets, len(resets)),
        "first reset of a game": mean(first, len(first)),
        "steps a second": {key: round(1 / value) for key, value in step.items()},
    }


def measure_textworld(env: AlfworldEnv, tasks: list[Task], scripts: dict[str, list[str]]) -> dict[str, Any]:
    from play import Oracle

    oracle, resets, steps = Oracle(), [], []
    for task in tasks:
        game = env.library.read(env.library.entry(task.id))
        content = {"pddl_problem": game.problem, "pddl_domain": game.domain, "grammar": game.grammar, "walkthrough": [], "solvable": True}
        with tempfile.NamedTemporaryFile("w", suffix=".tw-pddl") as file:
            json.dump(content, file)
            file.flush()
            oracle.load(Path(file.name))
            resets.append(oracle.reset())
            env.reset(task)
            for command in scripts[task.id]:
                answer = oracle.step(command)
                move = env.step(command)
                assert (answer["text"], answer["actions"]) == (move.observation.text, list(move.observation.actions or ()))
                steps.append(answer)
    oracle.close()
    return {"step": mean(steps, len(steps)), "reset": mean(resets, len(resets))}


def measure_index() -> dict[str, float]:
    """Opening the packed `train` split: from the xz file alone, and again with what that left in the cache folder."""
    spent: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        kept, os.environ["TURNWISE_CACHE"] = os.environ.get("TURNWISE_CACHE"), cache
        for what in ("first", "again"):
            library: Library = PackedLibrary(DATA / "alfworld")
            opened = spend(lambda library=library: library.entries("train"))  # type: ignore[misc]
            spent |= {f"{what}, {clock}": value for clock, value in opened.items()}
        if kept is None:
            del os.environ["TURNWISE_CACHE"]
        else:
            os.environ["TURNWISE_CACHE"] = kept
        return {**spent, "games": len(library.entries("train"))}


def measure_memory(tasks: list[Task]) -> dict[str, float]:
    """Kilobytes of an environment with its current game: alone, and if another environment plays the same game."""
    AlfworldEnv(DATA / "alfworld").reset(tasks[0])
    sizes = []
    for task in tasks[1:]:
        _world.cache_clear()
        gc.collect()
        tracemalloc.start()
        alone = _played(task)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        beside = _played(task)
        gc.collect()
        sizes.append((first / 1000, (tracemalloc.get_traced_memory()[0] - first) / 1000))
        tracemalloc.stop()
        del alone, beside
    return {"alone, kB": round(max(size[0] for size in sizes), 1), "beside another, kB": round(max(size[1] for size in sizes), 1)}


def _played(task: Task) -> AlfworldEnv:
    env = AlfworldEnv(DATA / "alfworld", anchor="state")
    env.reset(task)
    for command in env.expert(task)[:-1]:
        env.step(command)
    return env


def measure_expert(env: AlfworldEnv) -> dict[str, float]:
    times, lengths, stored = [], 0, 0
    for task in env.tasks("valid_seen"):
        env.reset(task)
        times.append(spend(env.expert_plan))
        lengths += len(env.expert_plan())
        stored += len(env.walkthrough(task))
    return {
        "milliseconds a plan, cpu": round(1000 * sum(one["cpu"] for one in times) / len(times), 3),
        "longest, cpu": round(1000 * max(one["cpu"] for one in times), 3),
        "commands, beside the walkthroughs'": round(lengths / stored, 4),
    }


# -- WebShop and Lucene -------------------------------------------------------------------------------------------------------------------


def measure_webshop(_: argparse.Namespace) -> dict[str, Any]:
    """WebShop's search compared with Lucene's recorded results, steps per second, the growth with the catalogue, and the expert."""
    env = WebShopEnv(DATA / "webshop")
    train, valid = env.tasks("train"), env.tasks("valid")
    return {
        "search": compare_with_lucene(env),
        "steps": measure_steps(env, train),
        "growth": [measure_growth(times) for times in (1, 4, 16)],
        "perfect purchases by the expert": {rule: measure_purchases(rule, train, valid) for rule in ("corrected", "reference")},
        "machine": machine(),
    }


def compare_with_lucene(env: WebShopEnv) -> dict[str, Any]:
    """Our results compared with Lucene's, and the time of a new query."""
    index, ids = env.catalogue.index, env.catalogue.ids
    lines = (DATA / "webshop" / "lucene_bm25_top50.tsv").read_text(encoding="utf-8").splitlines()
    first = ten = lists = 0
    largest = spent = 0.0
    for line in lines:
        query, *results = line.split("\t")
        scores = {name: float(value) for name, _, value in (result.partition(":") for result in results if result)}
        start = time.process_time()
        found = index.search(query)
        spent += time.process_time() - start
        names, expected = [ids[number] for number, _ in found], list(scores)
        first += names[:1] == expected[:1]
        ten += set(names[:10]) == set(expected[:10])
        lists += names == expected
        largest = max([largest, *(abs(score - scores.get(ids[number], 0)) for number, score in found)])
    return {
        "queries": len(lines),
        "first result equal": first,
        "first ten equal": ten,
        "all fifty equal, in order": lists,
        "largest difference of a score": round(largest, 6),
        "milliseconds a query, cpu": round(1000 * spent / len(lines), 3),
    }


def measure_steps(env: WebShopEnv, tasks: TaskSet) -> dict[str, Any]:
    """Random clicks with fresh queries of six words from the instructions; and the expert's purchases."""
    dice = random.Random(0)
    words = [word for task in tasks[:500] for word in task.data["goal"].split()]
    chosen = list(tasks[:1500])
    plans = [env.expert(task) for task in chosen]

    def wander() -> int:
        steps = 0
        for task in chosen:
            seen, done = env.reset(task), False
            for _ in range(15):
                action = dice.choice(seen.actions or ("",))
                query = f"search[{' '.join(dice.sample(words, 6))}]"
                move = env.step(query if action.startswith("search") else action)
                seen, done, steps = move.observation, move.done, steps + 1
                if done:
                    break
        return steps

    def follow() -> int:
        for task, plan in zip(chosen, plans, strict=True):
            env.reset(task)
            for action in plan:
                env.step(action)
        return sum(map(len, plans))

    return {"random shopper, steps a cpu second": _rate(wander), "expert, steps a cpu second": _rate(follow)}


def _rate(work: Any) -> int:
    start = time.process_time()
    steps = work()
    return round(steps / (time.process_time() - start))


def measure_growth(times: int) -> dict[str, Any]:
    """Opening this many times 1,000 products: time, postings, memory that stays and the peak."""
    with tempfile.TemporaryDirectory() as folder:
        files = choose_files(_repeated(Path(folder), times), None)
        start = time.process_time()
        size = len(Catalogue(files))
        seconds = time.process_time() - start
        gc.collect()
        tracemalloc.start()
        catalogue = Catalogue(files)
        stays, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    index = catalogue.index
    arrays = (index.starts, index.documents, index.counts, index.lengths, index._name_rank)
    return {
        "products": size,
        "seconds, cpu": round(seconds, 2),
        "postings": len(catalogue.index.documents),
        "index arrays, bytes a product": round(sum(array.nbytes for array in arrays) / size),
        "memory that stays, bytes a product": round(stays / size),
        "peak, bytes a product": round(peak / size),
    }


def _repeated(folder: Path, times: int) -> Path:
    source = choose_files(DATA / "webshop", 1000)
    products = [entry.value for entry in entries(source.products)]
    extras = {entry.key: entry.value for entry in entries(source.attributes)}
    count = len(products)
    copies = [products[number % count] | ({"asin": f"C{number:09d}"} if number >= count else {}) for number in range(times * count)]
    named = {copies[number]["asin"]: extras[products[number % count]["asin"]] for number in range(len(copies))}
    (folder / "items_shuffle.json").write_text(json.dumps(copies))
    (folder / "items_ins_v2.json").write_text(json.dumps(named))
    return folder


def measure_purchases(rule: Any, *splits: TaskSet) -> dict[str, Any]:
    env = WebShopEnv(DATA / "webshop", colours=rule)
    lengths: list[int] = []
    won = 0
    for split in splits:
        for task in split:
            plan = env.expert(task)
            env.reset(task)
            won += [env.step(action) for action in plan][-1].success
            lengths.append(len(plan))
    return {"goals": len(lengths), "score 1": won, "actions, mean": round(sum(lengths) / len(lengths), 2), "actions, most": max(lengths)}


# -- search QA ----------------------------------------------------------------------------------------------------------------------------

QUERIES, REPEATS, TOPK, TASKS = 600, 5, 3, 200
SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle")


def measure_search(_: argparse.Namespace) -> dict[str, Any]:
    """How fast search QA is: BM25 with and without the memory of answers, through a server, steps of the environment; and what BM25 finds.

    Every way gets the same queries in the same run; the ways take turns, and the median of the rounds is reported. The index is built in a
    separate folder, so that building and opening are both measured. All times are CPU time of this one process (a server and its client are
    both in it)."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TURNWISE_CACHE"] = cache
        return search_figures(find_data())


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def rates(ways: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Operations per second for each way, alternating; a way returns how many things it did."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
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
    remote = Remote(f"http://127.0.0.1:{server.port}")

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
    server.stop()
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


def search_figures(data: Path) -> dict[str, Any]:
    corpus: Any = None

    def open_corpus() -> None:
        nonlocal corpus
        corpus = Corpus(find_corpus(data))

    times = {
        "unpack the corpus": cpu_seconds(open_corpus),
        "build the index": cpu_seconds(lambda: Bm25(corpus)),
        "open both again": cpu_seconds(lambda: (open_corpus(), Bm25(corpus))),
    }
    env = SearchEnv(data=data)
    tasks = list(env.tasks("test").panel(QUERIES))
    queries = [task.data["question"] for task in tasks]
    size = sum(path.stat().st_size for path in Path(os.environ["TURNWISE_CACHE"]).rglob("*") if path.is_file())
    return {
        "machine": machine(),
        "passages": len(corpus),
        "cpu_seconds": {name: round(value, 2) for name, value in times.items()},
        "cache_megabytes": round(size / 1e6, 1),
        "queries_a_cpu_second": retrieval(Bm25(corpus), queries),
        "steps_a_cpu_second": steps(data, tasks[:TASKS], queries),
        "evidence_in_the_first_3": {name: recall(env, name) for name in SOURCES},
    }


PARTS = {
    "household": Part(measure_household, household_options),
    "webshop": Part(measure_webshop),
    "search": Part(measure_search),
}


if __name__ == "__main__":
    main(__file__, __doc__, PARTS)
