"""A rollout card: one file of a run from which every number that is reported of it can be computed again.

It holds the recipe, what every iteration cost, every attempt of every evaluation, and how the run ended. No texts are in it. `headline`
is what tables show; `verify` computes it from the rest. Crashes, timeouts and attempts that were left out are part of the result.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import platform
import tarfile
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml
from turnwise.runs.folder import CONFIG, Run
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_atomically
from turnwise.util.statistics import by_cluster, task_interval
from turnwise.util.version import VERSION

SCHEMA, FORMAT = "turnwise.card", 1
ENDING = ".card.json.gz"
PACKED, MEMBER = ".cards.tar.xz", ".card.json"  # many cards in one file, which is a tenth of the size
LARGEST = 64 << 20  # bytes of an unpacked card: thousands of evaluations
MOST = 1 << 30  # bytes of all cards in one file: a hundred thousand short runs
Card = dict[str, Any]
COSTS = ("attempts", "left_out", "tokens_sampled", "tokens_trained", "tokens_computed", "calls", "seconds")
COLLAPSE = 0.5  # a run has collapsed if it ends below this share of its best evaluation


def card_of(folder: Path, ended: str, message: str = "", about: Mapping[str, Any] | None = None) -> Card:
    """The card of a run. `ended`: finished, failed or timed out; `about`: what an arena says of it."""
    run = Run.open(folder)
    config = Config.load(folder / CONFIG)
    card: Card = {
        "schema": SCHEMA,
        "format": FORMAT,
        "about": dict(about or {}),
        "recipe": to_toml(config),
        "config_hash": content_hash(config),
        "seed": config.seed,
        "ended": ended,
        "message": message[:400],
        "machine": {"system": platform.system(), "processor": platform.machine(), "python": platform.python_version(), "turnwise": VERSION},
        "iterations": [cost_of(line, config) for line in run.metrics()],
        "evaluations": [_evaluation(run.evaluation(iteration)) for iteration in run.iterations_of("evals")],
    }
    return card | {"headline": headline(card)}


def cost_of(line: Mapping[str, Any], config: Config) -> dict[str, float]:
    """What one iteration took. Attempts that were not learned from count: those that ended with a fault, and groups that a plan dropped.
    Their tokens are estimated by those of a turn that was learned from. `calls`: turns that further models read, once for each model."""
    learned = float(line.get("collect/attempts", line.get("collect/trajectories", 0.0)))
    left_out = float(line.get("collect/faults", 0.0))
    left_out += config.collect.group_size * (
        float(line.get("collect/dropped_groups", 0.0))
        + max(0.0, float(line.get("collect/groups_scored", 0.0)) - float(line.get("collect/groups_kept", 0.0)))
        + config.collect.groups * float(line.get("collect/resampled", 0.0))
    )
    turns, tokens = float(line.get("collect/turns", 0.0)), float(line.get("collect/response_tokens", 0.0))
    per_turn = tokens / turns if turns else 0.0
    return {
        "iteration": int(line["iteration"]),
        "attempts": learned + left_out,
        "left_out": left_out,
        "tokens_sampled": max(tokens, per_turn * float(line.get("collect/generations", turns))),
        "tokens_trained": float(line.get("learner/tokens", 0.0)),
        "tokens_computed": float(line.get("learner/tokens_forward", 0.0)),
        "calls": turns * len(config.models),
        "seconds": float(line.get("time/iteration" if line["iteration"] else "time/sft", 0.0)),
    }


def _evaluation(record: Mapping[str, Any]) -> dict[str, Any]:
    """Every attempt of one evaluation: its task, whether it succeeded, its reward, turns and stop reason."""
    outcomes = record["outcomes"]
    keys = ("split", "seed", "panel_hash", "panel_size", "repeats", "temperature", "max_turns", "measures")
    return {key: record[key] for key in keys if key in record} | {
        "iteration": int(record["iteration"]),
        "tasks": [str(outcome["task"]) for outcome in outcomes],
        "clusters": [str(outcome.get("cluster") or outcome["task"]) for outcome in outcomes],
        "success": [int(bool(outcome["success"])) for outcome in outcomes],
        "reward": [outcome.get("reward") for outcome in outcomes],
        "stop": [outcome.get("stop") for outcome in outcomes],
    }


def headline(card: Card, attempts: float = math.inf) -> dict[str, Any]:
    """The numbers of a run within a budget of training attempts: those of its last evaluation that lies within it. A run that was never
    evaluated there has a success of 0."""
    curve = points(card)
    within = [point for point in curve if point["attempts"] <= attempts] or curve[:1]
    if not within:
        return {"success": 0.0, "ended": card["ended"], "evaluations": 0}
    last = within[-1]
    evaluation = next(one for one in card["evaluations"] if one["iteration"] == last["iteration"])
    best = max(point["success"] for point in within)
    return {
        "success": last["success"],
        "interval": list(_interval(evaluation)),
        "start": curve[0]["success"],
        "best": best,
        "collapsed": last["success"] < COLLAPSE * best,
        "iteration": last["iteration"],
        "panel": evaluation["panel_hash"],
        "evaluations": len(within),
        "ended": card["ended"],
        **{name: last[name] for name in COSTS},
    }


def points(card: Card) -> list[dict[str, Any]]:
    """The curve of a run: success at each evaluation, and what had been spent until then."""
    spent = dict.fromkeys(COSTS, 0.0)
    evaluations = {one["iteration"]: one for one in card["evaluations"]}
    curve = []
    for cost in card["iterations"]:
        spent = {name: spent[name] + cost[name] for name in COSTS}
        if (evaluation := evaluations.get(cost["iteration"])) is not None:
            success = evaluation["success"]
            curve.append({"iteration": cost["iteration"], "success": math.fsum(success) / max(len(success), 1), **spent})
    return curve


def _interval(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    """Over tasks, as `turnwise eval` has it."""
    clusters, won = evaluation["clusters"], evaluation["success"]
    return task_interval(by_cluster(won, clusters), by_cluster([1.0] * len(won), clusters))


def verify(card: Card) -> list[str]:
    """What in a card does not follow from the rest of it; empty if all does."""
    for evaluation in card["evaluations"]:
        expected = evaluation["panel_size"] * evaluation["repeats"]
        if wrong := [key for key in ("tasks", "clusters", "success") if len(evaluation[key]) != expected]:
            count = len(evaluation[wrong[0]])
            return [f"the evaluation of iteration {evaluation['iteration']} has {count} attempts in {wrong[0]}, and its panel {expected}"]
    computed, shown = headline(card), card["headline"]
    wrong = [
        f"headline.{name} is {shown.get(name)!r}, and its attempts give {computed.get(name)!r}"
        for name in sorted(computed.keys() | shown.keys())
        if not _equal(computed.get(name), shown.get(name))
    ]
    config = Config.load(tomllib.loads(card["recipe"]))
    if content_hash(config) != card["config_hash"]:
        wrong.append(f"config_hash is {card['config_hash']}, and its recipe gives {content_hash(config)}")
    if config.seed != card["seed"]:
        wrong.append(f"seed is {card['seed']}, and its recipe has {config.seed}")
    panels = {evaluation["panel_hash"] for evaluation in card["evaluations"]}
    if len(panels) > 1:
        wrong.append(f"its evaluations were made on {len(panels)} different panels")
    return wrong


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return isinstance(one, (int, float)) and isinstance(other, (int, float)) and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str) and not isinstance(other, str):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def write(card: Card, path: Path) -> Path:
    """The same card gives the same bytes."""
    packed = gzip.compress(_text(card), compresslevel=9, mtime=0)
    return write_atomically(path, lambda file: file.write(packed))


def pack(cards: Mapping[str, Card], path: Path) -> Path:
    """Many cards in one file, by their names. The same cards give the same bytes."""

    def add(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w:xz", preset=9) as archive:
            for name, card in sorted(cards.items()):
                text = _text(card)
                member = tarfile.TarInfo(name + MEMBER)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))

    return write_atomically(path, add)


def _text(card: Card) -> bytes:
    return json.dumps(card, allow_nan=False, separators=(",", ":")).encode()


def read_all(paths: Sequence[Path]) -> dict[str, Card]:
    """The cards in these files and folders, by their names: single ones, and packed ones."""
    files: list[Path] = []
    for path in paths:
        files += [one for ending in (PACKED, ENDING) for one in sorted(path.rglob(f"*{ending}"))] if path.is_dir() else [path]
    cards: dict[str, Card] = {}
    for path in files:
        cards |= _unpacked(path) if path.name.endswith(PACKED) else {path.name.removesuffix(ENDING): read(path)}
    return cards


def _unpacked(path: Path) -> dict[str, Card]:
    """Members are read in memory; nothing is written under a name that the archive gives."""
    texts: dict[str, Any] = {}
    wrong, total = "", 0
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() and member.name.endswith(MEMBER) else None
                total += member.size
                if file is None or member.size > LARGEST:
                    wrong = f"{member.name!r} is no card"
                elif total > MOST:
                    wrong = f"its cards take more than {MOST >> 20} MiB: pack them into several files"
                if wrong or file is None:
                    break
                texts[member.name.removesuffix(MEMBER)] = json.loads(file.read())
    except OSError as error:
        raise TurnwiseError(f"{path}: {error.strerror or error}. `turnwise card pack` writes such files") from None
    except (EOFError, ValueError, RecursionError, tarfile.TarError, lzma.LZMAError) as error:
        raise TurnwiseError(f"{path}: damaged after it was written ({error})") from None
    if wrong:
        raise TurnwiseError(f"{path}: {wrong}")
    return {name: checked(card, f"{path}: {name}") for name, card in texts.items()}


def read(path: str | Path) -> Card:
    """A card. One that is damaged, or of another format, is an error."""
    try:
        with gzip.open(path, "rb") as file:
            text = file.read(LARGEST + 1)
        card = json.loads(text) if len(text) <= LARGEST else None
    except OSError as error:
        raise TurnwiseError(f"{path}: {error.strerror or error}. `turnwise card` and `turnwise arena run` write cards") from None
    except (EOFError, ValueError, RecursionError, zlib.error) as error:
        raise TurnwiseError(f"{path}: damaged after it was written ({error})") from None
    return checked(card, path)


def checked(card: Any, where: str | Path) -> Card:
    """A card that has what is read of it."""
    if not isinstance(card, dict) or card.get("schema") != SCHEMA or card.get("format") != FORMAT:
        raise TurnwiseError(f"{where}: not a card of this version of Turnwise (format {FORMAT})")
    texts, lists, tables = ("recipe", "config_hash", "ended"), ("iterations", "evaluations"), ("about", "headline")
    needed = dict.fromkeys(texts, str) | dict.fromkeys(lists, list) | dict.fromkeys(tables, dict) | {"seed": int}
    if wrong := [key for key, kind in needed.items() if not isinstance(card.get(key), kind)]:
        raise TurnwiseError(f"{where}: its {wrong[0]} is missing or has another form: the file was edited")
    return card
