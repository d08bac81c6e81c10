"""One bad answer costs one attempt and names its task; an environment that gives nothing else is refused with the lines of its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from faulty_env import KINDS, SEEN, Faulty
from launching import python
from train_cases import TINY, Heard
from typer.testing import CliRunner

import turnwise as tw
from turnwise.agent import Agent, AgentSettings
from turnwise.cli.app import app
from turnwise.collect.faults import FaultWatch
from turnwise.collect.vocabulary import environment_texts
from turnwise.collect.warmstart import expert_trajectories
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.envs import Observation, Transition
from turnwise.envs.answers import BadAnswer, read_observation, read_transition
from turnwise.envs.blame import EnvironmentFault
from turnwise.envs.check import check
from turnwise.envs.pool import EnvResult, Fault, Pool
from turnwise.envs.registry import numbered
from turnwise.envs.scripts import Limits
from turnwise.learn.tiny import build_tokenizer
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.util.errors import Stopped

FAULTY, ADVISED = (f"{ROOT / 'tests' / 'support' / 'faulty_env.py'}:{name}" for name in ("Faulty", "Advised"))


def start(out: Path, reporter: Reporter | None = None, **changes: Any) -> Any:
    return tw.train(reporter=reporter, **{**TINY, "env.name": FAULTY, "out": str(out), "name": "try", **changes})


# What is accepted


@pytest.mark.parametrize("actions", [["left", "right"], np.array(["left", "right"]), (np.str_("left"), "right")])
def test_lists_and_arrays_of_actions_are_accepted(actions: Any) -> None:
    seen = read_observation(Observation("x", [], actions, np.int64(3)), object)  # type: ignore[arg-type]
    assert seen.actions == ("left", "right") and type(seen.actions[0]) is str and seen.images == ()


@pytest.mark.parametrize("reward", [1, True, np.float32(1.0), np.int64(1), np.array(1.0), np.bool_(True)])
def test_numbers_and_truth_values_of_any_kind_are_accepted(reward: Any) -> None:
    read = read_transition(Transition(SEEN, reward, np.bool_(True), 1, None), object)  # type: ignore[arg-type]
    assert (read.reward, read.done, read.success, read.info) == (1.0, True, True, {})
    assert type(read.reward) is float and type(read.done) is bool and type(read.success) is bool


# What is refused, and how


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nothing", "Faulty.step() returned None. It should: return Transition(Observation("),
        ("gym", "returned a tuple of 5, as Gymnasium's environments do. It should: return Transition("),
        ("old gym", "returned a tuple of 4, as Gymnasium's environments do"),
        ("observation", "returned an Observation. It should: return Transition("),
        ("nan", "the reward is nan (float), not a finite number"),
        ("none", "the reward is None, not a finite number"),
        ("text none", "the observation's text is None, not a str"),
        ("text bytes", "Decode it: text.decode()"),
        ("text", "the observation is 'pick left or right' (str). Give Observation(text)"),
        ("actions text", 'Give a tuple of texts, as in actions=("left", "right")'),
        ("actions set", "actions is a set, which has no order"),
        ("anchor", "anchor=str(anchor)"),
        ("image", "images=(image,)"),
    ],
)
def test_a_wrong_answer_is_told_in_words_that_say_what_to_return(kind: str, words: str) -> None:
    env = Faulty(kind)
    env.reset(numbered("x", "train")[0])
    with pytest.raises(BadAnswer) as caught:
        read_transition(env.step("left"), env)
    assert words in str(caught.value)
    assert 'faulty_env.py", line ' in caught.value.lines and "in step" in caught.value.lines


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_wrong_with_an_answer_is_a_fault_of_its_slot_and_found_by_the_checker(kind: str) -> None:
    with Pool(lambda: Faulty(kind, at=[0]), 2) as pool:
        pool.reset_all([(slot, task, 0) for slot, task in enumerate(numbered("x", "train")[:2])])
        bad, good = pool.step_all([(0, "left"), (1, "left")])
    assert bad.fault is Fault.ERROR and bad.message and good.fault is None
    assert check(lambda: Faulty(kind), episodes=2, turns=2).problems


def test_a_traceback_is_shortened_to_the_users_own_lines_in_a_worker_too() -> None:
    task = numbered("x", "train")[0]
    found = []
    for workers in (0, 1):
        with Pool(FAULTY, 1, workers=workers, options={"fault": "raise"}) as pool:
            pool.reset(0, task)
            found.append(pool.step(0, "left"))
    assert found[0].own_lines == found[1].own_lines and found[0].message == "KeyError: 'left'"
    lines = found[0].own_lines.splitlines()
    assert [line.strip() for line in lines[1::2]] == ["return self.wrong()", 'return self.counted["left"]']
    assert all("faulty_env.py" in line for line in lines[::2]) and "worker.py" in found[0].traceback


LOUD = """
from turnwise.envs import EpisodeOver, Observation, Transition


class Loud:
    max_turns = 2
    over = True

    def reset(self, task, seed=0):
        print("LOUD")
        self.over = False
        return Observation("x", actions=["a"])

    def step(self, action):
        if self.over:
            raise EpisodeOver("call reset first")
        print("LOUD")
        self.over = True
        return Transition(Observation("y", actions=["a"]), 1.0, True, True)
"""


@pytest.mark.parametrize(
    "typed", ["envs --check {}", "eval --agent random --n 2 --env {}", "eval --agent random --n 2 --env {} env.workers=1"]
)
def test_what_an_environment_prints_is_not_part_of_the_result(typed: str, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    done = python("-m", "turnwise", *typed.format("loud.py:Loud").split(), "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout) and "LOUD" in done.stderr


# Training


def test_an_environment_that_cannot_be_played_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        start(tmp_path, **{"env.options.fault": "raise"})
    assert "KeyError: 'left'" in caught.value.message and "cannot be played" in caught.value.message and "turn 1" in caught.value.message
    assert "faulty_env.py" in caught.value.lines and "turnwise/envs" not in caught.value.lines
    assert list(tmp_path.iterdir()) == []


LATE = {"env.options.fault": "raise", "env.options.turn": 6, "env.options.turns": 8, "env.max_turns": 8}


def test_a_run_in_which_all_attempts_fault_stops_with_the_lines_of_the_environment(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        start(tmp_path, **LATE)
    assert "8 of 8 attempts were ended by a fault of the environment" in caught.value.message and "after 5 turns" in caught.value.message
    assert 'return self.counted["left"]' in caught.value.lines and "--resume" in caught.value.lines
    with pytest.raises(EnvironmentFault, match="8 of 8"):  # nothing was mended: the same again, not an end as if all were well
        tw.train(resume=tmp_path / "try")


def test_a_bad_answer_costs_one_attempt_and_names_its_task(tmp_path: Path) -> None:
    at = [number for number in range(100) if number % 10 in (1, 3, 5)]
    heard = Heard()
    result = start(
        tmp_path,
        heard,
        **{
            "env.options.fault": "each",
            "env.options.at": at,
            "env.tasks": 40,
            "collect.groups": 40,
            "collect.group_size": 2,
            "iterations": 1,
        },
    )
    assert result.summary["finished"] and result.metrics[-1]["collect/faults"] == 2 * 15
    [note] = [text for text in heard.notes if "was ended (environment fault)" in text]
    assert "an attempt at task " in note and "Faulty.step()" in note
    [row, *_] = Run.open(result.folder).trajectories(1)
    assert row["turns"][0]["info"]["env"]["itself"] == {"itself": ["…"]}  # information that holds itself does not end the run either


def trajectory(task: str, stop: Stop = Stop.ENVIRONMENT_FAULT) -> Trajectory:
    return Trajectory(0, 0, task, stop=stop, stop_detail="it broke")


def test_one_bad_task_is_no_reason_to_stop_and_several_are() -> None:
    heard: list[str] = []
    watch = FaultWatch(heard.append, "mine", tasks=100)
    watch.on_fault(trajectory("7"), EnvResult(0, None, Fault.ERROR, "it broke", "", "my own line"))
    for _ in range(5):
        watch.require([trajectory("7")] * 8)
    watch.require([trajectory("7")] * 8 + [trajectory("8", Stop.DONE)] * 8)
    watch.require([trajectory("9")] * 4)
    with pytest.raises(EnvironmentFault, match=r"8 of 8 attempts .*\(mine\).*it broke\nmy own line"):
        watch.require([trajectory(str(number)) for number in range(8)])
    assert len(heard) == 1 and "task 7" in heard[0]


def test_a_batch_that_was_cancelled_says_nothing_about_the_environment() -> None:
    heard: list[str] = []
    watch = FaultWatch(heard.append, tasks=1)
    watch.require([trajectory(str(number), Stop.CANCELLED) for number in range(20)])
    assert heard == []
    watch.require([trajectory("7")] * 4)  # too few to stop for, as long as the cancelled ones do not count
    with pytest.raises(EnvironmentFault, match="4 of 4 attempts"):
        watch.require([trajectory("7")] * 4)


# The other commands


def test_evaluations_and_games_of_a_broken_environment_say_so() -> None:
    options = ["--option", "fault=nothing"]
    played = CliRunner().invoke(app, ["play", FAULTY, *options], input="left\n")
    assert isinstance(played.exception, EnvironmentFault) and "turn 1, action 'left': Faulty.step() returned None" in str(played.exception)
    watched = CliRunner().invoke(app, ["play", FAULTY, "--agent", "random", *options])
    assert isinstance(watched.exception, EnvironmentFault) and "Faulty.step() returned None" in str(watched.exception)
    measured = CliRunner().invoke(app, ["eval", "--agent", "random", "--env", FAULTY, "env.options.fault=nothing", "--n", "4"])
    assert isinstance(measured.exception, EnvironmentFault) and "4 of 4 attempts" in str(measured.exception)
    checked = CliRunner().invoke(app, ["envs", "--check", FAULTY, *options])
    assert checked.exit_code == 1 and "step() returns a Transition" in checked.output and "faulty_env.py" in checked.output


def test_a_few_faults_in_an_evaluation_are_told_of_and_count_as_failures(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    options = ["env.options.fault=nan", "env.options.at=[8, 18]", "--n", "1000", "--save", str(saved)]
    done = CliRunner().invoke(app, ["eval", "--agent", "random", "--env", FAULTY, *options])
    assert done.exit_code == 0 and "2 of 1000 attempts" in done.output
    assert sum(row["stop"] == "environment fault" for row in json.loads(saved.read_text())["outcomes"]) == 2


# Before training: the words of the tiny model and the examples of the warm start


def test_words_are_the_same_for_any_number_of_workers_and_survive_death_and_silence() -> None:
    options: dict[str, Any] = {"fault": "raise", "at": [2000]}
    alone, together = (list(environment_texts(ADVISED, n=12, options=options, limits=Limits(workers))) for workers in (0, 2))
    assert alone == together
    assert len(alone) > len(list(environment_texts(FAULTY, n=12, options=options))), "the expert plays, too"
    for fault in ("exit", "hang"):
        options = {"fault": fault, "at": [0]}
        found = list(environment_texts(ADVISED, n=3, turns=3, options=options, limits=Limits(1, timeout=2.0)))
        assert found.count("left") > 3 and SEEN.text in found  # the other tasks were played, by chance and by the expert


def test_collecting_words_stops_when_it_is_told_to() -> None:
    with pytest.raises(Stopped, match="nothing is kept"):
        list(environment_texts(FAULTY, n=50, limits=Limits(cancelled=lambda: True)))


def test_an_option_called_like_a_parameter_of_ours_reaches_the_environment() -> None:
    assert list(environment_texts(FAULTY, n=1, options={"turns": 1})).count(SEEN.text) == 2


@pytest.fixture(scope="module")
def agent() -> Agent:
    return Agent(build_tokenizer([SEEN.text, "left right"]), AgentSettings(prompt="action", max_prompt_tokens=200))


@pytest.mark.parametrize(("fault", "stop"), [("exit", Stop.ENVIRONMENT_FAULT), ("hang", Stop.ENVIRONMENT_TIMEOUT)])
def test_an_example_that_dies_or_hangs_costs_itself(agent: Agent, fault: str, stop: Stop) -> None:
    heard: list[str] = []
    found = expert_trajectories(
        ADVISED,
        {"fault": fault, "at": [1]},
        numbered("x", "train")[:4],
        agent,
        max_turns=2,
        limits=Limits(1, timeout=2.0),
        on_fault=lambda trajectory, result: heard.append(trajectory.task),
    )
    assert [trajectory.stop for trajectory in found] == [Stop.DONE, stop, Stop.DONE, Stop.DONE] and heard == ["1"]
    assert [len(trajectory.turns) for trajectory in found] == [2, 0, 2, 2]


def test_a_warm_start_tells_of_bad_examples_and_goes_on(tmp_path: Path) -> None:
    heard = Heard()
    changes = {"env.name": ADVISED, "env.options.fault": "nan", "env.options.at": [1], "sft.tasks": 8, "iterations": 1, "eval.n": 1}
    result = start(tmp_path, heard, **changes)
    assert result.metrics[0]["sft/turns"] == 14 and any("task 1 was ended (environment fault)" in text for text in heard.notes)
