"""Credit on the traces of verifiers 0.4, in memory and in `traces.jsonl`: one advantage per sampled token, in each message's own node.

A trace that takes no part (`is_scored`) is left as it is: its advantages stay None, which means that it was never scored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.hosts.traces import Turns, is_scored
from turnwise.hosts.versions import need_version
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_atomically
from turnwise.util.unpack import json_lines, packed_lines

VERSION = "0.4"
DECIMALS = 7  # of advantages in files
OF_EPISODE, OF_AGENT = ("env", "task", "group"), ("name", "trainable")  # the keys that credit reads
OF_TRACE = ("id", "task", "nodes", "rewards", "metrics", "info", "ok")


def give(
    episodes: Iterable[Any],
    name: str | Callable[..., Any] = "gigpo",
    *,
    anchor: str | None = None,
    reward: str | None = None,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Set `MessageNode.advantages` of every sampled message, and return what a run logs about its credit. `episodes` are of one group or
    of many. `anchor`, `reward` and `columns` are explained in `traces.Turns`; other options are the algorithm's."""
    need_version("verifiers", VERSION)
    turns = Turns(anchor, reward, columns)
    for episode in episodes:
        for trace in filter(is_scored, episode.traces):
            turns.add(episode, trace, trace.nodes)
    advantages, metrics = turns.credit(name, **options)
    for node, values in zip(turns.places, advantages, strict=True):
        node.advantages = values
    return metrics


def give_in_file(
    source: str | Path,
    target: str | Path,
    name: str | Callable[..., Any] = "gigpo",
    *,
    anchor: str | None = None,
    reward: str | None = None,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The same for the episodes of a `traces.jsonl`, which are written to another file in the same order, otherwise unchanged. What is kept
    in memory of the whole file is only what credit reads."""
    need_version("verifiers", VERSION)
    from verifiers.v1 import WireEpisode

    source, turns = Path(source), Turns(anchor, reward, columns)
    for number, row in enumerate(json_lines(source)):
        try:
            episode = WireEpisode.model_validate(_needed(row, OF_EPISODE) | {"traces": [_of_trace(trace) for trace in row["traces"]]})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TurnwiseError(f"{source}, episode {number + 1}: not an episode of verifiers {VERSION}: {str(error)[:300]}") from None
        for index, trace in enumerate(episode.traces):
            if is_scored(trace):
                turns.add(episode, trace, [(number, index, node) for node in range(len(trace.nodes))])
    advantages, metrics = turns.credit(name, **options)
    of_episode: dict[int, list[tuple[int, int, list[float]]]] = {}
    for (number, index, node), values in zip(turns.places, advantages, strict=True):
        of_episode.setdefault(number, []).append((index, node, [round(value, DECIMALS) for value in values]))
    write_atomically(target, lambda file: _copy(source, of_episode, file))
    return metrics


def _needed(record: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: record[key] for key in keys if key in record}


def _of_trace(trace: dict[str, Any]) -> dict[str, Any]:
    """What credit reads of a trace. How its agent was configured is checked strictly by verifiers, and differs between its releases."""
    return _needed(trace, OF_TRACE) | {"agent": _needed(trace["agent"], OF_AGENT) | {"config": {}}}


def _copy(source: Path, of_episode: Mapping[int, Sequence[tuple[int, int, list[float]]]], file: BinaryIO) -> None:
    """Copy episode by episode; only those with credit are written anew."""
    for number, line in enumerate(line for line in packed_lines(source) if line.strip()):
        if number in of_episode:
            row = json.loads(line)
            for index, node, values in of_episode[number]:
                row["traces"][index]["nodes"][node]["advantages"] = values
            line = json.dumps(row, separators=(",", ":")).encode()
        file.write(line.rstrip(b"\n") + b"\n")
