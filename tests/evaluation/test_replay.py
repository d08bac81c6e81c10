"""Replay: tokens are kept bit by bit, and two credits are compared rightly."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from train_cases import start

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.credit.columns import CreditStep
from turnwise.data.batch import Batch
from turnwise.data.tokens import read_tokens, write_tokens
from turnwise.evaluation.replay import agreement, correlation, ranks, replay
from turnwise.report.closing import in_words
from turnwise.report.replaying import show
from turnwise.runs.folder import Run
from turnwise.runs.reading import anchor_at, stored_batch, stored_trajectories

ids = st.lists(st.integers(0, 2**20), max_size=12)


@st.composite
def dialogues(draw: st.DrawFn) -> list[tw.Trajectory]:
    """Prompts that start afresh, that continue the turn before, and that share a start and an end with it."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        turns: list[tw.Turn] = []
        for t in range(draw(st.integers(0, 4))):
            kind = draw(st.sampled_from(["afresh", "continued", "framed"])) if t else "afresh"
            prompt = draw(ids)
            if kind == "continued":
                prompt = [*turns[-1].prompt_ids, *turns[-1].response_ids, *prompt]
            elif kind == "framed":
                cut = draw(st.integers(0, len(turns[-1].prompt_ids)))
                prompt = [*turns[-1].prompt_ids[:cut], *prompt, *turns[-1].prompt_ids[cut:]]
            turns.append(tw.Turn(0, prompt_ids=prompt, response_ids=draw(ids)))
        found.append(tw.Trajectory(0, number, turns=turns))
    return found


@given(dialogues())
def test_tokens_come_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, trajectories: list[tw.Trajectory]) -> None:
    path = tmp_path_factory.mktemp("tokens") / "x.tokens.npz"
    back = read_tokens(write_tokens(path, trajectories))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert [(list(p), list(r)) for p, r in back] == [(list(turn.prompt_ids), list(turn.response_ids)) for turn in turns]


def test_a_growing_dialogue_costs_each_token_once(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    prompt: list[int] = []
    turns = []
    for _ in range(60):
        prompt = prompt + random.integers(0, 2**15, 20).tolist()
        response = random.integers(0, 2**15, 5).tolist()
        turns.append(tw.Turn(0, prompt_ids=prompt, response_ids=response))
        prompt = prompt + response
    path = write_tokens(tmp_path / "x.npz", [tw.Trajectory(0, 0, turns=turns)])
    assert path.stat().st_size < 2 * 25 * 60 + 4000  # two bytes a token that is new, and the file's own bones


def test_damaged_and_missing_tokens_are_named(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match="no such file of tokens"):
        read_tokens(tmp_path / "absent.npz")
    good = write_tokens(tmp_path / "x.npz", [])
    assert read_tokens(good) == []
    good.write_bytes(good.read_bytes()[:50])
    with pytest.raises(TurnwiseError, match="damaged"):
        read_tokens(good)


def test_a_stored_batch_is_the_one_that_was_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Batch] = []
    real = CreditStep.__call__

    def credited(step: CreditStep, batch: Batch) -> Any:
        found = real(step, batch)
        seen.append(found[0])
        return found

    monkeypatch.setattr(CreditStep, "__call__", credited)
    run = Run.open(start(tmp_path, iterations=2, **{"agent.context": "window"}).folder)
    for iteration in (1, 2):
        back, trained = stored_batch(run, iteration, tokens=True), seen[iteration - 1]
        assert back.rollouts.names() == trained.rollouts.names() and "turn.advantage" in back.rollouts.names()
        for name in trained.rollouts.names():
            assert back.column(name).tolist() == trained.column(name).tolist(), name
        assert back.tasks == trained.tasks and back.task(0).data == trained.task(0).data
        for one, other in zip(back.trajectories, trained.trajectories, strict=True):
            for turn, kept in zip(one.turns, other.turns, strict=True):
                assert list(turn.prompt_ids) == list(kept.prompt_ids) and list(turn.response_ids) == list(kept.response_ids)
                assert list(turn.logprobs) == list(kept.logprobs) and turn.anchor == kept.anchor and turn.response == kept.response
                assert turn.version == kept.version
            for name in ("id", "group", "task", "stop", "success", "seed", "final_anchor"):
                assert getattr(one, name) == getattr(other, name), name


def test_a_batch_of_an_earlier_run_has_no_tasks_and_no_advantages_and_can_be_read(tmp_path: Path) -> None:
    run = Run.open(start(tmp_path, iterations=1).folder)
    folder = run.folder / "rollouts"
    (folder / "000001.tasks.jsonl.gz").unlink()
    rollouts = run.columns(1)
    replace(rollouts, extra={}, token_extra={}).save(folder / "000001.npz")
    batch = stored_batch(run, 1)
    assert batch.advantage_level is None and not batch.tasks
    with pytest.raises(TurnwiseError, match="made without its tasks"):
        batch.task(0)
    found = replay(run.folder, also=["grpo"])
    assert len(found["comparisons"]) == 1


def test_files_of_different_iterations_are_told_apart(tmp_path: Path) -> None:
    run = Run.open(start(tmp_path, iterations=2).folder)
    folder = run.folder / "rollouts"
    (folder / "000001.npz").write_bytes((folder / "000002.npz").read_bytes())
    with pytest.raises(TurnwiseError, match="not of the same attempts"):
        stored_trajectories(run, 1)
    write_tokens(folder / "000002.tokens.npz", [])
    with pytest.raises(TurnwiseError, match="0 turns have tokens, and 16 have texts"):
        stored_trajectories(run, 2)


def test_anchors_that_are_numbers_come_back_and_others_stay_apart() -> None:
    r = tw.Rollouts.from_columns(
        group=[0] * 3, trajectory=[0, 1, 2], t=[0] * 3, reward=[0] * 3, anchor=[-5, "a", b"x"], next_anchor=[None] * 3
    )
    found = [anchor_at(r.anchor_table, int(code)) for code in r.anchor]
    assert found[:2] == [-5, "a"] and isinstance(found[2], bytes) and anchor_at(r.anchor_table, -1) is None


def test_credit_is_compared_turn_by_turn(tmp_path: Path) -> None:
    folder = start(tmp_path, iterations=2, **{"collect.groups": 4}).folder
    found = replay(folder, None, ["credit.name=grpo"], top=3)
    rollouts = Run.open(folder).columns(2)
    one, other = (tw.credit.compute(name, rollouts).astype(float) for name in ("gigpo", "grpo"))
    [pair] = found["comparisons"]
    assert found["iteration"] == 2 and pair["pearson"] == pytest.approx(np.corrcoef(one, other)[0, 1])
    assert pair["same_sign"] == np.mean(np.sign(one) == np.sign(other)) and pair["flipped"] == np.mean(one * other < 0)
    assert [row["turn"] in (1, 2) for row in pair["differ_most"]] == [True] * 3
    scaled = np.abs(one / np.abs(one).mean() - other / np.abs(other).mean())
    assert pair["differ_most"][0]["one"] == one[scaled.argmax()]


def test_agreement_knows_ties_flips_and_constants() -> None:
    one, other = np.array([1.0, -1.0, 0.0, 2.0]), np.array([2.0, 3.0, 0.0, 0.0])
    found = agreement(one, other)
    assert (found["same_sign"], found["flipped"], found["only_one"], found["only_other"]) == (0.5, 0.25, 0.25, 0.0)
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]
    same, moving = np.full(7, 1 / 3), np.linspace(0.1, 0.7, 7)
    wobbling = same * (1 + 1e-16 * np.arange(7))
    assert correlation(same, moving) is None and correlation(wobbling, moving) is None, "a last digit is no correlation"
    assert correlation(moving, -moving) == pytest.approx(-1)
    assert agreement(one, np.zeros(4))["pearson"] is None and agreement(one, np.exp(one))["spearman"] == pytest.approx(1.0)


def test_what_cannot_be_replayed_is_said_with_what_can(tmp_path: Path) -> None:
    changes = {"iterations": 4, "run.checkpoint_every": 2, "run.keep_checkpoints": 1, "run.keep_rollouts": 3}
    run = Run.open(start(tmp_path, **changes).folder)
    with pytest.raises(TurnwiseError, match=r"keeps \[2, 3, 4\]"):
        replay(run.folder, 1)
    with pytest.raises(TurnwiseError, match="needs a critic"):
        replay(run.folder, 4, also=["gae"])
    with pytest.raises(TurnwiseError, match=r"env\.name: a replay changes"):
        replay(run.folder, 4, ["env.name=sokoban"])


def test_replay_from_the_command_line_in_words_and_as_json(tmp_path: Path, here: Cli) -> None:
    folder = start(tmp_path, iterations=3).folder
    words = here("replay", str(folder), "credit.name=hgpo", "--iteration", "3")
    assert words.returncode == 0, words.stderr
    assert "credit.name=hgpo against as trained" in words.stdout
    plain = here("replay", str(folder), "--also", "grpo", "--json")
    assert json.loads(plain.stdout)["comparisons"][0]["other"] == "credit.name=grpo"


def test_what_a_model_wrote_does_not_act_on_the_terminal() -> None:
    harm = "go\x1b[2J\x1b]0;title\x07 on\u202e"
    row = {"task": harm, "turn": 1, "action": harm, "success": False, "one": 1.0, "other": 0.0}
    numbers = dict.fromkeys(("pearson", "spearman", "same_sign", "flipped", "only_one", "only_other"), 0.0)
    pair = {"one": "a", "other": "b", "differ_most": [row]} | numbers
    found = {"iteration": 1, "run": "r", "turns": 1, "credits": [], "comparisons": [pair]}
    show(Console(file=(out := StringIO()), width=100), found)
    attempt = {"task": "t", "success": False, "stop": "done", "turns": [{"observation": harm, "action": harm, "valid": True}]}
    for text in (out.getvalue(), "\n".join(in_words(attempt))):
        assert "go on" in text and not set(text) & set("\x1b\x07\u202e")
