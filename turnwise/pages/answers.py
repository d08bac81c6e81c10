"""Every answer that a page can request, as plain data: its name, its parameters, and what it returns.

    runs                                     the list of runs
    run      run                             one run: its card, which iterations are kept, warnings
    diagnosis run                            of logs: its findings (turnwise/logs/findings.py), with the group of every turn
    config   run                             its recipe, and what differs from the defaults
    metrics  run, after, mark                curves as columns; only what is new after an offset
    batch    run, part, iteration            the attempts of an iteration, one line each
    attempt  run, part, iteration, id        one attempt: its texts, turn by turn, and why each got its credit
    group    run, part, iteration, group     all attempts at a task: credit of every turn, and the states they share
    search   run, part, iteration, text      where a text occurs
    settings runs                            which of these runs differ only by their seed, and the name of each setting

Large data is read on request, and the last few batches stay in memory.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from turnwise.data.images import without_marks
from turnwise.methods.settings import CREDIT
from turnwise.pages.batch import PARTS, Batch, texts_of
from turnwise.pages.call_tree import call_tree
from turnwise.pages.pictures import png, take_screenshots
from turnwise.pages.reasons import why
from turnwise.pages.run_list import DIAGNOSIS, RunList, read_recipe, readable
from turnwise.pages.settings import chosen, recipe_of, settings_of
from turnwise.runs.folder import Run, read_facts
from turnwise.runs.metrics import METRICS
from turnwise.runs.tail import news
from turnwise.util.errors import TurnwiseError
from turnwise.util.jsonable import json_value

KNOWN = ("runs", "run", "diagnosis", "config", "metrics", "batch", "attempt", "group", "search", "settings")  # methods of `Answers`
KEPT_BATCHES = 6
MOST_HITS = 200
LONGEST_ACTION = 400
SEARCHED = ("observation", "thought", "action", "response")

Words = Mapping[str, str]


class Answers:
    """The answers about a list of runs."""

    def __init__(self, runs: RunList):
        self.listed = runs
        self._batches: OrderedDict[Any, Batch] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, name: str, words: Words) -> Any:
        """The answer of that name."""
        if name not in KNOWN:
            raise TurnwiseError(f"no answer is called {name!r}; there are {', '.join(KNOWN)}")
        answer: Callable[[Words], Any] = getattr(self, name)
        return answer(words)

    def runs(self, words: Words) -> Any:
        return {"folder": str(self.listed.root), "runs": self.listed.cards(), "arena": self.listed.arena}

    def arena(self) -> str:
        """The report of the arena whose folder is shown, as a page of its own."""
        from turnwise.arena.page import page
        from turnwise.arena.results import results
        from turnwise.arena.run import arena_of, cards_in

        if not self.listed.arena:
            raise TurnwiseError(f"{self.listed.root} is not the folder of an arena")
        return page(results(arena_of(self.listed.root), cards_in(self.listed.root)))

    def run(self, words: Words) -> Any:
        run = self._run(words)
        noted = news(run.folder / "warnings.jsonl").lines
        return {
            "card": self.listed.card(words["run"], run.folder),
            "rollouts": run.iterations_of("rollouts"),
            "evals": run.iterations_of("evals"),
            "warnings": [{key: line.get(key) for key in ("iteration", "name", "text")} for line in noted],
        }

    def diagnosis(self, words: Words) -> Any:
        return read_facts(self._run(words).folder, DIAGNOSIS)

    def config(self, words: Words) -> Any:
        return recipe_of(self._run(words).folder)

    def metrics(self, words: Words) -> Any:
        run = self._run(words)
        new = news(run.folder / METRICS, _whole(words, "after", 0), _whole(words, "mark", 0))
        names = list(dict.fromkeys(name for line in new.lines for name in line))
        columns = {name: [_short(line.get(name)) for line in new.lines] for name in names}
        answer = {"columns": columns, "lines": len(new.lines), "after": new.after, "mark": new.mark, "anew": new.anew}
        return answer | {"damaged": new.damaged, "state": self.listed.card(words["run"], run.folder)["state"]}

    def batch(self, words: Words) -> Any:
        batch = self._batch(words)
        rows: dict[str, list[Any]] = {}
        for number, head in enumerate(batch.texts.heads):
            row = _head(batch, number) | {name: head[name] for name in ("turns", "invalid", "opening")}
            for key, value in row.items():
                rows.setdefault(key, []).append(value)
        rows = rows or {key: [] for key in ("id", "group", "task", "goal", "opening", "type", "success", "stop", "turns", "reward")}
        return {"part": batch.part, "iteration": batch.iteration, "rows": rows} | _about(batch)

    def attempt(self, words: Words) -> Any:
        batch = self._batch(words)
        number = batch.number(_need(words, "id"))
        attempt = batch.texts.read(number)
        rows = batch.rows(readable(attempt.get("id")))
        for t, turn in enumerate(attempt["turns"]):
            for key in ("observation", "response", "thought", "action"):
                turn[key] = without_marks(str(turn.get(key, "")), "[picture]")
            if turn["response"] == turn["action"]:
                del turn["response"]
            if "images" in turn:
                turn["images"] = [str(name) for name in turn["images"]] if isinstance(turn["images"], list) else []
            if shots := take_screenshots(turn):
                turn["screenshots"] = shots
            row = rows.start + t
            if row < rows.stop:
                turn |= _numbers(batch, row) | {"why": why(batch, row)}
        attempt |= _head(batch, number)
        attempt["shows"] = self._run(words).environment().get("shows")
        if calls := call_tree(batch, attempt):
            attempt["calls"] = calls
        return attempt | _about(batch)

    def group(self, words: Words) -> Any:
        batch = self._batch(words)
        attempts: list[dict[str, Any]] = []
        visits: dict[int, list[list[Any]]] = {}
        for place, number in enumerate(batch.members(_need(words, "group"))):
            attempt = batch.texts.read(number)
            rows = batch.rows(readable(attempt.get("id")))
            turns: list[dict[str, Any]] = []
            for t, turn in enumerate(attempt["turns"]):
                numbers = _numbers(batch, rows.start + t) if rows.start + t < rows.stop else {}
                turns.append(numbers | {"reward": _short(turn.get("reward")), "valid": turn.get("valid", True)})
                if "state" in numbers:
                    action = str(turn.get("action", ""))
                    visits.setdefault(numbers["state"], []).append([place, t, _label(action)])
            attempts.append(_head(batch, number) | {"turns": turns})
        return {"group": words["group"], "attempts": attempts, "states": _states(batch, visits)} | _about(batch)

    def search(self, words: Words) -> Any:
        batch, wanted = self._batch(words), _need(words, "text").casefold()
        hits: list[dict[str, Any]] = []
        for attempt in batch.texts:
            hits += _found(attempt, wanted)
            if len(hits) >= MOST_HITS:
                break
        return {"hits": hits[:MOST_HITS], "more": len(hits) >= MOST_HITS, "iteration": batch.iteration, "part": batch.part}

    def settings(self, words: Words) -> Any:
        names, folders = chosen(_need(words, "runs")), self.listed.folders()
        return settings_of({name: folders[name] for name in names if name in folders})

    def picture(self, words: Words) -> bytes:
        """An image that a turn showed, as PNG."""
        from turnwise.util.unpack import open_archive

        run, iteration, name = self._run(words), _whole(words, "iteration"), _need(words, "name")
        path = run.file("rollouts", f"{iteration:06d}.images.npz")
        try:
            with open_archive(path, only=name) as archive:
                pixels = archive[name] if name in archive.files and f"{name}.npy" in archive.zip.namelist() else None
        except Exception as error:  # a damaged archive fails in many ways
            raise TurnwiseError(f"{run.folder.name} keeps no pictures of iteration {iteration} ({type(error).__name__})") from None
        if pixels is None:
            raise TurnwiseError(f"iteration {iteration} has no picture {name!r}")
        return png(pixels)

    def _run(self, words: Words) -> Run:
        return self.listed.run(_need(words, "run"))

    def _batch(self, words: Words) -> Batch:
        """The requested batch; the last few stay in memory. A resumed run writes iterations again, so the file's stamp counts."""
        run, part, iteration = self._run(words), words.get("part", PARTS[0]), _whole(words, "iteration")
        stamp = texts_of(run, part, iteration).stat()
        key = (run.folder, part, iteration, stamp.st_mtime_ns, stamp.st_size)
        with self._lock:
            if key not in self._batches:
                section = read_recipe(run.folder).get("credit", {})
                options = {name: value for name, value in section.items() if name != "name"}
                self._batches[key] = Batch(run, part, iteration, str(section.get("name", CREDIT)), options)
                while len(self._batches) > KEPT_BATCHES:
                    self._batches.popitem(last=False)
            self._batches.move_to_end(key)
            return self._batches[key]


def _about(batch: Batch) -> dict[str, Any]:
    """How credit was given in a batch."""
    credit = batch.credit
    gamma = batch.states.gamma if batch.states is not None else None
    about = {"algorithm": credit.algorithm, "credited": credit.total is not None, "split": credit.split}
    scales = {name: _short(scale) for name, scale in credit.scales.items()}
    weights = {name: weight for name, (_, weight) in credit.parts.items()} if credit.split else {}
    return about | {"scales": scales, "weights": weights, "problem": credit.problem, "gamma": gamma}


def _head(batch: Batch, number: int) -> dict[str, Any]:
    """The task and the outcome: what every answer contains about an attempt."""
    head = batch.texts.heads[number]
    place, attempts = batch.ordinals[number]
    return {
        "id": readable(head.get("id")),
        "group": readable(head.get("group")),
        "task": readable(head.get("task", "")),
        "goal": head["goal"],
        "type": batch.types[number],
        "place": place,
        "of": attempts,
        "success": bool(head.get("success")),
        "stop": str(head.get("stop")),
        "reward": _short(head.get("reward")),
    }


def _numbers(batch: Batch, row: int) -> dict[str, Any]:
    """A turn's credit, its parts, the return from there on, and the state it started from."""
    numbers: dict[str, Any] = {}
    for name, column in batch.credit.columns.items():
        numbers[name] = _short(float(column[row]))
    if (states := batch.states) is not None:
        state = int(states.of_turn[row])
        numbers |= {"return": _short(float(states.returns[row])), "state": state, "visits": int(states.visits[state])}
    return numbers


def _states(batch: Batch, visits: Mapping[int, list[list[Any]]]) -> dict[str, Any]:
    """The states that a group came to: its text if the anchor is text, its visits (attempt, turn, action), the mean of their returns."""
    if batch.states is None or batch.columns is None:
        return {}
    states = {}
    for state, visited in visits.items():
        row = int((batch.states.of_turn == state).argmax())
        text = batch.columns.anchor_table.texts[batch.columns.anchor[row]]
        states[str(state)] = {"text": text, "visits": visited, "mean": _short(float(batch.states.mean[state]))}
    return states


def _label(action: str) -> str:
    """An action, bounded; what differs only further on stays different."""
    return action if len(action) <= LONGEST_ACTION else f"{action[:LONGEST_ACTION]}… [{crc32(action.encode('utf-8', 'replace')):08x}]"


def _found(attempt: Mapping[str, Any], wanted: str) -> list[dict[str, Any]]:
    """The turns of an attempt in which a text occurs, with its context."""
    hits, name = [], readable(attempt.get("id"))
    for t, turn in enumerate(attempt["turns"]):
        for where in SEARCHED:
            text = str(turn.get(where, ""))
            position = text.casefold().find(wanted)
            if position >= 0:
                start = max(0, position - 40)
                shown = text[start : position + len(wanted) + 60]
                hits.append({"id": name, "task": attempt.get("task"), "t": t, "where": where, "text": ("…" if start else "") + shown})
                break
    return hits


def _need(words: Words, name: str) -> str:
    if not words.get(name):
        raise TurnwiseError(f"the request lacks {name}=…")
    return words[name]


def _whole(words: Words, name: str, default: int | None = None) -> int:
    text = words.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"[0-9]{1,15}", text):
        raise TurnwiseError(f"{name} takes an integer, not {text!r}")
    return int(text)


def _short(value: Any) -> Any:
    """A number with six significant digits; None if it is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else None


def as_json(answer: Any) -> str:
    """An answer as JSON of plain ASCII, so that broken Unicode arrives unchanged and is shown as text."""
    try:
        return json.dumps(answer, separators=(",", ":"), allow_nan=False, default=str)
    except ValueError:  # an environment reported a number that JSON does not have
        return json.dumps(json_value(answer), separators=(",", ":"), allow_nan=False)
