"""HiPER: segments, three advantages and shaping against the slow reference, tags in tokens, and a small run with three value heads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from method_cases import Letters, ids, paths, rollouts, start, train
from references import hiper
from references.forms import scores

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Stop
from turnwise.methods.hiper import read, subgoals
from turnwise.methods.spans import Spans
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

OPTIONS = {"gamma": 0.9, "lam": 0.8, "lam_high": 0.7}


def segmented(seed: int, constant: bool = False, **shape: int) -> tw.Rollouts:
    """Random rollouts whose tokens are of all parts."""
    r, rng = rollouts(seed, **shape), np.random.default_rng(seed)
    tokens, n = int(r.token_offsets[-1]), len(r)
    value = (lambda: np.zeros(n)) if constant else (lambda: rng.normal(size=n))
    columns: dict[str, Any] = {f"turn.value_{name}": value() for name in ("low", "high", "term")}
    columns |= {"token.part": rng.integers(0, 4, tokens), "turn.switch": rng.random(n) < 0.4}
    columns |= {
        "turn.low_at": rng.integers(0, np.diff(r.token_offsets)),
        "trajectory.truncated": rng.random(r.size("trajectory")) < 0.5,
    }
    return r.with_columns(columns | ({"turn.reward": np.zeros(n)} if constant else {}))


CASES = [*(segmented(seed) for seed in range(3)), segmented(7, constant=True), segmented(8, groups=1, size=1), segmented(9, turns=1)]


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("r", CASES)
def test_advantages_and_targets_are_those_of_the_definition(r: tw.Rollouts, bootstrap: bool) -> None:
    low, high, term, starts = (np.zeros(len(r)) for _ in range(4))
    v_low, v_high, v_term, switch = (r.column(f"turn.{name}") for name in ("value_low", "value_high", "value_term", "switch"))
    for k, rows in enumerate(paths(r)):
        done = not r.column("trajectory.truncated")[k]
        rewards, said = r.reward[rows].tolist(), switch[rows].tolist()
        low[rows] = hiper.low(rewards, said, v_low[rows].tolist(), v_high[rows].tolist(), done, 0.9, 0.8, bootstrap)
        for first, value in hiper.high(rewards, said, v_high[rows].tolist(), done, 0.9, 0.7, bootstrap).items():
            high[rows[first]], starts[rows[first]] = value, 1
        term[rows] = hiper.term(rewards, said, v_high[rows].tolist(), v_term[rows].tolist(), done, 0.9, bootstrap)
    owner, part = np.repeat(np.arange(len(r)), np.diff(r.token_offsets)), r.column("token.part")
    expected = np.zeros(len(owner))
    for number, values, turns in ((3, low, starts >= 0), (2, high, starts > 0), (1, term, starts >= 0)):
        chosen = [row for row in range(len(r)) if turns[row] and (part[owner == row] == number).any()]
        for row, value in zip(chosen, scores([values[row] for row in chosen], ddof=0, eps=1e-8), strict=True):
            expected[(owner == row) & (part == number)] = value
    found = tw.credit.assign("hiper", r, bootstrap=bootstrap, **OPTIONS)
    np.testing.assert_allclose(found.values, expected, atol=1e-6, rtol=1e-6)
    np.testing.assert_array_equal(found.columns["token.mask"], (part == 1) | (part == 3) | ((part == 2) & (starts > 0)[owner]))
    at = r.token_offsets[:-1] + r.column("turn.low_at")
    np.testing.assert_allclose(found.columns["token.target_low"][at], low + v_low, atol=1e-9)
    assert np.isfinite(found.columns["token.target_low"]).sum() == len(r)
    np.testing.assert_allclose(found.columns["turn.target_high"], np.where(starts > 0, high + v_high, np.nan), atol=1e-9)
    np.testing.assert_allclose(found.columns["turn.target_term"], term + v_term, atol=1e-9)


def said(text: str, action: str = "") -> tw.Turn:
    return tw.Turn("s", response_ids=[*ids(text), 0], logprobs=[-1.0] * (len(text) + 1), action=action)


def test_the_tokens_between_tags_are_found_and_the_low_value_is_read_behind_the_subgoal() -> None:
    text = "ah <switch> SWITCH </switch><subgoal>the key</subgoal><action>open</action>"
    found = read(said(text, "open"), Spans(Letters()))
    marked = {number: "".join(letter for letter, part in zip(text, found.parts, strict=False) if part == number) for number in (1, 2, 3)}
    assert {number: "".join(part.split()) for number, part in marked.items()} == {1: "SWITCH", 2: "thekey", 3: "open"}
    assert found.switch and found.subgoal == "thekey" and text[found.low_at :] == "<action>open</action>"
    for text, place in (("<switch>keep</switch>go", 21), ("<switch></switch>go", 17), ("go", 0), ("<subgoal>x</subgoal>", 20)):
        found = read(said(text, "go"), Spans(Letters()))
        assert not found.switch and found.low_at == place and (found.parts[-3:-1] == [3, 3]) == text.endswith("go")
    assert read(tw.Turn("s"), Spans(Letters())) == ([], 0, False, "")


@pytest.mark.parametrize("mode", ["fixed", "normalized"])
def test_keeping_changing_a_kept_subgoal_and_invalid_turns_cost(mode: str) -> None:
    rng = np.random.default_rng(2)
    attempts = []
    for k in range(8):
        turns = []
        for _ in range(int(rng.integers(1, 6))):
            goal = rng.choice(["", "a", "b"])
            turns.append(said(f"<switch>{rng.choice(['KEEP', 'SWITCH', ''])}</switch>" + (f"<subgoal>{goal}</subgoal>" if goal else "")))
            turns[-1].valid, turns[-1].reward = bool(rng.random() < 0.7), float(rng.random())
        attempts.append(tw.Trajectory(0, k, turns=turns, stop=Stop.DONE if k % 2 else Stop.STEP_LIMIT))
    batch = Batch.of(attempts)
    models: Any = SimpleNamespace(policy=SimpleNamespace(tokenizer=Letters()))
    found = subgoals(batch, models, keep=-0.2, keep_mode=mode, consistency=-0.4, invalid=0.3)  # type: ignore[arg-type]
    for k, one in enumerate(attempts):
        reads = [read(turn, Spans(Letters())) for turn in one.turns]
        lists = [t.reward for t in one.turns], [x.switch for x in reads], [x.subgoal for x in reads], [t.valid for t in one.turns]
        np.testing.assert_allclose(found["turn.reward"][list(batch.rows(k))], hiper.shaped(*lists, -0.2, mode, -0.4, 0.3), atol=1e-9)
    assert found["trajectory.truncated"].tolist() == [k % 2 == 0 for k in range(8)]


def test_a_run_trains_three_heads_and_learns_from_the_marked_tokens_alone(tmp_path: Path) -> None:
    run = train(tmp_path, method={"name": "hiper", "critic_lr": 1e-2, "instructions": False, "teach": 0, "keep": 0.0})
    first, second = (stored_batch(Run.open(run.folder), n) for n in (1, 2))
    for name in ("low", "high", "term"):
        assert not np.asarray(first.column(f"turn.value_{name}")).any() and np.asarray(second.column(f"turn.value_{name}")).any()
        assert f"model/critic/loss_{name}" in run.metrics[-1]
    part, mask, advantage = (np.asarray(second.column(f"token.{name}")) for name in ("part", "mask", "advantage"))
    assert (mask == (part == 3)).all() and 0 < mask.sum() < len(mask) and not advantage[~mask].any() and advantage[mask].any()


def test_an_expert_names_what_it_is_after_and_switches_when_it_is_reached() -> None:
    env, other = (tw.make("numberline", highest=9, subgoals=2) for _ in range(2))
    task = tw.Task("t", data={"start": 1, "target": 5})
    assert env.reset(task) == tw.make("numberline", highest=9).reset(task)
    up = "<switch>{}</switch><subgoal>+</subgoal>"
    assert [env.expert_words() for _ in range(2)] == [up.format("SWITCH")] * 2  # asking changes nothing
    env.step("-")  # not what it is after
    assert env.expert_words() == up.format("KEEP")
    other.restore(env.snapshot())
    for one in (env, other):
        one.step("+")  # reached
        assert one.expert_words() == up.format("SWITCH")
        for _ in range(3):
            one.step("-")
        assert one.expert_words() == up.format("KEEP")
        one.step("-")  # four actions, for a subgoal of two
        assert one.expert_words() == up.format("SWITCH")


def test_a_policy_that_saw_an_expert_name_subgoals_switches_in_its_own_attempts(tmp_path: Path) -> None:
    size = {"engine.max_tokens": 40, "agent.max_prompt_tokens": 80, "model.tiny.max_length": 160, "env.max_turns": 4, "collect.groups": 2}
    taught = {"agent.instructions": "Say switch SWITCH or KEEP, subgoal and action.", "sft.steps": 60, "sft.noise": 0.4, "sft.lr": 1e-2}
    run = start(tmp_path, **{"method.name": "hiper", "method.critic_lr": 1e-3, **taught, **size})
    batch = stored_batch(run, 1)
    switch, first = np.asarray(batch.column("turn.switch")) > 0, np.asarray(batch.rollouts.t) == 0
    said = ["<switch>SWITCH</switch>" in turn.response for trajectory in batch.trajectories for turn in trajectory.turns]
    assert any(said) and switch[np.array(said)].all() and (switch & ~first).any() and not switch.all()
    part, mask = (np.asarray(batch.column(f"token.{name}")) for name in ("part", "mask"))
    assert set(np.unique(part[mask > 0]).tolist()) == {1, 2, 3}  # the switch, the subgoal and the action are learned from
    targets = np.isfinite(np.asarray(batch.column("turn.target_high"), np.float64))
    assert (targets == (first | switch)).all()  # one value per segment
