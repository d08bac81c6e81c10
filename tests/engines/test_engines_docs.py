"""The engine that docs/guides/engines.md shows works as it stands there."""

from __future__ import annotations

import re

import torch
from conftest import ROOT

from turnwise.engines import Engine, Finish, Request, Sampling


def shown_engine() -> tuple[type, str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "engines.md").read_text(encoding="utf-8"), re.DOTALL)
    [source] = [block for block in blocks if "class TableEngine" in block]
    names: dict[str, type] = {}
    exec(source, names)
    return names["TableEngine"], source


def test_the_shown_engine_is_an_engine_of_about_thirty_lines() -> None:
    kind, source = shown_engine()
    assert issubclass(kind, Engine)
    assert len([line for line in source.splitlines() if line.strip()]) <= 32


def test_the_shown_engine_draws_by_seed_and_gives_the_tables_log_probs() -> None:
    kind, _ = shown_engine()
    torch.manual_seed(0)
    table = torch.randn(9, 9)
    engine = kind(table)
    engine.submit([Request(key, [4, 2], Sampling(max_tokens=5), seed=key % 5) for key in range(10)])
    assert engine.pending == 10
    responses = engine.poll()
    assert engine.pending == 0 and engine.poll() == []
    assert [r.token_ids for r in responses[:5]] == [r.token_ids for r in responses[5:]]
    assert len({r.token_ids for r in responses}) > 1 and {r.finish for r in responses} == {Finish.STOP, Finish.LENGTH}
    for response in responses:
        before = [2, *response.token_ids[:-1]]
        expected = torch.log_softmax(table[before], -1)[range(len(before)), list(response.token_ids)]
        assert torch.allclose(expected, torch.tensor(response.logprobs))
        assert (response.finish is Finish.STOP) == (response.token_ids[-1] == 0)
