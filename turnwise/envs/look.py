"""A quick check of an environment before a long run: the checker's first rules, on two tasks."""

from __future__ import annotations

from collections.abc import Callable

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.blame import EnvironmentFault
from turnwise.envs.pool import EnvResult, Pool
from turnwise.envs.scripts import Play, Reset, play_all
from turnwise.util.seeds import derive

LOOKS, LOOK_TURNS = 6, 4


def first_look(pool: Pool, name: str, task_set: TaskSet, say: Callable[[str], None], cancelled: Callable[[], bool] = lambda: False) -> None:
    """A quick check before a long run: can the environment be started and played at all? It plays a few turns of two tasks. If both fail,
    it tries four more, so that a bad task is only reported, and a bad environment is an error."""
    places = list(dict.fromkeys(number * len(task_set) // LOOKS for number in range(LOOKS)))
    faults: list[tuple[str, EnvResult]] = []
    for pair in (places[:2], places[2:]):
        looks = list(play_all(pool, [_glance(task_set[place]) for place in pair], cancelled))
        faults += [look for look in looks if look is not None]
        if None in looks or cancelled():
            break
    else:
        where, result = faults[0]
        raise EnvironmentFault(
            f"environment {name!r} cannot be played. {where}: {_reason(result)}. More: turnwise envs --check {name}", result.own_lines
        )
    for where, result in faults:
        say(f"warning: {where}: {_reason(result)}")


def _glance(task: Task) -> Play[tuple[str, EnvResult] | None]:
    """A few turns of one task; where and how it failed, or None."""
    result, where = (yield Reset(task)), f"task {task.id!r}, reset"
    for turn in range(LOOK_TURNS):
        if result.over:
            break
        actions = result.observation.actions
        action = actions[derive(0, "first look", task.id, turn) % len(actions)] if actions else "look"
        result, where = (yield action), f"task {task.id!r}, turn {turn + 1}, action {action[:40]!r}"
    return None if result.fault is None else (where, result)


def _reason(result: EnvResult) -> str:
    """A description of a fault, including the time limit."""
    return result.message or result.traceback or result.stop_reason
