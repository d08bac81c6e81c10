"""A library of experiences: short texts about what worked and what failed, each kept with the observation that it belongs to.

Two zones of three levels each:

    golden    principle, method, example        what worked
    warning   mistake, pattern, diagnostic      what failed

An entry that is similar to one of its zone is not added; the better score stays. A level that is full takes an entry only in place of its
worst one, and only if the new one is better. Observations are clustered by string similarity, and an entry is found through the cluster of
the observation that is being looked at, else by its score. Looking up changes nothing, so the order of attempts does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from turnwise.util.errors import unknown_name

ZONES = {"golden": ("principle", "method", "example"), "warning": ("mistake", "pattern", "diagnostic")}
COMPARED = {"entry": 300, "observation": 500}  # characters that are compared


class Lesson(NamedTuple):
    """What is taken from one attempt: a text for a level, how good it is, and the observation that it belongs to (empty: any)."""

    level: str
    text: str
    score: float
    observation: str = ""


@dataclass
class Entry:
    """A lesson in the library."""

    zone: str
    level: str
    text: str
    score: float
    number: int


@dataclass
class Cluster:
    """Similar observations: the first of them, the numbers of the entries that belong to them, and how often it was looked at."""

    observation: str
    entries: list[int] = field(default_factory=list)
    used: int = 0


def zone_of(level: str) -> str:
    """The zone of a level; an unknown level is an error."""
    for zone, levels in ZONES.items():
        if level in levels:
            return zone
    raise unknown_name("level of an experience:", level, [level for levels in ZONES.values() for level in levels])


def alike(one: str, other: str, threshold: float) -> bool:
    """Whether two entries say the same: matching characters, or common words, are more than this share of both."""
    one, other = one.strip().lower(), other.strip().lower()
    words, others = set(one.split()), set(other.split())
    if len(words & others) > threshold * max(len(words | others), 1):
        return True
    match = SequenceMatcher(None, one[: COMPARED["entry"]], other[: COMPARED["entry"]], autojunk=False)
    return match.real_quick_ratio() > threshold and match.quick_ratio() > threshold and match.ratio() > threshold


def similar(one: str, other: str, threshold: float) -> bool:
    """Whether two observations are one situation: their matching characters make up at least this share of both."""
    one, other = one[: COMPARED["observation"]], other[: COMPARED["observation"]]
    if one == other:
        return True
    match = SequenceMatcher(None, one, other, autojunk=False)
    return match.real_quick_ratio() >= threshold and match.quick_ratio() >= threshold and match.ratio() >= threshold


class Library:
    """Entries and clusters. `capacity` is per level and zone."""

    def __init__(self, capacity: dict[str, int], threshold: float, clusters: int):
        self.capacity, self.threshold, self.most = capacity, threshold, clusters
        self.entries: list[Entry] = []
        self.clusters: list[Cluster] = []
        self.added = 0
        self._known: dict[str, Cluster | None] = {}  # by observation; forgotten when clusters change

    def add(self, lesson: Lesson) -> bool:
        """Take a lesson in; false where the library has it already, or has better ones."""
        zone = zone_of(lesson.level)
        for entry in self.entries:
            if entry.zone == zone and alike(lesson.text, entry.text, self.threshold):
                entry.score = max(entry.score, lesson.score)
                return False
        level = [entry for entry in self.entries if entry.level == lesson.level]
        if len(level) >= self.capacity[zone]:
            worst = min(level, key=lambda entry: entry.score)
            if lesson.score <= worst.score:
                return False
            self.entries.remove(worst)
        self.entries.append(Entry(zone, lesson.level, lesson.text, lesson.score, self.added))
        if lesson.observation:
            self._cluster(lesson.observation).entries.append(self.added)
        self.added += 1
        return True

    def find(self, observation: str) -> Cluster | None:
        """The cluster of an observation; none if it is unlike all that are known."""
        if observation not in self._known:
            same = (cluster for cluster in self.clusters if similar(cluster.observation, observation, self.threshold))
            self._known[observation] = next(same, None)
        return self._known[observation]

    def retrieve(self, observation: str, golden: int, warning: int) -> tuple[list[Entry], list[Entry]]:
        """The best entries for an observation, of each zone: those of its cluster first, then the others, by score."""
        cluster = self.find(observation)
        own = set(cluster.entries) if cluster is not None else set()
        ranked = sorted(self.entries, key=lambda entry: (entry.number not in own, -entry.score, entry.number))
        of_zone = {zone: [entry for entry in ranked if entry.zone == zone] for zone in ZONES}
        return of_zone["golden"][:golden], of_zone["warning"][:warning]

    def see(self, observations: Iterable[str]) -> None:
        """These were looked at: their clusters stay longest."""
        for observation in observations:
            if (cluster := self.find(observation)) is not None:
                cluster.used += 1

    def _cluster(self, observation: str) -> Cluster:
        if (found := self.find(observation)) is not None:
            return found
        if len(self.clusters) >= self.most:
            self.clusters.remove(min(self.clusters, key=lambda cluster: cluster.used))
        self.clusters.append(Cluster(observation))
        self._known.clear()
        return self.clusters[-1]

    def state(self) -> dict[str, Any]:
        return {"entries": [asdict(e) for e in self.entries], "clusters": [asdict(c) for c in self.clusters], "added": self.added}

    def load_state(self, state: dict[str, Any]) -> None:
        self.entries = [Entry(**entry) for entry in state["entries"]]
        self.clusters = [Cluster(**cluster) for cluster in state["clusters"]]
        self.added = state["added"]
        self._known.clear()


def shown(golden: Sequence[Entry], warning: Sequence[Entry], longest: int) -> str:
    """Entries as a text of at most `longest` characters."""
    lines = []
    for words, entries in (("What worked before:", golden), ("What failed before:", warning)):
        if entries:
            lines += [words, *(f"- {entry.text}" for entry in entries)]
    return "\n".join(lines)[:longest].rstrip()
