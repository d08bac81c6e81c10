"""The registry and the checker: environments by name, from files and from other packages, and the rules they must keep."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import turnwise.envs.registry as registry
from turnwise.cli.app import app
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs import EpisodeOver, Need, Observation, Transition, describe, make, names, register, tasks
from turnwise.envs.check import check
from turnwise.util.errors import TurnwiseError

ROOT = Path(__file__).resolve().parents[2]
TROUBLED = f"{ROOT / 'tests' / 'support' / 'troubled_env.py'}:Troubled"


class Counter:
    """Count to the task's number."""

    max_turns = 7

    def __init__(self, step_size: int = 1, *, verbose: bool = False):
        self.step_size, self.verbose, self.left = step_size, verbose, -1

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self.left = 1 + task.data["number"] % 5
        return Observation(f"{self.left} to go", actions=("count",))

    def step(self, action: str) -> Transition:
        if self.left <= 0:
            raise EpisodeOver("reset first")
        self.left -= self.step_size if action == "count" else 0
        return Transition(Observation(f"{self.left} to go", actions=("count",)), 1.0, self.left <= 0, self.left <= 0)


@pytest.fixture
def registers() -> Iterator[Callable[..., str]]:
    """Registers environments under names that are forgotten after the test."""
    made: list[str] = []

    def registered(name: str, factory: Any, **described: Any) -> str:
        register(name, factory, **described)
        made.append(name)
        return name

    yield registered
    for name in made:
        registry.unregister(name)


@pytest.fixture
def counter(registers: Callable[..., str]) -> str:
    return registers("counter-for-tests", Counter)


@pytest.fixture
def rediscover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.setattr(registry, "_broken", {})
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))


def test_a_registered_environment_is_made_by_name_with_options(counter: str) -> None:
    assert counter in names()
    env = make(counter, step_size=3)
    assert isinstance(env, Counter)
    assert env.step_size == 3


def test_register_as_a_decorator_gives_the_class_back() -> None:
    @register("decorated-for-tests", summary="a test")
    class Decorated(Counter):
        pass

    try:
        assert isinstance(make("decorated-for-tests"), Decorated)
        assert describe("decorated-for-tests")[0]["summary"] == "a test"
    finally:
        registry.unregister("decorated-for-tests")


def test_an_unknown_name_or_option_names_the_nearest_known_one(counter: str) -> None:
    with pytest.raises(TurnwiseError, match="Did you mean 'counter-for-tests'"):
        make("counter-for-test")
    with pytest.raises(TurnwiseError, match=r"'stepsize'.*Did you mean 'step_size'"):
        make(counter, stepsize=2)


def test_a_missing_required_option_is_named(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text(
        "class Needy:\n    def __init__(self, level): pass\n    def reset(self, t, s): ...\n    def step(self, a): ...\n"
    )
    with pytest.raises(TurnwiseError, match="needs the option 'level'"):
        make(f"{tmp_path / 'needy.py'}:Needy")


def test_two_environments_cannot_share_a_name(counter: str) -> None:
    with pytest.raises(TurnwiseError, match="two environments are called"):
        register(counter, int)
    register(counter, Counter)


def test_an_object_without_reset_and_step_is_refused(registers: Callable[..., str]) -> None:
    with pytest.raises(TurnwiseError, match=r"has no reset\(\)"):
        make(registers("not-an-environment", dict))


def test_a_file_of_ones_own_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "beside_for_tests.py").write_text("WORD = 'hello'\n")
    file = tmp_path / "own.py"
    body = "class {0}:\n    word = WORD\n    def reset(self, task, seed=0): ...\n    def step(self, action): ...\n"
    file.write_text("from beside_for_tests import WORD\n" + body.format("Own"))
    assert make(f"{file}:Own").word == "hello"  # type: ignore[attr-defined]
    assert make(str(file)).word == "hello"  # type: ignore[attr-defined]
    with pytest.raises(TurnwiseError, match="Did you mean 'Own'"):
        make(f"{file}:Owm")
    with pytest.raises(TurnwiseError, match="there is no file"):
        make(f"{tmp_path / 'absent.py'}:Own")
    file.write_text("WORD = 'changed since'\n" + body.format("Own") + body.format("Other"))
    assert make(f"{file}:Own").word == "changed since"  # type: ignore[attr-defined]
    with pytest.raises(TurnwiseError, match="several environments"):
        make(str(file))
    file.write_text("class Own:\n    def reset(\n")
    with pytest.raises(TurnwiseError, match=r"own\.py, line \d"):
        make(f"{file}:Own")


def test_a_file_of_ones_own_that_changes_by_one_digit_within_a_second_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "own.py"
    for reward in (1, 2):
        file.write_text(f"class Own:\n    reward = {reward}\n    def reset(self, task, seed=0): ...\n    def step(self, action): ...\n")
        os.utime(file, ns=(10**18 + reward, 10**18 + reward))
        assert make(f"{file}:Own").reward == reward  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == [file], "nothing is left beside it"


def test_other_packages_announce_environments_by_entry_points(monkeypatch: pytest.MonkeyPatch, rediscover: None) -> None:
    points = [
        EntryPoint("from-a-package", "turnwise.envs.base:Env", registry.ENTRY_POINTS),
        EntryPoint("broken-package", "no_such_package:Env", registry.ENTRY_POINTS),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point for point in points if point.group == group])
    assert {"from-a-package", "broken-package"} <= set(names())
    rows = {row["name"]: row for row in describe()}
    assert not rows["broken-package"]["ready"]
    assert "no_such_package" in rows["broken-package"]["error"]


def test_a_folder_that_cannot_be_imported_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, rediscover: None, counter: str) -> None:
    class Module:
        name, ispkg = "no_such_folder", True

    monkeypatch.setattr(registry, "iter_modules", lambda paths: [Module])
    assert counter in names()
    rows = {row["name"]: row for row in describe()}
    assert "ModuleNotFoundError" in rows["no_such_folder"]["error"]
    with pytest.raises(TurnwiseError, match="cannot be imported"):
        make("no_such_folder")


def test_numbered_tasks_are_split_by_their_last_digit_and_never_overlap(counter: str) -> None:
    sets = {split: tasks(counter, split, n=3000) for split in ("train", "valid", "test")}
    numbers = {split: {task.data["number"] for task in found} for split, found in sets.items()}
    assert all(len(found) == 3000 for found in numbers.values())
    assert [task.id for task in sets["train"][:10]] == ["0", "1", "2", "3", "4", "5", "6", "7", "10", "11"]
    assert [task.id for task in sets["valid"][:3]] == ["8", "18", "28"]
    assert [task.id for task in sets["test"][:3]] == ["9", "19", "29"]
    assert not sets["train"].overlap(sets["valid"])
    assert not sets["train"].overlap(sets["test"])
    assert not sets["valid"].overlap(sets["test"])
    assert {split: len(tasks(counter, split)) for split in sets} == {"train": 8000, "valid": 1000, "test": 1000}
    with pytest.raises(TurnwiseError, match="Did you mean 'valid'"):
        tasks(counter, "validation")
    with pytest.raises(TurnwiseError, match="n must be"):
        tasks(counter, n=-1)


class Listed(Counter):
    """Has a list of three tasks and closes itself."""

    closed = 0

    def tasks(self, split: str) -> TaskSet:
        return TaskSet([Task(f"{split} {i}", split, {"number": i}) for i in range(3)], split)

    def close(self) -> None:
        Listed.closed += 1


def test_an_environment_lists_its_own_tasks_and_is_closed_again(registers: Callable[..., str]) -> None:
    name = registers("listed-for-tests", Listed)
    Listed.closed = 0
    assert [task.id for task in tasks(name, "valid", n=2)] == ["valid 0", "valid 1"]
    assert Listed.closed == 1
    with pytest.raises(TurnwiseError, match="has 3 tasks in split 'train', fewer than n=4"):
        tasks(name, n=4)


def test_the_listing_imports_no_environment_that_was_described(registers: Callable[..., str]) -> None:
    name = registers("described-for-tests", "no_such_package:Env", summary="a test", splits={"train": 5}, max_turns=3)
    row = describe(name)[0]
    assert row["ready"]
    assert row["splits"] == {"train": 5}


def test_the_listing_names_what_is_missing_and_does_not_look_further(
    registers: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> dict[str, int | None]:
        raise AssertionError("must not be asked while the data is absent")

    line = "pip install -e '.[an-extra-with-a-rather-long-name-for-tests]'"
    needs = [Need("levels", lambda: False, line), Need("luck", lambda: 1 / 0 > 0)]
    name = registers("needy-for-tests", "no_such_package:Env", splits=look, needs=needs)
    row = describe(name)[0]
    assert not row["ready"]
    assert [need["present"] for need in row["needs"]] == [False, False]
    monkeypatch.setenv("COLUMNS", "60")
    shown = CliRunner().invoke(app, ["envs", name])
    assert "levels: missing" in shown.output
    assert line in shown.output, "a line to install something is whole in a narrow terminal"


def test_a_registered_turn_limit_counts_where_the_environment_has_none(registers: Callable[..., str]) -> None:
    name = registers("limited-for-tests", Listed, max_turns=99)
    assert registry.turn_limit(name, object()) == 99
    assert registry.turn_limit(name, Listed()) == 7


def test_the_listing_is_json_for_machines(counter: str) -> None:
    shown = CliRunner().invoke(app, ["envs", "--json"])
    row = next(row for row in json.loads(shown.output) if row["name"] == counter)
    assert row["splits"] == {"train": None, "valid": None, "test": None}
    assert row["max_turns"] == 7
    assert row["summary"] == "Count to the task's number."
    assert row["ready"]


# The checker


def test_a_sound_environment_keeps_the_contract(counter: str) -> None:
    report = check(counter)
    assert report.problems == []
    assert report.episodes == 5
    assert check(Counter).ok
    assert check(TROUBLED, start=5).ok


class Lenient(Counter):
    def step(self, action: str) -> Transition:
        self.left = max(self.left, 1)
        return super().step(action)


class GlobalChance(Counter):
    def reset(self, task: Task, seed: int = 0) -> Observation:
        super().reset(task, seed)
        return Observation(f"{random.random()}")


class Shared(Counter):
    count: int = 0

    def reset(self, task: Task, seed: int = 0) -> Observation:
        Shared.count = 0
        return super().reset(task, seed)

    def step(self, action: str) -> Transition:
        transition = super().step(action)
        Shared.count += 1
        return Transition(Observation(f"{Shared.count}"), done=transition.done)


class NotFinite(Counter):
    def step(self, action: str) -> Transition:
        return Transition(super().step(action).observation, reward=float("nan"))


class NotText(Counter):
    def reset(self, task: Task, seed: int = 0) -> Observation:
        super().reset(task, seed)
        return Observation(b"bytes")  # type: ignore[arg-type]


class Fragile(Counter):
    def step(self, action: str) -> Transition:
        {"count": 1}[action]
        return super().step(action)


class Tuples(Counter):
    def step(self, action: str) -> Transition:
        return super().step(action).observation, 0.0, False  # type: ignore[return-value]


class Leaky(Counter):
    def tasks(self, split: str) -> TaskSet:
        return TaskSet([Task(str(i), split, {"number": i}) for i in range(3)])


class Opaque(Counter):
    def tasks(self, split: str) -> TaskSet:
        return TaskSet([Task(f"{split} {i}", split, {"number": i, "level": object()}) for i in range(3)])


class Restless(Counter):
    calls = 0

    def tasks(self, split: str) -> TaskSet:
        Restless.calls += 1
        return TaskSet([Task(f"{split} {Restless.calls}", split, {"number": 1})])


class Overconfident(Counter):
    def expert(self, task: Task) -> list[str]:
        return ["think"]


class Forgetful(Counter):
    def reset(self, task: Task, seed: int = 0) -> Observation:
        return super().reset(Task("x", data={"number": id(self) % 977 + random.randrange(900)}), seed)


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        (Lenient, "step() after the end raises EpisodeOver"),
        (Lenient, "step() before reset() raises EpisodeOver"),
        (GlobalChance, "the same task, seed and actions give the same answers"),
        (Forgetful, "the same task, seed and actions give the same answers"),
        (Shared, "environments do not influence each other"),
        (NotFinite, "the reward is a finite number"),
        (NotText, "the observation's text is a str"),
        (Fragile, "step(any text) does not raise"),
        (Tuples, "step() returns a Transition"),
        (Leaky, "splits have no task in common"),
        (Opaque, "task data is plain JSON"),
        (Restless, "tasks(split) gives the same tasks every time"),
        (Overconfident, "expert(task) is a list of actions that wins"),
        (dict, "the environment has reset()"),
    ],
)
def test_the_checker_finds_a_broken_rule(env: Any, rule: str) -> None:
    assert rule in [problem.rule for problem in check(env).problems]


def test_the_checker_leaves_the_global_generator_as_it_was() -> None:
    state = random.getstate()
    check(GlobalChance)
    assert random.getstate() == state


def test_the_checker_finds_answers_that_depend_on_the_process(tmp_path: Path) -> None:
    file = tmp_path / "hashed.py"
    file.write_text(
        "from turnwise.envs import EpisodeOver, Observation, Transition\n"
        "class Hashed:\n"
        "    ready = False\n"
        "    def reset(self, task, seed=0):\n"
        "        self.ready = True\n"
        "        return Observation(str({f'thing {i}' for i in range(20)}))\n"
        "    def step(self, action):\n"
        "        if not self.ready: raise EpisodeOver('reset first')\n"
        "        return Transition(Observation('hm'))\n"
    )
    report = check(str(file))
    assert [problem.rule for problem in report.problems] == ["another process gives the same answers"]
    assert any("max_turns" in note for note in report.notes)


def test_the_checkers_exit_code_and_words(counter: str, registers: Callable[..., str]) -> None:
    good = CliRunner().invoke(app, ["envs", "--check", counter])
    assert good.exit_code == 0
    assert "keeps the contract" in good.output
    name = registers("bad-for-tests", Lenient)
    bad = CliRunner().invoke(app, ["envs", "--check", name])
    assert bad.exit_code == 1
    assert "raises EpisodeOver" in bad.output
    machine = CliRunner().invoke(app, ["envs", "--check", name, "--json"])
    assert json.loads(machine.output)["ok"] is False
