"""Methods that reward information: IGPO, A²TGPO and InfoPO."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from information_cases import Letters, ids, in_drawers, rollouts, start
from references import igpo as slow_igpo

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.methods.igpo import information_curriculum, information_gain
from turnwise.methods.infopo import feedback_gain, without
from turnwise.methods.spans import Spans
from turnwise.objectives import algorithms as objectives
from turnwise.objectives.tokens import Tokens
from turnwise.runs.reading import stored_batch

GAIN = "turn.information_gain"


class Knowing(Letters):
    """A model that finds a continuation likely if its last letter is in the prompt."""

    @property
    def tokenizer(self) -> Letters:
        return self

    def logprobs(self, prompts: Any, continuations: Any) -> list[np.ndarray]:
        self.asked = len(prompts)
        return [np.full(len(c), -0.5 if c[-1] in p else -2.5) for p, c in zip(prompts, continuations, strict=True)]

    def score(self, batch: Batch) -> np.ndarray:
        turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
        return np.concatenate(self.logprobs([t.prompt_ids for t in turns], [t.response_ids for t in turns]))


def with_gain(seed: int, known: float = 1.0) -> tw.Rollouts:
    """Random rollouts with gains; for some groups, none is known."""
    r, rng = rollouts(seed), np.random.default_rng(seed + 100)
    gain = rng.normal(size=len(r)) * 0.2
    gain[(rng.random(len(r.group_labels)) >= known)[r.group]] = np.nan
    return r.with_columns({GAIN: gain})


# -- texts among tokens -----------------------------------------------------------------------------------------------------------


def test_a_text_is_found_where_it_stands_last_and_control_tokens_say_nothing() -> None:
    spans = Spans(Letters())
    assert spans.find(ids("see a 7, see a 7."), "a 7") == range(13, 16)
    assert spans.find([*ids("stop"), 0], "end") is None  # 0 is the token <end>
    assert spans.find(ids("gehe zür Tür"), "zür Tür") == range(5, 12)
    assert spans.find(ids("anything"), " ") is None
    assert spans.find(ids("early" + "." * 2000), "early") == range(5)
    assert spans.find(ids("." * 2000 + "late"), "late") == range(2000, 2004)


# -- IGPO -------------------------------------------------------------------------------------------------------------------------


def test_the_gain_is_where_the_likeliest_gold_answer_was_found_and_each_prompt_is_scored_once() -> None:
    seen = ["all", "a: -", "a: - b: 7"]
    turns = [tw.Turn("s", prompt_ids=ids(text), response_ids=[1]) for text in seen]
    none = [tw.Turn("s", prompt_ids=ids("all"), response_ids=[1]) for _ in range(2)]
    made = [tw.Trajectory(0, 0, "b7", turns), tw.Trajectory(0, 1, "b7", turns[:2]), tw.Trajectory(1, 2, "no", none)]
    batch = Batch.of(made, [tw.Task("b7", data={"answers": ["9", "17"]}), tw.Task("no", data={})])
    model = Knowing()
    found = information_gain(batch, SimpleNamespace(policy=model), form="={}")
    low, high = np.exp(-2.5), np.exp(-0.5)
    np.testing.assert_allclose(found["turn.gold_probability"], [low, low, high, low, low, np.nan, np.nan])
    np.testing.assert_allclose(found[GAIN], [0, high - low, np.nan, 0, np.nan, np.nan, np.nan])
    assert model.asked == 6  # three prompts, two answers
    log = information_gain(batch, SimpleNamespace(policy=model), form="={}", gain="log_prob")
    np.testing.assert_allclose(log[GAIN], [0, 2.0, np.nan, 0, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_the_curriculum_moves_weight_from_gains_to_outcomes(progress: float) -> None:
    batch = Batch.of([tw.Trajectory(0, k, turns=[tw.Turn("s")] * 2) for k in range(2)])
    found = information_curriculum(batch, SimpleNamespace(progress=progress))
    outcome, gain = slow_igpo.curriculum(progress)
    assert found["trajectory.outcome_weight"].tolist() == [outcome] * 2 and found["trajectory.gain_weight"].tolist() == [gain] * 2


def test_without_a_gold_answer_igpo_is_grpo() -> None:
    r = with_gain(0, known=0.0)
    for normalise in ("joint", "separate"):
        np.testing.assert_array_equal(tw.credit.compute("igpo", r, normalise=normalise, version="first"), tw.credit.compute("grpo", r))


def test_gains_count_towards_earlier_turns_and_not_towards_later_ones() -> None:
    r = tw.Rollouts.from_columns(group=[0] * 4, trajectory=[0, 0, 1, 1], t=[0, 1, 0, 1], reward=[0, 1, 0, 1], anchor=[0] * 4)
    credit = tw.credit.compute("igpo", r.with_columns({GAIN: [0.5, np.nan, -0.5, np.nan]}), normalise="separate", gamma=0.5)
    np.testing.assert_allclose(credit, [1, 0, -1, 0], atol=1e-5)


def test_igpo_trains_where_tasks_have_answers_and_is_refused_elsewhere(tmp_path: Path) -> None:
    own = {"method.name": "igpo", "method.key": "answer", "method.form": "{}", "method.curriculum": True, "method.gamma": 1.0}
    run = in_drawers(tmp_path / "a", **own)
    batch = stored_batch(run, 1)
    known, gain = batch.column("turn.gold_probability"), batch.column(GAIN)
    assert ((known > 0) & (known < 1)).all() and np.nanmax(np.abs(gain)) > 0
    for k in range(len(batch.trajectories)):
        rows = np.asarray(batch.rows(k))
        np.testing.assert_allclose(gain[rows], np.append(np.diff(known[rows]), np.nan), atol=1e-6)
    first = [known[batch.rows(k)[0]] for k, t in enumerate(batch.trajectories) if t.group == batch.trajectories[0].group]
    assert np.ptp(first) == 0
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("igpo", batch.rollouts), atol=1e-6)
    assert set(batch.column("trajectory.gain_weight")) == {1.0} and set(batch.column("trajectory.outcome_weight")) == {0.5}
    with pytest.raises(tw.TurnwiseError, match=r"needs task\.answers: the tasks of numberline have no such data"):
        start(tmp_path / "b", **{"method.name": "igpo"})


# -- A²TGPO -----------------------------------------------------------------------------------------------------------------------


def test_gains_are_compared_at_the_same_depth_only() -> None:
    r = with_gain(1)
    deeper = np.asarray(r.column(GAIN)) + 10.0 * r.t  # all gains of one depth are larger by the same amount
    np.testing.assert_allclose(tw.credit.compute("a2tgpo", r.with_columns({GAIN: deeper})), tw.credit.compute("a2tgpo", r), atol=1e-4)


def test_the_clip_range_of_a_turn_follows_its_gain(tmp_path: Path) -> None:
    changes = {"method.key": "answer", "method.form": "{}", "learner.minibatches": 2}
    run = in_drawers(tmp_path, **{"method.name": "a2tgpo", **changes})
    batch = stored_batch(run, 1)
    scale, gain = batch.column("turn.clip_scale"), batch.column(GAIN)
    assert ((scale > 0.7) & (scale < 1.3)).all() and np.ptp(scale) > 0.01 and (scale[np.isnan(gain)] == 1).all()
    [line] = [line for line in run.metrics() if line["iteration"] == 1]
    tokens = np.repeat(scale, batch.rollouts.tokens)
    assert line["learner/clip_scale"] == pytest.approx(tokens.mean(), rel=0.02)


def test_a_wider_range_clips_later() -> None:
    def gradient(scale: float) -> float:
        logprob = torch.tensor([-1.0, -1.0], requires_grad=True)
        columns = {"old_logprob": torch.tensor([-1.005, -1.005]), "advantage": torch.ones(2), "weight": torch.ones(2)}
        places = {"turn": torch.zeros(2, dtype=torch.int64), "trajectory": torch.zeros(2, dtype=torch.int64)}
        tokens = Tokens(logprob=logprob, **columns, **places, extra={"clip_scale": torch.full((2,), scale)})
        objectives["a2tgpo"].function(tokens).loss.sum().backward()
        assert logprob.grad is not None
        return float(logprob.grad.abs().sum())

    assert gradient(1.0) == 0 and gradient(1.3) > 0  # the ratio is 1.005; the bounds are 1.004 and 1.0052


# -- InfoPO -----------------------------------------------------------------------------------------------------------------------


def test_feedback_that_changes_the_next_response_is_credited_to_the_turn_before() -> None:
    prompts = [("", "go on"), ("you see 7", "say 7"), ("nothing", "say x")]
    turns = [tw.Turn("s", observation=seen, prompt_ids=ids(f"past. {seen} now:"), response_ids=ids(said)) for seen, said in prompts]
    batch = Batch.of([tw.Trajectory(0, 0, "", turns)])
    found = feedback_gain(batch, SimpleNamespace(policy=Knowing()))
    np.testing.assert_allclose(found["turn.feedback_gain"], [2.0, 0.0, 0.0])


def test_a_placeholder_has_as_many_tokens_as_what_it_replaces() -> None:
    assert without([1, 2, 3, 4, 5, 6], range(1, 5), [7, 8]) == [1, 7, 8, 8, 8, 6]
    assert without([1, 2, 3], range(1, 2), [7, 8]) == [1, 7, 3]


def test_where_outcomes_differ_much_information_counts_for_nothing() -> None:
    r = rollouts(2)
    r = r.with_columns({"turn.feedback_gain": np.random.default_rng(0).normal(size=len(r))})
    spread = [np.ptp(tw.credit.compute("grpo", r)[r.group == g]) > 0 for g in range(3)]
    apart = r.with_columns({"turn.reward": np.asarray(r.column("turn.reward")) * 100})
    same = np.asarray(spread)[r.group]
    assert same.any()
    np.testing.assert_allclose(tw.credit.compute("infopo", apart)[same], tw.credit.compute("grpo", apart)[same], atol=1e-6)
    alike = r.with_columns({"turn.reward": np.zeros(len(r))})
    credit = tw.credit.compute("infopo", alike)
    assert np.abs(credit).max() > 0.1
    for rows in (np.flatnonzero(r.group == g) for g in range(3)):
        assert np.average(credit[rows], weights=np.asarray(r.tokens)[rows]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("context", ["window", "full"])
def test_infopo_trains_on_what_feedback_changed(tmp_path: Path, context: str) -> None:
    run = start(tmp_path, **{"method.name": "infopo", "agent.context": context})
    batch = stored_batch(run, 1)
    gain = batch.column("turn.feedback_gain")
    rows = [np.asarray(batch.rows(k)) for k in range(len(batch.trajectories))]
    assert all(gain[own[-1]] == 0 for own in rows) and all((gain[own[:-1]] != 0).all() for own in rows)
    credit = tw.credit.compute("infopo", batch.rollouts)
    np.testing.assert_allclose(batch.column("turn.advantage"), credit, atol=1e-6)
    assert np.abs(credit - tw.credit.compute("grpo", batch.rollouts)).max() > 1e-6
