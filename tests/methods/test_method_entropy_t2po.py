"""T²PO: a rule that ends responses while an engine draws them, text put into a response, and turns that are drawn again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learn_cases import tiny
from method_cases import QUICK, line_of, start, turn_of
from references import t2po as slow

import turnwise as tw
from turnwise.engines.base import Finish, Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.openai import OpenAIEngine, Server
from turnwise.engines.transformers import TransformersEngine
from turnwise.methods.t2po import Running, T2po, confidence, settled
from turnwise.runs.reading import stored_batch


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


# -- the rule in engines ----------------------------------------------------------------------------------------------------------


class Certain:
    """Ends a response after the second token that was drawn from a narrow distribution."""

    reads: tuple[str, ...] = ("entropy",)

    def __init__(self, below: float = 0.0):
        self.below = below

    def watch(self, tokenizer: Any) -> Callable[[int, Mapping[str, float]], bool]:
        narrow: list[bool] = []

        def ends(token: int, reports: Mapping[str, float]) -> bool:
            narrow.append(reports["entropy"] < self.below)
            return sum(narrow) >= 2

        return ends


@pytest.mark.parametrize("engine", [NativeEngine, TransformersEngine])
def test_a_rule_ends_responses_and_changes_no_token_before(engine: Any) -> None:
    model = tiny()

    def drawn(rule: Any) -> dict[int, Any]:
        made = engine(model, None, 4, 64, stop_token_ids=())
        sampling = Sampling(max_tokens=12, report=("entropy",), rule=rule)
        made.submit([Request(key, [1 + key, 2, 3], sampling, seed=key, sequence=key) for key in range(6)])
        return {response.key: response for response in _all(made)}

    free = drawn(None)
    known = np.sort([value for response in free.values() for value in response.reports["entropy"]])[10:-40]
    gap = int(np.diff(known).argmax())  # no rounding decides on which side of the limit a token is
    limit = float(known[gap : gap + 2].mean())
    stopped = drawn(Certain(limit))
    finishes = []
    for key, whole in free.items():
        narrow = np.flatnonzero(np.asarray(whole.reports["entropy"]) < limit)
        length = int(narrow[1]) + 1 if len(narrow) > 1 else 12
        assert stopped[key].token_ids == whole.token_ids[:length] and len(stopped[key].reports["entropy"]) == length
        assert stopped[key].finish is (Finish.RULE if length < 12 else Finish.LENGTH)
        finishes.append(stopped[key].finish)
    assert Finish.RULE in finishes


def _all(engine: Any) -> list[Any]:
    found = []
    while engine.pending:
        found += engine.poll()
    return found


def test_a_rule_is_refused_where_its_reports_are_missing_and_by_a_server() -> None:
    with pytest.raises(tw.TurnwiseError, match="the stop rule reads 'entropy', which is not reported"):
        Sampling(rule=Certain())

    class Nothing(Certain):
        reads = ()

    engine = OpenAIEngine(Server("http://127.0.0.1:9/v1", "mine"), None)
    with pytest.raises(tw.TurnwiseError, match="a server cannot ask a stop rule"):
        engine.submit([Request(0, [1], Sampling(rule=Nothing()))])
    engine.close()


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
