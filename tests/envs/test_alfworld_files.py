"""Reading game files: both forms, any split, and what happens when something is damaged."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import shared_folder

from turnwise.data.tasks import Task
from turnwise.envs.household.alfworld import AlfworldEnv
from turnwise.envs.household.games import TreeLibrary
from turnwise.envs.household.packed import PackedLibrary
from turnwise.envs.household.world import World
from turnwise.util.errors import TurnwiseError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    with lzma.open(shared_folder("alfworld") / "valid_seen.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(6), lines, strict=False)]


def packed(folder: Path, lines: list[str], split: str = "valid_unseen") -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copy(shared_folder("alfworld") / "shared.json", folder)
    (folder / f"{split}.jsonl.xz").write_bytes(lzma.compress("".join(line + "\n" for line in lines).encode()))
    return folder


def tree(folder: Path, records: list[dict[str, Any]], split: str = "valid_unseen") -> Path:
    shared = json.loads((shared_folder("alfworld") / "shared.json").read_text())
    for record in records:
        game = {
            "pddl_domain": shared["domains"][record["domain"]],
            "grammar": shared["grammars"][record["grammar"]].replace("{TASK}", record["goal"]),
            "pddl_problem": record["problem"],
            "solvable": record["solvable"],
            "walkthrough": record["walkthrough"],
        }
        path = folder / "json_2.1.1" / split / record["task"] / record["trial"] / "game.tw-pddl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(game))
    return folder


def damage_of(env: AlfworldEnv, split: str = "valid_unseen") -> tuple[int, list[str]]:
    """How many games load, and what was said of the others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = len(env.tasks(split))
    assert bool(caught) == bool(env.library.damaged), "damage is warned of"
    return count, env.library.damaged


def test_tree_its_parent_and_packed_folder_hold_the_same_tasks(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    folder = tree(tmp_path / "tree", records)
    sets = [
        AlfworldEnv(place).tasks("valid_unseen")
        for place in (folder, folder / "json_2.1.1", packed(tmp_path / "packed", [json.dumps(record) for record in records]))
    ]
    assert len(sets[0]) == 6 and len({tasks.hash for tasks in sets}) == 1
    ends = [AlfworldEnv(place).reset(sets[0][2]).text for place in (folder, tmp_path / "packed")]
    assert ends[0] == ends[1]


def test_second_opening_reads_the_cache_and_gives_the_same(tmp_path: Path, records: list[dict[str, Any]], own_cache: Path) -> None:
    for kind, folder in (
        (PackedLibrary, packed(tmp_path / "packed", [json.dumps(record) for record in records])),
        (TreeLibrary, tree(tmp_path / "tree", records) / "json_2.1.1"),
    ):
        first, second = kind(folder), kind(folder)
        assert first.entries("valid_unseen") == second.entries("valid_unseen")
        entry = next(iter(second.entries("valid_unseen").values()))
        assert first.read(entry) == second.read(entry)
    assert list(own_cache.rglob("*.jsonl")) and list(own_cache.rglob("*.json"))


def test_a_changed_file_is_read_again(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    folder = tree(tmp_path / "tree", records[:1]) / "json_2.1.1"
    before = next(iter(TreeLibrary(folder).entries("valid_unseen").values()))
    path = Path(before.place)
    path.write_text(path.read_text().replace("(openable", "(pickupable", 1))
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert next(iter(TreeLibrary(folder).entries("valid_unseen").values())).digest != before.digest


def test_a_tree_needs_no_cache_and_a_packed_folder_says_which(
    tmp_path: Path, records: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(TurnwiseError, match="Set TURNWISE_CACHE"):
        AlfworldEnv(packed(tmp_path / "packed", [json.dumps(record) for record in records])).tasks("valid_unseen")
    env = AlfworldEnv(tree(tmp_path / "tree", records))
    assert env.reset(env.tasks("valid_unseen")[0]).actions


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda line: line[: len(line) // 2], "not a whole JSON line"),
        (lambda line: line.replace('"task_type"', '"task_tape"'), "'task_type' is missing"),
        (lambda line: line.replace('"domain": 0', '"domain": 7'), "a domain or grammar that shared.json does not have"),
        (lambda line: line.replace('"grammar": 0', '"grammar": "x"'), "'grammar' must be a number"),
        (lambda line: "[1, 2]", "is missing"),
        (lambda line: "\x00\ufffd", "not a whole JSON line"),
    ],
)
def test_a_damaged_line_is_named_and_the_others_load(tmp_path: Path, records: list[dict[str, Any]], spoil: Any, said: str) -> None:
    lines = [json.dumps(record) for record in records]
    lines[2] = spoil(lines[2])
    env = AlfworldEnv(packed(tmp_path / "packed", lines))
    count, damage = damage_of(env)
    assert count == 5 and len(damage) == 1
    assert "valid_unseen.jsonl.xz, line 3" in damage[0] and said in damage[0]
    assert all(env.reset(task).actions for task in env.tasks("valid_unseen"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda stream: stream[: len(stream) // 2], "truncated"),
        (lambda stream: stream[: len(stream) // 2] + b"\xff" + stream[len(stream) // 2 + 1 :], "damaged here"),
        (lambda stream: b"hello", "line 1: the xz stream is damaged"),
    ],
)
def test_a_broken_stream_gives_the_games_before_the_break(tmp_path: Path, spoil: Any, said: str) -> None:
    folder = packed(tmp_path / "packed", [])
    source = (shared_folder("alfworld") / "valid_seen.jsonl.xz").read_bytes()
    (folder / "valid_unseen.jsonl.xz").write_bytes(spoil(source))
    env = AlfworldEnv(folder)
    count, damage = damage_of(env)
    assert count < 140 and f"line {count + 1}" in damage[-1] and said in damage[-1]
    if said == "truncated":
        assert count > 0 and len(damage) == 1 and env.reset(env.tasks("valid_unseen")[-1]).actions


def test_the_same_game_twice_counts_once(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    count, damage = damage_of(AlfworldEnv(packed(tmp_path / "packed", [json.dumps(records[0])] * 2)))
    assert count == 1 and "line 2: the same game as" in damage[0]


def test_damage_inside_a_problem_is_named_when_the_game_is_played(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(record) for record in records]
    lines[1] = lines[1].replace("(:init", "(:innit", 1)
    env = AlfworldEnv(packed(tmp_path / "packed", lines))
    tasks = {task.id.split("/")[2]: task for task in env.tasks("valid_unseen")}
    with pytest.raises(TurnwiseError, match=r"valid_unseen.jsonl.xz, line 2: PDDL problem"):
        env.reset(tasks[records[1]["trial"]])
    assert env.reset(tasks[records[0]["trial"]]).actions


@pytest.mark.parametrize(
    "content, said", [("{", "not a whole JSON file"), ("[]", "JSON object"), ('{"grammar": ""}', "'pddl_problem' is missing")]
)
def test_a_damaged_file_of_the_tree_is_named_and_the_others_load(
    tmp_path: Path, records: list[dict[str, Any]], content: str, said: str
) -> None:
    folder = tree(tmp_path / "tree", records)
    lost = sorted(folder.rglob("game.tw-pddl"))[3]
    lost.write_text(content)
    env = AlfworldEnv(folder)
    count, damage = damage_of(env)
    assert count == 5 and damage[0].startswith(f"{lost}: ") and said in damage[0]
    with pytest.raises(TurnwiseError, match="damaged"):
        env.reset(Task("valid_unseen/" + "/".join(lost.parent.parts[-2:])))


def test_games_that_the_reference_leaves_out_are_left_out(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    kept, unsolvable, sliced, movable = (dict(record) for record in records[:4])
    unsolvable["solvable"] = False
    sliced["task"] = "pick_and_place_simple-AppleSliced-None-Fridge-1"
    movable["task"] = "pick_and_place_with_movable_recep-Spoon-Mug-Sink-1"
    env = AlfworldEnv(tree(tmp_path / "tree", [kept, unsolvable, sliced, movable]))
    assert damage_of(env) == (1, [])


@pytest.mark.parametrize(
    "part, old, new, said",
    [
        ("domain", "(define", "define", "PDDL domain: "),
        ("domain", ":effect", ":affect", "PDDL domain, action look"),
        ("domain", "(holds ?a ?o)\n            (atLocation", "(holds ?a ?zz)\n            (atLocation", "nothing declares"),
        ("problem", "(:goal", "(:gaol", "it has no :goal"),
        ("problem", "(atLocation agent1", "(atLocation agent2", "names 'agent2', which :objects does not list"),
        ("problem", ")", "", "never closed"),
        ("grammar", "action help", "action halp", "no action help"),
        ("grammar", '"intro"', '"outro"', "no production for the symbol #intro#"),
        ("grammar", "{o.name}", "{o.__class__}", "uses more than"),
        ("grammar", "holdsany(a:agent)", "holdsany(a:agnet)", "'agnet', which the domain lacks"),
        ("grammar", '"task": [', '"task" [', "not valid JSON"),
    ],
)
def test_foreign_rules_are_refused_with_the_place(records: list[dict[str, Any]], part: str, old: str, new: str, said: str) -> None:
    shared = json.loads((shared_folder("alfworld") / "shared.json").read_text())
    texts = {
        "problem": records[0]["problem"],
        "domain": shared["domains"][0],
        "grammar": shared["grammars"][0].replace("{TASK}", records[0]["goal"]),
    }
    assert old in texts[part]
    texts[part] = texts[part].replace(old, new, 1)
    with pytest.raises(TurnwiseError) as caught:
        World.from_text(**texts)
    assert said in str(caught.value)
