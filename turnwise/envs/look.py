"""A first look at an environment, before anything long begins: the checker's first rules, on two tasks, in a moment."""

from __future__ import annotations

from collections.abc import Callable

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.blame import EnvironmentFault
from turnwise.envs.pool import EnvResult, Pool
from turnwise.envs.scripts import Play, Reset, play_all
from turnwise.util.seeds import derive

LOOKS, LOOK_TURNS = 6, 4


def first_look(pool: Pool, name: str, task_set: TaskSet, say: Callable[[str], None], cancelled: Callable[[], bool] = lambda: False) -> None:
    """The first rules, in a moment, before anything long begins: can the environment be started and played at all? Two tasks, a few turns
    each. Where both fail, four more are tried, so that a bad task is told of and only a bad environment is an error."""
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
    """A few turns of one task; where and how it failed, None where it did not."""
    result, where = (yield Reset(task)), f"task {task.id!r}, reset"
    for turn in range(LOOK_TURNS):
        if result.over:
            break
        actions = result.observation.actions
        action = actions[derive(0, "first look", task.id, turn) % len(actions)] if actions else "look"
        result, where = (yield action), f"task {task.id!r}, turn {turn + 1}, action {action[:40]!r}"
    return None if result.fault is None else (where, result)


def _reason(result: EnvResult) -> str:
    """A fault in words; of a time limit, which."""
    return result.message or result.traceback or result.stop_reason
