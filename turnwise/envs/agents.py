"""Reference scores: random, scripted and expert agents on one fixed panel of each environment.

The *random* agent takes any of the listed actions; if none are listed, the environment's `random_action(number)` makes one. The *scripted*
agent is a simple rule of the environment (`scripted_action()`) that sees no more than an agent does, or its expert if that can be limited
to what was seen. The *expert* is the environment's expert (`expert_action()` or `expert(task)`) and may know everything. A trained agent
below the random one has learned nothing; one above the expert deserves a closer look.

These are plain loops over one environment at a time. They do not need the collector, so they also work for an environment that the
collector cannot play, and report what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.answers import read_observation, read_transition
from turnwise.envs.base import Observation
from turnwise.envs.blame import one_line
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.check import check
from turnwise.envs.registry import close, describe, make, spec, tasks, turn_limit
from turnwise.util.seeds import derive

PANEL, SEED, TURNS = 100, 0, 50
AGENTS = ("random", "scripted", "expert")

Score = dict[str, float]
Choose = Callable[[Observation, int], str | None]  # from an observation and the number of its turn


def compare(name: str, n: int = PANEL, **options: Any) -> dict[str, Any]:
    """The agents of one environment on `n` tasks of its validation split (all, if there are fewer), as plain JSON values."""
    report = check(name, **options)
    split, panel = _panel(name, n, options)
    env = make(name, **options)
    try:
        limit = turn_limit(name, env) or TURNS
        scores = {agent: _score(env, agent, panel, limit) for agent in AGENTS}
    finally:
        close(env)
    if scores["scripted"] is None:
        scores["scripted"] = _modest_expert(name, panel, limit, options)
    return {
        "name": name,
        "contract": [problem.rule for problem in report.problems],
        "split": split,
        "tasks": len(panel),
        "panel_hash": panel.hash,
        "max_turns": limit,
        "agents": scores,
    }


def compare_all(n: int = PANEL, tell: Callable[[str], None] = lambda name: None) -> Iterator[dict[str, Any]]:
    """The same for every environment that can run here; for the others, what they are missing."""
    for row in describe():
        tell(row["name"])
        missing = [need["what"] for need in row["needs"] if not need["present"]]
        if not row["ready"]:
            yield {"name": row["name"], "missing": missing or [row["error"]]}
            continue
        try:
            yield compare(row["name"], n)
        except Exception as error:  # one that cannot be played must not hide the others
            yield {"name": row["name"], "missing": [one_line(error)], "contract": ["it can be played"]}


def _panel(name: str, n: int, options: dict[str, Any]) -> tuple[str, TaskSet]:
    splits = next(row["splits"] for row in describe(name)) or {"valid": None}
    split = min(splits, key=lambda split: (not split.startswith("valid"), not split.startswith(("dev", "test")), split))
    task_set = tasks(name, split, **options)
    return split, task_set.panel(min(n, len(task_set.distinct())), SEED)


def _modest_expert(name: str, panel: TaskSet, limit: int, options: dict[str, Any]) -> Score | None:
    """The expert limited to what an agent has seen; None if the environment has no such option."""
    factory = spec(name).load()
    if "expert_knows" not in signature(factory).parameters:
        return None
    env = make(name, **{**options, "expert_knows": "seen"})
    try:
        return _score(env, "expert", panel, limit)
    finally:
        close(env)


def _score(env: Any, agent: str, panel: TaskSet, limit: int) -> Score | None:
    """The means of a panel; None if the environment has no such agent."""
    attempts = []
    for task in panel:
        if (attempt := _attempt(env, agent, task, limit)) is None:
            return None
        attempts.append(attempt)
    success, reward, turns = (sum(values) / len(attempts) for values in zip(*attempts, strict=True))
    return {"success": round(success, 4), "reward": round(reward, 4), "turns": round(turns, 2)}


def _attempt(env: Any, agent: str, task: Task, limit: int) -> tuple[bool, float, int] | None:
    """Success, reward and turns of one attempt."""
    observation = read_observation(env.reset(task, derive(SEED, "agents", task.id)), env)
    if (choose := _chooser(Capabilities(env), agent, task, observation)) is None:
        return None
    reward = 0.0
    for turn in range(limit):
        if (action := choose(observation, turn)) is None:
            return False, reward, turn
        transition = read_transition(env.step(str(action)), env)
        observation, reward = transition.observation, reward + transition.reward
        if transition.done:
            return transition.success, reward, turn + 1
    return False, reward, limit


def _chooser(can: Capabilities, agent: str, task: Task, first: Observation) -> Choose | None:
    if agent == "random":

        def chance(turn: int) -> int:
            return derive(SEED, "random agent", task.id, turn)

        if first.actions is not None:
            return lambda seen, turn: seen.actions[chance(turn) % len(seen.actions)] if seen.actions else None
        random_action = can.random_action
        return None if random_action is None else lambda seen, turn: random_action(chance(turn))
    advise = can.scripted_action if agent == "scripted" else can.expert_action
    if advise is not None:
        return lambda seen, turn: advise()
    if agent == "scripted" or can.expert is None:
        return None
    actions = can.expert(task)
    return lambda seen, turn: actions[turn] if turn < len(actions) else None
