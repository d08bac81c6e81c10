"""Random requests to the native engine, and what they must return."""

from __future__ import annotations

import random
from typing import Any

import pytest
from native_models import plain_logprobs, prompt

from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native.requests import Step


class Counted:
    """Stands between an engine and its runner and counts the tokens that go through the model."""

    def __init__(self, engine: NativeEngine):
        self.tokens, self.steps, self._run = 0, 0, engine._runner.run
        engine._runner.run = self.run  # type: ignore[method-assign]

    def run(self, step: Step) -> Any:
        self.tokens += step.tokens
        self.steps += 1
        return self._run(step)


def token_bytes(model: Any) -> int:
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads) * 4


def run_randomly(engine: NativeEngine, count: int, seed: int) -> dict[int, tuple[list[int], Request, Response]]:
    """Requests of random trajectories that come at random moments; some trajectories end early, some prompts are refused."""
    rng = random.Random(seed)
    shared = [prompt(60, n) for n in range(4)]
    history: dict[int, list[int]] = {}
    asked: dict[int, Request] = {}
    found: dict[int, tuple[list[int], Request, Response]] = {}
    busy: set[int] = set()
    while len(found) < count:
        for _ in range(rng.randrange(6) if len(asked) < count else 0):
            sequence = rng.randrange(40)
            if sequence in busy or len(asked) >= count:
                continue
            ids = history.get(sequence) or rng.choice(shared)[: rng.randrange(1, 60)]
            ids = [*ids, *prompt(rng.randrange(1, 30), rng.randrange(10**6))]
            sampling = Sampling(temperature=rng.choice([0.0, 1.0]), top_p=rng.choice([0.9, 1.0]), max_tokens=rng.randrange(1, 12))
            request = Request(len(asked), ids, sampling, rng.randrange(10**6), sequence)
            asked[request.key] = request
            busy.add(sequence)
            engine.submit([request])
        for response in engine.poll() if engine.pending else []:
            request = asked[response.key]
            busy.discard(request.sequence)
            found[response.key] = list(request.prompt_ids), request, response
            history[request.sequence] = [*request.prompt_ids, *response.token_ids]
            if response.finish is Finish.REFUSED or rng.random() < 0.2:
                history.pop(request.sequence)
                engine.release(request.sequence)
        if rng.random() < 0.01:
            rng.choice([engine.refresh, engine.sleep])()
    for sequence in range(40):
        engine.release(sequence)
    return found


def random_requests_are_right(engine: NativeEngine, model: Any, requests: int, tolerance: float = 1e-4) -> set[Finish]:
    """Plays random requests in eight slots: nothing is left behind, and log-probs are those of the model's own forward pass. Gives how they
    ended."""
    found = run_randomly(engine, requests, 7)
    assert engine.pending == 0 and engine._pages.held == 0 and len(engine._free_slots) == 8 and not engine._chains.copies
    for ids, request, response in found.values():
        assert response.finish is not Finish.FAULT
        if response.token_ids:
            expected = plain_logprobs(model, ids, response.token_ids, request.sampling.temperature or 1.0)
            assert expected.tolist() == pytest.approx(response.logprobs, abs=tolerance)
    return {response.finish for _, _, response in found.values()}
