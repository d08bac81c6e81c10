"""What these pages say of all methods, from what the methods say of themselves: the map of the field in README.md, the table of
settings in settings.md, and the settings of a method on its own page. The map and the table leave out methods of other distributions.

python docs/methods/tables.py docs/methods/*.md experiments/docs/*.md          # write the tables between the marks of the pages
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.config.options import Entry
from turnwise.recipe.writing import toml_value
from turnwise.setup.catalogue import authors_of, entries, needs_of, settings_of
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_text_atomically

BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
SETTINGS = "| method | sets | sets also if `method.faithful` is true |\n|---|---|---|\n"
LONGEST = 60  # characters of a value
HEAD = "| method | what it changes | needs | costs | paper | evidence | result | file | command |\n|---|---|---|---|---|---|---|---|---|\n"
ARXIV = re.compile(r"\barXiv (\d{4}\.\d{5})")
HERE = Path(__file__).resolve().parent
RESULTS = {  # pages of results, and how the table calls them
    "results/alfworld": "ALFWorld",
    "results/arena": "arena",
    "measurements/2026-11-lab-credit": "lab",
}
NEEDS: Mapping[str, str] = {"group.peers": "two attempts per task", "env.snapshot": "an environment with `snapshot` and `restore`"}


def table() -> str:
    """The rows of all methods that come with Turnwise, as Markdown."""
    return HEAD + "".join(f"| {' | '.join(_row(entry))} |\n" for entry in _methods())


def settings_table() -> str:
    """What every method sets, and what its authors took for settings that all methods share, as Markdown."""
    rows = [[f"[`{one.name}`]({one.name}.md)", _listed(settings_of(one)), _listed(authors_of(one)) or "–"] for one in _methods()]
    return SETTINGS + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def settings_of_page(entry: Entry[Any]) -> str:
    """The same for the page of a method."""
    authors = authors_of(entry)
    rows = [f"| {_listed({key: value})} | the method |\n" for key, value in sorted(settings_of(entry).items())]
    rows += [f"| {_listed({key: value})} | `method.faithful=true` |\n" for key, value in sorted(authors.items())]
    if "objective.aggregation" not in {*authors, *settings_of(entry)}:
        rows.append("| `objective.aggregation` of the authors | not known |\n")
    link = "\n[Settings of all methods](settings.md)\n" if _ships(entry) else ""
    return f"| setting | set by |\n|---|---|\n{''.join(rows)}{link}"


def _methods() -> list[Entry[Any]]:
    return [entry for entry in entries("method") if _ships(entry)]


def _ships(entry: Entry[Any]) -> bool:
    return entry.function.__module__.startswith("turnwise.")


def _listed(settings: Mapping[str, Any]) -> str:
    words = [f"{key} = {_short(value)}" for key, value in sorted(settings.items())]
    return ", ".join(f"`{word}`" for word in words).replace("|", "\\|")


def _short(value: Any) -> str:
    text = " ".join(toml_value(value).replace("`", "'").split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _row(entry: Entry[Any]) -> list[str]:
    changes, costs, evidence = (entry.notes.get(word, "") for word in ("changes", "costs", "evidence"))
    file = f"`{Path(inspect.getfile(inspect.unwrap(entry.function))).relative_to(HERE.parent.parent)}`"
    cells = [changes, asked(entry) or "nothing", costs, _paper(entry), evidence, _results(entry), file, _command(entry)]
    return [f"[`{entry.name}`]({entry.name}.md)", *cells]


def _paper(entry: Entry[Any]) -> str:
    """The numbers of its papers, as links; what has none is named."""
    numbers = ARXIV.findall(entry.paper)
    return ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in numbers) or entry.paper


def _results(entry: Entry[Any]) -> str:
    """The pages of results that have a figure of it: a row of a table, or a run whose record is in the page's folder."""
    found = []
    for page, title in RESULTS.items():
        records = [tomllib.loads(path.read_text(encoding="utf-8")) for path in (HERE.parent / page).glob("*/config.toml")]
        named = {one.get("method", one.get("credit", {})).get("name") for one in records}
        rows = (HERE.parent / f"{page}.md").read_text(encoding="utf-8")
        if entry.name in named or f"\n| `{entry.name}` |" in rows:
            found.append(f"[{title}](../{page}.md)")
    return ", ".join(found) or "none yet"


def _command(entry: Entry[Any]) -> str:
    """The first command under "Run it" on its page that names it."""
    text = (HERE / f"{entry.name}.md").read_text(encoding="utf-8").partition("\n## Run it\n")[2].replace("\\\n", " ")
    lines = (" ".join(line.partition("#")[0].split()) for line in text.splitlines() if f"method.name={entry.name}" in line)
    return f"`{next(lines, 'turnwise train RECIPE method.name=' + entry.name)}`"


def asked(entry: Entry[Any]) -> str:
    """What a method needs and does not bring itself: data of tasks, abilities of the environment, models, several attempts."""
    brought = {".".join(["model", *key.split(".")[1:2]]) for key in settings_of(entry) if key.startswith("models.")}
    found = {need for needs in needs_of(entry).values() for need in needs} - brought - {"model.policy", "model.reference"}
    words = [NEEDS.get(need) or _words(need) for need in sorted(found)]
    return ", ".join(word for word in words if word)


def _words(need: str) -> str:
    level, _, name = need.partition(".")
    if name.endswith("?"):  # used where it is there
        return ""
    words = {"task": f"tasks with `{name}`", "env": f"an environment with `{name}`", "model": f"a model `[models.{name}]`"}
    return words.get(level, "")


def rewritten(text: str, name: str = "README") -> str:
    """The page of this name with what the methods say today between its marks. A page that is not about a method stays as it is."""
    if name == "README":
        return _between(text, "methods", table())
    if name == "settings":
        return _between(text, "settings", settings_table())
    entry = next((one for one in entries("method") if one.name == name), None)
    return text if entry is None else _between(text, "settings", settings_of_page(entry))


def _between(text: str, what: str, table: str) -> str:
    begin, end = BEGIN.format(what), END.format(what)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise TurnwiseError(f"the page has no place for the table: it goes between {begin} and {end}")
    return f"{before}{begin}\n\n{table}\n{end}{after}"


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        write_text_atomically(page, rewritten(page.read_text(encoding="utf-8"), page.stem))
