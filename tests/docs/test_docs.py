"""The pages are true: sections and defaults, tables of numbers, examples that run, links, files they name, and the import rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from docs_cases import ALGORITHMS, METHODS, OBJECTIVES_PAGE, ROLLOUTS, name_of, same_default, section, tables

import turnwise as tw
from turnwise import objectives
from turnwise.config.loading import load_file
from turnwise.config.options import Entry, Registry
from turnwise.data.batch import Batch

RESULTS = ROOT / "docs" / "results"  # in its folders are pages that `turnwise compare` wrote
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
GENERATED = {ROOT / "docs" / "reference" / f"{name}.md" for name in ("cli", "recipe", "python")}  # test_site.py checks them
PAGES = [page for page in PAGES if page not in GENERATED and (RESULTS not in page.parents or page.parent == RESULTS)]
PAGES += sorted((ROOT / "experiments").glob("**/*.md"))
PAGES += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CREDIT, OBJECTIVES = tw.credit.algorithms, objectives.algorithms


def built_in(registry: Registry[Any]) -> list[Entry[Any]]:
    """What ships with Turnwise; other tests may have registered algorithms of their own."""
    return [entry for entry in registry if entry.function.__module__.startswith("turnwise.")]


BUILT_IN = [(ALGORITHMS, entry) for entry in built_in(CREDIT)] + [(OBJECTIVES_PAGE, entry) for entry in built_in(OBJECTIVES)]


@pytest.mark.parametrize(("page", "entry"), BUILT_IN, ids=lambda value: value.name)
def test_every_algorithm_has_its_section_with_every_option_and_its_default(page: Path, entry: Entry[Any]) -> None:
    own = METHODS / f"{entry.name}.md"
    alone = f"\n### `{entry.name}`" not in page.read_text() and own.exists()
    text = own.read_text() if alone else section(page, f"`{entry.name}`")
    numbers = re.findall(r"arXiv (\d{4}\.\d{5})", entry.paper)
    assert all(number in text for number in numbers), f"{entry.name}: its paper is not named"
    shown = {row["option"].strip("`"): row["default"].strip("`") for table in tables(text) for row in table if "option" in row}
    assert set(entry.options) <= set(shown) if alone else set(shown) == set(entry.options), entry.name
    for option in entry.options.values():
        assert same_default(shown[option.name], option), (
            f"{entry.name}: {option.name} is {option.default}, the page says {shown[option.name]}"
        )


@pytest.mark.parametrize("registry", [CREDIT, OBJECTIVES], ids=lambda registry: registry.kind)
def test_no_section_is_about_an_algorithm_that_does_not_exist(registry: Registry[Any]) -> None:
    page, start, end = {
        "credit algorithm": (ALGORITHMS, "The algorithms", "Write your own algorithm"),
        "objective": (OBJECTIVES_PAGE, "Objectives", "Aggregation"),
    }[registry.kind]
    part = page.read_text().split(f"\n## {start}")[1].split(f"\n## {end}")[0]
    found = re.findall(r"^### `(\w+)`", part, re.MULTILINE)
    known = {entry.name for entry in built_in(registry)}
    assert len(found) == len(set(found)) and set(found) <= known
    assert [name for name in known - set(found) if not (METHODS / f"{name}.md").exists()] == []


def test_the_overview_links_the_section_or_the_page_of_each_credit_algorithm_that_it_names() -> None:
    rows = [row["name"] for row in tables(section(ALGORITHMS, "Overview"))[0]]
    sections = {entry.name for entry in built_in(CREDIT) if f"\n### `{entry.name}`" in ALGORITHMS.read_text()}
    named = [name for row in rows for name in re.findall(r"^\[`(\w+)`\]", row)]
    assert len(named) == len(set(named)) and sections <= set(named) <= {entry.name for entry in built_in(CREDIT)}
    assert rows == [
        f"[`{name}`](#{name})" if name in sections else f"[`{name}`](../methods/{name}.md#the-credit-function)" for name in named
    ]


def test_explain_and_diagnose_are_described_in_full() -> None:
    r = tw.Rollouts.from_columns(group=[0, 0], trajectory=[0, 1], t=[0, 0], reward=[0, 1], anchor=["s", "s"])
    for title, found in (("`explain`", tw.credit.explain(r)), ("`diagnose`", tw.credit.diagnose(r))):
        assert [row["name"].strip("`") for row in tables(section(ALGORITHMS, title))[0]] == list(found)
    for size in tw.credit.diagnose(r)["anchor_size_histogram"]:
        assert f'`"{size}"`' in section(ALGORITHMS, "`diagnose`")


def check_close(shown: list[str], found: np.ndarray) -> None:
    np.testing.assert_allclose([float(cell) for cell in shown], found, atol=6e-4, rtol=0)


def test_the_worked_example_is_right() -> None:
    rows = tables(section(ALGORITHMS, "A worked example"))[0]

    def cells(name: str) -> list[str]:
        return [row[name] for row in rows]

    r = tw.Rollouts.from_columns(
        group=[0] * len(rows), trajectory=[int(x) for x in cells("trajectory")], t=[int(x) for x in cells("t")],
        reward=[float(x) for x in cells("reward")], anchor=cells("state"), valid=[x == "yes" for x in cells("valid")],
    )  # fmt: skip
    options: dict[str, Any] = {"gamma": 0.5, "norm": "none"}
    why = tw.credit.explain(r, **options)
    check_close(cells("G"), why["step_return"])
    check_close(cells("step"), why["step"])
    check_close(cells("episode, trajectory"), why["episode"])
    check_close(cells("episode, step"), tw.credit.explain(r, weighting="step", **options)["episode"])
    check_close(cells("credit"), tw.credit.compute("gigpo", r, **options))
    check_close(cells("credit, c = 1"), tw.credit.compute("gigpo", r, invalid_penalty=1, **options))


def test_the_column_table_names_every_column() -> None:
    from turnwise.data.columns import BY_TURN, VERSION

    assert [row["column"].strip("`") for row in tables(section(ROLLOUTS, "The columns"))[0]] == list(BY_TURN)
    assert f"`turnwise.rollouts`, and the version, {VERSION}." in " ".join(section(ROLLOUTS, "Saving and loading").split())


def test_the_tables_of_named_columns_have_every_column() -> None:
    from turnwise.data.rollouts import BUILT_IN, DERIVED

    own, of_runs = tables(section(ROLLOUTS, "Columns by name"))
    assert [row["column"].strip("`") for row in own] == [*BUILT_IN, *DERIVED]
    turns = [tw.Turn("s", response_ids=(1,), logprobs=(-1.0,), version=1, learned=t > 0) for t in range(2)]
    both = [tw.Trajectory(0, 0, turns=turns), tw.Trajectory(0, 1, turns=turns, parent=0, branch_t=1)]
    batch = tw.credit.give(Batch.of(both), "gigpo")
    named = set(re.findall(r"`([a-z]+\.\w+)`", "\n".join(row["column"] for row in (*own, *of_runs))))
    assert {re.sub("credit_.*", "credit_PART", name) for name in batch.rollouts.names()} <= named


def examples() -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"^```python\n(# runs\b.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text[: found.start()].count("\n") + 2
            yield pytest.param(page, line, found[1], id=f"{name_of(page)}:{line}")


@pytest.fixture
def registries_restored() -> Iterator[None]:
    """An example may register an algorithm; other tests must not see it."""
    kept = [(registry, dict(registry._entries)) for registry in (CREDIT, OBJECTIVES, objectives.corrections) if registry.names()]
    yield
    for registry, entries in kept:
        registry._entries.clear()
        registry._entries.update(entries)


@pytest.mark.parametrize(("page", "line", "code"), list(examples()))
@pytest.mark.usefixtures("registries_restored")
def test_examples_run(page: Path, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    padded = "\n" * (line - 1) + code  # so that a traceback shows the page's own line numbers
    scope = {"__name__": "example_of_a_page"}
    exec(compile(padded, str(page), "exec", dont_inherit=True), scope)
    assert scope.keys() - {"__name__", "__builtins__"}, "an example that is said to run makes something"


def anchors_of(page: Path) -> set[str]:
    """The names that headings get in a link."""
    return headings_of(page.read_text())


def headings_of(text: str) -> set[str]:
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@cache
def generated_anchors(name: str) -> set[str]:
    """The names of the headings of a page that is made from the code."""
    generate = load_file(ROOT / "docs" / "generate.py")
    return headings_of("\n".join(getattr(generate, f"{name}_page")()))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_internal_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if other in GENERATED:
            assert not anchor or anchor in generated_anchors(other.stem), f"{name_of(page)} links {target}: there is no such heading"
            continue
        assert other.exists(), f"{name_of(page)} links {target}"
        if anchor:
            assert anchor in anchors_of(other), f"{name_of(page)} links {target}: there is no such heading"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_no_page_names_a_file_that_does_not_exist(page: Path) -> None:
    """The changelog tells of files as they were."""
    top = "|".join(sorted(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir() and path.name not in (".venv", "runs")))
    named = re.findall(rf"(?<![\w./-])((?:{top}|recipes|tests|docs)/[\w./*-]*[\w*/])", page.read_text())
    wrong = [name for name in named if not any([*ROOT.glob(name.rstrip("/")), *page.parent.glob(name.rstrip("/"))])]
    assert not wrong, f"{name_of(page)} names {wrong}"


# Turns of phrase that read as if translated, and what to write instead. Code blocks and code in backticks are not prose.
PHRASES = {
    r"\b(number|value|entr(y|ies)|weight|loss|file|score|steps?|tokens?|seconds?|minutes?|quer(y|ies)|bytes|ms|times) "
    r"an? (turn|token|second|step|task|run|iteration|group|request|query|product|algorithm)\b": "per turn",
    r"\bonce an? (turn|token|second|step|task|run|iteration|group)\b": "once per turn",
    r"\bin (its|their|his|her) stead\b|\bin place of\b": "instead of",
    r"\bwhole numbers?\b": "integer",
    r"\banew\b|\bonce more\b": "again",
    r"\b(goes|go|went) on\b(?! (the|a|an|our|its|this|top)\b)": "continue",
    r"\b(at (most|least)|about) so many\b": "at most N",
    r"\bbeside\b": "next to",
    r"\bwhat is no\b|\bthat is no (action|formula|move|text|number)\b": "is not",
    r"\b(what|as) chance\b|\bchance (plays|draws|never)\b": "random play",
    r"\bof (its|our|one's|their) own\b": "a separate, a custom",
    r"\bother people's\b": "third-party",
    r"\bas far as (they|it) came\b": "partial",
}
PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"]


def prose_of(page: Path) -> Iterator[tuple[int, str]]:
    """Lines that are neither code, table nor image, with the number of each."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(("|", "    ", "![")):
            yield number, line


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_prose_is_plain_english(page: Path) -> None:
    found = [
        f"{name_of(page)}:{number}: {hit[0]!r}: say {better!r}"
        for number, line in prose_of(page)
        for phrase, better in PHRASES.items()
        for hit in re.finditer(phrase, re.sub(r"`[^`]*`", "", line), re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_lines_of_prose_are_at_most_120_characters_long(page: Path) -> None:
    found = [f"{name_of(page)}:{number}" for number, line in prose_of(page) if len(re.sub(r"\]\([^)]*\)", "]", line)) > 120]
    assert not found, f"wrap these lines: {', '.join(found)}"
