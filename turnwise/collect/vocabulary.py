"""The words of an environment, which the tokenizer of a tiny model is made from: it is played at random and by its expert."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.collect.hooks import Hooks
from turnwise.collect.players import ASK_EXPERT, NO_EXPERT, Advised
from turnwise.data.tasks import Task
from turnwise.envs.pool import EnvResult
from turnwise.envs.registry import portable, tasks
from turnwise.envs.scripts import Limits, Play, Reset, play_all
from turnwise.util.errors import Stopped


def environment_texts(
    env: str,
    n: int = 200,
    split: str = "train",
    turns: int = 30,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    hooks: Hooks | None = None,
) -> Iterator[str]:
    """The texts of an environment: the observations and admissible actions of random play, and of the expert if there is one, over `n`
    tasks of a split (all if there are fewer), evenly spread over it. The same on every machine, with any number of workers."""
    limits, options, hooks = limits or Limits(), options or {}, hooks or Hooks()
    all_tasks = tasks(env, split, **options)
    count = min(n, len(all_tasks))
    hooks.on_phase(f"collecting the vocabulary of {env!r}", count, "tasks")
    chosen = (all_tasks[number * len(all_tasks) // count] for number in range(count))
    nobody: set[str] = set()  # "expert", once it is known that there is none
    with limits.pool(Advised(portable(env, options), plan_first=True, required=False), count) as pool:
        plays = (_play(task, turns, random.Random(f"texts {seed} {task.id}"), nobody) for task in chosen)
        for texts in play_all(pool, plays, limits.cancelled):
            hooks.on_step("tasks")
            yield from texts
    if limits.cancelled():
        raise Stopped(
            "stopped while the words of the tiny model were collected: nothing is kept"
        )  # a part of them would give another model


def _play(task: Task, turns: int, chance: random.Random, nobody: set[str]) -> Play[list[str]]:
    """The words of one task, played at random and, if there is an expert, by the expert. A failing environment is reported by the run;
    its words so far still count."""
    texts: list[str] = []
    for player in ("chance", "expert"):
        if player in nobody:
            break
        result = yield Reset(task)
        words = _texts_of(result)
        for _ in range(turns):
            if result.over:
                break
            actions = result.observation.actions
            if player == "chance" and not actions:
                break
            result = yield ASK_EXPERT if player == "expert" else chance.choice(actions or ())
            if result.message.startswith(NO_EXPERT):
                nobody.add("expert")
                words = []
            words += _texts_of(result)
        texts += words
        if result.fault is not None:
            break
    return texts


def _texts_of(result: EnvResult) -> list[str]:
    """The words of an answer: after a step, the action comes first."""
    if result.transition is None:
        return []
    seen, info = result.observation, result.transition.info
    return [*([str(info["action"])] if "action" in info else []), seen.text, *(seen.actions or ())]
