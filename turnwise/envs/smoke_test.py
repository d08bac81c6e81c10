"""A smoke test of an environment before a long run: the checker's first rules, on two tasks."""

from __future__ import annotations

from collections.abc import Callable

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.blame import EnvironmentFault
from turnwise.envs.pool import EnvResult, Pool
from turnwise.envs.scripts import Play, Reset, play_all
from turnwise.util.seeds import derive

SMOKE_TASKS, SMOKE_TURNS = 6, 4


def smoke_test(pool: Pool, name: str, task_set: TaskSet, say: Callable[[str], None], cancelled: Callable[[], bool] = lambda: False) -> None:
    """A quick check before a long run: can the environment be started and played at all? It plays a few turns of two tasks. If both fail,
    it tries four more, so that a bad task is only reported, and a bad environment is an error."""
    indices = list(dict.fromkeys(number * len(task_set) // SMOKE_TASKS for number in range(SMOKE_TASKS)))
    faults: list[tuple[str, EnvResult]] = []
    for some in (indices[:2], indices[2:]):
        outcomes = list(play_all(pool, [_play_shortly(task_set[index]) for index in some], cancelled))
        faults += [fault for fault in outcomes if fault is not None]
        if None in outcomes or cancelled():
            break
    else:
        where, result = faults[0]
        raise EnvironmentFault(
            f"environment {name!r} cannot be played. {where}: {_reason(result)}. More: turnwise envs --check {name}", result.own_lines
        )
    for where, result in faults:
        say(f"warning: {where}: {_reason(result)}")


def _play_shortly(task: Task) -> Play[tuple[str, EnvResult] | None]:
    """A few turns of one task; where and how it failed, or None."""
    result, where = (yield Reset(task)), f"task {task.id!r}, reset"
    for turn in range(SMOKE_TURNS):
        if result.over:
            break
        actions = result.observation.actions
        action = actions[derive(0, "first look", task.id, turn) % len(actions)] if actions else "look"
        result, where = (yield action), f"task {task.id!r}, turn {turn + 1}, action {action[:40]!r}"
    return None if result.fault is None else (where, result)


def _reason(result: EnvResult) -> str:
    """A description of a fault, including the time limit."""
    return result.message or result.traceback or result.stop_reason
