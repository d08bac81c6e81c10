"""The exact tokens of turns as differences: how they are kept on disk.

Prompts repeat themselves: a growing dialogue starts with all of the last prompt and response, and a window starts and ends as the one
before it. A prompt is therefore encoded as what it shares with the previous turn of its trajectory (length of the common prefix with that
prompt and its response, length of the common suffix with that prompt) and the tokens in between. The first prompt of a trajectory is
compared with the first prompt of the previous trajectory, which is usually the same task.

    opens, start, end, middle, response     one entry per turn: whether it is a first turn, and four lengths
    middle_ids, response_ids                the tokens of all turns, one after another

Decoded prompts of a dialogue share one list (`Prefix`), as they do where they were sampled.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.data.rollouts import Trajectory
from turnwise.util.background import Pause
from turnwise.util.errors import TurnwiseError
from turnwise.util.files import write_atomically
from turnwise.util.prefix import Prefix, common_length
from turnwise.util.unpack import open_archive

SCHEMA, VERSION = "turnwise.tokens", 1
AT_LEAST, TIMES = 2**26, 500  # the number of tokens that a file may contain: at least, and per byte
LENGTHS = ("opens", "start", "end", "middle", "response")
Arrays = dict[str, NDArray[Any]]


def encode(trajectories: Sequence[Trajectory], pause: Pause = lambda: None) -> Arrays:
    """The prompts and responses of all turns, in the order of the trajectories. `pause` is called after each of these."""
    lengths, middles, responses = list[int](), list[int](), list[int]()
    opening: list[int] | Prefix = []
    for trajectory in trajectories:
        earlier, answer = opening, list[int]()
        for t, turn in enumerate(trajectory.turns):
            prompt, response = _plain(turn.prompt_ids), _plain(turn.response_ids)
            start = _common_start(prompt, earlier, answer)
            rest = prompt[start:]
            end = 0
            if rest and len(earlier) and earlier[-1] == rest[-1]:  # otherwise nothing needs to be compared
                end = common_length(earlier[max(0, len(earlier) - len(rest)) :][::-1], rest[::-1])
            middle = len(rest) - end
            lengths += (t == 0, start, end, middle, len(response))
            middles += rest[:middle]
            responses += response
            if t == 0:
                opening = prompt
            earlier, answer = prompt, response
        pause()
    table = _narrow(lengths).reshape(-1, len(LENGTHS))
    arrays = {name: _narrow(table[:, column]) for column, name in enumerate(LENGTHS)}
    return arrays | {"opens": arrays["opens"].astype(np.bool_), "middle_ids": _narrow(middles), "response_ids": _narrow(responses)}


def decode(arrays: Arrays, room: float) -> Iterator[tuple[Prefix, tuple[int, ...]]]:
    """Prompt and response of each turn that `encode` encoded. `room` limits the tokens of all prompts and responses together: a prompt may
    repeat the previous one twice, and so on."""
    middles, responses = arrays["middle_ids"].tolist(), arrays["response_ids"].tolist()
    opening = earlier = Prefix([])
    answer: tuple[int, ...] = ()
    middle_at = response_at = 0
    for opens, start, end, middle, count in zip(*(arrays[name].tolist() for name in LENGTHS), strict=True):
        if opens:
            earlier, answer = opening, ()
        if not (0 <= start <= len(earlier) + len(answer) and 0 <= end <= len(earlier) and middle >= 0 and count >= 0):
            raise ValueError("a prompt repeats more of the previous turn than that has")
        room -= start + middle + end + count
        if room < 0:
            raise ValueError("its prompts are far longer than the file could hold")
        between = middles[middle_at : middle_at + middle]
        if end:
            between += earlier.whole[earlier.size - end : earlier.size]
        earlier, answer = _continued(earlier, answer, start, between), tuple(responses[response_at : response_at + count])
        middle_at, response_at = middle_at + middle, response_at + count
        if opens:
            opening = earlier
        yield earlier, answer


def _common_start(prompt: list[int] | Prefix, earlier: list[int] | Prefix, answer: Sequence[int]) -> int:
    """How many tokens of the previous prompt and response a prompt begins with."""
    if type(prompt) is Prefix and type(earlier) is Prefix and (start := prompt.held(earlier, answer)):
        return start
    ids, before = _list_of(prompt), _list_of(earlier)
    start = common_length(before, ids)
    return start if start < len(before) else start + common_length(list(answer), ids[start : start + len(answer)])


def _list_of(tokens: list[int] | Prefix) -> list[int]:
    """`type(…) is`: of a class that derives from Sequence, isinstance is slow whenever its answer is no."""
    return tokens.listed() if type(tokens) is Prefix else tokens  # type: ignore[return-value]


def _continued(earlier: Prefix, answer: Sequence[int], start: int, rest: list[int]) -> Prefix:
    """The first `start` tokens of the previous turn, and the rest. A dialogue that goes on grows in place."""
    if start == earlier.size + len(answer):
        whole = earlier.whole if earlier.size == len(earlier.whole) else earlier.listed()
        whole += answer
    elif start > earlier.size:
        whole = earlier + answer[: start - earlier.size]
    else:
        whole = earlier.whole[:start]
    whole += rest
    return Prefix(whole)


def write_tokens(path: Path, trajectories: Sequence[Trajectory], pause: Pause = lambda: None) -> Path:
    """Write the prompts and responses of all turns."""
    header = np.array(json.dumps({"schema": SCHEMA, "version": VERSION}))
    arrays: dict[str, Any] = {"header": header, **encode(trajectories, pause)}
    return write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


def read_tokens(path: Path) -> list[tuple[Prefix, tuple[int, ...]]]:
    """Prompt and response ids of every turn, in the order in which they were written."""
    if not path.is_file():
        raise TurnwiseError(f"{path}: no such file of tokens. Runs of earlier versions with run.keep_tokens=false have none")
    try:
        with open_archive(path) as archive:
            header = json.loads(str(archive["header"]))
            arrays = {name: archive[name].astype(np.int64) for name in archive.files if name != "header"}
    except Exception as error:  # a damaged archive fails in many ways
        raise TurnwiseError(f"{path}: damaged, or not a file of tokens ({error})") from None
    if not isinstance(header, dict) or header.get("schema") != SCHEMA or header.get("version") != VERSION:
        raise TurnwiseError(f"{path}: holds {header}, and this Turnwise reads {SCHEMA!r} version {VERSION}")
    try:
        return list(decode(arrays, room=max(AT_LEAST, TIMES * path.stat().st_size)))
    except (KeyError, ValueError) as error:
        raise TurnwiseError(f"{path}: damaged: {error}") from None


def _plain(ids: Sequence[int]) -> Any:
    """Tokens as a list or a `Prefix`, of Python's integers."""
    if type(ids) is list or type(ids) is Prefix:
        return ids
    return list(ids) if isinstance(ids, (list, tuple)) else np.asarray(ids, np.int64).tolist()


def _narrow(values: Any) -> NDArray[Any]:
    """Integers from 0 in as few bytes as possible."""
    numbers = np.frombuffer(array("q", values), np.int64) if isinstance(values, list) else values
    return numbers.astype(np.min_scalar_type(int(numbers.max()))) if len(numbers) else numbers.astype(np.uint8)
