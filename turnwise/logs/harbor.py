"""Agent trajectories of Harbor (ATIF). The outcome of a trial is in the file `result.json` of its folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.logs.attempts import Attempt
from turnwise.logs.calls import seconds
from turnwise.logs.files import LARGEST_JSON, Record
from turnwise.logs.messages import Message, fields_of, items_of, loaded, messages_of


def is_trajectory(value: Any) -> bool:
    """Whether this is an ATIF document, or the result of a trial, which is read with its trajectory."""
    if not isinstance(value, dict):
        return False
    return _is_atif(value) or "trial_name" in value


def read(records: Iterable[Record]) -> Iterator[Attempt]:
    """One attempt per trajectory. Trajectories of subagents are not read: what they gave back is in the parent's observation."""
    for record in records:
        if not _is_atif(record.value):
            continue
        trial, document = _trial(record.path), record.value
        outcomes = dict(fields_of(fields_of(trial.get("verifier_result")).get("rewards")))
        fault = fields_of(trial.get("exception_info")).get("exception_type")
        name = trial.get("trial_name") or document.get("trajectory_id") or document.get("session_id") or record.where
        yield Attempt(
            str(name),
            list(_messages(document["steps"])),
            str(trial["task_name"]) if trial.get("task_name") else None,
            outcomes,
            {**trial, **{key: document[key] for key in ("extra", "final_metrics", "session_id", "agent") if key in document}},
            str(fault or ""),
        )


def _is_atif(value: dict[str, Any]) -> bool:
    return str(value.get("schema_version", "")).startswith("ATIF") and isinstance(value.get("steps"), list)


def _messages(steps: list[Any]) -> Iterator[Message]:
    for step in steps:
        if not isinstance(step, dict) or step.get("is_copied_context"):
            continue
        source, time = str(step.get("source") or "user"), seconds(step.get("timestamp")) or None
        for message in messages_of({"role": source, "content": step.get("message"), "tool_calls": step.get("tool_calls")}):
            message.time = time
            yield message
        for result in items_of(fields_of(step.get("observation")).get("results")):
            if isinstance(result, dict):
                role = "user" if source == "system" else "tool"
                yield from messages_of({"role": role, "content": result.get("content"), "tool_call_id": result.get("source_call_id")})


def _trial(path: Path) -> Mapping[str, Any]:
    """The result of the trial of a trajectory: in the folder above `agent/`, or, of a task with steps, above `steps/NAME/agent/`."""
    for folder in path.absolute().parents[:4]:
        result = folder / "result.json"
        if result.is_file() and result.stat().st_size <= LARGEST_JSON:
            value = fields_of(loaded(result.read_bytes().decode(errors="replace")))
            if "trial_name" in value:
                return value
    return {}
