"""A run as one HTML file: the pages, their scripts and the answers that they will ask for, all inside. It loads nothing.

How many attempts go in is capped, whole groups at a time, because a turn's credit is explained by its group: of the last iteration
(groups whose attempts ended differently come first), of the last evaluation and of the first one, and the same tasks of a second run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from turnwise.pages.answers import Answers, as_json
from turnwise.pages.run_list import RunList, distinct, readable
from turnwise.pages.server import PAGE, STYLE, script, static
from turnwise.pages.settings import settings_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically

ATTEMPTS = 200
MOST_PICTURES = 400


def key(name: str, words: Mapping[str, Any]) -> str:
    """The key of an answer in the file; data.js makes the same."""
    return name + "?" + "&".join(f"{quote(word)}={quote(str(words[word]), safe='')}" for word in sorted(words))


@dataclass
class Collected:
    """The answers that go into a file."""

    answers: dict[str, Answers]  # by run: each has a separate list
    found: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    kept: int = 0

    def add(self, name: str, **words: Any) -> Any:
        address = key(name, words)
        if address not in self.found:
            self.found[address] = self.answers[words["run"]](name, {word: str(value) for word, value in words.items()})
        return self.found[address]

    def add_groups(self, run: str, part: str, iteration: int, room: int, wanted: Iterable[str] | None = None) -> list[str]:
        """Whole groups of an iteration, while there is room; returns the tasks that went in."""
        batch = {"run": run, "part": part, "iteration": iteration}
        rows = self.add("batch", **batch)["rows"]
        self.kept += len(rows["id"])
        groups: dict[str, list[int]] = {}
        for number, group in enumerate(rows["group"]):
            groups.setdefault(group, []).append(number)
        favourites = set(wanted or ())
        order = sorted(
            groups.items(),
            key=lambda item: (rows["task"][item[1][0]] not in favourites, len({rows["success"][n] for n in item[1]}) == 1),
        )
        tasks = []
        for group, members in order:
            if len(members) > room:
                continue
            room -= len(members)
            self.attempts += len(members)
            if part == "rollouts":
                self.add("group", group=group, **batch)
            for number in members:
                self._add_pictures(batch, self.add("attempt", id=rows["id"][number], **batch))
            tasks.append(rows["task"][members[0]])
        return tasks

    def _add_pictures(self, batch: Mapping[str, Any], attempt: Mapping[str, Any]) -> None:
        if batch["part"] != "rollouts":
            return
        for name in {name for turn in attempt["turns"] for name in turn.get("images", ())}:
            words = {"run": batch["run"], "iteration": batch["iteration"], "name": name}
            if key("picture", words) in self.pictures or len(self.pictures) >= MOST_PICTURES:
                continue
            try:
                data = self.answers[batch["run"]].picture({word: str(value) for word, value in words.items()})
            except TurnwiseError:
                continue
            self.pictures[key("picture", words)] = "data:image/png;base64," + base64.b64encode(data).decode()


def collect(runs: Mapping[str, Path], attempts: int = ATTEMPTS) -> Collected:
    """The answers about one run, or about several that are compared."""
    collected = Collected({name: Answers(RunList(folder, name)) for name, folder in runs.items()})
    cards = [collected.add("run", run=name)["card"] for name in runs]
    collected.found["runs?"] = {"folder": "", "runs": cards}
    collected.found["settings?"] = settings_of(runs)
    for name in runs:
        collected.add("metrics", run=name)
        collected.add("config", run=name)
    add_attempts(collected, list(runs), attempts)
    return collected


def add_attempts(collected: Collected, runs: list[str], attempts: int) -> None:
    """Attempts of the last iteration, the last evaluation and the first one, each with its share of the room; then only those iterations
    are named in the file. Another run, and the first evaluation, take the same tasks if possible."""
    wanted, tasks = [], {"rollouts": list[str](), "evals": list[str]()}
    for run in runs:
        answer = collected.add("run", run=run)
        wanted += [(run, part, answer[part][-1]) for part in ("rollouts", "evals") if answer[part]]
    wanted += [(run, "evals", evals[0]) for run in runs if len(evals := collected.add("run", run=run)["evals"]) > 1]
    for run in runs:
        collected.add("run", run=run).update(rollouts=[], evals=[])
    for number, (run, part, iteration) in enumerate(wanted):
        room = (attempts - collected.attempts) // (len(wanted) - number)
        if room > 0:
            tasks[part] += collected.add_groups(run, part, iteration, room, tasks[part])
            collected.add("run", run=run)[part].insert(0, iteration)
    for run in runs:
        collected.add("run", run=run)["evals"].sort()


def html(collected: Collected, title: str) -> str:
    """The file."""
    code, style = script(), static(STYLE)
    sources = f"script-src '{digest(code)}'; style-src '{digest(style)}'"
    policy = f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"
    data = as_json(
        {"title": title, "answers": collected.found, "pictures": collected.pictures, "attempts": collected.attempts, "kept": collected.kept}
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = f'<script type="application/json" id="data">{harmless(data)}</script>\n<script>{code}</script>'
    return static(PAGE).replace("<!-- head -->", head).replace("<!-- data -->", body)


def harmless(data: str) -> str:
    """JSON that cannot end the element that contains it. Line separators and the like are already escaped: the JSON is ASCII."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def digest(text: str) -> str:
    """The hash by which a content security policy names a script or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_report(run: Path, out: Path, others: Sequence[Path] = (), attempts: int = ATTEMPTS) -> tuple[Path, Collected]:
    """Write the file; returns its path and what went in."""
    runs: dict[str, Path] = {}
    for folder in (run, *others):
        if folder.resolve() in {taken.resolve() for taken in runs.values()}:
            raise TurnwiseError(f"{folder} is the same run: --compare takes another one")
        if not RunList(folder).single:
            raise TurnwiseError(f"{folder} holds runs and is not a run itself: a report is about one run, or with --compare about several")
        resolved = folder.resolve()
        name = readable(resolved.name) or "run"
        runs[name if name not in runs else distinct(f"{readable(resolved.parent.name)}/{name}", runs)] = folder
    collected = collect(runs, attempts)
    return write_text_atomically(out, html(collected, " and ".join(runs))), collected
