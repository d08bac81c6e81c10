"""Plans against what the authors' own code decided on scripted outcomes and scripted chance."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from authors_golden import golden
from collect_cases import numbered
from method_cases import attempt, expert_of, gathers, make
from references import aepo, branching

import turnwise as tw
from turnwise import Task, Trajectory, Turn
from turnwise.data.attempts import Start
from turnwise.data.batch import Batch
from turnwise.data.tasks import TaskSet
from turnwise.methods.arpo import aepo_initial, segment_entropy
from turnwise.methods.cppo import largest
from turnwise.methods.planning import Gathered, Plan, TaskSlots
from turnwise.methods.slea import Lesson, Library, similar
from turnwise.methods.starpo_s import select


def streamed(plan: Plan, groups: int, returns: list[list[float]], size: int) -> Gathered:
    """What a plan brings home if the groups of the run, in order, have these returns."""
    return gathers(
        plan, TaskSlots(numbered(64), 0, size), groups, lambda start: attempt(start, returns[int(start.group)][start.number % size])
    )[0]


def groups_of(found: Gathered) -> list[int]:
    return list(dict.fromkeys(int(one.group) for one in found.trajectories))


@pytest.mark.parametrize("case", golden("dapo"))
def test_dynamic_sampling_learns_from_the_first_groups_that_differ(case: dict[str, Any]) -> None:
    batches, wanted = case["batches"], case["wanted"]
    of_batch, size = len(batches[0]), len(batches[0][0])
    # the authors' program ends where it would need more batches; of a group of one their two programs differ
    if case["verl"] != "error" and size > 1:
        found = streamed(make("dynamic", refills=50), wanted, [group for batch in batches for group in batch], size)
        assert groups_of(found) == [batch * of_batch + place for batch, place in case["verl"]]


@pytest.mark.parametrize("case", [case for case in golden("starpo_s") if case["prefer"] == "largest"])
def test_a_filter_keeps_the_groups_that_the_authors_keep(case: dict[str, Any]) -> None:
    options = {name: case[name] for name in ("strategy", "keep", "zero", "mass")}
    assert select(case["scores"], **options).tolist() == sorted(case["kept"])


# -- trees ------------------------------------------------------------------------------------------------------------------------


def grown(plan: Any, case: dict[str, Any]) -> list[list[int]]:
    """The attempts of one group, as the authors' script has them: entropies and lengths by the order in which attempts are made."""
    draws, order = iter(case["draws"]), {}

    def play(start: Start) -> Trajectory:
        number = order.setdefault(start.number, len(order))
        taken = start.branch.t if start.branch is not None else 0
        turns = [] if start.branch is None else list(start.branch.trajectory.turns[:taken])
        while True:
            turns.append(Turn("s", response_ids=[1], notes={"entropy": case["entropies"][number][len(turns)]}))
            if not case["goes_on"][number][len(turns) - 1]:
                break
        one = Trajectory(start.group, start.number, start.task.id, turns)
        return one if start.branch is None else replace(one, parent=start.branch.trajectory.id, branch_t=taken)

    plan.entropy = lambda turn, vocabulary: turn.notes["entropy"]
    tree = plan._tree
    plan._tree = lambda starts, slots: replace(tree(starts, slots), chance=SimpleNamespace(random=lambda: next(draws)))
    found, _ = gathers(plan, TaskSlots(numbered(2), 0, case["number"]), 1, play)
    return [[-1 if one.parent is None else order[one.parent], one.branch_t] for one in found.trajectories]


@pytest.mark.parametrize("case", golden("arpo"))
def test_attempts_branch_where_the_authors_rollouts_do(case: dict[str, Any]) -> None:
    plan = make("arpo", measured="call", initial=case["initial"], beam=case["beam"], weight=case["weight"])
    assert grown(plan, case) == case["made"]


@pytest.mark.parametrize("case", golden("aepo"))
def test_branches_pause_as_in_the_authors_code_up_to_what_counts_as_a_row(case: dict[str, Any]) -> None:
    def expected(own: bool) -> list[list[int]]:
        draws = iter(case["draws"] + [0.0] * 50)
        tree = branching.rollouts(
            lambda rollout, k: (case["entropies"][rollout][k], bool(case["goes_on"][rollout][k])),
            case["number"],
            case["initial"],
            lambda rise, row: aepo.branches(next(draws), rise, row, case["weight"]),
            case["beam"],
            own,
        )
        return [list(one) for one in tree]

    assert expected(False) == case["made"]
    plan = make("aepo", measured="call", pilot=False, initial=case["initial"], beam=case["beam"], weight=case["weight"])
    assert grown(plan, case | {"draws": case["draws"] + [0.0] * 50}) == expected(True)


def test_rows_of_branches_are_counted_alike_in_some_of_the_authors_cases() -> None:
    """So that the test above compares with the authors, and not with our reading of them alone."""
    alike = 0
    for case in golden("aepo"):
        plan = make("aepo", measured="call", pilot=False, initial=case["initial"], beam=case["beam"], weight=case["weight"])
        alike += grown(plan, case | {"draws": case["draws"] + [0.0] * 50}) == case["made"]
    assert alike >= 5


@pytest.mark.parametrize("case", golden("aepo", "initial"))
def test_a_pilot_divides_the_group_as_in_the_authors_code(case: dict[str, Any]) -> None:
    root, segments = case["root"], case["segments"]
    mean = sum(segments) / len(segments) if segments else root
    if segments:  # our pilot's first turn is the root; a second number makes up for its share in the mean
        pilot = [root, 2 * mean - root]
        assert aepo_initial(case["number"], pilot, 0.5) == case["initial"]


@pytest.mark.parametrize("case", golden("arpo", "entropies"))
def test_the_entropy_of_a_segment_is_the_authors(case: dict[str, Any]) -> None:
    assert segment_entropy(case["tops"][:20], case["vocabulary"]) == pytest.approx(case["entropy"], rel=1e-9)


# -- what is collected, and what is left out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden("cppo"))
def test_the_attempts_that_the_authors_learn_from_are_kept(case: dict[str, Any]) -> None:
    advantages, prune = case["advantages"], case["prune"]
    batch = Batch.of([Trajectory(0, k, turns=[Turn("s", response_ids=[1])]) for k in range(len(advantages))])
    kept = np.flatnonzero(largest(batch.with_columns({"turn.advantage": advantages}).rollouts, prune, "batch")).tolist()
    assert kept == case["verl"] or (not case["verl"] and len(kept) == 1)  # ours always has one
    starts = next(make("cppo", prune=prune).gather(TaskSlots(numbered(64), 0, 2), case["prompts"]))
    assert len({start.group for start in starts}) == case["drawn"]


@pytest.mark.parametrize("case", golden("gpg"))
def test_gpg_collects_and_scales_as_the_authors_do(case: dict[str, Any]) -> None:
    batches = case["batches"]
    found = streamed(make("gpg", least=case["least"]), len(batches[0]), [group for batch in batches for group in batch], 2)
    assert groups_of(found) == [batch * len(batches[0]) + place for batch, place in case["kept"]]
    batch = Batch.of(found.trajectories)
    credit = np.asarray(tw.credit.compute("gpg", batch.rollouts))
    centred = np.asarray(tw.credit.compute("dr_grpo", batch.rollouts))
    np.testing.assert_allclose(credit, case["factor"] * centred, atol=1e-6)


@pytest.mark.parametrize("case", golden("replay_success"))
def test_stored_successes_are_replayed_where_the_authors_do(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "turnwise.methods.replay_success.random.Random", lambda seed: SimpleNamespace(choice=lambda kept: kept[len(kept) // 2])
    )
    plan = make("replay_success", size=case["size"])
    for number, batch in enumerate(case["batches"]):
        slots = TaskSlots(TaskSet([Task(str(task)) for task in batch["tasks"]]), 0, 4, shuffle=False)

        def play(start: Start, number: int = number, batch: dict[str, Any] = batch) -> Trajectory:
            group, place = divmod(start.number, 4)
            one = attempt(start, batch["scores"][group][place])
            one.turns[0].response_ids = [100 * number + 10 * group + place]  # who made it
            return one

        found, _ = gathers(plan, slots, 2, play)
        names = [one.turns[0].response_ids[0] for one in found.trajectories]
        assert [names[:4], names[4:]] == batch["learned"]


@pytest.mark.parametrize("case", golden("archer", "buffers"))
def test_a_buffer_forgets_its_oldest_first_as_the_authors_does(case: dict[str, Any]) -> None:
    plan = make("archer", size=case["capacity"], replays=0)
    for number in range(case["inserted"]):
        plan.keep([Trajectory(0, number, turns=[Turn("s")])])
    assert [one.id for one in plan.kept] == sorted(case["stored"])


# -- horizons and guidance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden("scaling_inter"))
def test_the_turn_limit_of_every_batch_is_the_authors(case: dict[str, Any]) -> None:
    plan, slots = make("scaling_inter", rounds=case["rounds"], every=case["every"]), TaskSlots(numbered(2), 0, 1)
    found = [gathers(plan, slots, 1, attempt)[1][0][0].max_turns for _ in case["turns"]]
    assert found == case["turns"]


@pytest.mark.parametrize("case", golden("tcod", "horizons"))
def test_horizons_grow_in_the_same_batch_as_the_authors(case: dict[str, Any]) -> None:
    starts, expert = [], expert_of(["x"] * case["actions"])
    for plan in (make("tcod_f2b", every=case["every"], limit=case["limit"]), make("tcod_b2f", every=case["every"])):
        plan.load_state({"step": case["batch"] - 1})  # the authors' first batch is 1
        starts.append(gathers(plan, TaskSlots(numbered(2), 0, 1, expert=expert), 1, attempt)[1][0][0])
    assert starts[0].max_turns == case["turn_limit"]
    given = starts[1].branch.t if starts[1].branch is not None else 0
    assert given == case["expert_turns"]


@pytest.mark.parametrize("case", golden("vineppo"))
def test_the_states_that_the_authors_value_get_fresh_attempts(case: dict[str, Any]) -> None:
    plan, slots = make("vineppo", branches=1, last=case["last"]), TaskSlots(numbered(2), 0, 1)

    def play(start: Start) -> Trajectory:
        taken = [] if start.branch is None else list(start.branch.trajectory.turns[: start.branch.t])
        return Trajectory(start.group, start.number, start.task.id, [*taken, *(Turn(f"{t}") for t in range(len(taken), case["steps"]))])

    _, rounds = gathers(plan, slots, 1, play)
    assert [start.branch.t for starts in rounds[1:] for start in starts if start.branch is not None] == case["valued"]


@pytest.mark.parametrize("case", golden("actguide"))
def test_the_search_shows_the_numbers_of_actions_that_the_authors_show(case: dict[str, Any]) -> None:
    works = [bool(one) for one in case["succeeds"]]

    def play(start: Start) -> Trajectory:
        return attempt(start, float(start.forget and works[str(start.hint).count(". x")]))

    slots = TaskSlots(numbered(2), 0, 2, expert=expert_of(["x"] * case["actions"]))
    _, rounds = gathers(make("actguide", searches=case["searches"], probes=1), slots, 1, play)
    if case["actions"]:  # without reference actions the group stays as it is
        assert [str(starts[0].hint).count(". x") for starts in rounds[1:]] == [*case["probed"], case["shown"]]


@pytest.mark.parametrize("case", golden("ui_s1_plan"))
def test_wrong_actions_are_replaced_as_often_as_by_the_authors(case: dict[str, Any]) -> None:
    matches, patched = ([bool(one) for one in case[name]] for name in ("matches", "patched"))
    expert = [Turn(f"{t}", action=f"do {t}", response=f"expert {t}") for t in range(len(matches))]

    def play(start: Start) -> Trajectory:
        assert start.branch is not None and start.max_turns == len(matches)
        before = [replace(turn) for turn in start.branch.trajectory.turns[: start.branch.t]]
        assert all(turn.action == f"do {t}" for t, turn in enumerate(before))  # always where the expert was
        assert all((turn.response == f"expert {t}") != matches[t] for t, turn in enumerate(before))
        new = [Turn(f"{t}", action=f"do {t if matches[t] else 'else'}") for t in range(len(before), len(matches))]
        return Trajectory(start.group, start.number, start.task.id, before + new)

    slots = TaskSlots(numbered(1), 0, 1, expert=lambda tasks: [Trajectory(0, "expert", task.id, expert, success=True) for task in tasks])
    [one] = gathers(make("ui_s1", patches=case["patches"]), slots, 1, play)[0].trajectories
    assert [turn.notes["patched"] > 0 for turn in one.turns] == patched
    assert [turn.notes["match"] > 0 for turn in one.turns] == matches[: len(patched)]
    assert all((turn.action == f"do {t}") == matches[t] for t, turn in enumerate(one.turns))  # the policy's own
    assert one.success == all(matches) and one.parent is None and one.reward == sum(turn.notes["score"] for turn in one.turns)


# -- a library ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden("slea"))
def test_lessons_enter_and_leave_as_in_the_authors_library(case: dict[str, Any]) -> None:
    level, library = {"a": "method", "b": "example"}, Library({"golden": case["capacity"], "warning": 9}, 0.85, 9)
    for step in case["steps"]:
        assert library.add(Lesson(level[step["level"]], step["lesson"], step["score"])) == step["added"]
    for name, stored in case["stored"].items():
        assert [[entry.text, entry.score] for entry in library.entries if entry.level == level[name]] == stored


@pytest.mark.parametrize("case", golden("slea", "clusters"))
def test_an_observation_is_similar_to_the_one_that_stands_for_its_cluster(case: dict[str, Any]) -> None:
    assert similar(case["representative"], case["observation"], 0.85)
