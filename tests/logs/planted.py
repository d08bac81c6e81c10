"""Faults planted into attempts at real environments, and how often a diagnosis of the attempts names them.

    python tests/logs/planted.py --write          (tests/logs/planted.json; needs the data of WebShop in TURNWISE_DATA)

An expert that errs plays household, WebShop's small shop, numberline, Sokoban and search. A set has 8 to 64 attempts at each of 5 to 50
tasks, and one fault, which concerns a share of the attempts:

silent       from now on a tool does nothing: it answers "OK.", and the agent goes on as if it had worked
misleading   after its first call of a tool, the agent reads that the task is done. Some believe it, and do nothing useful any more
habit        some do the wrong thing whenever they are in one state

**A finding is the planted one** if at least half of the turns that it shows are planted: the silent call, the turn with the misleading
observation, the turn of the habit. Findings about what a call returned may point at the call before that turn.

**Sets without a fault.** An expert that errs loses because of what it does, so attempts without a planted fault do have deciding turns. A
set in which nothing decides has the same turns, but who won is drawn anew: shuffled among the attempts of a task, or a coin of the
task's. There every finding is false.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import search_data

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.logs.findings import Diagnosis, Finding, diagnose
from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import wilson

HERE = Path(__file__).parent
WORLDS = ("household", "webshop", "numberline", "sokoban", "search")
FAULTS = ("silent", "misleading", "habit")
DONE = "Task completed. Nothing more is to be done."
Planted = set[tuple[Any, int]]


@dataclass
class World:
    """An environment twice (as it is, and as the agent believes it to be), tasks, and what an agent does that has given up."""

    name: str
    env: Any
    believed: Any
    tasks: list[Task]
    idle: str
    plans: dict[str, int] = field(default_factory=dict)

    def tool(self, action: str) -> str:
        return action.split("[")[0].split(" ")[0]

    def limit(self, task: Task) -> int:
        if task.id not in self.plans:
            self.plans[task.id] = len(self.env.expert(task))
        return self.plans[task.id]


@cache
def world(name: str) -> World:
    options: dict[str, Any] = {"numberline": {"highest": 9}}.get(name, {})
    if name == "search":
        folder = tempfile.TemporaryDirectory()
        FOLDERS.append(folder)
        options = {"data": str(search_data.write_data(Path(folder.name)))}
    idle = {"household": "look", "webshop": "click[< prev]", "numberline": "wait", "sokoban": "wait", "search": "answer[nothing]"}[name]
    tasks = tw.tasks(name, split="train", n=50, **options)
    return World(name, tw.make(name, **options), tw.make(name, **options), list(tasks), idle)


FOLDERS: list[Any] = []


@dataclass(frozen=True)
class Fault:
    """kind, the tool or state where it is, the share of attempts that it concerns, and for a habit the wrong action."""

    kind: str
    where: str
    share: float


def play(
    world: World, task: Task, seed: int, noise: float, slack: int, fault: Fault | None, group: str, number: int
) -> tuple[Any, list[int]]:
    """One attempt, and the turns at which the fault showed."""
    rng = random.Random(f"{seed} {task.id} {number}")
    concerned = fault is not None and rng.random() < fault.share
    attempt = tw.Trajectory(group, f"{group}/{number}", task=task.id)
    seen = world.env.reset(task, seed)
    world.believed.reset(task, seed)
    planted: list[int] = []
    text, gave_up, misled, informed, thinks_done = seen.text, False, False, False, False
    actions = seen.actions
    for t in range(world.limit(task) + slack):
        advice = None if gave_up or thinks_done else world.believed.expert_action()
        if advice is None:
            action = world.idle
        elif fault is not None and fault.kind == "habit" and concerned and (wrong := habit(world, fault, text, actions, advice)):
            action = wrong
            planted.append(t)
        elif rng.random() < noise:
            action = erring(world, rng, actions)
        else:
            action = advice
            if world.name == "search" and action.startswith("answer") and not informed:
                action = world.idle
        turn = tw.Turn(None, observation=text, action=action, response=action)
        attempt.turns.append(turn)
        silent = fault is not None and fault.kind == "silent" and concerned and world.tool(action) == fault.where
        if silent:
            planted.append(t)
            text = "OK."
            thinks_done = thinks_done or world.believed.step(action).done
            turn.info = {"tool": world.tool(action), "result": text}
            continue
        step = world.env.step(action)
        if not thinks_done:
            thinks_done = world.believed.step(action).done
        informed |= action.startswith("search[")
        text, actions = step.observation.text, step.observation.actions
        if fault is not None and fault.kind == "misleading" and not misled and world.tool(action) == fault.where and not step.done:
            misled, gave_up, text = True, concerned, f"{text}\n{DONE}"
            planted.append(t + 1)
        turn.info = {"tool": world.tool(action), "result": text}
        turn.reward = float(step.success)
        if step.done:
            attempt.success = step.success
            break
    return attempt, [t for t in planted if t < len(attempt.turns)]


def erring(world: World, rng: random.Random, actions: Any) -> str:
    """Something that is possible, and may do harm."""
    if world.name == "search":
        return rng.choice(("search[London]", "answer[London]"))
    usable = [action for action in actions or () if "<" not in action or action.startswith("click")]
    return rng.choice(usable) if usable else world.idle


def habit(world: World, fault: Fault, text: str, actions: Any, advice: str) -> str | None:
    """The wrong action in the state of a habit; None elsewhere."""
    if world.name == "household":
        if f"The {fault.where} " in text and text.endswith("is closed."):
            return next(action for action in actions if action.startswith("go to") and fault.where not in action)
        return None
    if world.name == "webshop":
        return "click[buy now]" if "click[buy now]" in (actions or ()) and advice != "click[buy now]" else None
    if world.name == "search":
        return "answer[London]" if text.startswith("Question") else None
    if text != fault.where:
        return None
    opposite = {"+": "-", "-": "+", "up": "down", "down": "up", "left": "right", "right": "left"}
    return opposite[advice]


def where(world: World, kind: str, trials: list[Any], rng: random.Random) -> str | None:
    """A tool, or a state, that at least a fifth of the attempts meet; otherwise the most frequent, if there is one."""
    met: dict[str, int] = {}
    for attempt in trials:
        places: set[str] = set()
        for turn in attempt.turns[:-1]:
            if kind != "habit":
                places.add(world.tool(turn.action))
            elif world.name == "household":
                if turn.observation.endswith("is closed."):
                    places.add(turn.observation.split("The ")[1].split(" ")[0])
            else:
                places.add(turn.observation)
        for place in places - {"look", "wait"}:
            met[place] = met.get(place, 0) + 1
    frequent = sorted(place for place, times in met.items() if times >= len(trials) / 5)
    return rng.choice(frequent) if frequent else max(sorted(met), key=lambda place: met[place], default=None)


def played(seed: int, size: tuple[int, int] | None = None, name: str = "", kind: str = "") -> tuple[list[Any], Planted, dict[str, Any]]:
    """A set with a planted fault, the planted turns, and what it is."""
    rng = random.Random(seed)
    chosen = world(name or WORLDS[seed % len(WORLDS)])
    kind = kind or FAULTS[seed // len(WORLDS) % len(FAULTS)]
    attempts, count = size or (round(math.exp(rng.uniform(*map(math.log, (8, 64))))), round(math.exp(rng.uniform(*map(math.log, (5, 50))))))
    tasks = rng.sample(chosen.tasks, count)
    noise, slack, share = rng.uniform(0.05, 0.2), rng.randint(2, 4), rng.uniform(0.3, 0.6)
    trials = [play(chosen, task, seed, noise, slack, None, task.id, 10_000)[0] for task in tasks]
    if kind == "habit" and where(chosen, kind, trials, random.Random(seed)) is None:
        kind = "silent"  # no attempt comes to a state of this habit
    fault = None if kind == "none" else Fault(kind, where(chosen, kind, trials, rng) or "", share)
    trajectories, planted = [], set()
    for task in tasks:
        for number in range(attempts):
            attempt, turns = play(chosen, task, seed, noise, slack, fault, task.id, number)
            trajectories.append(attempt)
            planted |= {(attempt.id, t) for t in turns}
    facts = {"seed": seed, "environment": chosen.name, "fault": kind, "where": fault.where if fault else ""}
    return trajectories, planted, facts | {"attempts": attempts, "tasks": count}


def names_it(finding: Finding, planted: Planted) -> bool:
    """Whether at least half of the turns that a finding shows are planted."""
    later = finding.kind in ("result", "tool", "error")
    hits = [(place.trajectory, place.t) in planted or (later and (place.trajectory, place.t + 1) in planted) for place in finding.turns]
    return sum(hits) * 2 >= max(1, len(hits))


def rank_of(diagnosis: Diagnosis, planted: Planted) -> int | None:
    """The rank of the first finding that is the planted one, from 1."""
    return next((rank for rank, finding in enumerate(diagnosis.findings, 1) if names_it(finding, planted)), None)


def decided_by_nothing(trajectories: list[Any], seed: int, way: str) -> None:
    """Who won is drawn anew: shuffled within the task, or by a coin of the task's."""
    rng = random.Random(f"{seed} {way}")
    by_task: dict[Any, list[Any]] = {}
    for attempt in trajectories:
        by_task.setdefault(attempt.group, []).append(attempt)
    for attempts in by_task.values():
        chance = rng.random()
        outcomes = [attempt.success for attempt in attempts] if way == "shuffled" else [rng.random() < chance for _ in attempts]
        rng.shuffle(outcomes)
        for attempt, success in zip(attempts, outcomes, strict=True):
            attempt.success = success
            for turn in attempt.turns:
                turn.reward = 0.0
            attempt.turns[-1].reward = float(success)


def measured(seeds: range) -> Iterator[dict[str, Any]]:
    """One row for each set: the rank of the planted fault, and the findings where nothing decides."""
    for seed in seeds:
        trajectories, planted, facts = played(seed)
        diagnosis = diagnose(trajectories)
        row = facts | {"rank": rank_of(diagnosis, planted), "findings": len(diagnosis.findings)}
        row["won"] = round(diagnosis.won / diagnosis.attempts, 3)
        row["planted"] = len({trajectory for trajectory, _ in planted})
        for way in ("shuffled", "coin"):
            decided_by_nothing(trajectories, seed, way)
            row[way] = len(diagnose(trajectories).findings)
        yield row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def share(of: list[dict[str, Any]], hit: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        hits = sum(map(hit, of))
        interval = [round(x, 3) for x in wilson(hits, len(of))]
        return {"sets": len(of), "hits": hits, "share": round(hits / max(1, len(of)), 3), "interval": interval}

    def first_ten(row: dict[str, Any]) -> bool:
        return row["rank"] is not None and row["rank"] <= 10

    large = [row for row in rows if row["attempts"] * row["tasks"] >= 200]
    return {
        "first ten, 200 attempts and more": share(large, first_ten),
        "first, 200 attempts and more": share(large, lambda row: row["rank"] == 1),
        "first ten, fewer": share([row for row in rows if row not in large], first_ten),
        **{f"first ten, {name}": share([row for row in large if row["environment"] == name], first_ten) for name in WORLDS},
        **{f"first ten, {kind}": share([row for row in large if row["fault"] == kind], first_ten) for kind in FAULTS},
        **{f"false, {way}": share(rows, lambda row, way=way: row[way] > 0) for way in ("shuffled", "coin")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(700, 900), help="the first, and the one after the last")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for row in measured(range(*arguments.seeds)):
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    result = {"seeds": list(arguments.seeds), "summary": summary(rows), "sets": rows}
    if arguments.write:
        write_text_atomically(HERE / "planted.json", json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
