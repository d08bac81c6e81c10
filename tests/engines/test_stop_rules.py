"""Stop rules: an object that ends responses while an engine draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from learn_cases import tiny

import turnwise as tw
from turnwise.engines.base import Finish, Request, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.openai import OpenAIEngine, Server
from turnwise.engines.transformers import TransformersEngine


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
        found = []
        while made.pending:
            found += made.poll()
        return {response.key: response for response in found}

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


def test_a_rule_is_refused_where_its_reports_are_missing_and_by_a_server() -> None:
    with pytest.raises(tw.TurnwiseError, match="the stop rule reads 'entropy', which is not reported"):
        Sampling(rule=Certain())

    class Nothing(Certain):
        reads = ()

    engine = OpenAIEngine(Server("http://127.0.0.1:9/v1", "mine"), None)
    with pytest.raises(tw.TurnwiseError, match="a server cannot ask a stop rule"):
        engine.submit([Request(0, [1], Sampling(rule=Nothing()))])
    engine.close()
