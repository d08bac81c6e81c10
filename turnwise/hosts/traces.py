"""The turns of verifiers' traces as columns, for credit on them: in verifiers itself, and in prime-rl.

A trace is one trajectory. Its turns are its sampled nodes in the order in which they were sampled; a node that several branches share is
one turn. Traces are compared with those of the same group, agent and task: an episode may have several agents, and a solver's task may be
a problem that another agent proposed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from turnwise.credit.spans import on_tokens
from turnwise.data.rollouts import Rollouts
from turnwise.util.errors import TurnwiseError


class Turns:
    """The turns of traces, in the order in which traces are added.

    anchor, reward and columns are keys of `trace.info`, where a list has one entry per turn. anchor: the state before the turn; without it,
    the messages since the response before. reward: of the turn; the sum is the whole return. It may also be a key of `trace.metrics`, which
    is one number per trace, as is the default, `trace.reward`: it goes to the last turn. columns: what else the algorithm reads, such as
    {"turn.value": "values"}; for a column "token.…", each entry is a list with one number per sampled token.
    """

    def __init__(self, anchor: str | None = None, reward: str | None = None, columns: Mapping[str, str] | None = None):
        self._anchor, self._reward, self._keys = anchor, reward, columns or {}
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._further: dict[str, list[Any]] = {column: [] for column in self._keys}
        self._traces = 0
        self.places: list[Any] = []  # of the turns' nodes, as the caller gave them

    def add(self, episode: Any, trace: Any, places: Sequence[Any]) -> None:
        """Add the turns of a trace. `places` has one entry per node."""
        nodes, task = trace.nodes, trace.task
        turns = [number for number, node in enumerate(nodes) if node.sampled or any(node.mask)]
        tokens = [sum(nodes[turn].mask) for turn in turns]
        group = [episode.group.id if episode.group else episode.env.id, trace.agent.name, task.key or task.hash or repr(task.data)]
        columns = self._columns
        columns["group"] += [json.dumps(group)] * len(turns)
        columns["trajectory"] += [self._traces] * len(turns)
        columns["t"] += range(len(turns))
        columns["reward"] += self._rewards(trace, len(turns))
        columns["anchor"] += _entries(trace, self._anchor, len(turns)) if self._anchor else [_observation(nodes, turn) for turn in turns]
        columns["tokens"] += tokens
        for column, key in self._keys.items():
            self._further[column] += _entries(trace, key, len(turns), tokens if column.startswith("token.") else None)
        self.places += [places[turn] for turn in turns]
        self._traces += 1

    def _rewards(self, trace: Any, turns: int) -> Sequence[Any]:
        of_trace = trace.reward if self._reward is None else trace.metrics.get(self._reward)
        if of_trace is None or self._reward in trace.info:
            return _entries(trace, str(self._reward), turns)
        return [0.0] * (turns - 1) + [of_trace]

    def credit(self, name: str | Callable[..., Any], **options: Any) -> tuple[list[list[float]], dict[str, Any]]:
        """For each turn, the advantages of its sampled tokens; and what a run logs about its credit."""
        if not self.places:
            return [], {}
        base: dict[str, Any] = dict(self._columns)
        rollouts = Rollouts.from_columns(**base).with_columns(self._further)
        offsets = rollouts.token_offsets
        flat, metrics = on_tokens(name, rollouts, offsets[:-1], np.diff(offsets), int(offsets[-1]), **options)
        return [values.tolist() for values in np.split(flat, offsets[1:-1])], metrics


def is_scored(trace: Any) -> bool:
    """Whether a trace takes part, by prime-rl's rule: one that failed, that is not trained or that has no sampled token does not."""
    return bool(trace.ok and trace.agent.trainable and any(any(node.mask) for node in trace.nodes))


def _entries(trace: Any, key: str, turns: int, tokens: Sequence[int] | None = None) -> Sequence[Any]:
    """What `trace.info` has for each turn; with `tokens`, for each sampled token, in one list."""
    values = trace.info.get(key)
    if not isinstance(values, list) or len(values) != turns:
        what = f"a list of {len(values)}" if isinstance(values, list) else type(values).__name__
        raise TurnwiseError(f"trace {trace.id}, info[{key!r}]: a list with one entry for each of the {turns} turns is needed, not {what}")
    if tokens is None:
        return values
    for turn, (numbers, count) in enumerate(zip(values, tokens, strict=True)):
        if not isinstance(numbers, list) or len(numbers) != count:
            raise TurnwiseError(f"trace {trace.id}, info[{key!r}][{turn}]: a list with one number for each of {count} tokens is needed")
    return list(chain.from_iterable(values))


def _observation(nodes: Sequence[Any], turn: int) -> str:
    """What the model read last before it sampled a message: the messages since the response before, on the path to it."""
    texts: list[str] = []
    parent = nodes[turn].parent
    while parent is not None and 0 <= parent < turn and not (texts and nodes[parent].sampled):
        message = nodes[parent].message
        content = message.content or ""
        parts = [content] if isinstance(content, str) else [getattr(part, "text", None) or part.image_url.url for part in content]
        texts.append("\n".join([f"{message.role}:", *parts]))
        turn, parent = parent, nodes[parent].parent
    return "\n".join(reversed(texts))
