"""Comparing runs: groups that differ only by the seed, intervals, paired tests, the cost of a given success rate. `tw.compare` starts
here.

Two questions, two samples (see statistics.py). Over seeds: runs of the same seed start from the same weights and see the same tasks in
the same order, so they are paired. Over tasks: all models played the same panel, so tasks are paired. Only the first is about an
algorithm; the second is about these particular trained models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group as Rendered

from turnwise.report import tables
from turnwise.report.efficiency import Cost, Curve, Track, TypeOfTask, cost_until, mean_curve, tracks, types
from turnwise.report.groups import Group, also_differ, check_seeds, gathered
from turnwise.runs.records import Record, find, read
from turnwise.util import statistics
from turnwise.util.errors import MissingExtra, TurnwiseError, unknown_name
from turnwise.util.files import write_text_atomically
from turnwise.util.statistics import Interval

LEVEL = 0.05


@dataclass(frozen=True)
class Standing:
    """The success of one group. `over_seeds`: Student's interval over runs; `over_tasks`: over the panel, with these trained models."""

    label: str
    seeds: list[int]
    successes: list[float]
    success: float
    over_seeds: Interval | None
    over_tasks: Interval | None
    iterations: list[int | None]
    differs: dict[str, Any]
    runs: list[str]
    curve: Curve
    cost: Cost | None = None


@dataclass
class OverSeeds:
    """One group minus another over training seeds, in shares of 1. `paired`: the same seed of both was subtracted."""

    n: int
    paired: bool
    difference: float
    interval: Interval | None
    p_t: float | None
    p_exact: float
    smallest_p: float
    effect_d: float | None
    holm_t: float | None = None
    holm_exact: float | None = None


@dataclass
class OverTasks:
    """One group minus another over the panel's tasks, in shares of 1, with the trained models as they are. `clusters`: how many scenarios
    these tasks are variants of, which is what the interval and the test count."""

    n: int
    clusters: int
    difference: float
    interval: Interval | None
    p: float
    effect_h: float
    holm: float | None = None


@dataclass
class Pair:
    """The tests between two groups; None if there is none."""

    one: str
    other: str
    over_seeds: OverSeeds | None
    over_tasks: OverTasks | None


@dataclass
class Comparison:
    """The result of `compare`: numbers in `groups` and `pairs`, words in `notes`. `also_differ`: settings besides the method in which the
    groups differ, with the groups of each value."""

    groups: list[Standing]
    pairs: list[Pair]
    notes: list[str]
    at: str
    named_by: list[str] = field(default_factory=list)
    target: float | None = None
    panel: dict[str, Any] | None = None
    unfinished: list[str] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)
    types: list[TypeOfTask] = field(default_factory=list)
    also_differ: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def table(self) -> Rendered:
        """For a terminal: give it to rich's `print`."""
        return tables.to_rich(self)

    def to_markdown(self) -> str:
        return tables.to_markdown(self)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(_finite(self.to_dict()), indent=2, allow_nan=False, default=str) + "\n"

    def plot(self, path: str | Path) -> Path:
        """Learning curves with bands, as .png, .svg or .pdf. Needs matplotlib (the extra `plots`)."""
        from turnwise.report.curves import draw

        return draw(self, Path(path))

    def write(self, folder: str | Path) -> list[Path]:
        """comparison.md and .json, and the picture if matplotlib is installed."""
        texts = {"md": self.to_markdown(), "json": self.to_json()}
        written = [write_text_atomically(Path(folder) / f"comparison.{kind}", text) for kind, text in texts.items()]
        if any(len(group.curve.iterations) > 1 for group in self.groups):
            try:
                written.append(self.plot(Path(folder) / "comparison.png"))
            except MissingExtra as error:
                self.notes.append(f"No picture: {error}")
        return written


def compare(
    sources: str | Path | Iterable[str | Path],
    *,
    at: str | int = "last",
    target: float | None = None,
    anyway: bool = False,
    baseline: str | None = None,
    seed: int = 0,
    metrics: Sequence[str] = (),
    by_type: bool = False,
) -> Comparison:
    """Compare runs, folders of runs (a sweep) and files that `turnwise eval --save` wrote. `at`: the last or best evaluation, or that of
    an iteration. `target`: a success rate; the comparison then shows the cost of reaching it. `anyway`: show results that were measured
    differently next to each other, without tests between them. `baseline`: test only against the groups whose label contains this.
    `metrics`: names in metrics.jsonl that are shown over training. `by_type`: also success by type of task."""
    paths = find([sources] if isinstance(sources, (str, Path)) else sources)
    read_records = [(path, read(path, at, metrics)) for path in paths]
    records = [record for _, record in read_records if record is not None]
    notes = [f"{path} has no evaluation yet and is left out." for path, record in read_records if record is None]
    if not records:
        raise TurnwiseError("none of these runs has an evaluation yet: there is nothing to compare")
    if target is not None and not 0 < target <= 1:
        raise TurnwiseError(f"a target is a success rate between 0 and 1 (60 % is 0.6), not {target}")
    known = {name for record in records for name in record.metrics}
    if missing := [name for name in metrics if name not in known]:
        raise unknown_name("metric", missing[0], sorted(known))
    differences = unlike(records)
    if differences and not anyway:
        raise TurnwiseError(
            f"these results were not measured alike, so they cannot be compared: {'; '.join(differences)}. Measure them alike "
            "(`turnwise eval RUN --n N --seed 0 --temperature T --save FILE.json` for each) and compare those files; or see them side by "
            "side, without tests, with --anyway"
        )
    groups, named = gathered(records)
    for group in groups:
        check_seeds(group)
    against = [group.label for group in groups if baseline is None or baseline in group.label]
    if not against:
        raise TurnwiseError(f"no group's label contains {baseline!r}; the groups: {'; '.join(group.label for group in groups)}")
    pairs = [
        pair_of(one, other, seed)
        for i, one in enumerate(groups)
        for other in groups[i + 1 :]
        if baseline is None or (one.label in against) != (other.label in against)
    ]
    correct(pairs)
    notes += [f"Not measured alike, so no test between them: {text}." for text in differences]
    notes += remarks(groups, pairs, str(at))
    panel = None if differences or records[0].panel is None else asdict(records[0].panel)
    return Comparison(
        groups=[standing(group, target) for group in groups],
        pairs=pairs,
        notes=notes,
        at=str(at),
        named_by=named,
        target=target,
        panel=panel,
        unfinished=[str(record.path) for record in records if not record.finished],
        tracks=tracks(groups, metrics),
        types=types(groups) if by_type and not differences else [],
        also_differ=also_differ(groups, named),
    )


def unlike(records: Sequence[Record]) -> list[str]:
    """In what ways the records were measured differently, as text; empty if they were not."""
    unknown = [record.name for record in records if record.panel is None]
    differences = [f"{_some(unknown)}: no evaluation is kept with its tasks, so the panel is unknown"] if unknown else []
    measured = sorted(
        (record for record in records if record.panel is not None), key=lambda record: record.config.get("player") is not None
    )
    names = {name for record in measured if record.panel and measured[0].panel for name in measured[0].panel.differences(record.panel)}
    for name in sorted(names):
        by_value: dict[str, list[str]] = {}
        for record in measured:
            by_value.setdefault(str(getattr(record.panel, name)), []).append(record.name)
        words = " and ".join(f"{value} ({_some(members)})" for value, members in sorted(by_value.items()))
        differences.append(f"{'panel hash' if name == 'hash' else name.replace('_', ' ')} is {words}")
    if not differences and len({record.tasks for record in measured}) > 1:
        differences.append("the outcomes name different tasks under one panel hash: a file was edited")
    return differences


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def standing(group: Group, target: float | None) -> Standing:
    """One group in numbers."""
    return Standing(
        label=group.label,
        seeds=group.seeds,
        successes=group.successes,
        success=math.fsum(group.successes) / len(group.successes),
        over_seeds=statistics.share_interval(group.successes),
        over_tasks=over_tasks(group),
        iterations=[record.iteration for record in group.records],
        differs=dict(group.differs),
        runs=[str(record.path) for record in group.records],
        curve=mean_curve([record.curve for record in group.records]),
        cost=cost_until([record.curve for record in group.records], target) if target is not None else None,
    )


def over_tasks(group: Group) -> Interval | None:
    """The interval over tasks, all attempts at a task together: that of the evaluation itself if the group is one run."""
    if group.panel is None or not len(group.won):
        return None
    attempts = np.full(len(group.won), float(len(group.records) * group.panel.repeats))
    clusters = clusters_of(group)
    return statistics.task_interval(statistics.by_cluster(group.won * attempts, clusters), statistics.by_cluster(attempts, clusters))


def clusters_of(*groups: Group) -> tuple[str, ...]:
    """The cluster of each task of the panel that these groups share. Evaluations of earlier versions do not have them: those that do
    count."""
    return min((record.clusters for group in groups for record in group.records), key=lambda clusters: len(set(clusters)))


def pair_of(one: Group, other: Group, seed: int = 0) -> Pair:
    """All tests between two groups; none if they were measured differently."""
    ours, their_panel = one.panel, other.panel
    if ours is None or their_panel is None or ours.differences(their_panel) or one.records[0].tasks != other.records[0].tasks:
        return Pair(one.label, other.label, None, None)
    won, theirs = one.won, other.won
    differences = np.round(won - theirs, 12)
    clusters = clusters_of(one, other)
    sums = np.round(statistics.by_cluster(differences, clusters), 12)
    attempts = ours.repeats * min(len(one.records), len(other.records))
    tasks = OverTasks(
        n=len(differences),
        clusters=len(sums),
        difference=float(differences.mean()),
        interval=statistics.paired_interval(differences, clusters, attempts),
        p=statistics.sign_flip(sums, seed=seed),
        effect_h=statistics.cohen_h(float(won.mean()), float(theirs.mean())),
    )
    return Pair(one.label, other.label, seeds_test(one, other, seed), tasks)


def seeds_test(one: Group, other: Group, seed: int = 0) -> OverSeeds | None:
    """Over seeds: paired if at least two seeds are shared, otherwise unpaired; None if a group has a single run."""
    a, b = dict(zip(one.seeds, one.successes, strict=True)), dict(zip(other.seeds, other.successes, strict=True))
    shared = sorted(a.keys() & b.keys())
    if len(shared) >= 2:
        differences = [a[s] - b[s] for s in shared]
        return OverSeeds(
            n=len(shared),
            paired=True,
            difference=math.fsum(differences) / len(differences),
            interval=statistics.t_interval(differences),
            p_t=statistics.paired_t(differences),
            p_exact=statistics.sign_flip(differences, seed=seed),
            smallest_p=statistics.smallest_sign_flip(len(differences)),
            effect_d=statistics.cohen_d(differences),
        )
    if len(a) < 2 or len(b) < 2:
        return None
    x, y = one.successes, other.successes
    tested = statistics.welch(x, y)
    return OverSeeds(
        n=min(len(x), len(y)),
        paired=False,
        difference=math.fsum(x) / len(x) - math.fsum(y) / len(y),
        interval=tested[0] if tested else None,
        p_t=tested[1] if tested else None,
        p_exact=statistics.shuffle(x, y, seed=seed),
        smallest_p=statistics.smallest_shuffle(len(x), len(y)),
        effect_d=statistics.cohen_d_unpaired(x, y),
    )


def correct(pairs: Sequence[Pair]) -> None:
    """Holm's correction within each kind of test, if there is more than one pair."""
    if len(pairs) < 2:
        return
    seeds = [pair.over_seeds for pair in pairs if pair.over_seeds is not None]
    tasks = [pair.over_tasks for pair in pairs if pair.over_tasks is not None]
    for test, p in zip(seeds, statistics.holm([test.p_exact for test in seeds]), strict=True):
        test.holm_exact = p
    tested = [(test, test.p_t) for test in seeds if test.p_t is not None]
    for (test, _), p in zip(tested, statistics.holm([p for _, p in tested]), strict=True):
        test.holm_t = p
    for task_test, p in zip(tasks, statistics.holm([test.p for test in tasks]), strict=True):
        task_test.holm = p


def remarks(groups: Sequence[Group], pairs: Sequence[Pair], at: str) -> list[str]:
    """What a reader must know: what is unfinished, and what these numbers cannot tell."""
    records = [record for group in groups for record in group.records]
    notes = []
    if unfinished := [f"{record.name} (at {record.iteration} of {record.iterations})" for record in records if not record.finished]:
        notes.append(f"Not finished: {_some(unfinished)}.")
    iterations = {record.iteration for record in records if record.iteration is not None}
    if at == "last" and len(iterations) > 1:
        notes.append(f"The last evaluations are not of the same iteration ({min(iterations)} to {max(iterations)}).")
    if at == "best":
        notes.append("Success at the best evaluation is too good: the best was picked on the panel that it is measured on.")
    tests = [pair.over_seeds for pair in pairs if pair.over_seeds is not None]
    if any(pair.over_seeds is None for pair in pairs) and pairs:
        notes.append("A group of one run says nothing about other seeds: with another seed it might come out otherwise.")
    for n, paired in sorted({(test.n, test.paired) for test in tests if test.smallest_p > LEVEL}):
        smallest = next(test.smallest_p for test in tests if (test.n, test.paired) == (n, paired))
        kind = "flipping signs" if paired else "exchanging labels"
        notes.append(
            f"With {n} seeds the smallest p that {kind} can give is {smallest:.3g}: that test cannot show any difference at 5 %"
            + (" (6 seeds are the least); Student's test can, if differences between seeds are about normal." if paired else ".")
        )
    if any(pair.over_tasks is not None for pair in pairs):
        notes.append("Tests over tasks are about these trained models on other tasks; only tests over seeds are about the algorithms.")
    for n, clusters in sorted({(test.n, test.clusters) for pair in pairs if (test := pair.over_tasks) is not None}):
        if clusters < n:
            notes.append(f"The {n} tasks are variants of {clusters} scenarios: intervals and tests over tasks count the scenarios.")
    if any(not test.paired for test in tests):
        notes.append("Groups that share fewer than two seeds were tested without pairs.")
    return notes


def _finite(value: Any) -> Any:
    """The same, with numbers that JSON cannot represent (not reached) as null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
