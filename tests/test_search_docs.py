"""The page on search QA shows the committed figures, and its recipe loads."""

from __future__ import annotations

import json
import re

from conftest import ROOT

from turnwise.recipe.schema import Config

PAGE = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
RESULT = json.loads((ROOT / "benchmarks" / "search.json").read_text(encoding="utf-8"))


def test_the_page_shows_the_figures_of_the_last_measurement() -> None:
    lines = [f"| {name} | {rate:,.1f} queries |" for name, rate in RESULT["queries_a_cpu_second"].items()]
    lines += [f"| {name} | {rate:,.1f} steps |" for name, rate in RESULT["steps_a_cpu_second"].items()]
    lines += [f"| {name} | {row['em']} | {row['turns']} |" for name, row in RESULT["agents_on_valid"].items()]
    found = RESULT["evidence_in_the_first_3"]
    lines += [f"| {' | '.join(found)} |", f"| {' | '.join(map(str, found.values()))} |"]
    first, build, again = RESULT["cpu_seconds"].values()
    lines += [f"takes {first} s, building the index {build} s, opening both again {again} s; they take {RESULT['cache_megabytes']} MB"]
    text = re.sub(r"\s+", " ", PAGE)
    missing = [line for line in lines if line not in text]
    assert not missing, "the benchmark was run again; put these into docs/search.md:\n" + "\n".join(missing)


def test_the_page_says_that_scores_on_the_small_corpus_compare_with_nothing_published() -> None:
    assert "Scores on it compare with nothing published" in re.sub(r"\s+", " ", PAGE)


def test_the_recipe_has_the_papers_settings() -> None:
    config = Config.load(ROOT / "recipes" / "search-qa.toml")
    assert (config.env.name, config.env.max_turns, config.agent.prompt, config.agent.history) == ("search", 4, "search", 4)
    assert (config.collect.groups, config.collect.group_size, config.learner.lr, config.iterations) == (256, 5, 1e-6, 200)
