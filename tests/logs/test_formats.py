"""The same attempts, exported by the real packages in each format (`make_logs.py`), are read as the same turns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from make_logs import ATTEMPTS

import turnwise as tw
from turnwise.logs.reading import read_logs

DATA = Path(__file__).parent / "data"
LOGS: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "messages": (["messages.jsonl"], "messages", {}),
    "requests": (["requests.jsonl"], "messages", {}),
    "responses": (["responses.jsonl"], "messages", {}),
    "otel, attributes": (["otel_span_only.jsonl"], "otel", {"task": "task.id"}),
    "otel, an event per call": (["otel_event_only.jsonl"], "otel", {}),
    "otel, an event per message": (["otel_messages.jsonl"], "otel", {"outcome": "solved"}),
    "langfuse": (["langfuse_observations.jsonl", "langfuse_scores.jsonl"], "langfuse", {}),
    "langfuse, scores first": (["langfuse_scores.jsonl", "langfuse_observations.jsonl"], "langfuse", {}),
    "langsmith": (["langsmith.jsonl"], "langsmith", {}),
    "harbor": (["harbor"], "harbor", {}),
    "harbor, one outcome": (["harbor"], "harbor", {"outcome": "verifier_result.rewards.reward"}),
    "verifiers": (["verifiers.jsonl"], "verifiers", {}),
    "verifiers, one reward": (["verifiers.jsonl"], "verifiers", {"outcome": "rewards.right"}),
}
Read = tuple[list[tuple[str, str, str | None, str | None, str]], bool]


def expected() -> list[tuple[str, Read]]:
    """By the task: what the agent saw, did, with which tool, with which error and result, at each turn; and whether it won."""
    attempts = []
    for _, task, question, turns, answer, won in ATTEMPTS:
        rows, seen = [], question
        for _, tool, arguments, result in turns:
            error = result if result.startswith("Error") else None
            action = f"{tool} {json.dumps(arguments, sort_keys=True, separators=(',', ':'))}"
            rows.append((seen, action, tool, error, result))
            seen = result
        attempts.append((task, ([*rows, (seen, answer, None, None, "")], won)))
    return attempts


def what_was_read(trajectories: list[tw.Trajectory]) -> list[tuple[str, Read]]:
    def turn(turn: tw.Turn) -> tuple[str, str, str | None, str | None, str]:
        return turn.observation, turn.action, turn.info["tool"], turn.info["error"], turn.info["result"]

    return [(str(each.group), ([turn(row) for row in each.turns], each.success)) for each in trajectories]


def partition(attempts: list[tuple[str, Read]]) -> list[list[str]]:
    """The attempts of each task, whatever the task is called."""
    tasks: dict[str, list[str]] = {}
    for task, attempt in attempts:
        tasks.setdefault(task, []).append(repr(attempt))
    return sorted(sorted(group) for group in tasks.values())


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_every_format_gives_the_same_turns_outcomes_and_tasks(name: str) -> None:
    files, form, options = LOGS[name]
    logs = read_logs([DATA / file for file in files], **options)
    assert logs.formats == [form] and not logs.notes
    assert partition(what_was_read(logs.trajectories)) == partition(expected())
    assert len({trajectory.id for trajectory in logs.trajectories}) == len(ATTEMPTS)
    assert [trajectory.reward for trajectory in logs.trajectories] == [float(trajectory.success) for trajectory in logs.trajectories]


@pytest.mark.parametrize("name", LOGS)
def test_equal_observations_are_one_state_in_every_format(name: str) -> None:
    files, _, options = LOGS[name]
    anchors: dict[str, set[str]] = {}
    for trajectory in read_logs([DATA / file for file in files], **options).trajectories:
        for turn in trajectory.turns:
            anchors.setdefault(turn.observation, set()).add(turn.anchor)
    assert all(len(keys) == 1 for keys in anchors.values()) and len(set.union(*anchors.values())) == len(anchors)


def test_all_formats_in_one_folder_are_read_together(tmp_path: Path) -> None:
    for name in ("messages", "verifiers", "otel_span_only"):
        packed = gzip.compress((DATA / f"{name}.jsonl").read_bytes())
        (tmp_path / f"{name}.jsonl.gz").write_bytes(packed)
    (tmp_path / "notes.json").write_text('{"nothing": "of the kind"}')
    logs = read_logs([tmp_path])
    assert sorted(logs.formats) == ["messages", "otel", "verifiers"] and len(logs.trajectories) == 3 * len(ATTEMPTS)
    assert logs.notes == ["1 record left out: of no known format"]


def test_calls_of_tools_alone_are_turns(tmp_path: Path) -> None:
    """OpenTelemetry without the content of messages: only the spans of tools say what was done."""
    lines = (DATA / "otel_span_only.jsonl").read_text().splitlines()
    value = json.loads(lines[0])
    for scope in value["resourceSpans"][0]["scopeSpans"]:
        for span in scope["spans"]:
            span["attributes"] = [each for each in span["attributes"] if "messages" not in each["key"]]
    (tmp_path / "spans.jsonl").write_text("\n".join([json.dumps(value), *lines[1:]]))
    logs = read_logs([tmp_path / "spans.jsonl"], task="task.id")
    actions = sorted([turn.action for turn in trajectory.turns] for trajectory in logs.trajectories)
    assert actions == [['find {"order":17}', 'refund {"full":true,"order":17}'], ['refund {"order":17}'] * 2, ['stock {"item":"pear"}']]
    assert logs.notes == ["1 attempt without a turn of the agent left out"]
