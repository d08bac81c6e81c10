"""SLEA-RL: an experience library that grows while training, and is asked on every turn.

After each batch, short lessons are taken from the best successes and the worst failures. Once the library is large enough, the prompt of
every turn shows the lessons that belong to its observation. Credit is GiGPO's, unchanged. The library is the plan's state; nothing of it is
a gradient.

Lessons are taken by rule, without a judge: the actions of a success (method), what it did at each observation (example), how a failure
ended (mistake), an action that was repeated (pattern), why an attempt was stopped (diagnostic).

The library has two zones of three levels each:

    golden    principle, method, example        what worked
    warning   mistake, pattern, diagnostic      what failed

An entry that is similar to one of its zone is not added; the better score stays. A level that is full takes an entry only in place of its
worst one, and only if the new one is better. Observations are clustered by string similarity, and an entry is found through the cluster of
the observation that is being looked at, else by its score. Looking up changes nothing, so the order of attempts does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from typing import Annotated, Any, NamedTuple

from turnwise.config.options import Help
from turnwise.data.attempts import Start
from turnwise.data.rollouts import Stop, Trajectory
from turnwise.methods.planning import Gathered, Plan, Rounds, TaskSlots
from turnwise.methods.registry import VERL_AGENT, Brings, method, plan
from turnwise.util.errors import unknown_name

SUCCESS = 0.5  # return from which an attempt counts as a success
ZONES = {"golden": ("principle", "method", "example"), "warning": ("mistake", "pattern", "diagnostic")}
COMPARED = {"entry": 300, "observation": 500}  # characters that are compared


@plan("slea", former={"extract": ("none", "derive a plan of your own from Slea, and write its method lessons(trajectory)")})
@dataclass(kw_only=True, eq=False)
class Slea(Plan):
    """Every group once; prompts show lessons of earlier batches that belong to the observation."""

    golden: Annotated[int, Help("entries per golden level", low=1)] = 100
    warnings: Annotated[int, Help("entries per warning level", low=1)] = 50
    similarity: Annotated[float, Help("texts are alike from this share of matching characters", low=0, high=1)] = 0.85
    clusters: Annotated[int, Help("observations that are distinguished; the least used goes first", low=1)] = 500
    warmup: Annotated[int, Help("batches before the first lesson is shown", low=0)] = 5
    smallest: Annotated[int, Help("entries before the first lesson is shown", low=0)] = 10
    characters: Annotated[int, Help("characters of all lessons in a prompt", low=1)] = 800
    attempts: Annotated[int, Help("successes, and failures, that are read per batch", low=1)] = 5

    def __post_init__(self) -> None:
        self.library = Library({"golden": self.golden, "warning": self.warnings}, self.similarity, self.clusters)
        self.step = 0

    def gather(self, slots: TaskSlots, groups: int) -> Rounds:
        attempts = yield [self.evaluated(start) for start in slots.groups(groups)]
        ready = self.ready
        if ready:
            self.library.see(turn.observation for trajectory in attempts for turn in trajectory.turns)
        added = self.learn(attempts)
        self.step += 1
        return Gathered(attempts, {"lessons": len(self.library.entries), "lessons_added": added, "lessons_shown": ready})

    @property
    def ready(self) -> bool:
        """Whether prompts show lessons."""
        return self.step >= self.warmup and len(self.library.entries) >= max(self.smallest, 1)

    def evaluated(self, start: Start) -> Start:
        return replace(start, hint=self.advice) if self.ready else start

    def advice(self, observation: str) -> str:
        """What the prompt of this observation shows."""
        return shown(*self.library.retrieve(observation, golden=2, warning=1), self.characters)

    def learn(self, found: Sequence[Trajectory]) -> int:
        """Take the lessons of a batch in: at most 10 of what worked, and 5 of what failed."""
        good = sorted((t for t in found if t.reward >= SUCCESS), key=lambda t: -t.reward)[: self.attempts]
        bad = sorted((t for t in found if t.reward < SUCCESS), key=lambda t: t.reward)[: self.attempts]
        left = {"golden": 10, "warning": 5}
        for trajectory in (*good, *bad):
            for lesson in self.lessons(trajectory):
                if left[zone_of(lesson.level)] > 0 and self.library.add(lesson):
                    left[zone_of(lesson.level)] -= 1
        return 15 - sum(left.values())

    def lessons(self, trajectory: Trajectory) -> Sequence[Lesson]:
        """The lessons of an attempt. A plan that derives from this one may take others."""
        return lessons(trajectory)

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "library": self.library.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.library.load_state(state["library"])


def lessons(trajectory: Trajectory) -> list[Lesson]:
    """The lessons of an attempt, by rule."""
    turns = [turn for turn in trajectory.turns if turn.action]
    actions, score = [turn.action for turn in turns], trajectory.reward
    if not actions:
        return []
    if score >= SUCCESS:
        way = " -> ".join(actions[:5]) + (f" and {len(actions) - 5} more" if len(actions) > 5 else "")
        first = Lesson("method", f"{trajectory.goal} {way}".strip(), score, turns[0].observation)
        return [first, *(Lesson("example", f"{_line(t.observation)}: {t.action}", 0.8 * score, t.observation) for t in turns)]
    items = [Lesson("mistake", f"This led nowhere: {' -> '.join(actions[-3:])}", abs(score), turns[-1].observation)]
    repeated = next(
        (turn for turn, two, three in zip(turns, turns[1:], turns[2:], strict=False) if turn.action == two.action == three.action), None
    )
    if repeated is not None:
        items.append(Lesson("pattern", f"Do not repeat {repeated.action}", 0.5, repeated.observation))
    if trajectory.stop is Stop.STEP_LIMIT:
        items.append(Lesson("diagnostic", "An attempt ran out of turns: take a shorter way", 0.3))
    return items


def _line(text: str) -> str:
    """The last line of an observation: what is new there."""
    return (text.strip().splitlines() or [""])[-1][:100]


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
    return _matches(one[: COMPARED["entry"]], other[: COMPARED["entry"]], math.nextafter(threshold, math.inf))


def similar(one: str, other: str, threshold: float) -> bool:
    """Whether two observations are one situation: their matching characters make up at least this share of both."""
    return _matches(one[: COMPARED["observation"]], other[: COMPARED["observation"]], threshold)


def _matches(one: str, other: str, share: float) -> bool:
    """Whether matching characters make up at least this share of both; upper bounds are computed first, because they are cheap."""
    match = SequenceMatcher(None, one, other, autojunk=False)
    return one == other or all(ratio() >= share for ratio in (match.real_quick_ratio, match.quick_ratio, match.ratio))


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
        if (result := self.find(observation)) is not None:
            return result
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


@method(
    "slea",
    paper="SLEA-RL, arXiv 2603.18079",
    changes="plan, prompts",
    costs="longer prompts; string comparisons",
    evidence="code; without self-distillation and without extraction by a language model",
    options={Slea: "warmup smallest characters"},
)
def slea() -> dict[str, Any]:
    """Prompts show lessons from earlier successes and failures, looked up on every turn."""
    credit = {"credit.gamma": 0.95, "credit.omega": 1.0, "credit.norm": "none", "credit.invalid_penalty": 0.1}
    return Brings({"plan.name": "slea", "credit.name": "gigpo"}, VERL_AGENT | credit)
