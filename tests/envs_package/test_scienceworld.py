"""ScienceWorld on the real simulator: splits, solutions, killed processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from needing import ready
from processes import gone, kill, orphans

from turnwise.data.tasks import Task
from turnwise_envs.scienceworld.env import ScienceWorldEnv
from turnwise_envs.shared.java import JavaLost

ready("scienceworld")

SHORT = ["find-non-living-thing", "lifespan-shortest-lived"]


@pytest.fixture(scope="module")
def kept() -> Iterator[ScienceWorldEnv]:
    made = ScienceWorldEnv()
    yield made
    made.close()


def task(kind: str, number: int, split: str = "train") -> Task:
    return Task(f"{kind}/{number}", split, {"kind": kind, "variation": number})


def test_the_splits_are_the_package_s_own(kept: ScienceWorldEnv) -> None:
    sizes = {split: len(kept.tasks(split)) for split in ("train", "valid", "dev", "test")}
    assert len(kept.kinds) == 30 and sizes == {"train": 3592, "valid": 1796, "dev": 1796, "test": 1819}
    assert not kept.tasks("train").overlap(kept.tasks("valid")) and not kept.tasks("valid").overlap(kept.tasks("test"))
    assert len({wanted.data["kind"] for wanted in kept.tasks("valid", n=28)}) > 25


def test_the_package_s_solutions_win_and_leave_the_attempt_as_it_was(kept: ScienceWorldEnv) -> None:
    for kind in SHORT:
        wanted = task(kind, 0)
        kept.reset(wanted)
        first = kept.step(kept.expert(wanted)[0])
        kept.expert(task(kind, 1))
        ends = [first, *(kept.step(action) for action in kept.expert(wanted)[1:])]
        assert ends[-1].success and ends[-1].done


def test_a_killed_process_ends_one_attempt_with_a_reason_and_the_others_go_on() -> None:
    first, second = (ScienceWorldEnv(SHORT, list_actions=False, heap_mb=700) for _ in range(2))
    wanted = task(SHORT[0], 0)
    plan = first.expert(wanted)
    first.reset(wanted)
    second.reset(wanted)
    second.step(plan[0])
    assert first._sim is not None
    old = first._sim.process_id
    kill(old)
    with pytest.raises(JavaLost, match=r"Java process died \(killed by signal 9\)"):
        first.step(plan[0])
    ends: list[Any] = [second.step(action) for action in plan[1:]]
    assert ends[-1].success and gone(old)
    first.reset(wanted)
    assert first.step(plan[0]).info["moves"] == 1
    first.close()
    second.close()


def test_no_java_process_outlives_a_killed_python_process() -> None:
    assert gone(*orphans("scienceworld", "env._sim.process_id", tasks=["boil"], list_actions=False))


def test_the_rule_plays_what_is_listed_and_focuses_on_nothing_that_the_task_does_not_name(kept: ScienceWorldEnv) -> None:
    seen = kept.reset(task("boil", 0))
    goal = seen.text.split("\n")[0].lower()
    for _ in range(8):
        action = kept.scripted_action()
        assert action in (seen.actions or ()) and (not action.startswith("focus on ") or action[9:] in goal)
        seen = kept.step(action).observation
