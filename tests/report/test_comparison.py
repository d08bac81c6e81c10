"""Comparisons: what belongs together, what must not be compared, what the numbers say, and how they are written."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cli.app import app
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml
from turnwise.report.efficiency import mean_curve
from turnwise.report.tables import quarters
from turnwise.runs.records import Point

GOOD, MIDDLE, BAD = [True] * 8 + [False] * 2, [True] * 5 + [False] * 5, [True] * 2 + [False] * 8


def write_run(
    out: Path,
    name: str,
    curve: Mapping[int, Sequence[bool]],
    finished: bool = True,
    panel: Mapping[str, Any] | None = None,
    keep_evals: bool = True,
    **changes: Any,
) -> Path:
    """A run whose evaluations came out as `curve` says: iteration → success of every attempt, in the panel's order."""
    config = Config.load(None, {"iterations": 20, "model.tiny.max_length": 4096, "name": name, "out": str(out), **changes})
    folder = out / name
    (folder / "evals").mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(config))
    lines = []
    for iteration in range(max(curve) + 1):
        line: dict[str, Any] = {"iteration": iteration}
        work = {"time/iteration": 2.0, "collect/turns": 100.0, "collect/response_tokens": 1000.0}
        line |= work if iteration else {"time/eval": 4.0, "time/sft": 3.0}
        if iteration in curve:
            won = curve[iteration]
            line["eval/success"] = sum(won) / len(won)
            if keep_evals:
                record = evaluation(config, won, panel or {}) | {"iteration": iteration}
                (folder / "evals" / f"{iteration:06d}.json").write_text(json.dumps(record))
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        (folder / "summary.json").write_text(json.dumps({"finished": True, "config_hash": content_hash(config)}))
    return folder


def evaluation(config: Config, won: Sequence[bool], changed: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's record, as a run and `turnwise eval --save` write it."""
    repeats = int(changed.get("repeats", 1))
    outcomes = [
        {"task": f"task-{i // repeats}", "success": bool(w), "reward": float(w), "turns": 3, "stop": "done"} for i, w in enumerate(won)
    ]
    return {
        "split": "valid",
        "seed": 0,
        "temperature": 0.4,
        "max_turns": 10,
        "success": sum(won) / len(won),
        "panel_hash": "ab" * 16,
        "panel_size": len(won) // repeats,
        "repeats": repeats,
        "outcomes": outcomes,
    } | dict(changed)


def study(out: Path, seeds: int = 3, **changes: Any) -> Path:
    for seed in range(seeds):
        better = GOOD if seed % 2 else [*GOOD[:7], *[False] * 3]
        write_run(
            out, f"gigpo-{seed}", {0: BAD, 10: MIDDLE, 20: better}, seed=seed, **{"credit.name": "gigpo", "credit.gamma": 0.9, **changes}
        )
        write_run(out, f"grpo-{seed}", {0: BAD, 10: BAD, 20: MIDDLE}, seed=seed, **{"credit.name": "grpo", **changes})
    return out


def words(comparison: Any) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(comparison.table())
    return console.export_text()


def test_runs_that_differ_by_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    found = tw.compare(study(tmp_path))
    assert [(group.label, group.seeds) for group in found.groups] == [("gigpo", [0, 1, 2]), ("grpo", [0, 1, 2])]
    assert found.named_by == ["credit.name"] and found.groups[0].differs["credit.gamma"] == 0.9
    assert found.groups[0].success == pytest.approx((0.7 + 0.8 + 0.7) / 3) and found.groups[1].success == 0.5
    assert found.panel is not None and found.panel["size"] == 10 and not found.unfinished
    (pair,) = found.pairs
    assert pair.over_seeds is not None and pair.over_seeds.paired and pair.over_seeds.n == 3
    assert any("With 3 seeds the smallest p that flipping signs can give is 0.25" in note for note in found.notes)
    assert pair.over_seeds.difference == pytest.approx(0.7 / 3) and pair.over_seeds.p_exact == 0.25
    assert pair.over_tasks is not None and pair.over_tasks.difference == pytest.approx(0.7 / 3) and pair.over_tasks.n == 10


def test_the_order_of_the_runs_does_not_matter(tmp_path: Path) -> None:
    runs = sorted(study(tmp_path).iterdir())
    mixed = [runs[place] for place in (4, 1, 3, 0, 5, 2)]
    found, other = tw.compare(runs), tw.compare(mixed)
    assert found.pairs == other.pairs
    assert [(group.label, group.seeds) for group in found.groups] == [(group.label, group.seeds) for group in other.groups]


def test_names_folders_and_memory_do_not_make_a_group(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {20: GOOD}, seed=0, **{"run.checkpoint_every": 1, "env.workers": 2, "learner.tokens_per_batch": 512})
    write_run(tmp_path, "b", {20: BAD}, seed=1, **{"eval.every": 5})
    (group,) = tw.compare(tmp_path).groups
    assert group.label == "all runs" and group.seeds == [0, 1]


def test_runs_of_an_earlier_version_are_in_the_group_of_their_recipe(tmp_path: Path) -> None:
    """Its recipes had keys that are gone, here with their defaults, and lacked some that an unset value says the same as."""
    old, _ = (write_run(tmp_path, name, {20: GOOD}, seed=seed) for seed, name in enumerate(("old", "new")))
    text = (old / "config.toml").read_text().replace('source = "none"\n', "")
    (old / "config.toml").write_text(text.replace("[engine]\n", "[engine]\nmin_p = 0.0\n"))
    (group,) = tw.compare(tmp_path).groups
    assert group.seeds == [0, 1]
    (old / "config.toml").write_text(text.replace("[engine]\n", "[engine]\nmin_p = 0.5\n"))
    assert [group.seeds for group in tw.compare(tmp_path).groups] == [[0], [1]]


def test_the_same_recipe_and_seed_twice_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {20: GOOD}, seed=3)
    write_run(tmp_path, "b", {20: BAD}, seed=3)
    with pytest.raises(TurnwiseError, match="same seed 3"):
        tw.compare(tmp_path)


@pytest.mark.parametrize(
    ("measured", "words_of_it"),
    [
        ({"panel": {"panel_hash": "cd" * 16}}, "panel hash"),
        ({"panel": {"temperature": 1.0}}, "temperature is 0.4 .*and 1.0"),
        ({"panel": {"max_turns": 30}}, "max turns"),
        ({"panel": {"split": "test"}}, "split"),
        ({"panel": {"repeats": 2}}, "repeats"),
        ({"env.name": "numberline"}, "environment is household"),  # its tasks have the same numbers
        ({"keep_evals": False}, "the panel is unknown"),
    ],
)
def test_results_that_were_measured_differently_are_not_compared(tmp_path: Path, measured: dict[str, Any], words_of_it: str) -> None:
    write_run(tmp_path, "a", {20: GOOD}, **{"credit.name": "gigpo"})
    write_run(tmp_path, "b", {20: BAD}, **measured, **{"credit.name": "grpo"})
    with pytest.raises(TurnwiseError, match=words_of_it):
        tw.compare(tmp_path)
    found = tw.compare(tmp_path, anyway=True)
    assert found.panel is None and found.pairs[0].over_tasks is None and found.pairs[0].over_seeds is None
    assert any("Not measured alike" in note for note in found.notes)
    assert [group.success for group in found.groups] == [0.8, 0.2]


def test_last_best_or_an_iteration(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {0: BAD, 10: GOOD, 20: MIDDLE})
    assert [tw.compare(run, at=at).groups[0].success for at in ("last", "best", 0, "10")] == [0.5, 0.8, 0.2, 0.8]
    assert any("too good" in note for note in tw.compare(run, at="best").notes)
    with pytest.raises(TurnwiseError, match=r"\[0, 10, 20\]"):
        tw.compare(run, at=15)


def test_unfinished_and_unevaluated_runs_are_said(tmp_path: Path) -> None:
    study(tmp_path)
    write_run(tmp_path, "grpo-3", {0: BAD, 10: MIDDLE}, finished=False, seed=3, **{"credit.name": "grpo"})
    (tmp_path / "grpo-4").mkdir()
    (tmp_path / "grpo-4" / "config.toml").write_text((tmp_path / "grpo-3" / "config.toml").read_text())
    found = tw.compare(tmp_path)
    assert [Path(run).name for run in found.unfinished] == ["grpo-3"]
    assert any("grpo-3 (at 10 of 20)" in note for note in found.notes) and any("grpo-4 has no evaluation" in note for note in found.notes)
    assert any("not of the same iteration (10 to 20)" in note for note in found.notes)
    assert found.pairs[0].over_seeds is not None and found.pairs[0].over_seeds.n == 3  # only seeds that both have are paired


def test_one_run_each_is_compared_over_tasks_alone(tmp_path: Path) -> None:
    found = tw.compare(study(tmp_path, 1))
    assert found.pairs[0].over_seeds is None and found.pairs[0].over_tasks is not None
    assert found.groups[0].over_seeds is None and found.groups[0].over_tasks is not None
    assert any("one run says nothing about other seeds" in note for note in found.notes)


def test_groups_without_shared_seeds_are_tested_without_pairs(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, f"a{seed}", {20: GOOD if seed else MIDDLE}, seed=seed, **{"credit.name": "gigpo"})
        write_run(tmp_path, f"b{seed}", {20: BAD if seed else MIDDLE}, seed=seed + 10, **{"credit.name": "grpo"})
    test = tw.compare(tmp_path).pairs[0].over_seeds
    assert test is not None and not test.paired and test.smallest_p == 0.1 and test.p_t is not None


def test_more_than_two_groups_are_corrected_by_holm(tmp_path: Path) -> None:
    study(tmp_path, 4)
    for seed in range(4):
        write_run(tmp_path, f"rloo-{seed}", {20: GOOD if seed else MIDDLE}, seed=seed, **{"credit.name": "rloo"})
    found = tw.compare(tmp_path)
    assert len(found.pairs) == 3
    tests = [pair.over_seeds for pair in found.pairs]
    assert all(test is not None and test.holm_exact is not None and test.holm_exact >= test.p_exact for test in tests)
    against = tw.compare(tmp_path, baseline="grpo")
    assert sorted((pair.one, pair.other) for pair in against.pairs) == [("gigpo", "grpo"), ("grpo", "rloo")]
    with pytest.raises(TurnwiseError, match="gigpo; grpo; rloo"):
        tw.compare(tmp_path, baseline="ppo")


def test_cost_until_a_target_counts_runs_that_never_got_there(tmp_path: Path) -> None:
    found = tw.compare(study(tmp_path), target=0.6)
    gigpo, grpo = (group.cost for group in found.groups)
    assert gigpo is not None and grpo is not None and (gigpo.reached, grpo.reached) == (3, 0)
    assert gigpo.median == {"iteration": 20.0, "turns": 2000.0, "tokens": 20000.0, "seconds": 43.0}  # 7 − 4 + 20 × 2
    assert math.isinf(grpo.median["turns"]) and "not reached" in words(found)
    assert json.loads(found.to_json())["groups"][1]["cost"]["median"]["turns"] is None
    with pytest.raises(TurnwiseError, match=r"60 % is 0\.6"):
        tw.compare(tmp_path, target=60)


def test_where_seeds_tie_the_band_is_the_interval_over_tasks_and_never_without_width() -> None:
    tied = [
        [Point(0, 0.5, 0, 0, 0, 0.3, 0.7), Point(1, 0.2, 0, 0, 0, 0.1, 0.4)],
        [Point(0, 0.5, 0, 0, 0, 0.4, 0.6), Point(1, 0.4, 0, 0, 0)],
    ]
    curve = mean_curve(tied)
    assert (curve.low[0], curve.high[0]) == pytest.approx((0.35, 0.65)) and curve.low[1] < 0.2 < 0.4 < curve.high[1]
    unknown = mean_curve([[Point(0, 0.5, 0, 0, 0)]] * 2)
    assert math.isnan(unknown.low[0]) and math.isnan(unknown.high[0]), "a gap where nobody knows the spread"
    assert math.isnan(mean_curve(tied[:1]).low[0]), "one run has no band over seeds"


def test_of_one_run_the_interval_over_tasks_is_that_of_its_evaluation(tmp_path: Path) -> None:
    from turnwise.collect.panel import Share

    won = [True] * 10 + [False] * 10 + [True, False] * 5 + [True] * 10  # four tasks, ten attempts each
    write_run(tmp_path, "one", {0: won, 20: won}, panel={"repeats": 10})
    (group,) = tw.compare(tmp_path / "one").groups
    share = Share.over_tasks((f"task-{i // 10}", success) for i, success in enumerate(won))
    assert group.over_tasks == pytest.approx(share.interval) and share.rate == group.success == 0.625
    assert share.interval[1] - share.interval[0] > 0.5, "four tasks say little, however often they are attempted"


def test_tests_over_tasks_count_scenarios_where_tasks_are_variants_of_them(tmp_path: Path) -> None:
    """Eight scenarios of five variants that end alike; three of them are won by one side alone."""
    for name, scenarios in (("gigpo", [1, 1, 1, 1, 1, 0, 0, 0]), ("grpo", [0, 0, 0, 1, 1, 0, 0, 0])):
        write_run(tmp_path, name, {20: [bool(won) for won in scenarios for _ in range(5)]}, **{"credit.name": name})
    alone = tw.compare(tmp_path)
    (path, _) = sorted(tmp_path.glob("*/evals/*.json"))  # one run of the two was evaluated by a version without clusters
    measured = json.loads(path.read_text())
    for number, outcome in enumerate(measured["outcomes"]):
        outcome["cluster"] = f"scenario {number // 5}"
    path.write_text(json.dumps(measured))
    together = tw.compare(tmp_path)
    one, other = alone.pairs[0].over_tasks, together.pairs[0].over_tasks
    assert one is not None and other is not None and one.interval is not None and other.interval is not None
    assert one.difference == other.difference == 0.375
    assert one.p < 0.001 and other.p == 0.25 and (one.clusters, other.clusters) == (40, 8)
    assert other.interval[0] < 0 < one.interval[0] < one.interval[1] < other.interval[1]
    assert "The 40 tasks are variants of 8 scenarios" in words(together) and "variants of" not in words(alone)
    first, second = alone.groups[0].over_tasks, together.groups[0].over_tasks
    assert first is not None and second is not None and second[1] - second[0] > 1.9 * (first[1] - first[0])


def test_any_metric_is_shown_over_training(tmp_path: Path) -> None:
    study(tmp_path, seeds=2)
    path = tmp_path / "gigpo-1" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(line | {"collect/turns": 300.0, "only/here": 1.0}) for line in lines if line["iteration"] != 7))
    found = tw.compare(tmp_path, metrics=["collect/turns", "only/here"])
    turns, grpo, alone, nowhere = found.tracks
    assert (turns.metric, turns.label, grpo.label) == ("collect/turns", "gigpo", "grpo")
    assert turns.iterations == [*range(1, 7), *range(8, 21)], "only iterations that every run of the group has"
    assert set(turns.mean) == {200.0} and set(grpo.mean) == {100.0} and turns.overall == 200.0
    assert (turns.low[0], turns.high[0]) == (100, 300) and grpo.low[0] == grpo.high[0] == 100, "the least and the most of the seeds"
    assert not alone.mean and alone.overall is None and not nowhere.mean
    assert re.search(r"collect/turns +gigpo +1 to 20 +200 +200 +200 +200 +200 +100 +300", words(found))
    assert quarters([1.0, 2.0, 3.0, 4.0, 6.0]) == [1.0, 2.0, 3.0, 5.0] and quarters([7.0]) == [None, None, None, 7.0]
    with pytest.raises(TurnwiseError, match=r"metric 'collect/turn'.*'collect/turns'"):
        tw.compare(tmp_path, metrics=["collect/turn"])


def test_success_by_type_of_task(tmp_path: Path) -> None:
    study(tmp_path, seeds=2)
    for path in tmp_path.glob("*/evals/*.json"):
        measured = json.loads(path.read_text())
        for number, outcome in enumerate(measured["outcomes"]):
            outcome["type"] = "early" if number < 4 else "late"
        path.write_text(json.dumps(measured))
    found = tw.compare(tmp_path, by_type=True)
    assert [(one.name, one.tasks) for one in found.types] == [("early", 4), ("late", 6)]
    assert found.types[0].success == [1.0, 1.0] and found.types[1].success == pytest.approx([(3 + 4) / 12, 1 / 6])
    assert "| late | 6 | 58.3 | 16.7 |" in found.to_markdown() and not tw.compare(tmp_path).types
    result = CliRunner().invoke(app, ["compare", str(tmp_path), "--by-type", "--metric", "collect/turns", "--format", "markdown"])
    assert "| late | 6 | 58.3 | 16.7 |" in result.output and "| collect/turns | grpo | 1 to 20 | 100 | 100 | 100 |" in result.output


def test_tables_in_every_form(tmp_path: Path) -> None:
    found = tw.compare(study(tmp_path), target=0.6)
    assert "gigpo − grpo" in words(found) and "73.3" in words(found)
    text = found.to_markdown()
    assert "| gigpo − grpo | 3 | +23.3 |" in text and "| grpo | 3 | 50.0 |" in text
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.strip().split("\n")}) == 1
    plain = json.loads(found.to_json())
    assert plain["groups"][0]["success"] == pytest.approx(22 / 30) and plain["pairs"][0]["over_seeds"]["p_exact"] == 0.25


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xbd\xff\x00", "not JSON"),
        (b"[]", "not a result of Turnwise"),
        (b'{"outcomes": 3, "panel_hash": "x", "success": 1}', "another form .*not iterable"),
        (b'{"outcomes": [], "panel_hash": "x", "success": 1}', "lacks 'split'"),
        (b"{}", "not an evaluation"),
    ],
)
def test_files_that_are_no_evaluations_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "odd.json").write_bytes(content)
    with pytest.raises(TurnwiseError, match=rf"odd\.json.* .*{words}"):
        tw.compare([tmp_path / "odd.json"])


def test_pictures_and_files_are_written(tmp_path: Path) -> None:
    found = tw.compare(study(tmp_path / "runs"), target=0.6)
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        assert found.plot(tmp_path / f"curve.{kind}").read_bytes().startswith(start)
    first = (tmp_path / "curve.svg").read_bytes()
    assert found.plot(tmp_path / "curve.svg").read_bytes() == first  # no dates, no random ids
    with pytest.raises(TurnwiseError, match=r"\.png, \.svg"):
        found.plot(tmp_path / "curve.jpeg")
    assert {path.name for path in found.write(tmp_path / "out")} == {f"comparison.{kind}" for kind in ("md", "json", "png")}


def test_without_matplotlib_the_pip_line_is_said_and_the_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = tw.compare(study(tmp_path / "runs"))
    with pytest.raises(TurnwiseError, match=r"pip install .*\[plots\]'"):
        found.plot(tmp_path / "curve.png")
    assert len(found.write(tmp_path / "out")) == 2 and any("[plots]" in note for note in found.notes)


def test_saved_evaluations_are_compared_like_runs(tmp_path: Path) -> None:
    files = []
    for name, won in (("gigpo", GOOD), ("grpo", MIDDLE)):
        for seed in range(2):
            config = Config.load(None, {"seed": seed, "credit.name": name, "model.tiny.max_length": 4096})
            record = evaluation(config, won, {"config": config.model_dump(mode="json"), "environment": "household"})
            files.append(tmp_path / f"{name}-{seed}.json")
            files[-1].write_text(json.dumps(record))
    found = tw.compare(files)
    assert [(group.label, group.seeds) for group in found.groups] == [("gigpo", [0, 1]), ("grpo", [0, 1])]
    plain = tmp_path / "elsewhere.json"
    plain.write_text(json.dumps(evaluation(config, BAD, {"environment": "household"})))
    assert tw.compare([plain]).groups[0].success == 0.2
    assert tw.compare([write_run(tmp_path, "own", {20: GOOD}) / "evals" / "000020.json"]).groups[0].success == 0.8


def test_models_that_are_only_prompted_are_told_apart_and_more_trials_are_another_question(tmp_path: Path) -> None:
    def saved(name: str, agent: str, model: str, won: list[bool], **more: Any) -> Path:
        config = Config.load(None, {"model.path": model, "agent.prompt": agent if agent == "plain" else "react"})
        settings = {"config": config.model_dump(mode="json"), "environment": "household", "player": agent, "model": model, "examples": 0}
        (tmp_path / name).write_text(json.dumps(evaluation(config, won, settings | more)))
        return tmp_path / name

    small, large = saved("small.json", "react", "small", BAD), saved("large.json", "react", "large", GOOD)
    found = tw.compare([small, large])
    assert [(group.label, group.success) for group in found.groups] == [("large", 0.8), ("small", 0.2)] and found.named_by == ["model"]
    assert [group.label for group in tw.compare([small, saved("plain.json", "plain", "small", MIDDLE)]).groups] == ["plain", "react"]
    tried = saved("tried.json", "reflexion", "small", GOOD, trials=[{"trial": 1}, {"trial": 2}])
    with pytest.raises(TurnwiseError, match=r"trials is 1 \(small\) and 2 \(tried\)"):
        tw.compare([small, tried])


def test_evaluations_that_eval_saved_are_compared(tmp_path: Path) -> None:
    def saved(name: str, agent: str, *changes: str) -> Path:
        words_typed = ["eval", "--agent", agent, "--env", "numberline", "--n", "6", "--save", str(tmp_path / name), *changes]
        assert CliRunner().invoke(app, words_typed).exit_code == 0
        return tmp_path / name

    random, expert, short = saved("a.json", "random"), saved("b.json", "expert"), saved("c.json", "random", "env.max_turns=3")
    found = tw.compare([random, expert])
    assert [group.label for group in found.groups] == ["expert", "random"] and found.named_by == ["player"]
    assert found.groups[0].success == 1.0 and found.pairs[0].over_tasks is not None
    with pytest.raises(TurnwiseError, match=r"max turns is 10 .* and 3"):
        tw.compare([random, short])


def test_the_command_prints_what_a_pipe_can_read(tmp_path: Path) -> None:
    study(tmp_path / "runs")
    command = [sys.executable, "-m", "turnwise", "compare", str(tmp_path / "runs"), "--format", "json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["named_by"] == ["credit.name"] and "written:" in done.stderr
    wrong = subprocess.run([*command, "--format", "tabel"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "table, markdown, json" in wrong.stderr


def test_comparing_loads_no_torch(tmp_path: Path) -> None:
    study(tmp_path)
    code = f"import sys, turnwise as tw; tw.compare({str(tmp_path)!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_in_which_groups_differ_besides_the_method_are_shown_in_every_format(tmp_path: Path) -> None:
    for name in ("gspo", "arpo"):
        write_run(tmp_path, name, {20: GOOD}, **{"method.name": name, "method.faithful": True})
    found = tw.compare(tmp_path)
    assert [group.label for group in found.groups] == ["arpo", "gspo"] and found.named_by == ["method.name"]
    assert found.also_differ == {"objective.aggregation": {"token": ["arpo"], "turn": ["gspo"]}}
    for text in (words(found), found.to_markdown()):
        assert re.search(r"objective\.aggregation\W+token \(arpo\); turn \(gspo\)", text)
    assert json.loads(found.to_json())["also_differ"] == found.also_differ


def test_an_option_that_is_not_set_is_compared_by_its_default(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {20: GOOD}, **{"credit.name": "gigpo"})
    write_run(tmp_path, "b", {20: GOOD}, **{"credit.name": "igpo"})
    write_run(tmp_path, "c", {20: GOOD}, **{"credit.name": "graph_gpo", "objective.clip_low": 0.1})
    found = tw.compare(tmp_path).also_differ
    assert found["credit.gamma"] == {"0.95": ["gigpo"], "1.0": ["igpo"]}, "a discount per graph distance is another setting"
    assert found["objective.clip_low"] == {"the default": ["gigpo", "igpo"], "0.1": ["graph_gpo"]}
