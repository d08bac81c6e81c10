"""T²PO: thoughts that end when the uncertainty is flat, text put into a response, and turns that are drawn again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authors_golden import golden
from formulas import t2po as slow
from method_cases import QUICK, line_of, make, start, turn_of

import turnwise as tw
from turnwise.runs.reading import stored_batch
from turnwise_experiments.t2po import Running, T2po, confidence, settled


def slow_uncertainty(turn: tw.Turn, mix: float, tops: int) -> float:
    tokens = range(len(turn.response_ids))
    confident = [slow.confidence([turn.reports[f"top_logprob_{place}"][t] for place in range(1, tops + 1)]) for t in tokens]
    return slow.turn_uncertainty(slow.uncertainties(list(turn.reports["entropy"]), confident, mix))


@pytest.mark.parametrize("tokens", [1, 2, 9, 60])
def test_uncertainties_agree_with_the_reference(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    for mix in (0.0, 0.3, 1.0):
        turn, seen = turn_of(rng, tokens), Running(mix)
        confident = [confidence([turn.reports[f"top_logprob_{place}"][t] for place in range(1, 6)]) for t in range(tokens)]
        for entropy, value in zip(turn.reports["entropy"], confident, strict=True):
            seen.add(entropy, value)
        assert seen.values == pytest.approx(slow.uncertainties(list(turn.reports["entropy"]), confident, mix, running=True))
        assert T2po(mix=mix).uncertainty(turn) == pytest.approx(slow_uncertainty(turn, mix, 5), abs=1e-6)
    flat = turn_of(rng, 4)
    flat.reports = {column: (values[0],) * 4 for column, values in flat.reports.items()}
    assert T2po(mix=0.3).uncertainty(flat) == pytest.approx(slow_uncertainty(flat, 0.3, 5))


def test_a_thought_ends_at_the_first_flat_window() -> None:
    rng = np.random.default_rng(0)
    ended = []
    for _ in range(200):
        values = np.cumsum(rng.normal(size=30) * rng.random(30) ** 2).tolist()
        least, window, flat = int(rng.integers(1, 12)), int(rng.integers(1, 8)), float(rng.random() * 0.5)
        found = next((n for n in range(1, 31) if settled(values[:n], least, window, flat)), None)
        assert found == slow.stop_at(values, least, window, flat)
        ended.append(found)
    assert None in ended and any(found is not None for found in ended)


def test_a_turn_after_one_whose_uncertainty_is_unknown_is_not_drawn_again() -> None:
    """What else decides is compared with the authors' code: test_authors_plans.py."""
    turn = turn_of(np.random.default_rng(1), 4)
    assert not T2po(eta=0.1).again(tw.Turn("of an earlier batch", response_ids=[1]), turn, 0)


@pytest.mark.parametrize("case", golden("t2po"))
def test_turns_are_drawn_again_as_often_as_by_the_authors(case: dict[str, Any]) -> None:
    plan = make("t2po", eta=0.3, tries=2)
    plan.uncertainty = lambda turn: turn.notes["score"]
    for script, expected in zip(case["scores"], case["draws"], strict=True):
        before: tw.Turn | None = None
        for scores, wanted in zip(script, expected, strict=True):
            draws = 0
            while plan.again(before, turn := tw.Turn("s", notes={"score": scores[draws]}), draws):
                draws += 1
            assert draws + 1 == wanted
            before = turn


# -- a run ------------------------------------------------------------------------------------------------------------------------

T2PO = QUICK | {"method.name": "t2po", "collect.groups": 2, "credit.name": "grpo"}


def test_turns_of_a_run_are_drawn_again_until_they_move_the_uncertainty_or_tries_are_used_up(tmp_path: Path) -> None:
    run = start(tmp_path, **T2PO, **{"plan.eta": 0.2, "plan.tries": 1})
    batch, line, plan = stored_batch(run, 1), line_of(run), T2po(eta=0.2)
    columns = [name.removeprefix("token.") for name in batch.rollouts.names() if name.startswith(("token.entropy", "token.top_logprob"))]
    for k, trajectory in enumerate(batch.trajectories):
        for row, turn in zip(batch.rows(k), trajectory.turns, strict=True):
            own = slice(*batch.rollouts.token_offsets[row : row + 2])
            turn.reports = {name: batch.column(f"token.{name}")[own] for name in columns}
    later = [pair for trajectory in batch.trajectories for pair in pairwise(trajectory.turns)]
    assert line["collect/generations"] == len(batch) + line["collect/redrawn"] and line["collect/redrawn"] > 0
    assert len(later) >= line["collect/redrawn"]
    still = sum(plan.again(before, turn, 0) for before, turn in later)
    assert still <= line["collect/redrawn"]  # a turn that does not move it was drawn for the second time
    assert not batch.column("token.inserted").any() and not batch.has("token.mask")


def test_what_is_put_behind_a_thought_is_part_of_the_response_and_not_learned_from(tmp_path: Path) -> None:
    thought = {"plan.opening": "", "plan.most": 1, "plan.insert": "+ +", "plan.tries": 0, "engine.max_tokens": 5}
    run = start(tmp_path, **T2PO, **thought)
    batch, line = stored_batch(run, 1), line_of(run)
    inserted = batch.column("token.inserted") == 1
    np.testing.assert_array_equal(batch.column("token.mask"), ~inserted)
    assert line["learner/masked_tokens"] == inserted.sum() and line["collect/generations"] == len(batch) + line["collect/inserted"]
    parts = [list(turn.response_ids) for trajectory in batch.trajectories for turn in trajectory.turns]
    of_turns = np.split(inserted, batch.rollouts.token_offsets[1:-1])
    texts = {tuple(np.asarray(ids)[own]) for ids, own in zip(parts, of_turns, strict=True) if own.any()}
    assert len(texts) == 1 and line["collect/inserted"] == sum(own.any() for own in of_turns) > 0
    for own in of_turns:
        assert not own[0] and not own[3:].any() and len(own) <= 5  # one drawn token, the text, then the policy again
    assert any(len(own) > 3 for own in of_turns)
