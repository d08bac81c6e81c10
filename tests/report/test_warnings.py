"""Warnings: every rule speaks where its trouble is and is silent where it is not, each name is rare, and a resumed run says the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from train_cases import Heard, start

import turnwise as tw
from turnwise.report.warnings import EVERY, RULES, Watch, troubles
from turnwise.runs.folder import Run

HEALTHY: dict[str, float] = {
    "collect/success": 0.5, "collect/trajectories": 64, "collect/turns": 512, "collect/truncated": 5, "collect/generations": 512,
    "collect/faults": 0, "collect/invalid": 0.02, "credit/zero_share": 0.4, "credit/singleton_share": 0.3,
    "credit/one_trajectory_share": 0.05,
    "learner/entropy": 0.5, "learner/engine_gap": 0.01, "learner/engine_kl_k3": 0.0005,
}  # fmt: skip
Series = Callable[[int], dict[str, float]]


def lines(change: Series, count: int = 30) -> list[dict[str, float]]:
    return [{"iteration": 0, "eval/success": 0.3}] + [{"iteration": n, **HEALTHY, **change(n)} for n in range(1, count + 1)]


def evaluated(success: float, n: int = 128) -> dict[str, float]:
    from turnwise.util.statistics import wilson

    low, high = wilson(round(success * n), n)
    return {"eval/success": success, "eval/low": low, "eval/high": high}


ODD = {"collect/truncated": 300, "collect/invalid": 0.9, "collect/faults": 60}
TROUBLE: dict[str, Series] = {
    "entropy": lambda n: {"learner/entropy": 0.5 * 0.7**n},
    "entropy rise": lambda n: {"learner/entropy": 0.5 + 0.1 * n},
    "hopeless": lambda n: {"collect/success": 0.03 * (n % 2)},
    "no credit": lambda n: {"credit/zero_share": 1.0, "collect/success": 0.0},
    "anchors": lambda n: {"credit/singleton_share": 0.87},
    "length limit": lambda n: {"collect/truncated": 100},
    "looping": lambda n: {"credit/one_trajectory_share": 0.5},
    "engine drift": lambda n: {"learner/engine_gap": 0.01 * n},
    "old data": lambda n: {"cluster/age": 1.5, "cluster/effective_share": 0.4, "learner/engine_gap": 0.5},
    "invalid": lambda n: {"collect/invalid": 0.4},
    "faults": lambda n: {"collect/faults": 20, "collect/trajectories": 44},
    "fallen": lambda n: evaluated(0.8 if n < 20 else 0.4) if n % 10 == 0 else {},
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_speaks_of_its_trouble_and_of_no_other(name: str) -> None:
    found = troubles(lines(TROUBLE[name]), "gigpo")
    assert list(found) == [name] and ("ry " in found[name] or "." in found[name])


def test_a_healthy_run_is_left_alone_at_every_length() -> None:
    for count in range(1, 60):
        assert troubles(lines(lambda n: evaluated(min(0.3 + n / 100, 0.9)) if n % 10 == 0 else {}, count), "gigpo") == {}


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("entropy falls because the task is mastered", lambda n: {"learner/entropy": 0.5 * 0.7**n, "collect/success": 0.97}),
        ("entropy was low from the start", lambda n: {"learner/entropy": 0.02}),
        ("entropy rises while the policy learns", lambda n: {"learner/entropy": 0.5 + 0.1 * n, "collect/success": min(0.3 + n / 50, 0.8)}),
        ("few succeed, and more each time", lambda n: {"collect/success": 0.02 * n}),
        ("one bad line", lambda n: ODD if n == 17 else {}),
        ("invalid actions are on their way down", lambda n: {"collect/invalid": 0.9 * 0.8**n}),
        ("the evaluation wavers within its interval", lambda n: evaluated(0.6 if n == 10 else 0.5) if n % 10 == 0 else {}),
        ("states repeat enough", lambda n: {"credit/singleton_share": 0.8}),
        ("old data differs, and is corrected", lambda n: {"cluster/age": 1, "cluster/effective_share": 0.8, "learner/engine_gap": 0.3}),
        ("success wavers", lambda n: {"collect/success": 0.5 + 0.2 * (-1) ** n}),
    ],
)  # fmt: skip
def test_what_only_looks_like_trouble_is_left_alone(reason: str, change: Series) -> None:
    silent = [troubles(lines(change, count), "gigpo") for count in range(1, 31)]
    assert not any(silent), reason


def test_anchors_matter_only_to_algorithms_that_use_them() -> None:
    alone = lines(lambda n: {"credit/singleton_share": 0.99, "credit/one_trajectory_share": 0.9})
    assert troubles(alone, "grpo") == {} and set(troubles(alone, "hgpo")) == {"anchors", "looping"}


def test_batches_without_any_group_have_no_credit() -> None:
    nothing = [{"iteration": n, "collect/trajectories": 0.0} for n in range(6)]  # dynamic sampling found no group with contrast
    assert "no credit" in troubles(nothing, "grpo")


def test_success_in_training_that_halves_is_noticed_without_an_evaluation() -> None:
    found = troubles(lines(lambda n: {"collect/success": 0.8 if n < 20 else 0.2}), "gigpo")["fallen"]
    assert "20%" in found and "80% at iteration" in found


def test_warnings_are_said_written_and_rewound(tmp_path: Path) -> None:
    run, heard = Run.create(tmp_path, "try", ""), []
    watch = Watch(run)
    for line in lines(TROUBLE["length limit"], 60):
        run.log(line)
        watch(line, "gigpo", heard.append)
    records = run.warnings()
    assert [record["iteration"] for record in records] == [3, 3 + EVERY, 3 + 2 * EVERY] and len(heard) == 3
    assert heard[0] == f"warning: {records[0]['text']}" and records[0]["name"] == "length limit"
    whole = (run.folder / "warnings.jsonl").read_text()
    run.rewind(40)
    assert [record["iteration"] for record in run.warnings()] == [3, 28]
    watch = Watch(run)
    for line in lines(TROUBLE["length limit"], 60)[41:]:
        run.log(line)
        watch(line, "gigpo", heard.append)
    assert (run.folder / "warnings.jsonl").read_text() == whole


def test_a_run_warns_in_the_terminal_and_in_its_folder_and_so_after_a_resume(tmp_path: Path) -> None:
    """The babbling model of the tests fills its three tokens: the one trouble that this run has."""
    heard = Heard()
    run = Run.open(start(tmp_path, reporter=heard, iterations=4).folder)
    assert [record["name"] for record in run.warnings()] == ["length limit"]
    assert [text for text in heard.notes if text.startswith("warning:")] == [f"warning: {run.warnings()[0]['text']}"]
    before = (run.folder / "warnings.jsonl").read_bytes()
    shutil.rmtree(run.checkpoints / "step-00000004")
    tw.train(resume=run.folder)
    assert (run.folder / "warnings.jsonl").read_bytes() == before


def test_a_resumed_run_warns_as_one_that_was_not_killed(tmp_path: Path) -> None:
    """The line before the first iteration is in the log, and the loop does not show it to the rules."""
    run, heard = Run.create(tmp_path, "try", ""), list[str]()
    run.log({"iteration": 0, **evaluated(0.9)})
    Watch(run)({**HEALTHY, "iteration": 1, **evaluated(0.2)}, "gigpo", heard.append)
    assert heard == [] and run.warnings() == []
