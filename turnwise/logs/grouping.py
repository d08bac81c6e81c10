"""Which attempts are of one task, and which turns start from one state.

A task is the log's own name of it, else the first message of the user. A state is the last observation. Both are compared as texts without
what differs from attempt to attempt: ids, times of day, dates with a time, durations and addresses. Other numbers count: a price or a row
tells states apart. With a threshold, similar texts are one: by the meaning that a model of sentences sees, or by letters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from turnwise.credit.similar import join_similar, similarities
from turnwise.data.rollouts import Trajectory, Turn
from turnwise.util.errors import TurnwiseError

MOST_SIMILAR = 2_000  # different texts that are compared pair by pair
LONGEST_LABEL = 80
VARYING = re.compile(  # inside a word
    r"(?<![A-Za-z0-9])(?:"
    r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"  # a UUID
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"  # a date with a time
    r"|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"  # a time of day
    r"|1[5-9]\d{8}(?:\d{3}|\.\d+)?"  # seconds or milliseconds since 1970
    r"|\d+(?:\.\d+)?(?:ms|sec)|\d+\.\d+s"  # a duration
    r"|0x[0-9a-fA-F]{6,}|(?=[a-f]*\d)[0-9a-f]{12,}"  # an address, a hash
    r"|(?:call|toolu|chatcmpl|req|msg|resp|run|trace|span|session|tmp)[-_](?=[A-Za-z]*\d)[A-Za-z0-9_-]{5,}"  # an id with a prefix
    r")(?![A-Za-z0-9])"
)
SPACED = re.compile(r"\d{4}-\d\d-\d\d \*|\d+(?:\.\d+)? (?:ms|sec|seconds|milliseconds)\b|\d+\.\d+ s\b")  # two words
UNITS = frozenset(word + mark for word in ("*", "ms", "s", "sec", "seconds", "milliseconds") for mark in ("", ".", ",", ")", ";"))
MOST_WORDS = 1_000_000
Encode = Callable[[Sequence[str]], Any]


class Words(dict[str, str]):
    """A word to its form without what varies. Logs repeat their words, so most of them are looked up."""

    def __missing__(self, word: str) -> str:
        if len(self) > MOST_WORDS:
            self.clear()
        form = self[word] = VARYING.sub("*", word)
        return form


def normal(text: str, words: Words) -> str:
    """A text without what varies between attempts, and with single spaces."""
    forms = [words[word] for word in text.split()]
    text = " ".join(forms)
    return text if UNITS.isdisjoint(forms) else SPACED.sub("*", text)


def encoder(model: str) -> Encode:
    """A model of sentences, in a folder or by its name."""
    from turnwise.retrieval.dense import Encoder

    return Encoder(model).encode


def group_tasks(trajectories: Sequence[Trajectory], similar: float | None = None, encode: Encode | None = None) -> None:
    """Give each trajectory its group. The label is the task's name, or the beginning of its first message."""
    words = Words()
    keys = [trajectory.task or normal(trajectory.goal, words) for trajectory in trajectories]
    if similar is not None:
        goals = {key: normal(trajectory.goal, words) for key, trajectory in zip(keys, trajectories, strict=True)}
        joined = _joined(list(goals.values()), similar, encode, "tasks")
        same = dict(zip(goals, (list(goals)[first] for first in joined), strict=True))
        keys = [same[key] for key in keys]
    label_of: dict[str, str] = {}
    taken: dict[str, int] = defaultdict(int)
    for trajectory, key in zip(trajectories, keys, strict=True):
        if key not in label_of:
            label = key if len(key) <= LONGEST_LABEL else key[: LONGEST_LABEL - 1] + "…"
            taken[label] += 1
            label_of[key] = label if taken[label] == 1 else f"{label} ({taken[label]})"
        trajectory.group = label_of[key]
        trajectory.task = trajectory.task or label_of[key]


def name_states(trajectories: Sequence[Trajectory], similar: float | None = None, encode: Encode | None = None) -> None:
    """Give each turn without an anchor the key of its state. With a threshold, similar states of a group are one."""
    words, key_of = Words(), dict[str, str]()
    turns = [turn for trajectory in trajectories for turn in trajectory.turns if turn.anchor is None]
    for turn in turns:
        if (key := key_of.get(turn.observation)) is None:
            text = normal(turn.observation, words).encode("utf-8", "surrogatepass")
            key = key_of[turn.observation] = blake2b(text, digest_size=8).hexdigest()
        turn.anchor = key
    if similar is None:
        return
    unnamed = set(map(id, turns))
    of_group: dict[Any, list[Turn]] = defaultdict(list)
    for trajectory in trajectories:
        of_group[trajectory.group] += [turn for turn in trajectory.turns if id(turn) in unnamed]
    for members in of_group.values():
        texts = {turn.anchor: normal(turn.observation, words) for turn in members}
        joined = _joined(list(texts.values()), similar, encode, "states of a task")
        same = dict(zip(texts, (list(texts)[first] for first in joined), strict=True))
        for turn in members:
            turn.anchor = same[turn.anchor]


def _joined(texts: list[str], threshold: float, encode: Encode | None, what: str) -> list[int]:
    """For each text the index of the first text of its group."""
    if len(texts) > MOST_SIMILAR:
        raise TurnwiseError(
            f"{len(texts):,} different {what} are too many to compare pair by pair (at most {MOST_SIMILAR:,}). "
            "Compare them exactly, or read fewer logs"
        )
    if len(texts) < 2:
        return list(range(len(texts)))
    if encode is None:
        return [int(first) for first in join_similar(similarities(texts, threshold))]
    vectors = np.asarray(encode(texts), np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    near = vectors @ vectors.T
    near[near < threshold] = -1.0
    np.fill_diagonal(near, -1.0)
    return [int(first) for first in join_similar(near)]
