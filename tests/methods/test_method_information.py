"""Methods that reward information: IGPO, A²TGPO and InfoPO."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import Letters, ids, in_drawers, line_of, paths, per_path, returns_of, rollouts, start
from method_tokens import tokens_of
from references import a2tgpo as slow_a2tgpo
from references import infopo as slow_infopo

import turnwise as tw
from turnwise.credit import algorithms
from turnwise.data.batch import Batch
from turnwise.methods.igpo import information_gain
from turnwise.methods.infopo import feedback_gain, without
from turnwise.methods.spans import Spans
from turnwise.objectives import algorithms as objectives
from turnwise.runs.reading import stored_batch

GAIN = "turn.information_gain"
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


class Knowing(Letters):
    """A model that finds a continuation likely if its last letter is in the prompt."""

    def logprobs(self, prompts: Any, continuations: Any) -> list[np.ndarray]:
        self.asked = len(prompts)
        return [np.full(len(c), -0.5 if c[-1] in p else -2.5) for p, c in zip(prompts, continuations, strict=True)]

    def score(self, batch: Batch) -> np.ndarray:
        turns = [turn for trajectory in batch.trajectories for turn in trajectory.turns]
        return np.concatenate(self.logprobs([t.prompt_ids for t in turns], [t.response_ids for t in turns]))


# -- texts among tokens -----------------------------------------------------------------------------------------------------------


def test_a_text_is_found_where_it_stands_last_and_control_tokens_say_nothing() -> None:
    spans = Spans(Letters())
    assert spans.find(ids("see a 7, see a 7."), "a 7") == range(13, 16)
    assert spans.find([*ids("stop"), 0], "end") is None  # 0 is the token <end>
    assert spans.find(ids("gehe zür Tür"), "zür Tür") == range(5, 12)
    assert spans.find(ids("anything"), " ") is None
    assert spans.find(ids("early" + "." * 2000), "early") == range(5)
    assert spans.find(ids("." * 2000 + "late"), "late") == range(2000, 2004)


# -- credit against slow references that were written from the formulas alone ------------------------------------------------------


def equal_returns(r: tw.Rollouts) -> tw.Rollouts:
    return r.with_columns({"turn.reward": np.append(np.diff(r.trajectory) != 0, True).astype(float)})


CASES = {
    **{f"random {seed}": rollouts(seed) for seed in range(4)},
    "one trajectory": rollouts(10, groups=1, size=1),
    "one trajectory per group": rollouts(11, groups=3, size=1),
    "one turn each": rollouts(12, turns=1),
    "equal returns": equal_returns(rollouts(13)),
}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> tw.Rollouts:
    found: tw.Rollouts = CASES[request.param]
    return found


def fast(name: str, r: tw.Rollouts, **options: Any) -> Any:
    """The credit function itself, in float64."""
    return algorithms[name].make(options, "credit")(r)


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_a2tgpo_is_its_reference(case: tw.Rollouts, gamma: float) -> None:
    outcomes, groups = returns_of(case)
    column = np.random.default_rng(0).normal(size=len(case))
    gains = [row[:-1] for row in per_path(case, column)]
    found = fast("a2tgpo", case.with_columns({GAIN: column}), gamma=gamma)
    slow = slow_a2tgpo.advantages(gains, outcomes, groups, gamma=gamma)
    np.testing.assert_allclose(found["turn.advantage"], np.concatenate(slow), **CLOSE)
    np.testing.assert_allclose(found["turn.clip_scale"], np.concatenate(slow_a2tgpo.clip_scales(gains, groups)), **CLOSE)


@pytest.mark.parametrize("seed", range(4))
def test_the_objective_of_a2tgpo_is_its_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, 12)
    old = [(-rng.random(n) * 3).tolist() for n in lengths]
    now = [(np.array(row) + rng.normal(size=len(row)) * 0.006).tolist() for row in old]
    advantage, scale = rng.normal(size=12), 1 + 0.3 * np.tanh(rng.normal(size=12))
    tokens = tokens_of(now, old, np.repeat(advantage, lengths), clip_scale=np.repeat(scale, lengths))
    loss = objectives["a2tgpo"].make({}, "objective")(tokens).loss
    (gradient,) = torch.autograd.grad(loss.sum(), tokens.logprob)
    slow_loss, slow_gradient = slow_a2tgpo.losses(now, old, advantage.tolist(), scale.tolist())
    np.testing.assert_allclose(loss.detach(), np.concatenate(slow_loss), **CLOSE)
    np.testing.assert_allclose(gradient, np.concatenate(slow_gradient), **CLOSE)


def test_infopo_is_its_reference(case: tw.Rollouts) -> None:
    outcomes, groups = returns_of(case)
    rng = np.random.default_rng(2)
    column = rng.normal(size=len(case)) * (rng.random(len(case)) > 0.2)  # some turns told nothing
    column[[rows[-1] for rows in paths(case)]] = 0.0
    lengths = [[int(n) for n in row] for row in per_path(case, case.tokens)]
    slow = slow_infopo.advantages([row[:-1] for row in per_path(case, column)], lengths, outcomes, groups)
    found = fast("infopo", case.with_columns({"turn.feedback_gain": column}))
    np.testing.assert_allclose(found, [turn[0] for row in slow for turn in row], **CLOSE)
    assert all(len(set(turn)) == 1 for row in slow for turn in row)  # all tokens of a turn are alike


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


def test_without_a_gold_answer_all_turns_of_an_attempt_have_the_same_credit() -> None:
    r = rollouts(0)
    r = r.with_columns({GAIN: np.full(len(r), np.nan)})
    for normalise in ("joint", "separate"):
        found = fast("igpo", r, gamma=0.5, normalise=normalise)
        assert all(len(set(row)) == 1 for row in per_path(r, found)) and found.any()


def test_igpo_trains_where_tasks_have_answers_and_is_refused_elsewhere(tmp_path: Path) -> None:
    own = {"method.name": "igpo", "method.key": "answer", "method.form": "{}", "method.gamma": 1.0}
    batch = stored_batch(in_drawers(tmp_path / "a", **own), 1)
    known, gain = batch.column("turn.gold_probability"), batch.column(GAIN)
    assert ((known > 0) & (known < 1)).all() and np.nanmax(np.abs(gain)) > 0
    for k in range(len(batch.trajectories)):
        rows = np.asarray(batch.rows(k))
        np.testing.assert_allclose(gain[rows], np.append(np.diff(known[rows]), np.nan), atol=1e-6)
    first = [known[batch.rows(k)[0]] for k, t in enumerate(batch.trajectories) if t.group == batch.trajectories[0].group]
    assert np.ptp(first) == 0
    np.testing.assert_allclose(batch.column("turn.advantage"), tw.credit.compute("igpo", batch.rollouts), atol=1e-6)
    with pytest.raises(tw.TurnwiseError, match=r"needs task\.answers: the tasks of numberline have no such data"):
        start(tmp_path / "b", **{"method.name": "igpo"})


# -- A²TGPO -----------------------------------------------------------------------------------------------------------------------


def test_the_clip_range_of_a_turn_follows_its_gain(tmp_path: Path) -> None:
    changes = {"method.key": "answer", "method.form": "{}", "learner.minibatches": 2}
    run = in_drawers(tmp_path, **{"method.name": "a2tgpo", **changes})
    batch = stored_batch(run, 1)
    scale, gain = batch.column("turn.clip_scale"), batch.column(GAIN)
    assert ((scale > 0.7) & (scale < 1.3)).all() and np.ptp(scale) > 0.01 and (scale[np.isnan(gain)] == 1).all()
    tokens = np.repeat(scale, batch.rollouts.tokens)
    assert line_of(run)["learner/clip_scale"] == pytest.approx(tokens.mean(), rel=0.02)


# -- InfoPO -----------------------------------------------------------------------------------------------------------------------


def test_feedback_that_changes_the_next_response_is_credited_to_the_turn_before() -> None:
    prompts = [("", "go on"), ("you see 7", "say 7"), ("nothing", "say x")]
    turns = [tw.Turn("s", observation=seen, prompt_ids=ids(f"past. {seen} now:"), response_ids=ids(said)) for seen, said in prompts]
    batch = Batch.of([tw.Trajectory(0, 0, "", turns)])
    found = feedback_gain(batch, SimpleNamespace(policy=Knowing()))
    np.testing.assert_allclose(found["turn.feedback_gain"], [2.0, 0.0, 0.0])
    # a placeholder has as many tokens as what it replaces
    assert without([1, 2, 3, 4, 5, 6], range(1, 5), [7, 8]) == [1, 7, 8, 8, 8, 6]
    assert without([1, 2, 3], range(1, 2), [7, 8]) == [1, 7, 3]


@pytest.mark.parametrize("context", ["window", "full"])
def test_infopo_trains_on_what_feedback_changed(tmp_path: Path, context: str) -> None:
    batch = stored_batch(start(tmp_path, **{"method.name": "infopo", "agent.context": context}), 1)
    gain = batch.column("turn.feedback_gain")
    rows = [np.asarray(batch.rows(k)) for k in range(len(batch.trajectories))]
    assert all(gain[own[-1]] == 0 for own in rows) and all((gain[own[:-1]] != 0).all() for own in rows)
    credit = tw.credit.compute("infopo", batch.rollouts)
    np.testing.assert_allclose(batch.column("turn.advantage"), credit, atol=1e-6)
    assert np.abs(credit - tw.credit.compute("grpo", batch.rollouts)).max() > 1e-6
