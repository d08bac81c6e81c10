"""Multi-turn environments of the package verifiers, played by an agent instead of a model."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import turnwise as tw
from turnwise.envs.pool import Fault, Pool
from turnwise.util.errors import TurnwiseError

LETTERS = f"{Path(__file__).with_name('verifiers_letters.py')}:load_environment"


def test_without_a_name_the_option_is_asked_for() -> None:
    with pytest.raises(TurnwiseError, match="give the option environment") as told:
        tw.make("verifiers")
    assert "\n" not in str(told.value)


pytest.importorskip("verifiers", reason="needs verifiers: pip install verifiers")


def test_an_attempt_ends_with_the_reward_of_the_rubric() -> None:
    env = tw.make("verifiers", environment=LETTERS)
    task = env.tasks("train")[1]
    first = env.reset(task)
    assert first.text == "Answer with one word.\n\nA fruit of 5 letters?" and env.max_turns == 4
    wrong = env.step("berry")
    assert not wrong.done and wrong.observation.text.startswith("No. It begins with g.")
    right = env.step("grape")
    assert right.done and right.success and right.reward == 1.0 and right.observation.text == "Right."
    assert right.info["measures"]["turns_used"] == 2.0 and right.info["stop"] == "has_final_env_response"
    env.close()


def test_its_own_turn_limit_ends_an_attempt_and_it_is_scored() -> None:
    env = tw.make("verifiers", environment=LETTERS, max_turns=3, success="info.turns_used")
    env.reset(env.tasks("train")[0])
    ends = [env.step("no") for _ in range(3)]
    assert [end.done for end in ends] == [False, False, True] and ends[2].reward == 0.0
    assert ends[2].success and ends[2].info["stop"] == "max_turns_reached"
    env.close()


def test_splits_come_from_the_two_datasets_or_from_one() -> None:
    one = {split: [task.id for task in tw.tasks("verifiers", split, environment=LETTERS)] for split in ("train", "valid")}
    assert len(one["train"]) == 11 and one["valid"] == ["train 9"]
    two = {split: tw.tasks("verifiers", split, environment=LETTERS, arguments={"held_out": True}) for split in ("train", "valid")}
    assert (len(two["train"]), len(two["valid"])) == (12, 2) and two["valid"][0].id == "eval 0"


def test_a_failure_ends_the_attempt_and_the_next_one_is_played() -> None:
    with Pool("verifiers", 1, options={"environment": LETTERS, "timeout": 1.0}) as pool:
        task = tw.tasks("verifiers", "train", environment=LETTERS)[0]
        for word, reason in (("boom", "ZeroDivisionError: boom"), ("fail", "the word list is gone"), ("hang", "no answer within 1 s")):
            assert pool.reset(0, task, 0).fault is None
            result = pool.step(0, word)
            assert result.fault is Fault.ERROR and reason in result.message
        pool.reset(0, task, 0)
        assert pool.step(0, "apple").transition.success


def test_closing_ends_the_thread() -> None:
    before = set(threading.enumerate())
    env = tw.make("verifiers", environment=LETTERS)
    env.reset(env.tasks("train")[0])
    assert len(set(threading.enumerate()) - before) == 1
    env.close()
    assert set(threading.enumerate()) <= before
