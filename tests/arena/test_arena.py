"""An arena from its file to its report: cells, tuning, runs that are killed, cards, controls."""

from __future__ import annotations

import copy
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import turnwise as tw
from turnwise.arena import card as cards
from turnwise.arena import run as running
from turnwise.arena.page import page
from turnwise.arena.plan import Arena, Cell
from turnwise.arena.results import results
from turnwise.arena.text import sentences, tables
from turnwise.util.errors import TurnwiseError

FILE = """
attempts = 16
evaluations = 2
seeds = [100, 101, 102]
controls = "gigpo"
[tuning]
trials = 2
seeds = [0]
common = {"learner.lr" = [3e-4, 1e-3]}
[panel]
seed = 1
n = 2
[environments.line]
recipe = "numberline-tiny"
sft = "none"
"env.max_turns" = 3
"collect.groups" = 2
"collect.group_size" = 4
"model.tiny.layers" = 1
"model.tiny.hidden" = 16
"model.tiny.heads" = 2
"model.tiny.vocabulary_tasks" = 2
[methods.grpo]
"credit.name" = "grpo"
[methods.gigpo]
"credit.name" = "gigpo"
tune = {"credit.omega" = [0.5, 2.0]}
[predictions]
line = {method = "gigpo", why = "states repeat"}
"""


class Started:
    """Stands in for a process that a sweep starts: the training runs in this one. Runs in `failing` end with an error."""

    failing: frozenset[str] = frozenset()
    count = 0

    def __init__(self, words: list[str], log: Path, variables: dict[str, str]):
        Started.count += 1
        folder = words[words.index("--resume") + 1]
        self.pid = 0
        self.returncode = 1 if Path(folder).name in self.failing else 0
        if not self.returncode:
            tw.train(resume=folder, quiet=True)

    def poll(self) -> int:
        return self.returncode


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arena:
    monkeypatch.setattr(running, "Forked", Started)
    monkeypatch.setattr(Started, "count", 0)
    monkeypatch.setattr("turnwise.evaluation.sweep.POLL", 0.0)
    return file(tmp_path, FILE)


def file(folder: Path, text: str) -> Arena:
    (folder / "small.toml").write_text(text)
    return Arena.load(folder / "small.toml")


def made_up(arena: Arena, score: dict[str, float], ended: str = "finished", drift: float = 0.0) -> dict[str, cards.Card]:
    """Cards without runs: of 50 attempts, the share of `score` succeeds at the end, a little more with each seed."""
    found = {}
    for cell in [*arena.tuning_cells(), *arena.final_cells({})]:
        number = arena.settings.seeds.index(cell.seed) if cell.seed in arena.settings.seeds else 0
        share = score.get(cell.method, 0.5) + 0.02 * number + drift * cell.trial
        found[cell.name] = a_card(arena, cell, share, ended)
    return found


def a_card(arena: Arena, cell: Cell, share: float, ended: str = "finished") -> cards.Card:
    config = arena.config(cell, Path("runs"))
    cost = dict.fromkeys(cards.COSTS, 0.0)
    won = round(50 * share)
    evaluation = {
        "panel_hash": "p",
        "panel_size": 50,
        "repeats": 1,
        "tasks": [str(i) for i in range(50)],
        "clusters": [str(i) for i in range(50)],
    }
    about = {"arena_hash": arena.hash, "environment": cell.environment, "method": cell.method}
    card = {
        "schema": cards.SCHEMA,
        "format": cards.FORMAT,
        "about": about,
        "recipe": cards.to_toml(config),
        "config_hash": cards.content_hash(config),
        "seed": cell.seed,
        "ended": ended,
        "iterations": [cost | {"iteration": i, "attempts": 8.0 * (i > 0), "left_out": 1.0 * (i == 2)} for i in range(3)],
        "evaluations": [
            evaluation | {"iteration": i, "success": [1] * round(won * part) + [0] * (50 - round(won * part))}
            for i, part in ((0, 0.5), (2, 1.0))
        ],
    }
    return card | {"headline": cards.headline(card)}


def test_every_method_gets_the_same_seeds_budget_and_number_of_trials(arena):
    final = list(arena.final_cells({}))
    by_method = {method: [cell.seed for cell in final if cell.method == method] for method in arena.methods}
    assert set(map(tuple, by_method.values())) == {(100, 101, 102)}
    configs = [arena.config(cell, Path("runs")) for cell in final]
    assert {config.iterations * config.collect.groups * config.collect.group_size for config in configs} == {16}
    assert {config.eval.seed for config in configs} == {1}
    assert {arena.config(cell, Path("runs")).eval.seed for cell in arena.tuning_cells()} == {0}
    trials = {method: {cell.trial for cell in arena.tuning_cells() if cell.method == method} for method in arena.settings.methods}
    assert trials == {"grpo": {0, 1}, "gigpo": {0, 1}}


def test_code_beside_an_arena_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "own.py").write_text("def credit(r):\n    return r.reward\n")
    arena = file(
        tmp_path / "beside", FILE.replace('[methods.grpo]\n"credit.name" = "grpo"', '[methods.grpo]\n"credit.name" = "own.py:credit"')
    )
    monkeypatch.chdir(tmp_path)
    assert arena.config(Cell("line", "grpo", 100), tmp_path / "runs").credit.name == "beside/own.py:credit"


def test_controls_have_the_settings_that_their_method_was_tuned_to(arena):
    chosen = {("line", "gigpo"): 1}
    trial = arena.trials("gigpo")[1]
    for cell in arena.final_cells(chosen):
        config = arena.config(cell, Path("runs"))
        if arena.is_control(cell.method):
            assert config.learner.lr == trial["learner.lr"]
    omega_0 = arena.config(Cell("line", "control-omega-0", 100, 1), Path("runs"))
    assert (omega_0.credit.name, omega_0.credit.options["omega"]) == ("gigpo", 0.0)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("seeds = [0]", "seeds = [100]", "never chosen on final seeds"),
        ("seed = 1\nn = 2", "seed = 0", "never chosen on the panel"),
        ('controls = "gigpo"', 'controls = "ppo"', "none of the methods"),
        ('line = {method = "gigpo"', 'line = {method = "ppo"', "predictions.line"),
        ("attempts = 16", "attempts = 0", "attempts"),
        ("evaluations = 2", "evaluation = 2", "Did you mean evaluations"),
        ("[methods.gigpo]", '["methods"."../gigpo"]', "cannot be part of a folder's name"),
        ("attempts = 16", "attempts = ", "not TOML"),
    ],
)
def test_a_file_that_contradicts_itself_is_an_error_before_anything_runs(tmp_path, before, after, message):
    assert before in FILE
    text = FILE.replace(before, after, 1).replace("tuning]\ntrials = 2", "tuning]\npanel = {seed = 0}\ntrials = 2")
    with pytest.raises(TurnwiseError, match=message):
        file(tmp_path, text)


def test_a_run_arena_leaves_cards_whose_numbers_follow_and_a_second_call_runs_nothing(arena, tmp_path):
    arena = file(tmp_path, FILE.replace("[100, 101, 102]", "[100, 101]"))
    Started.failing = frozenset({"line-grpo-final-seed101"})
    try:
        done = running.run(arena, tmp_path / "out")
    finally:
        Started.failing = frozenset()
    cells = [*arena.tuning_cells(), *arena.final_cells(running.choose(arena, running.cards_in(tmp_path / "out")))]
    assert (done.finished, done.failed, done.left) == (len(cells) - 1, 1, [])
    found = running.cards_in(tmp_path / "out")
    assert set(found) == {cell.name for cell in cells}
    assert all(cards.verify(card) == [] for card in found.values())
    crashed = found["line-grpo-final-seed101"]
    assert crashed["ended"] == "failed" and crashed["headline"]["success"] == 0.0
    ran = Started.count
    assert running.run(arena, tmp_path / "out").finished == 0 and Started.count == ran

    report = results(arena, found)
    assert report["missing"] == [] and report["ends"]["grpo"]["not_finished"] == 1
    assert json.loads(json.dumps(report, allow_nan=False))
    assert "<script" not in page(report) and all(table.rows for table in tables(report))

    (tmp_path / "out" / "cards" / "line-grpo-final-seed101.card.json.gz").unlink()
    again = running.run(arena, tmp_path / "out")
    assert (again.finished, again.failed, Started.count) == (1, 0, ran + 1)


def test_a_missing_model_is_an_error_before_anything_runs(arena, tmp_path):
    text = FILE.replace('recipe = "numberline-tiny"', 'recipe = "numberline-tiny"\n"model.path" = "nowhere/model"')
    with pytest.raises(TurnwiseError, match="nowhere/model"):
        running.run(file(tmp_path, text), tmp_path / "out")
    assert Started.count == 0 and running.cards_in(tmp_path / "out") == {}


def test_a_published_run_is_repeated_from_its_card_alone(arena, tmp_path):
    name = "line-gigpo-final-seed100"
    card = made_up(arena, {})[name]
    card["about"] |= {"trial": 1, "tuning": False}
    [(old, new)] = running.again(arena, {name: card}, tmp_path / "again").values()
    assert old is card and new is not None and new["about"]["trial"] == 1 and cards.verify(new) == []
    ran = Started.count
    assert running.again(arena, {name: card}, tmp_path / "again")[name] == (card, new) and Started.count == ran
    for changed, message in (({"seed": 101}, "another run"), ({"about": card["about"] | {"arena_hash": "other"}}, "another arena file")):
        with pytest.raises(TurnwiseError, match=message):
            running.again(arena, {name: card | changed}, tmp_path / "other")


def test_final_runs_wait_until_their_method_is_tuned(arena, tmp_path):
    out, words = tmp_path / "out", []
    running.run(arena, out, only="tuning grpo", say=words.append)
    assert {card["about"]["method"] for card in running.cards_in(out).values()} == {"grpo"}
    assert words[-1] == "final: 0 runs to do here, 21 missing in all; 18 wait for the tuning of their method"
    done = running.run(arena, out, only="final seed100", say=words.append)
    assert done.finished == 1 and "line-grpo-final-seed100" in running.cards_in(out)


def test_a_card_of_a_run_has_its_evaluations_attempt_by_attempt(tmp_path):
    tw.train(
        "numberline-tiny",
        out=str(tmp_path),
        quiet=True,
        iterations=1,
        **{
            "sft": None,
            "eval.n": 3,
            "eval.repeats": 2,
            "collect.groups": 2,
            "collect.group_size": 4,
            "model.tiny.hidden": 16,
            "model.tiny.heads": 2,
        },
    )
    folder = tmp_path / "numberline-tiny"
    card = cards.card_of(folder, "finished")
    summary = json.loads((folder / "summary.json").read_text())
    assert card["headline"]["success"] == summary["success_after"] and card["headline"]["start"] == summary["success_before"]
    assert card["headline"]["interval"] == pytest.approx(summary["interval_after"])
    assert card["headline"]["attempts"] == 8 and len(card["evaluations"][-1]["success"]) == 6
    path = cards.write(card, tmp_path / "one.card.json.gz")
    assert cards.read(path) == json.loads(json.dumps(card)) and cards.verify(cards.read(path)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda card: card["headline"].update(success=1.0), "headline.success"),
        (lambda card: card["evaluations"][-1]["success"].__setitem__(0, 0), "headline.success"),
        (lambda card: card["evaluations"][-1]["success"].pop(), "49 attempts"),
        (lambda card: card.update(config_hash="0" * 12), "config_hash"),
        (lambda card: card.update(seed=7), "seed is 7"),
        (lambda card: card["evaluations"][0].update(panel_hash="q"), "different panels"),
        (lambda card: card["iterations"][1].update(attempts=1.0), "headline.attempts"),
    ],
)
def test_whoever_changes_a_number_of_a_card_is_found_out(arena, change, message):
    card = a_card(arena, Cell("line", "grpo", 100), 0.5)
    assert cards.verify(card) == []
    changed = copy.deepcopy(card)
    change(changed)
    assert any(message in text for text in cards.verify(changed))


@pytest.mark.parametrize("data", [b"", b"no card", b"\x1f\x8b\x08cut off"])
def test_a_damaged_card_is_an_error_that_names_it(tmp_path, data):
    (tmp_path / "x.card.json.gz").write_bytes(data)
    with pytest.raises(TurnwiseError, match=r"x\.card\.json\.gz"):
        cards.read(tmp_path / "x.card.json.gz")


def test_packed_cards_are_the_same_cards_and_are_read_where_single_ones_are(arena, tmp_path):
    found = made_up(arena, {"gigpo": 0.7})
    path = cards.pack(found, tmp_path / "cards" / "all.cards.tar.xz")
    assert path.read_bytes() == cards.pack(dict(reversed(found.items())), tmp_path / "again.cards.tar.xz").read_bytes()
    single = a_card(arena, Cell("line", "grpo", 7), 0.5)
    cards.write(single, tmp_path / "cards" / "single.card.json.gz")
    read = running.cards_in(tmp_path)
    assert read == json.loads(json.dumps(found | {"single": single}))


def test_packed_cards_are_read_up_to_a_size(arena, tmp_path, monkeypatch):
    path = cards.pack(made_up(arena, {}), tmp_path / "all.cards.tar.xz")
    monkeypatch.setattr(cards, "MOST", 10_000)
    with pytest.raises(TurnwiseError, match="into several files"):
        cards.read_all([path])


@pytest.mark.parametrize("member", ["link", "folder", "text", "cut off"])
def test_packed_cards_that_are_damaged_or_hold_something_else_are_an_error(tmp_path, member):
    path = tmp_path / "x.cards.tar.xz"
    kinds = {"link": tarfile.SYMTYPE, "folder": tarfile.DIRTYPE, "text": tarfile.REGTYPE, "cut off": tarfile.REGTYPE}
    with tarfile.open(path, "w:xz") as archive:
        entry = tarfile.TarInfo("../a.card.json")
        entry.type, entry.linkname, entry.size = kinds[member], "/etc/passwd", 4 if member == "text" else 0
        archive.addfile(entry, io.BytesIO(b"text"))
    if member == "cut off":
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TurnwiseError, match=r"x\.cards\.tar\.xz"):
        cards.read_all([path])
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_results_of_a_changed_file_do_not_go_into_the_same_folder(arena, tmp_path):
    running.bind(arena, tmp_path / "out")
    other = file(tmp_path, FILE.replace("attempts = 16", "attempts = 24"))
    with pytest.raises(TurnwiseError, match="changed after runs were made"):
        running.bind(other, tmp_path / "out")
    with pytest.raises(TurnwiseError, match="another arena file"):
        results(other, made_up(arena, {}))


def test_parts_share_all_cells_and_none_twice(arena):
    cells = list(arena.final_cells({}))
    parts = [running.Part.read(f"{number}/3") for number in (1, 2, 3)]
    assert all(sum(part.has(cell) for part in parts) == 1 for cell in cells)
    for wrong in ("0/3", "4/3", "x", "1"):
        with pytest.raises(TurnwiseError, match="2/4"):
            running.Part.read(wrong)


def test_tuning_takes_the_best_mean_and_waits_until_it_is_complete(arena):
    found = made_up(arena, {}, drift=0.1)
    assert running.choose(arena, found) == {("line", "grpo"): 1, ("line", "gigpo"): 1}
    assert running.choose(arena, made_up(arena, {})) == {("line", "grpo"): 0, ("line", "gigpo"): 0}
    del found["line-gigpo-tuning-trial0-seed0"]
    assert running.choose(arena, found) == {("line", "grpo"): 1}


def test_tuning_looks_at_no_more_attempts_than_the_budget_allows(arena):
    found = made_up(arena, {}, drift=0.1)
    for name in ("line-grpo-tuning-trial1-seed0", "line-grpo-tuning-trial0-seed0"):
        for cost in found[name]["iterations"]:
            cost["attempts"] *= 1 if "trial0" in name else 3  # its last evaluation is beyond the budget
    assert running.choose(arena, found) == {("line", "grpo"): 0, ("line", "gigpo"): 1}


def test_a_method_whose_plan_may_collect_more_is_evaluated_after_every_iteration(tmp_path):
    arena = file(tmp_path, FILE.replace("attempts = 16", "attempts = 64") + '[methods.dapo]\n"method.name" = "dapo"\n')
    assert arena.config(Cell("line", "dapo", 100), Path("runs")).eval.every == 1
    assert arena.config(Cell("line", "grpo", 100), Path("runs")).eval.every == 4


def test_a_placebo_that_wins_is_said_first(arena):
    report = results(arena, made_up(arena, {"control-shuffled": 0.7}))
    assert next(sentences(report)).startswith("A PLACEBO WINS. control-shuffled − gigpo: +20.0 points")
    assert "class=alarm" in page(report)
    honest = results(arena, made_up(arena, {"gigpo": 0.9} | dict.fromkeys([name for name in arena.methods if arena.is_control(name)], 0.2)))
    assert not any("PLACEBO" in text for text in sentences(honest))


def test_differences_are_paired_by_seed_and_corrected(arena):
    report = results(arena, made_up(arena, {"gigpo": 0.8, "grpo": 0.6}))
    line = report["differences"]["grpo"]["gigpo"]
    assert line["difference"] == pytest.approx(0.2, abs=0.011) and line["seeds"] == 3
    assert report["by_environment"]["line"]["gigpo"]["mean"] == pytest.approx(0.82, abs=0.011)
    assert (report["predictions"][0]["place"], report["predictions"][0]["best"]) == (1, ["gigpo"])
    equal = results(arena, made_up(arena, {}))["predictions"][0]
    assert equal["place"] == 1 and set(equal["best"]) == set(arena.methods)
    shared = [one for one in report["differences"]["grpo"].values() if one["p"] is not None]
    assert all(one["holm"] >= one["p"] for one in shared)


def test_a_score_is_that_of_the_budget_and_not_of_more_attempts(arena):
    card = a_card(arena, Cell("line", "grpo", 100), 0.5)
    assert cards.headline(card)["success"] == 0.5
    assert cards.headline(card, attempts=10)["success"] == pytest.approx(0.24)
    assert cards.headline(card, attempts=10)["attempts"] == 0


def test_a_run_that_falls_below_half_of_its_best_has_collapsed(arena):
    card = a_card(arena, Cell("line", "grpo", 100), 0.5)
    card["evaluations"][-1]["success"] = [1] * 5 + [0] * 45
    assert cards.headline(card)["collapsed"] and not cards.headline(a_card(arena, Cell("line", "grpo", 100), 0.5))["collapsed"]


def test_seeds_that_some_method_lacks_do_not_count_and_are_said(arena):
    found = made_up(arena, {})
    del found["line-gigpo-final-seed102"]
    report = results(arena, found)
    assert report["complete_seeds"] == [100, 101] and report["missing"] == ["line-gigpo-final-seed102"]
    assert np.isfinite(report["overall"]["grpo"]["mean"])
