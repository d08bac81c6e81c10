"""Many responses end at once: the engine starts with the first new prompts while the host prepares the others, and nothing changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from collect_cases import WordEngine, numbered
from collect_cases import policy as word_policy
from native_doubles import paged_runner
from native_models import drain, make, prompt, worst
from toy_env import Corridor

import turnwise.engines.native.engine as native_engine
from turnwise.agent.base import Parsed, Prompt
from turnwise.collect.collector import Collector
from turnwise.collect.model_policy import ModelPolicy, pieces
from turnwise.data.tasks import Task
from turnwise.engines.base import Finish, Request, Response, Sampling
from turnwise.engines.native import NativeEngine
from turnwise.engines.native.engine import EARLY_FLIGHTS
from turnwise.envs.base import Observation
from turnwise.envs.pool import Pool
from turnwise.methods.planning import TaskSlots

Make = Callable[..., NativeEngine]


def responses(count: int) -> list[Response]:
    return [Response(key) for key in range(count)]


@pytest.mark.parametrize("first", [0, 1, 2, 3, 16, 100])
def test_pieces_are_all_responses_in_order_and_each_is_as_large_as_those_before_it(first: int) -> None:
    assert not list(pieces([], first))
    for count in range(1, 150):
        found = list(pieces(responses(count), first))
        assert [response.key for piece in found for response in piece] == list(range(count))
        sizes = [len(piece) for piece in found]
        assert all(sizes) and sizes == sorted(sizes)
        assert len(sizes) == 1 or sizes[0] == first
        assert all(sizes[n] <= sum(sizes[:n]) for n in range(1, len(sizes) - 1))
        assert len(sizes) > 1 or first == 0 or count < 2 * first


class Lockstep(WordEngine):
    """Answers everything at once, and keeps a record of what happens in which order."""

    def __init__(self, early: int):
        super().__init__()
        self.early = early
        self.record: list[Any] = []

    def submit(self, requests: Sequence[Request]) -> None:
        super().submit(requests)
        self.record += [request.key for request in requests]

    def start(self) -> None:
        self.record.append("start")

    def poll(self, wait: bool = True) -> list[Response]:
        self.record.append("poll")
        asked, self.waiting = self.waiting, []
        return [Response(request.key, (1, 3), (-0.5, -0.1)) for request in asked]


def walk(engine: Any, attempts: int, slots: int) -> list[Any]:
    with Pool(Corridor, slots) as pool:
        found = Collector(pool, word_policy(engine), max_turns=6).run(TaskSlots(numbered(1), 0, attempts).starts(0, 1))
    return [[(turn.prompt_ids, turn.response_ids, turn.action, turn.reward) for turn in one.turns] for one in found]


def test_the_engine_starts_when_the_first_new_prompts_are_there_and_before_the_others_are() -> None:
    engine = Lockstep(early=2)
    walk(engine, 8, 8)
    assert engine.record[:9] == [0, 1, 2, 3, 4, 5, 6, 7, "poll"]
    assert engine.record[9:20] == [0, 1, "start", 2, 3, "start", 4, 5, 6, 7, "poll"]
    assert engine.record[20:] == ["start", "start"], "the last turns are read in pieces too, and nothing follows on them"


def test_an_engine_that_cannot_start_early_gets_all_prompts_at_once() -> None:
    engine = Lockstep(early=0)
    walk(engine, 8, 8)
    assert engine.record == [*range(8), "poll", *range(8), "poll"]


def test_a_response_that_nobody_waits_for_any_more_is_not_given_to_the_slots_next_attempt() -> None:
    engine = Lockstep(early=1)
    policy = word_policy(engine)
    [first, second, *_] = TaskSlots(numbered(1), 0, 4).starts(0, 1)
    for slot in range(4):
        policy.begin(slot, first, Observation("here"))
        policy.ask(slot)
    assert [answer.slot for answer in policy.answers()] == [0] and policy.pending
    policy.end(3)
    policy.begin(3, second, Observation("there"))
    assert [answer.slot for answer in policy.answers()] == [1]
    assert [answer.slot for answer in policy.answers()] == [2]
    assert not policy.pending


# The native engine, with pages and steps ahead as on a GPU.


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> Make:
    gpu = paged_runner(monkeypatch)

    def make_engine(early: int, pages: int = 400, tokens: int = 1, **settings: Any) -> NativeEngine:
        """`early`: how many requests are worth a start, times the steps under way. So are `tokens` tokens if there is none."""
        monkeypatch.setattr(native_engine, "EARLY_ROWS", early)
        monkeypatch.setattr(native_engine, "EARLY_TOKENS", tokens)
        monkeypatch.setattr(
            native_engine,
            "make_runner",
            lambda weights, slots, longest, *rest: gpu.GpuRunner(weights, slots, longest, pages, 16, False, kind=rest[-1]),
        )
        engine = NativeEngine(make(num_hidden_layers=1), **{"max_batch": 24, "max_length": 192, "prefill_tokens": 128, **settings})
        engine.early = early
        return engine

    return make_engine


class Watched:
    """The steps of an engine: the numbers of tokens of their rows, and how many results were waited for."""

    def __init__(self, engine: NativeEngine, monkeypatch: pytest.MonkeyPatch):
        self.steps: list[list[int]] = []
        self.waits = 0
        run = engine._runner.run

        def watched(step: Any) -> Any:
            self.steps.append(list(step.counts))
            result = run(step)
            wait = result.wait

            def waited() -> Any:
                self.waits += 1
                return wait()

            result.wait = waited
            return result

        monkeypatch.setattr(engine._runner, "run", watched)


def requests(count: int, length: int = 20, first: int = 0) -> list[Request]:
    return [Request(n, prompt(length, n), Sampling(max_tokens=4), n, sequence=n) for n in range(first, first + count)]


def test_a_start_launches_prompts_and_waits_for_nothing(paged: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paged(early=4, tokens=10**6, prefill_tokens=256)
    seen = Watched(engine, monkeypatch)
    engine.submit(requests(3))
    engine.start()
    assert not seen.steps, "too few for a step of their own"
    engine.submit(requests(2, first=3))
    engine.start()
    assert seen.steps == [[20] * 5] and not seen.waits
    engine.submit(requests(4, first=5))
    engine.start()
    assert len(seen.steps) == 1, "too few for a second step, and no decode step for those that are here while others follow"
    engine.submit(requests(4, first=9))
    engine.start()
    assert seen.steps == [[20] * 5, [20] * 8] and not seen.waits
    found = drain(engine)
    assert worst(engine.model, [request.prompt_ids for request in requests(13)], found) < 1e-4
    assert seen.steps[2:5] == [[1] * 13] * 3, "all of them decode together"


def test_a_start_runs_only_so_far_ahead(paged: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paged(early=1)
    seen = Watched(engine, monkeypatch)
    for n in range(EARLY_FLIGHTS + 2):
        engine.submit(requests(EARLY_FLIGHTS, first=EARLY_FLIGHTS * n))
        engine.start()
    assert len(seen.steps) == EARLY_FLIGHTS and not seen.waits
    assert len(drain(engine)) == EARLY_FLIGHTS * (EARLY_FLIGHTS + 2)


def test_a_prompt_that_is_refused_in_a_start_is_answered(paged: Make) -> None:
    engine = paged(early=2)
    engine.submit([*requests(2), Request(2, [5, 1000], Sampling(max_tokens=2)), Request(3, [5] * 500, Sampling(max_tokens=2))])
    engine.start()
    found = drain(engine)
    assert [found[n].finish for n in range(4)] == [Finish.LENGTH, Finish.LENGTH, Finish.REFUSED, Finish.REFUSED]


def test_starts_between_random_submissions_leak_no_page_and_change_no_token(paged: Make) -> None:
    """With so few pages that rows lose theirs and wait."""
    chance = random.Random(0)
    asked = [Request(n, prompt(chance.randint(1, 90), n % 7), Sampling(max_tokens=9), n, sequence=n) for n in range(60)]
    answers = []
    for early in (0, 1, 3):
        engine, found, left = paged(early, pages=30, max_batch=8, stop_token_ids=[3, 4]), dict[int, Response](), list(asked)
        while left or engine.pending:
            now, left = left[: (size := chance.randint(1, 6))], left[size:]
            engine.submit(now)
            if chance.random() < 0.7:
                engine.start()
            found |= {response.key: response for response in engine.poll(wait=chance.random() < 0.5)}
        for request in asked:
            engine.release(request.sequence)
        assert engine._pages.held == 0
        answers.append({key: response.token_ids for key, response in found.items()})
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 60


def test_memory_that_runs_out_in_a_start_leads_to_smaller_steps(paged: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    engine = paged(early=2)
    assert engine.early
    run, sizes = engine._runner.run, list[int]()

    def narrow(step: Any) -> Any:
        sizes.append(step.tokens)
        if step.tokens > 70:
            raise torch.OutOfMemoryError("too much")
        return run(step)

    monkeypatch.setattr(engine._runner, "run", narrow)
    engine.submit(requests(6))
    engine.start()
    assert sizes == [120] and engine.pending == 6
    assert worst(engine.model, [request.prompt_ids for request in requests(6)], drain(engine)) < 1e-4


class Words:
    """A dialogue that grows, or the last turn alone, in tokens of the model."""

    def __init__(self, full: bool):
        self.full = full

    def start(self, task: Task, observation: Observation) -> None:
        self.common = prompt(20, int(task.data["number"]))
        self.ids, self.turn = [*self.common, len(observation.text)], 0

    def prompt(self) -> Prompt:
        return Prompt(list(self.ids))

    def record(self, response_ids: Sequence[int], parsed: Parsed, observation: Observation) -> None:
        self.turn += 1
        before = self.ids if self.full else self.common
        self.ids = [*before, *response_ids, *prompt(5, self.turn + len(observation.text))]


@pytest.mark.parametrize(("full", "stops"), [(True, ()), (False, (3, 17, 40))])
def test_rollouts_are_the_same_for_any_size_of_the_pieces(paged: Make, full: bool, stops: tuple[int, ...]) -> None:
    def play(early: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[float], list[list[int]]]:
        engine = paged(early, stop_token_ids=stops)
        seen = Watched(engine, monkeypatch)
        policy = ModelPolicy(
            engine, lambda: Words(full), lambda ids, _: ("", Parsed("left" if ids[0] % 3 == 0 else "right")), Sampling(max_tokens=4)
        )
        with Pool(Corridor, 10) as pool:
            found = Collector(pool, policy, max_turns=4).run(TaskSlots(numbered(5), 3, 4).starts(0, 3))
        turns = [turn for one in found for turn in one.turns]
        exact = [(list(turn.prompt_ids), turn.response_ids, turn.action, turn.reward) for turn in turns]
        return exact, [p for turn in turns for p in turn.logprobs], seen.steps

    with pytest.MonkeyPatch.context() as patches:
        turns, logprobs, together = play(0, patches)
        for early in (2, 5):
            others, numbers, steps = play(early, patches)
            assert others == turns
            assert numbers == pytest.approx(logprobs, abs=1e-5)
            assert stops or steps != together
        assert steps == play(5, patches)[2], "the same run twice takes the same steps"
