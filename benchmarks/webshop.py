"""WebShop in figures: agreement of the search with Lucene, steps per second, time and memory of the index, perfect purchases.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/webshop.py --write

`growth` repeats the 1,000 products under new ids to see how time and memory grow with their number. `kinds` compares what the score says
about the kind of a product with what it would say with the nouns of a tagger, for the first ten products that each held-out instruction
finds: `--nouns FILE` names a JSON file {product id: [nouns of its title]}, made by any tagger; without it only the share that no tagger can
change is given.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from results import publish

from turnwise.data.tasks import TaskSet
from turnwise.envs.webshop.catalogue import Catalogue, Product
from turnwise.envs.webshop.env import WebShopEnv
from turnwise.envs.webshop.files import choose_files, entries
from turnwise.envs.webshop.score import _TITLE_WORD, type_share

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("TURNWISE_DATA", ROOT.parent / "shared" / "data")) / "webshop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--nouns", type=Path)
    options = parser.parse_args()
    env = WebShopEnv(DATA)
    train, valid = env.tasks("train"), env.tasks("valid")
    result: dict[str, Any] = {
        "search": measure_search(env),
        "steps": measure_steps(env, train),
        "growth": [measure_growth(times) for times in (1, 4, 16)],
        "perfect purchases by the expert": {rule: measure_expert(rule, train, valid) for rule in ("corrected", "reference")},
        "kinds": measure_kinds(env, valid, options.nouns),
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one core, others at work",
    }
    publish(result, Path(__file__).with_suffix(".json") if options.write else None, indent=2)


def measure_search(env: WebShopEnv) -> dict[str, Any]:
    """Our results compared with Lucene's, and the time of a new query."""
    index, ids = env.catalogue.index, env.catalogue.ids
    lines = (DATA / "lucene_bm25_top50.tsv").read_text(encoding="utf-8").splitlines()
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
    return {
        "products": size,
        "seconds, cpu": round(seconds, 2),
        "postings": len(catalogue.index.documents),
        "index arrays, bytes a product": round(catalogue.index.bytes / size),
        "memory that stays, bytes a product": round(stays / size),
        "peak, bytes a product": round(peak / size),
    }


def _repeated(folder: Path, times: int) -> Path:
    source = choose_files(DATA, 1000)
    products = [entry.value for entry in entries(source.products)]
    extras = {entry.key: entry.value for entry in entries(source.attributes)}
    count = len(products)
    copies = [products[number % count] | ({"asin": f"C{number:09d}"} if number >= count else {}) for number in range(times * count)]
    named = {copies[number]["asin"]: extras[products[number % count]["asin"]] for number in range(len(copies))}
    (folder / "items_shuffle.json").write_text(json.dumps(copies))
    (folder / "items_ins_v2.json").write_text(json.dumps(named))
    return folder


def measure_expert(rule: Any, *splits: TaskSet) -> dict[str, Any]:
    env = WebShopEnv(DATA, colours=rule)
    lengths: list[int] = []
    won = 0
    for split in splits:
        for task in split:
            plan = env.expert(task)
            env.reset(task)
            won += [env.step(action) for action in plan][-1].success
            lengths.append(len(plan))
    return {"goals": len(lengths), "score 1": won, "actions, mean": round(sum(lengths) / len(lengths), 2), "actions, most": max(lengths)}


def measure_kinds(env: WebShopEnv, tasks: TaskSet, nouns: Path | None) -> dict[str, Any]:
    """For pairs of a wanted and a found product: how often no choice of nouns can change the kind, and how often another choice agrees."""
    tagged = json.loads(nouns.read_text()) if nouns else None
    pairs = sure = agree = 0
    for task in tasks:
        wanted = env.catalogue.find(task.data["product"])
        for name in env.search(task.data["goal"])[:10]:
            found = env.catalogue.find(name)
            pairs += 1
            sure += wanted.title == found.title or not _title_words(wanted) & _title_words(found)
            agree += tagged is not None and _kind_by(tagged, wanted, found) == type_share(wanted, found)[0]
    shares = {"pairs": pairs, "the same with any nouns": round(sure / pairs, 4)}
    return shares | ({"the same with the tagger's nouns": round(agree / pairs, 4)} if tagged else {})


def _title_words(product: Product) -> set[str]:
    return {word.lower() for word in _TITLE_WORD.findall(product.title)}


def _kind_by(nouns: dict[str, list[str]], wanted: Product, found: Product) -> float:
    ours = nouns[wanted.id]
    share = len(set(ours) & set(nouns[found.id])) / len(ours) if ours else 0.2
    if share < 0.1:
        return 0.1 if share else 0.0
    return 1.0 if share > 0.2 or wanted.query == found.query or len(wanted.path & found.path) >= 2 else 0.5


if __name__ == "__main__":
    main()
