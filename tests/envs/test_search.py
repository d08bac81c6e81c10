"""The search environment: episodes, rewards, anchors, any action, any number of workers, results per set, and the shared data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import shared_folder
from search_data import write_data

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver, Transition
from turnwise.envs.check import check
from turnwise.envs.pool import Pool
from turnwise.envs.search.env import NOTHING, UNCLEAR, SearchEnv
from turnwise.util.errors import TurnwiseError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("search")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_CACHE", str(folder / "cache"))
        yield write_data(folder / "qa")


@pytest.fixture
def env(data: Path) -> SearchEnv:
    return SearchEnv(data=data)


@pytest.fixture
def task(env: SearchEnv) -> Task:
    return env.tasks("nq")[0]


def played(env: SearchEnv, task: Task, actions: Sequence[str]) -> list[Transition]:
    env.reset(task)
    return [env.step(action) for action in actions]


def test_a_search_shows_passages_and_the_right_answer_wins(env: SearchEnv, task: Task) -> None:
    first = env.reset(task)
    assert first.text == "Question: Who wrote the first program?" and first.actions == ("search[<query>]", "answer[<answer>]")
    found = env.step("search[first program]")
    assert found.observation.text.startswith("[1] Ada Lovelace\nAda Lovelace wrote") and not found.done and found.reward == 0
    assert found.info == {"query": "first program", "passages": ["0"]}
    end = env.step("<think>It was her.</think><answer>the Lovelace</answer>")
    assert (end.reward, end.done, end.success) == (1.0, True, True)
    assert end.info == {"answer": "the Lovelace", "em": 1.0, "f1": 1.0, "searches": 1, "measures": {"f1": 1.0}}


def test_a_wrong_answer_ends_without_reward_and_tells_f1(env: SearchEnv, task: Task) -> None:
    (end,) = played(env, task, ["answer[Ada Byron]"])
    assert (end.reward, end.done, end.success) == (0.0, True, False)
    assert end.info["em"] == 0.0 and end.info["f1"] == pytest.approx(0.5) and end.info["searches"] == 0
    assert end.info["measures"] == {"f1": end.info["f1"]}


def test_after_the_last_turn_without_an_answer_it_is_over(env: SearchEnv, task: Task) -> None:
    transitions = played(env, task, ["search[london]", "nonsense", "search[zzz]", "search[engine]"])
    assert [transition.done for transition in transitions] == [False, False, False, True]
    assert [transition.observation.text for transition in transitions[1:3]] == [UNCLEAR, NOTHING]
    assert transitions[-1].info | {"em": 0.0, "f1": 0.0, "searches": 3} == transitions[-1].info and not transitions[-1].success
    with pytest.raises(EpisodeOver, match="within 4 turns"):
        env.step("answer[Ada Lovelace]")


def test_options_bound_passages_and_turns(data: Path, task: Task) -> None:
    short = SearchEnv(data=data, topk=1, max_turns=1)
    (only,) = played(short, task, ["search[london]"])
    assert only.done and len(only.info["passages"]) == 1
    for wrong in ({"topk": 0}, {"max_turns": True}, {"per_set": -1}, {"anchor": "texts"}, {"questions": "some"}):
        with pytest.raises(TurnwiseError):
            played(SearchEnv(data=data, **wrong), SearchEnv(data=data, **wrong).tasks("nq")[0], ["search[x]"])
    for retriever in ("bing", {"url": "http://127.0.0.1:9"}, 3):  # before anything is played
        with pytest.raises(TurnwiseError, match="retriever"):
            SearchEnv(data=data, retriever=retriever)


def test_a_task_without_question_or_answers_is_refused(env: SearchEnv) -> None:
    for wrong in ({}, {"question": "q"}, {"question": "q", "answers": "text"}, {"question": "q", "answers": []}):
        with pytest.raises(TurnwiseError, match="question and a list of answers"):
            env.reset(Task("x", "train", wrong))


def test_anchors_are_the_text_or_the_state(data: Path, task: Task) -> None:
    plain, state = SearchEnv(data=data), SearchEnv(data=data, anchor="state")
    assert played(plain, task, ["search[london]"])[0].observation.anchor is None

    def key(*actions: str) -> Any:
        return played(state, task, actions)[-1].observation.key

    assert key("search[babbage]", "search[everest]") == key("search[everest]", "search[babbage]")  # the same was read
    assert key("search[babbage]", "search[everest]") != key("search[everest]", "search[everest]")
    assert key("x") != key("x", "x")  # fewer turns are left
    assert key("search[mount everest]") == key("search[highest mountain]")  # other words, the same passages
    assert isinstance(key("x"), bytes) and len(key("x")) == 16


def test_the_expert_looks_up_the_evidence_and_wins(env: SearchEnv) -> None:
    two = env.tasks("nq")[1]
    assert env.expert(two) == ["search[Charles Babbage]", "search[London]", "answer[London]"]
    for task in [*env.tasks("test"), *env.tasks("valid")]:
        plan = env.expert(task)
        assert 2 <= len(plan) <= env.max_turns and played(env, task, plan)[-1].success


def test_the_expert_advises_from_anywhere(env: SearchEnv) -> None:
    task = env.tasks("nq")[1]
    played(env, task, ["x"])
    assert env.expert_action() == "search[Charles Babbage]"
    played(env, task, ["x", "x", "x"])
    assert env.expert_action() == "answer[London]" and env.step(env.expert_action()).success
    with pytest.raises(EpisodeOver):
        env.expert_action()


def test_the_contract_is_kept(data: Path) -> None:
    report = check("search", data=str(data))
    assert report.ok, report.problems
    assert report.episodes == 5


def test_a_search_that_fails_is_a_fault_and_not_an_empty_answer(data: Path, task: Task) -> None:
    options = {"data": str(data), "retriever": {"name": "http", "url": "http://127.0.0.1:9", "retries": 0}}
    with Pool("search", 1, options=options) as pool:
        pool.reset(0, task)
        result = pool.step(0, "search[x]")
    assert result.fault is not None and "Is it running" in result.message


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEnv]:
    folder = shared_folder("qa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield SearchEnv(data=folder)


def test_the_expert_wins_every_shared_question_of_every_set(shared: SearchEnv) -> None:
    for split in ("train", "valid", "test"):
        for task in shared.tasks(split):
            action = shared.expert(task)[-1]
            shared.reset(task)
            assert shared.step(action).success, task.id


def test_the_experts_searches_find_the_evidence_in_the_shared_corpus(shared: SearchEnv) -> None:
    tasks = [task for split in ("train", "test") for task in shared.tasks(split).panel(50)]
    found = 0
    for task in tasks:
        transitions = played(shared, task, shared.expert(task))
        assert transitions[-1].success
        found += bool({name for step in transitions for name in step.info.get("passages", ())} & set(task.data["evidence"]))
    assert found / len(tasks) > 0.8  # some titles have more passages than a search shows
