"""Runs of LangSmith: JSON lines, an array, or an answer of its API with the runs under `runs` or `data`. Feedback may be among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnwise.logs.attempts import Attempt
from turnwise.logs.calls import Calls, chat, seconds
from turnwise.logs.files import Record
from turnwise.logs.messages import fields_of, items_of

DONE = ("messages", "output", "response", "text", "content")


def is_run(value: Any) -> bool:
    """Whether this is a run, an envelope of runs, or feedback about one."""
    if not isinstance(value, dict):
        return False
    envelope = value.get("runs", value.get("data"))
    if isinstance(envelope, list) and envelope:
        return is_run(envelope[0])
    return "run_type" in value or ("run_id" in value and "key" in value and "score" in value)


def read(records: Iterable[Record]) -> Iterator[Attempt]:
    """One attempt per trace. The dataset's example is its task; feedback, by its key, is the outcome."""
    traces: dict[str, Calls] = {}
    trace_of: dict[str, str] = {}
    feedback: list[Mapping[str, Any]] = []
    for record in records:
        for run in _runs(record.value):
            if "run_type" not in run:
                feedback.append(run)
                continue
            trace = str(run.get("trace_id") or run.get("id"))
            trace_of[str(run.get("id"))] = trace
            _add(traces.setdefault(trace, Calls()), run)
    for given in feedback:
        trace = str(given.get("trace_id") or trace_of.get(str(given.get("run_id")), ""))
        if trace in traces and given.get("key"):
            told = given.get("score")
            traces[trace].outcomes[str(given["key"])] = given.get("value") if told is None else told
    yield from (calls.attempt(trace) for trace, calls in traces.items())


def _runs(value: Any) -> Iterator[Mapping[str, Any]]:
    """The runs in a record, those inside of others included."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            envelope = value.get("runs", value.get("data"))
            if isinstance(envelope, list) and "run_type" not in value:
                waiting += envelope
                continue
            yield value
            waiting += items_of(value.get("child_runs"))


def _add(calls: Calls, run: Mapping[str, Any]) -> None:
    start, given, done = seconds(run.get("start_time")), run.get("inputs"), run.get("outputs")
    if run["run_type"] == "llm":
        calls.model(start, chat(given), chat(done, DONE))
    elif run["run_type"] in ("tool", "retriever"):
        arguments = given.get("input", given) if isinstance(given, dict) else given
        result = done.get("output", done) if isinstance(done, dict) else done
        call = ""
        if isinstance(result, dict) and isinstance(result.get("content", result.get("kwargs")), (str, dict)):  # LangChain's ToolMessage
            message = result.get("kwargs", result)
            result, call = message.get("content"), message.get("tool_call_id")
        calls.tool(start, run.get("name"), arguments, result, run.get("error"), call)
    if not run.get("parent_run_id"):
        calls.whole = (chat(given), chat(done, DONE))
        metadata = fields_of(run.get("extra")).get("metadata")
        calls.fields |= {"metadata": metadata, "inputs": given, "outputs": done, "name": run.get("name"), "tags": run.get("tags")}
        calls.task = str(run["reference_example_id"]) if run.get("reference_example_id") else None
    calls.outcomes |= {key: value for key, value in fields_of(run.get("feedback_stats")).items() if value is not None}
