"""The exact tokens of an iteration in one small file, so that an update can be repeated exactly.

Prompts repeat themselves: a growing dialogue starts with all of the last prompt and response, and a window starts and ends as the one
before it. A prompt is therefore stored as what it shares with the previous text of its trajectory (length of the common prefix with that
prompt and its response, length of the common suffix with that prompt) and the tokens in between. The first prompt of a trajectory is
compared with the first prompt of the previous trajectory, which is usually the same task. One pass over the tokens, no pickles, exact ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.rollouts import Trajectory
from turnwise.util.beside import Pause
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_atomically
from turnwise.util.prefix import Prefix, common_length, extend_to
from turnwise.util.unpack import open_archive

SCHEMA, VERSION = "turnwise.tokens", 1
AT_LEAST, TIMES = 2**26, 500  # the number of tokens that a file may contain: at least, and per byte
Ids = NDArray[np.int64]
Pair = tuple[Ids, Ids]
NOTHING: Ids = np.zeros(0, np.int64)


def write_tokens(path: Path, trajectories: Sequence[Trajectory], pause: Pause = lambda: None) -> Path:
    """Write the prompts and responses of all turns, in the order of the trajectories. `pause` is called after each of these."""
    table: list[tuple[int, int, int, int, int]] = []
    middles: list[int] = []
    responses: list[int] = []
    first: list[int] | Prefix = []
    for trajectory in trajectories:
        prompt, past = first, Past(first)
        for t, turn in enumerate(trajectory.turns):
            after = prompt
            prompt, response = _listed(turn.prompt_ids), _listed(turn.response_ids)
            start = past.repeated(prompt, response, t > 0)
            rest = prompt[start:]
            end = common_length(after[max(0, len(after) - len(rest)) :][::-1], rest[::-1])
            table.append((int(t == 0), start, end, len(rest) - end, len(response)))
            middles += rest[: len(rest) - end]
            responses += response
            first = prompt if t == 0 else first
        pause()
    columns = np.asarray(table, np.int64).reshape(-1, 5)
    arrays: dict[str, Any] = {
        "header": np.array(json.dumps({"schema": SCHEMA, "version": VERSION})),
        "opens": columns[:, 0].astype(np.bool_),
        "start": _narrow(columns[:, 1]),
        "end": _narrow(columns[:, 2]),
        "middle": _narrow(columns[:, 3]),
        "response": _narrow(columns[:, 4]),
        "middle_ids": _narrow(np.asarray(middles, np.int64)),
        "response_ids": _narrow(np.asarray(responses, np.int64)),
    }
    return write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


class Past:
    """Prompt and response of the turn before."""

    def __init__(self, first: list[int] | Prefix):
        self._shared: tuple[Prefix, list[int]] | None = None
        self._ids = list(first)

    def repeated(self, prompt: list[int] | Prefix, response: list[int], own: bool) -> int:
        """How many tokens of them a prompt begins with; with its response it becomes the past. `own`: it is of the same trajectory."""
        if isinstance(prompt, Prefix) and self._shared is not None and (held := prompt.held(*self._shared)):
            self._shared = prompt, response
            return held
        ids = prompt.listed() if isinstance(prompt, Prefix) else prompt
        before = self._ids if self._shared is None else self._shared[0] + self._shared[1]
        start, self._shared = len(before), (prompt, response) if isinstance(prompt, Prefix) else None
        if own and extend_to(before, ids):  # a dialogue that grows
            before += response
        else:
            start, before = common_length(before, ids), ids + response
        self._ids = before
        return start


def read_tokens(path: Path) -> list[Pair]:
    """Prompt and response ids of every turn, in the order in which they were written."""
    if not path.is_file():
        raise TurnwiseError(f"{path}: no such file of tokens")
    try:
        with open_archive(path) as archive:
            header = json.loads(str(archive["header"]))
            arrays = {name: archive[name].astype(np.int64) for name in archive.files if name != "header"}
    except Exception as error:  # a damaged archive fails in many ways
        raise TurnwiseError(f"{path}: damaged, or not a file of tokens ({error})") from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA or header.get("version") != VERSION:
        raise TurnwiseError(f"{path}: holds {header}, and this Turnwise reads {SCHEMA!r} version {VERSION}")
    found, room = [], max(AT_LEAST, TIMES * path.stat().st_size)
    for prompt, response in _restore(arrays):
        room -= len(prompt) + len(response)
        if room < 0:  # a prompt may repeat the previous one twice, and so on
            raise TurnwiseError(f"{path}: damaged: its prompts are far longer than the file could hold")
        found.append((prompt, response))
    return found


def _restore(arrays: dict[str, Ids]) -> Iterable[Pair]:
    rows = zip(*(arrays[name].tolist() for name in ("opens", "start", "end", "middle", "response")), strict=True)
    first, prompt, response = NOTHING, NOTHING, NOTHING
    middle_at = response_at = 0
    for opens, start, end, middle, count in rows:
        if opens:
            prompt, response = first, NOTHING
        before, after = np.concatenate([prompt, response]), prompt
        between = arrays["middle_ids"][middle_at : middle_at + middle]
        prompt = np.concatenate([before[:start], between, after[len(after) - end :]])
        response = arrays["response_ids"][response_at : response_at + count]
        middle_at, response_at = middle_at + middle, response_at + count
        first = prompt if opens else first
        yield prompt, response


def _listed(ids: Sequence[int]) -> Any:
    return ids if isinstance(ids, (list, Prefix)) else np.asarray(ids, np.int64).tolist()


def _narrow(values: Ids) -> NDArray[Any]:
    """The same integers in as few bytes as possible."""
    return values.astype(np.min_scalar_type(int(values.max()))) if len(values) else values.astype(np.uint8)
