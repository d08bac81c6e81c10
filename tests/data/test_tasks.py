"""Tasks and task sets: identity, order, panels, overlap."""

from __future__ import annotations

import pytest

from turnwise import Task, TaskSet, TurnwiseError


def numbered(n: int, start: int = 0) -> TaskSet:
    return TaskSet((Task(f"t{i}", data={"n": i}) for i in range(start, start + n)), "numbered")


def test_a_tasks_hash_is_of_its_content_and_not_of_the_order_of_keys_or_its_split() -> None:
    one = Task("a", "train", {"x": 1, "y": [1, 2]})
    assert one.hash == Task("a", "valid", {"y": [1, 2], "x": 1}).hash
    assert one.hash != Task("a", "train", {"x": 1, "y": [2, 1]}).hash
    assert one.hash != Task("b", "train", {"x": 1, "y": [1, 2]}).hash


def test_hashes_are_the_same_on_every_machine() -> None:
    assert Task("a", data={"x": 1}).hash == "63b6ce3c17abeca583e5256d5668cd7a"
    assert numbered(3).hash == "6f5e9639afdd3be2cfa7abd0f1066e4a"
    assert [task.id for task in numbered(20).panel(4, seed=7)] == ["t4", "t6", "t11", "t15"]


def test_a_sets_hash_depends_on_order_and_content() -> None:
    assert numbered(3).hash == numbered(3).hash != numbered(4).hash
    assert TaskSet(reversed(list(numbered(3)))).hash != numbered(3).hash


def test_a_panel_is_fixed_by_its_seed_keeps_the_order_and_grows_by_adding() -> None:
    tasks = numbered(50)
    panel = tasks.panel(10, seed=1)
    numbers = [task.data["n"] for task in panel]
    assert len(set(numbers)) == 10 and numbers == sorted(numbers)
    assert [t.id for t in tasks.panel(10, seed=1)] == [t.id for t in panel]
    assert [t.id for t in tasks.panel(10, seed=2)] != [t.id for t in panel]
    assert set(numbers) < {task.data["n"] for task in tasks.panel(20, seed=1)}
    assert tasks.panel(50, seed=3).hash == tasks.hash


@pytest.mark.parametrize("n", [0, -1, 51])
def test_a_panel_of_an_impossible_size_is_refused(n: int) -> None:
    with pytest.raises(TurnwiseError, match="50 tasks"):
        numbered(50).panel(n)


def test_a_lazy_set_makes_each_task_only_when_asked() -> None:
    made = []

    def make(i: int) -> Task:
        made.append(i)
        return Task(f"t{i}", data={"n": i})

    tasks = TaskSet.lazy(1_000_000, make)
    assert len(tasks) == 1_000_000 and made == []
    assert tasks[-1].id == "t999999" and made == [999_999]
    assert [task.id for task in tasks[10:30:10]] == ["t10", "t20"]
    assert TaskSet.lazy(3, make).hash == numbered(3).hash
    with pytest.raises(IndexError):
        tasks[1_000_000]


def test_overlap_finds_the_same_content_in_two_splits() -> None:
    assert numbered(5).overlap(numbered(5, start=3)) == ["t3", "t4"]
    assert numbered(3).overlap(numbered(3, start=3)) == []


def test_two_tasks_with_one_id_are_refused() -> None:
    with pytest.raises(TurnwiseError, match=r"tasks 0 and 2.*'a'"):
        TaskSet([Task("a"), Task("b"), Task("a")], "mine")


def test_data_that_is_not_json_is_refused_with_the_tasks_name() -> None:
    with pytest.raises(TurnwiseError, match="task 'a'"):
        _ = Task("a", data={"x": object()}).hash


def test_a_panel_has_no_task_twice_though_its_set_makes_some_twice() -> None:
    tasks = TaskSet.lazy(12, lambda i: Task(f"t{i * 5 % 8}"), "again")
    panel = [task.id for task in tasks.panel(6, seed=3)]
    assert len(set(panel)) == 6 and set(panel) < {task.id for task in tasks.panel(8, seed=3)}
    assert [task.id for task in tasks.distinct()] == [f"t{i * 5 % 8}" for i in range(8)]
    assert numbered(20).distinct().hash == numbered(20).hash
    with pytest.raises(TurnwiseError, match="12 tasks, 8 of them different: a panel can have 1 to 8 of them, not 9"):
        tasks.panel(9)
