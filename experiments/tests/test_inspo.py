"""INSPO: a population of instructions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collect_cases import numbered
from method_cases import BANDIT, OTHER_GAME, attempt, gathers, make, plan_state, resumes_alike, train

from turnwise import Trajectory, Turn
from turnwise.data.attempts import Start
from turnwise.methods.planning import TaskSlots
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

LONG_PROMPTS = {"agent.max_prompt_tokens": 400, "model.tiny.max_length": 512}


def test_instructions_are_drawn_by_their_mean_and_the_worst_gives_way_to_one_that_is_no_worse() -> None:
    worth = {"good": 1.0, "bad": 0.0, "new": 0.5}
    asked: list[str] = []

    def answer(texts: Any, seed: int) -> list[Turn]:
        asked.extend(texts)
        return [Turn("", response=" new\n")]

    def play(start: Start) -> Trajectory:
        return attempt(start, worth[str(start.hint)])

    slots = TaskSlots(numbered(5), 0, 4, say=answer)
    plan = make("inspo", instructions=["good", "bad"], every=6, least=4, temperature=0.5)
    drawn = [str(rounds[0][0].hint) for rounds in (gathers(plan, slots, 1, play)[1] for _ in range(5))]
    assert set(drawn) == {"good", "bad"}
    assert {one.text: one.mean for one in plan.population} == {"good": 1.0, "bad": 0.0}
    found, rounds = gathers(plan, slots, 1, play)
    assert [str(start.hint) for start in rounds[1]] == ["new"] * 4 + ["bad"] * 4 and "bad" in asked[0]
    assert [one.text for one in plan.population] == ["good", "new"] and found.counts["renewed"] == 1
    assert len(found.trajectories) == 4  # what verified it is not learned from
    assert plan.evaluated(rounds[0][0]).hint == "good"
    restored = make("inspo", instructions=["good", "bad"], every=6, least=4, temperature=0.5)
    restored.load_state(plan.state())
    again = TaskSlots(numbered(5), 0, 4, used=slots.used, say=answer)
    one, two = (gathers(own, used, 3, play)[1] for own, used in ((plan, slots), (restored, again)))
    assert one == two and restored.state() == plan.state()


def test_an_instruction_that_does_worse_or_is_known_does_not_enter(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(instruction, attempts) -> str:\n    return attempts[0]['actions'][0]\n")
    worth = {"": 0.5, "a": 0.0}
    plan = make("inspo", instructions=[""], every=1, least=1, reflect=f"{tmp_path}/mine.py:mine")
    found, rounds = gathers(plan, TaskSlots(numbered(3), 0, 2), 1, lambda start: attempt(start, worth[str(start.hint)]))
    assert len(rounds) == 2 and found.counts["renewed"] == 0 and [one.text for one in plan.population] == [""]
    known = make("inspo", instructions=["", "a"], every=1, least=1, reflect=f"{tmp_path}/mine.py:mine")
    assert len(gathers(known, TaskSlots(numbered(3), 0, 2), 1, lambda start: attempt(start, 0.0))[1]) == 1


def test_a_run_attempts_each_group_with_one_instruction_also_after_a_stop(tmp_path: Path) -> None:
    own = {**OTHER_GAME, "method.name": "inspo", "method.instructions": ["left", "right right right right"], "method.every": 1}
    own |= {"plan.least": 1, "env.name": BANDIT, "env.tasks": 4, "collect.groups": 4, "collect.group_size": 2, **LONG_PROMPTS}
    whole = train(tmp_path / "whole", **own)
    batch = stored_batch(Run.open(whole.folder), 1, tokens=True)
    by_group: dict[Any, set[int]] = {}
    for t in batch.trajectories:
        by_group.setdefault(t.group, set()).add(len(t.turns[0].prompt_ids))
    assert all(len(lengths) == 1 for lengths in by_group.values()) and len(set.union(*by_group.values())) == 2
    assert sum(one["tried"] for one in plan_state(whole.folder)["population"]) > 0
    resumes_alike(tmp_path / "stopped", whole, 2, **own)
