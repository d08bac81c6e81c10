"""Plans as generators: they make the attempts that a run makes, see how they ended, and may branch or choose tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from branch_env import Kept
from collect_cases import WordEngine, numbered, policy

from turnwise import Stop, Task, Trajectory, TurnwiseError
from turnwise.collect.collector import Collector
from turnwise.data.attempts import Branch, Start
from turnwise.data.batch import Batch
from turnwise.data.rollouts import Turn
from turnwise.envs.pool import Pool
from turnwise.methods.planning import Plan, TaskSlots


@pytest.mark.parametrize("own_seeds", [False, True])
def test_places_give_out_the_attempts_of_a_run_wherever_it_is_entered(own_seeds: bool) -> None:
    slots = TaskSlots(numbered(7), 3, 2, own_seeds=own_seeds)
    whole = slots.starts(0, 12)
    assert slots.used == 0 and slots.groups(3) + slots.groups(9) == whole and slots.used == 12
    assert TaskSlots(numbered(7), 3, 2, own_seeds=own_seeds, used=5).groups(4) == whole[10:18]
    assert [start.number for start in whole] == list(range(24)) and [start.group for start in whole[:4]] == [0, 0, 1, 1]
    seeds = {start.env_seed for start in whole}
    assert len(seeds) == (24 if own_seeds else 12) and len({start.policy_seed for start in whole}) == 24


def test_a_group_of_any_size_at_a_chosen_task_has_numbers_and_chance_of_its_own() -> None:
    slots = TaskSlots(numbered(5), 0, 2)
    chosen, next_ones = slots.group(Task("mine"), 5), slots.groups(1)
    assert len({start.number for start in chosen + next_ones}) == 7 and len({start.policy_seed for start in chosen + next_ones}) == 7
    assert {start.task.id for start in chosen} == {"mine"} and {start.group for start in chosen} == {0} and next_ones[0].group == 1


def test_branches_draw_by_the_place_in_the_run_and_need_a_task_of_this_batch() -> None:
    def branches(used: int, begin: bool) -> list[Start]:
        slots = TaskSlots(numbered(5), 0, 1, used=used)
        if begin:
            slots.branch(Trajectory(0, 0, turns=[Turn("a")]), 0, 3, task=Task("earlier"))
            slots.begin()
        [start] = slots.groups(1)
        parent = Trajectory(start.group, start.number, start.task.id, [Turn("a"), Turn("b")], seed=start.env_seed)
        return slots.branch(parent, 1, 2)

    assert [s.policy_seed for s in branches(3, False)] == [s.policy_seed for s in branches(3, True)]
    assert len({s.policy_seed for s in branches(3, False) + branches(4, False)}) == 4
    first = branches(3, False)[0]
    assert first.number < 0 and first.branch is not None and first.branch.t == 1 and first.env_seed == first.branch.trajectory.seed
    with pytest.raises(TurnwiseError, match="task=task"):
        TaskSlots(numbered(5), 0, 1).branch(Trajectory(0, 0, "gone", [Turn("a")]), 0)


def test_branches_of_batches_that_use_no_place_draw_differently_also_after_a_resume() -> None:
    parent = Trajectory(0, 0, "earlier", [Turn("a"), Turn("b")])

    def batch(slots: TaskSlots, groups: int = 0) -> list[int]:
        slots.begin()
        slots.groups(groups)
        return [start.policy_seed for start in slots.branch(parent, 1, 2, task=Task("earlier"))]

    slots = TaskSlots(numbered(5), 0, 1)
    seeds = [*batch(slots, 2), *batch(slots), *batch(slots)]
    kept = slots.state()
    more = [*batch(slots), *batch(slots, 1)]
    assert len({*seeds, *more}) == 10
    again = TaskSlots(numbered(5), 0, 1)
    again.load_state(2, kept)
    assert [*batch(again), *batch(again, 1)] == more
    plain = TaskSlots(numbered(5), 0, 1, used=2)
    assert batch(plain, 1) == more[-2:], "where a place is used, the place alone decides"


def test_a_trajectory_of_an_earlier_batch_gets_a_group_and_an_id_of_this_one() -> None:
    slots = TaskSlots(numbered(5), 0, 2)
    earlier = Trajectory(7, 3, "earlier", [Turn("a")], success=True, parent=2, branch_t=1)
    starts = [*slots.group(Task("mine"), 3), *slots.branch(Trajectory(0, 0, "mine", [Turn("a")]), 0)]
    one, other = (slots.adopt(earlier, starts[0].group) for _ in range(2))
    assert len({one.id, other.id, *(start.number for start in starts)}) == 6 and one.group == starts[0].group
    assert one.success and one.parent is None and one.branch_t == 0 and (earlier.group, earlier.id, earlier.parent) == (7, 3, 2)


def test_a_plan_without_gather_says_what_to_write() -> None:
    with pytest.raises(TurnwiseError, match=r"plan Plan has no gather\(self, slots, groups\)"):
        Plan().gather(TaskSlots(numbered(2), 0, 2), 1)


@pytest.mark.parametrize("snapshots", [False, True])
def test_an_attempt_with_a_limit_of_its_own_stops_there_and_can_be_branched_there(snapshots: bool) -> None:
    with Pool(Kept, 2) as pool:
        collector = Collector(pool, policy(WordEngine(bias=0)), max_turns=12, snapshots=snapshots)
        [start, *_] = [start for start in TaskSlots(numbered(4), 1, 1).starts(0, 4) if int(start.task.id) == 2]  # the longest corridor
        [whole] = collector.run([start])
        [part] = collector.run([replace(start, number=50, max_turns=2)])
        assert part.stop is Stop.STEP_LIMIT and [t.response_ids for t in part.turns] == [t.response_ids for t in whole.turns[:2]]
        Kept.asked.clear()
        [rest] = collector.run([replace(start, number=51, branch=Branch(part, 2))])
    assert [t.response_ids for t in rest.turns] == [t.response_ids for t in whole.turns] and rest.stop is whole.stop
    assert Kept.asked.count("restore") == snapshots and Kept.asked.count("step") == len(whole.turns) - (2 if snapshots else 0)


def test_no_snapshots_are_kept_of_attempts_that_nobody_will_branch_from() -> None:
    with Pool(Kept, 2) as pool:
        collector = Collector(pool, policy(WordEngine(bias=0)), max_turns=12, snapshots=True)
        starts = TaskSlots(numbered(4), 1, 1).starts(0, 2)
        Kept.asked.clear()
        whole = collector.run(starts)
        assert Kept.asked.count("snapshot") == sum(len(trajectory.turns) for trajectory in whole)
        Kept.asked.clear()
        other = collector.run([replace(start, number=50 + n, branchable=False) for n, start in enumerate(starts)])
    assert "snapshot" not in Kept.asked and "step" in Kept.asked
    assert [[turn.response_ids for turn in t.turns] for t in whole] == [[turn.response_ids for turn in t.turns] for t in other]


def test_what_a_plan_notes_on_turns_is_a_column_of_the_batch() -> None:
    turns = [Turn("a", notes={"mine": 2.0}), Turn("b"), Turn("c", notes={"mine": 3.0, "other": 1.0})]
    batch = Batch.of([Trajectory(0, 0, turns=turns[:2]), Trajectory(0, 1, turns=turns[2:])])
    np.testing.assert_array_equal(batch.column("turn.mine"), [2.0, np.nan, 3.0])
    np.testing.assert_array_equal(batch.column("turn.other"), [np.nan, np.nan, 1.0])
    assert not Batch.of([Trajectory(0, 0, turns=[Turn("a")])]).has("turn.mine")
