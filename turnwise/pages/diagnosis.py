"""A diagnosis of logs as pages: the attempts become a folder like that of a run, so that the same pages show them, and the findings take
the place of its overview. `view_diagnosis` serves all attempts on this machine; `write_page` puts the findings, and the tasks that they
refer to, into one HTML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from turnwise.data.batch import Batch
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.data.tasks import task_line
from turnwise.logs.columns import turns_of
from turnwise.logs.findings import Diagnosis, Place
from turnwise.pages.answers import Answers
from turnwise.pages.packed import shortened
from turnwise.pages.report import Collected, html
from turnwise.pages.run_list import DIAGNOSIS, RunList, readable
from turnwise.pages.server import serve
from turnwise.runs.folder import CONFIG, SUMMARY, Run
from turnwise.util.files import write_text_atomically
from turnwise.util.jsonable import json_value

LONGEST = 2_000  # characters of each text of a turn
MOST_TURNS = 10_000  # turns whose texts go into a file
RECIPE = 'name = "diagnosis"\n\n[env]\nname = "logs"\n\n[credit]\nname = "gigpo"\n'
PLACES = {"findings": "turns", "waste": "examples", "forks": "turns"}  # where each part of a diagnosis has turns


def save(diagnosis: Diagnosis, trajectories: Sequence[Trajectory], folder: Path) -> None:
    """Write a folder that `turnwise view` shows. Texts are bounded; tokens and pictures are left out. An attempt that won, as the diagnosis
    has it, is shown as solved; where all returns are alike, winning is the reward of its last turn."""
    group_of = {trajectory.id: readable(trajectory.group) for trajectory in trajectories}
    facts = diagnosis.to_json()
    for part, places in PLACES.items():
        for each in facts[part]:
            known = [place for place in each[places] if place["trajectory"] in group_of]
            each[places] = [
                {"id": readable(place["trajectory"]), "group": group_of[place["trajectory"]], "t": place["t"]} for place in known
            ]
    turns = turns_of(trajectories)
    won = {trajectory.id: bool(win) for trajectory, win in zip(turns.trajectories, turns.won, strict=True)}
    alike = len({trajectory.reward for trajectory in turns.trajectories}) < 2
    write_text_atomically(folder / CONFIG, RECIPE)
    run = Run(folder)
    run.write_facts(SUMMARY, {"finished": True})
    run.write_facts(DIAGNOSIS, json_value(facts))
    run.save_batch(0, Batch.of(_shown(each, won.get(each.id, each.success), alike) for each in trajectories), keep=None, tokens=False)


def _shown(trajectory: Trajectory, won: bool, alike: bool) -> Trajectory:
    turns = [
        Turn(
            anchor=turn.observation if turn.anchor is None else turn.anchor,
            reward=0.0 if alike else turn.reward,
            valid=turn.valid,
            observation=shortened(turn.observation, LONGEST),
            thought=shortened(turn.thought or (turn.response if turn.response != turn.action else ""), LONGEST),
            action=shortened(turn.action, LONGEST),
            info=_bounded(turn.info),
        )
        for turn in trajectory.turns
    ]
    if turns and alike:
        turns[-1].reward = float(won)
    goal = shortened(task_line(trajectory.goal) or trajectory.goal, LONGEST)
    return replace(trajectory, turns=turns, success=won, goal=goal)


def _bounded(info: Mapping[str, Any]) -> dict[str, Any]:
    """What is known about a turn, without what is long."""
    plain = {key: json_value(value) for key, value in info.items() if value is not None}
    long = {key for key, value in plain.items() if len(json.dumps(value)) > LONGEST}
    return {key: shortened(str(value), LONGEST) if key in long else value for key, value in plain.items()}


def write_page(diagnosis: Diagnosis, trajectories: Sequence[Trajectory], out: Path, name: str = "logs") -> tuple[Path, Collected]:
    """Write the HTML file; returns its path and what went in. Tasks that findings refer to come first, and then others while there is
    room: all attempts at a task with the numbers of every turn, and the texts of those that fit."""
    groups: dict[int | str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.turns:
            groups.setdefault(trajectory.group, []).append(trajectory)
    cited = [place.trajectory for place in places_of(diagnosis)]
    group_of = {trajectory.id: trajectory.group for trajectory in trajectories}
    chosen, turns = list[Trajectory](), 0
    for group in dict.fromkeys([*(group_of[id] for id in cited if group_of.get(id) in groups), *groups]):
        if turns < MOST_TURNS:
            chosen += groups[group]
            turns += sum(len(trajectory.turns) for trajectory in groups[group])
    with TemporaryDirectory() as folder:
        save(diagnosis, chosen, Path(folder))
        collected = Collected({name: Answers(RunList(folder, name))}, kept=len(trajectories))
        collected.found["runs?"] = {"folder": "", "runs": [collected.add("run", run=name)["card"]]}
        collected.add("diagnosis", run=name)
        batch = {"run": name, "part": "rollouts", "iteration": 0}
        collected.add("batch", **batch)
        for group in dict.fromkeys(trajectory.group for trajectory in chosen):
            collected.add("group", group=readable(group), **batch)
        room, first = MOST_TURNS, set(cited)
        for trajectory in sorted(chosen, key=lambda trajectory: trajectory.id not in first):
            if room >= len(trajectory.turns):
                room -= len(trajectory.turns)
                collected.add("attempt", id=readable(trajectory.id), **batch)
                collected.attempts += 1
        return write_text_atomically(out, html(collected, name)), collected


def places_of(diagnosis: Diagnosis) -> list[Place]:
    """The turns that a diagnosis refers to: the first of every finding, then the second of each, and so on."""
    listed = [*(finding.turns for finding in diagnosis.findings), *(waste.examples for waste in diagnosis.waste)]
    listed += [fork.turns for fork in diagnosis.forks]
    return [place for place in chain.from_iterable(zip_longest(*listed)) if place is not None]


def view_diagnosis(diagnosis: Diagnosis, trajectories: Sequence[Trajectory], name: str = "logs", port: int | None = None) -> None:
    """Serve the pages on this machine, with every attempt, until Ctrl-C."""
    with TemporaryDirectory() as folder:
        save(diagnosis, trajectories, Path(folder))
        serve(RunList(folder, name), port)
