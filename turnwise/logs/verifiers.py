"""Traces of verifiers 0.4 (`traces.jsonl`, one episode per line), as `vf-eval` and prime-rl write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnwise.logs.attempts import Attempt
from turnwise.logs.files import Record
from turnwise.logs.messages import Message, fields_of, items_of, messages_of, number_of


def is_episode(value: Any) -> bool:
    """Whether this is an episode, or a single trace."""
    return isinstance(value, dict) and (
        (isinstance(value.get("traces"), list) and "task" in value) or (isinstance(value.get("nodes"), list) and "rewards" in value)
    )


def read(records: Iterable[Record]) -> Iterator[Attempt]:
    """One attempt per trace. Its reward is the weighted sum of the rewards; `--outcome rewards.NAME` or `metrics.NAME` takes one."""
    for record in records:
        episode = record.value
        for trace in episode.get("traces", [episode]):
            if not isinstance(trace, dict):
                continue
            task = fields_of(trace.get("task") or episode.get("task"))
            data = fields_of(task.get("data"))
            names = (task.get("key"), *(data.get(key) for key in ("id", "name", "idx")))
            name = next((value for value in names if value is not None), None)
            rewards = [value for value in fields_of(trace.get("rewards")).values() if isinstance(value, dict)]
            total = sum((number_of(reward.get("score")) or 0.0) * (number_of(reward.get("weight", 1.0)) or 0.0) for reward in rewards)
            fields = {key: value for key, value in trace.items() if key not in ("nodes", "calls", "tools")}
            yield Attempt(
                str(trace.get("id") or record.where),
                _messages(trace),
                None if name is None else str(name),
                {"reward": total} if rewards else {},
                fields,
                str(trace.get("stop_condition") or ""),
            )


def _messages(trace: Mapping[str, Any]) -> list[Message]:
    """The messages in the order in which they happened: branches begin again from an earlier message, and no message is there twice."""
    messages = []
    for node in items_of(trace.get("nodes")):
        if isinstance(node, dict):
            for message in messages_of(node.get("message")):
                message.given, message.time = not node.get("sampled"), number_of(node.get("timestamp"))
                messages.append(message)
    return messages
