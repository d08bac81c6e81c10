"""Experience: replay of successes, the smallest helpful guidance, a library of lessons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from collect_cases import numbered
from method_cases import BANDIT, FATED, OTHER_GAME, attempt, expert_of, gathers, make, plan_state, resumes_alike, train

from turnwise import Trajectory, TurnwiseError
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Stop
from turnwise.methods.planning import TaskSlots
from turnwise.methods.slea import Lesson, Library, Slea, lessons, shown
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_batch

LONG_PROMPTS = {"agent.max_prompt_tokens": 400, "model.tiny.max_length": 512}


# -- replay of successes ----------------------------------------------------------------------------------------------------------


def test_a_run_learns_from_stored_successes_where_a_group_failed_also_after_a_stop(tmp_path: Path) -> None:
    own = {**OTHER_GAME, "method.name": "replay_success", "env.name": FATED, "env.tasks": 1, "iterations": 4, "collect.group_size": 2}
    whole = train(tmp_path / "whole", **own)
    replaced = [line["collect/replaced"] for line in whole.metrics[1:]]
    assert sum(replaced) > 0
    n = int(np.argmax(replaced)) + 1
    batch = stored_batch(Run.open(whole.folder), n)
    past = [k for k, t in enumerate(batch.trajectories) if int(t.id) < 0]
    assert len(past) == replaced[n - 1] and all(batch.trajectories[k].success for k in past)
    assert all((batch.column("turn.advantage")[list(batch.rows(k))] > 0).all() for k in past)
    assert whole.metrics[n]["learner/ratio"] == pytest.approx(1, abs=1e-4)  # old log-probs are those of the current policy
    resumes_alike(tmp_path / "stopped", whole, n, **own)


# -- ActGuide ---------------------------------------------------------------------------------------------------------------------


expert = expert_of([f"do {t}" for t in range(6)])


@pytest.mark.parametrize("needed", [0, 3, 6, 7])
def test_the_smallest_helpful_number_of_actions_is_found_and_shown_to_a_whole_group(needed: int) -> None:
    def play(start: Start) -> Trajectory:
        lines = str(start.hint).count(". do ")
        return attempt(start, float(start.group == 1 or (start.forget and lines >= needed)))

    slots = TaskSlots(numbered(5), 0, 3, expert=expert)
    found, rounds = gathers(make("actguide", probes=2), slots, 2, play)
    last = rounds[-1]
    assert {str(start.hint).count(". do ") for start in last} == {min(needed, 6)} and len(last) == 3
    assert all(start.group == 0 and start.forget for more in rounds[1:] for start in more)
    assert [t.id for t in found.trajectories] == [*(start.number for start in last), 3, 4, 5]
    counts = {"hard_groups": 1, "rescued_groups": needed <= 6, "shown_actions": min(needed, 6), "probes": 2 * (len(rounds) - 2)}
    assert found.counts == counts and counts["probes"] <= 2 * 3


def test_a_group_that_succeeds_asks_nobody() -> None:
    solved, rounds = gathers(make("actguide"), TaskSlots(numbered(5), 0, 2), 1, lambda start: attempt(start, 1.0))
    assert len(rounds) == 1 and len(solved.trajectories) == 2


def test_guided_attempts_of_a_run_are_learned_from_without_their_guidance(tmp_path: Path) -> None:
    own = {"method.name": "actguide", "method.threshold": 100.0, "iterations": 1, "plan.probes": 1, "plan.searches": 2, **LONG_PROMPTS}
    result = train(tmp_path, **own)
    batch = stored_batch(Run.open(result.folder), 1, tokens=True)
    hints = [turn.info.get("hint", "") for t in batch.trajectories for turn in t.turns]
    assert all("1. " in hint for hint in hints) and result.metrics[-1]["collect/hard_groups"] == 2
    assert max(len(turn.prompt_ids) for t in batch.trajectories for turn in t.turns) < 60  # a prompt with the guidance is longer
    assert abs(result.metrics[-1]["learner/ratio"] - 1) > 1e-4  # π without guidance against π_old with it


# -- SLEA -------------------------------------------------------------------------------------------------------------------------


def test_lessons_are_found_through_similar_observations_first_and_the_least_used_cluster_goes() -> None:
    library = Library({"golden": 9, "warning": 9}, 0.85, 2)
    library.add(Lesson("method", "general wisdom", 1.0))
    library.add(Lesson("example", "take the apple", 0.2, "You are at the fridge 1 and it is open."))
    library.add(Lesson("mistake", "do not eat it", 0.1, "You are at the fridge 1 and it is open."))
    golden, warning = library.retrieve("You are at the fridge 2 and it is open.", 1, 1)
    assert [e.text for e in golden] == ["take the apple"] and [e.text for e in warning] == ["do not eat it"]
    assert library.retrieve("Something else entirely", 1, 0)[0][0].text == "general wisdom"
    library.see(["You are at the fridge 1 and it is open."])
    library.add(Lesson("example", "sleep now", 0.2, "A bedroom with two beds and a lamp."))
    library.add(Lesson("example", "wash hands", 0.2, "XXXXXXXXXXXXXXXXXXXXXXXX"))
    assert [cluster.observation[:5] for cluster in library.clusters] == ["You a", "XXXXX"]
    assert library.add(Lesson("mistake", "general wisdom", 0.1))  # the same text in another zone
    with pytest.raises(TurnwiseError, match="mistake"):
        library.add(Lesson("mistakes", "", 0.0))
    text = shown(golden, warning, 30)
    assert text.startswith("What worked before:\n- take") and len(text) <= 30


def test_lessons_by_rule_come_from_the_way_of_a_success_and_the_end_of_a_failure() -> None:
    start = TaskSlots(numbered(2), 0, 1).starts(0, 1)[0]
    good = lessons(attempt(start, 1.0, ["a", "b"]))
    assert [lesson.level for lesson in good] == ["method", "example", "example"] and good[0].text == "go a -> b"
    assert good[2].observation == "here 1" and good[2].score == 0.8
    lost = attempt(start, 0.0, ["a", "b", "b", "b"])
    lost.stop = Stop.STEP_LIMIT
    assert [lesson.level for lesson in lessons(lost)] == ["mistake", "pattern", "diagnostic"]
    assert lessons(Trajectory(0, 0)) == []


def test_a_run_shows_lessons_once_it_has_some_also_after_a_stop(tmp_path: Path) -> None:
    own = {**OTHER_GAME, **LONG_PROMPTS, "method": {"name": "slea", "warmup": 1, "smallest": 2}, "env.name": BANDIT, "env.tasks": 4}
    whole = train(tmp_path / "whole", **own)
    first, second = (stored_batch(Run.open(whole.folder), n, tokens=True) for n in (1, 2))
    lengths = [max(len(turn.prompt_ids) for t in batch.trajectories for turn in t.turns) for batch in (first, second)]
    assert lengths[1] > 2 * lengths[0] and [line["collect/lessons_shown"] for line in whole.metrics[1:]] == [0, 1]
    state = plan_state(whole.folder)
    assert state["step"] == 2 and len(state["library"]["entries"]) == whole.metrics[-1]["collect/lessons"] > 1
    resumes_alike(tmp_path / "stopped", whole, 2, **own)


class Kind(Slea):
    """A plan with lessons of its own."""

    def lessons(self, trajectory: Trajectory) -> list[Lesson]:
        return [Lesson("principle", "be kind", 1.0)]


def test_a_derived_plan_has_lessons_of_its_own() -> None:
    plan = Kind()
    gathers(plan, TaskSlots(numbered(3), 0, 2), 1, attempt)
    assert [(entry.level, entry.text) for entry in plan.library.entries] == [("principle", "be kind")]
