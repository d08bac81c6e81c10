"""Exports of Langfuse: traces with their observations and scores, rows of observations and of scores (from the API or a blob storage), as
JSON or JSON lines. Names are read as the API writes them (`traceId`) and as exports do (`trace_id`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnwise.logs.attempts import Attempt
from turnwise.logs.calls import Calls, chat, seconds
from turnwise.logs.files import Record
from turnwise.logs.messages import fields_of, items_of, loaded

UPPER = re.compile(r"(?<=[a-z])(?=[A-Z])")
DONE = ("messages", "output", "response")
TYPES = ("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")


def is_export(value: Any) -> bool:
    """Whether this is a trace, an observation, a score, or an envelope of them."""
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("data"), list) and value["data"]:
        return is_export(value["data"][0])
    row = _row(value)
    return (
        (isinstance(row.get("observations"), list) and ("id" in row or "trace" in row))
        or ("trace_id" in row and row.get("type") in TYPES)
        or (("trace_id" in row or "subject" in row) and "name" in row and "value" in row)
        or ("session_id" in row and "project_id" in row and "input" in row)
    )


def read(records: Iterable[Record]) -> Iterator[Attempt]:
    """One attempt per trace. Its task is the dataset item of an experiment, if it is part of one; scores, by name, are the outcomes."""
    traces: dict[str, Calls] = {}
    for record in records:
        waiting = [(record.value, "")]
        while waiting:
            value, parent = waiting.pop()
            if not isinstance(value, dict):
                continue
            if isinstance(value.get("data"), list):
                waiting += [(each, parent) for each in value["data"]]
                continue
            row = _row(value)
            inner = row.pop("trace", None)
            subject = fields_of(row.get("subject"))
            about = subject.get("id") if subject.get("kind", "trace") == "trace" else None
            trace = str(row.get("trace_id") or about or (fields_of(inner) or row).get("id") or parent)
            for part in ("observations", "scores"):
                waiting += [(each, trace) for each in items_of(row.pop(part, None))]
            if isinstance(inner, dict):
                waiting.append((inner, trace))
            elif parent and "trace_id" not in row:
                row["trace_id"] = parent
            if row:
                _add(traces.setdefault(trace, Calls()), row)
    yield from (calls.attempt(trace) for trace, calls in traces.items())


def _add(calls: Calls, row: dict[str, Any]) -> None:
    given, done, kind = loaded(row.get("input")), loaded(row.get("output")), row.get("type")
    start = seconds(row.get("start_time"))
    failed = row.get("level") == "ERROR"
    if kind == "GENERATION":
        calls.model(start, chat(given), chat(done, DONE))
    elif kind in ("TOOL", "RETRIEVER"):
        calls.tool(start, row.get("name"), given, done, (row.get("status_message") or "error") if failed else None)
    elif "value" in row and "name" in row and kind not in TYPES:
        text = row.get("string_value")
        calls.outcomes[str(row["name"])] = row["value"] if row["value"] is not None else text
        return
    metadata = loaded(row.get("metadata"))
    if kind not in TYPES or not row.get("parent_observation_id"):  # the trace itself, or its root
        calls.whole = (chat(given) if given is not None else calls.whole[0], chat(done, DONE) if done is not None else calls.whole[1])
        calls.fields |= {key: value for key, value in row.items() if key not in ("input", "output")} | {"metadata": metadata}
    item = row.get("dataset_item_id") or row.get("experiment_item_id")
    item = item or fields_of(metadata).get("dataset_item_id") or fields_of(metadata).get("langfuse.experiment.item.id")
    calls.task = calls.task or (str(item) if item else None)


def _row(value: Mapping[str, Any]) -> dict[str, Any]:
    return {UPPER.sub("_", str(key)).lower(): each for key, each in value.items()}
