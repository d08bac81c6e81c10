"""What loses the tasks of an agent, from its attempts: findings with evidence, waste, and where attempts of a task part.

Five kinds of comparisons, each a family of its own at level / 5; see contrasts.py. An attempt counts once in each: at its first visit of a
state, its first call. The comparisons of states and results are among attempts that came to the same point, so they say what the next step
changed. Those of tools, errors and waste are among all attempts at a task: what goes with failure need not be its cause, for example
because attempts that fail are often longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from turnwise.credit.segments import pair, segment_count, segment_first, segment_sum
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Bools, Trajectory
from turnwise.logs.columns import NO_ERROR, Outcome, Turns, turns_of, varies
from turnwise.logs.contrasts import Family, Rows, compare
from turnwise.util.printable import counted
from turnwise.util.statistics import effective_attempts, wilson

Label = int | str
Kind = Literal["state", "result", "tool", "error", "waste"]
Scope = Literal["task", "equal", "similar"]
WasteKind = Literal["loop", "repeated call", "ignored error"]
KINDS: dict[Kind, str] = {
    "state": "an action with the others taken in the same state",
    "result": "what a call returned with its other results",
    "tool": "attempts that used a tool with those that did not",
    "error": "attempts that saw an error message with those that did not",
    "waste": "attempts with a loop, a repeated call or an ignored error with those without",
}


MOST_FINDINGS, MOST_CHOICES, MOST_PLACES, LONGEST_TEXT = 100, 10, 5, 400
SAME = 0.9  # a finding is left out if this share of its losing turns are those of one that ranks higher
ANYTHING_ELSE, WITHOUT = "anything else", "without it"


@dataclass(frozen=True)
class Interval:
    """An estimate and its simultaneous interval: all intervals of a kind hold together with the probability 1 − level / kinds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """One side of a comparison: what was done or returned, how many attempts did it, and how many of them won."""

    text: str
    attempts: int
    won: int


@dataclass(frozen=True)
class Place:
    """A turn of an attempt; `t` counts from 0."""

    trajectory: Label
    t: int


@dataclass(frozen=True)
class Finding:
    """One comparison whose outcome chance does not explain.

    where       the state's text (an example of it), the call, or what the waste is; bounded
    scope       "task": the comparison is within one task; "equal": within each of several tasks, at equal states; "similar": the same,
                at states that are equal but for numbers and names (`where` is their common form)
    task        the task, if there is only one
    worse       the choice that loses, and better: what the others did. The numbers of both are of tasks that have both
    choices     all choices at this place in these tasks, the most frequent first; at most ten
    difference  the share of won attempts with the better choice minus that with the worse, within tasks
    gain        tasks won per 100 attempts if the worse choice were never made and the better always, were the difference its effect
    p           exact, two-sided, within tasks; `adjusted` accounts for all comparisons of the kind and for the kinds
    turns       turns at which a lost attempt made the worse choice; at most five
    """

    kind: Kind
    where: str
    scope: Scope
    task: Label | None
    worse: Choice
    better: Choice
    choices: tuple[Choice, ...]
    difference: Interval
    gain: Interval
    p: float
    adjusted: float
    tasks: int
    attempts: int
    turns: tuple[Place, ...]


@dataclass(frozen=True)
class Waste:
    """Turns that bring nothing new. `share` is of all turns, its interval over tasks; `attempts` have such a turn, `won` of them won."""

    kind: WasteKind
    turns: int
    share: Interval
    attempts: int
    won: int
    examples: tuple[Place, ...]


@dataclass(frozen=True)
class Fork:
    """The state of a task from which attempts that won and attempts that lost went different ways the most. A description, not a test."""

    task: Label
    t: int
    where: str
    choices: tuple[Choice, ...]
    turns: tuple[Place, ...]


@dataclass(frozen=True)
class Unsaid:
    """What was not tested, why, and how many attempts at each task it would need (None: no number of attempts would do)."""

    what: str
    why: str
    attempts: int | None


@dataclass(frozen=True)
class Diagnosis:
    """`findings` are ranked: the one whose gain is large for certain comes first. `compared` is the number of comparisons of each kind.
    `outcome` says what winning means: "success", or a return above the median of the task if success varies in no task."""

    tasks: int
    attempts: int
    turns: int
    won: int
    outcome: Outcome
    level: float
    compared: dict[str, int]
    findings: tuple[Finding, ...]
    waste: tuple[Waste, ...]
    forks: tuple[Fork, ...]
    unsaid: tuple[Unsaid, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def diagnose(trajectories: Sequence[Trajectory], *, level: float = 0.05) -> Diagnosis:
    """Which turns lose the tasks. `level` bounds the probability that even one finding of the whole report is chance. Nothing is drawn at
    random, so there is no seed."""
    turns = turns_of(trajectories)
    wasted = _wasted(turns)
    tables = _tables(turns, wasted)
    findings: list[tuple[Finding, Ints, int]] = []
    compared: dict[str, int] = {}
    unsaid = list(_not_usable(trajectories, turns))
    for kind in KINDS:
        of_kind = [table for table in tables if table.kind == kind and len(table.rows.context)]
        family = compare([table.rows for table in of_kind], turns.task, turns.won, level / len(KINDS)) if of_kind else None
        compared[kind] = int(family.tested.sum()) if family else 0
        if family is not None:
            findings += _findings(turns, of_kind, family)
        unsaid += _not_tested(turns, kind, family)
    return Diagnosis(
        tasks=turns.tasks,
        attempts=len(turns.task),
        turns=len(turns.t),
        won=int(turns.won.sum()),
        outcome=turns.outcome,
        level=level,
        compared=compared,
        findings=_ranked(turns, findings),
        waste=tuple(_waste(turns, kind, rows) for kind, rows in wasted.items()),
        forks=_forks(turns),
        unsaid=tuple(unsaid),
    )


# -- what is compared --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Table:
    """A table of rows, and how to name the context of a row's turn and a choice."""

    kind: Kind
    scope: Scope
    rows: Rows
    where: Callable[[int], str]
    label: Callable[[int], str]


def _tables(turns: Turns, wasted: dict[WasteKind, Ints]) -> list[_Table]:
    """Everything that is compared."""
    text, every = turns.names.texts.__getitem__, np.arange(len(turns.t))

    def at_state(scope: Scope, context: Ints, choice: Ints, rows: Ints, where: Callable[[int], str]) -> _Table:
        first = turns.first(context[rows], rows)
        return _Table("state", scope, Rows(context[first], choice[first], turns.attempt[first], first), where, text)

    def observed(row: int) -> str:
        return text(int(turns.observation[row]))

    def form(row: int) -> str:
        return text(int(turns.observation_form[row]))

    def called(row: int) -> str:
        return text(int(turns.tool[row]))

    def after_tool(row: int) -> str:
        if turns.t[row] == 0:
            return "at the start"
        error = int(turns.error[row - 1])
        return f"after {called(row - 1)}" + ("" if error == NO_ERROR else f", which failed: {text(error)}")

    def at_call(row: int) -> str:
        return f"{text(int(turns.action[row]))}, in the state: {observed(row)}"

    task = turns.task[turns.attempt]
    in_task, _ = pair(turns.state, task)
    shared = every[_distinct(turns.state, task)[turns.state] > 1]
    merged = every[_distinct(turns.observation_form, turns.state)[turns.observation_form] > 1]
    later = every[turns.t > 0]
    before = np.zeros(len(every), np.int64)  # the call before, and its error; 0 at the start
    before[later] = pair(turns.tool[later - 1], turns.error[later - 1] + 1)[0] + 1
    used = [(turns.tool, every), (turns.action_form, every[turns.action_form != turns.tool])]
    call, _ = pair(turns.state, turns.action)
    going = every[~turns.last]
    returned = turns.first(call[going], going)
    return [
        at_state("task", in_task, turns.action, every, observed),
        at_state("equal", turns.state, turns.action, shared, observed),
        at_state("similar", turns.observation_form, turns.action_form, merged, form),
        at_state("similar", before, turns.tool, every, after_tool),
        _Table("result", "equal", Rows(call[returned], turns.result[returned], turns.attempt[returned], returned), at_call, text),
        _Table("result", "similar", _members(turns, turns.tool, [(turns.result, going)]), called, text),
        _Table("tool", "similar", _members(turns, None, used), called, text),
        _Table("error", "similar", _members(turns, None, [(turns.error, every[turns.error != NO_ERROR])]), called, text),
        _waste_table(turns, wasted),
    ]


def _distinct(owner: Ints, value: Ints) -> Ints:
    """For each owner, how many different values it has."""
    code, size = pair(owner, value)
    return segment_count(segment_first(owner, code, size), int(owner.max(initial=0)) + 1)


def _members(turns: Turns, context: Ints | None, choices: list[tuple[Ints, Ints]]) -> Rows:
    """Attempts that did something anywhere in a context, against those that were there and did not. `choices`: a code for each turn, and
    the turns that count. Without a context, all attempts at a task are compared."""
    where = np.zeros(len(turns.t), np.int64) if context is None else context
    present = np.arange(len(turns.t)) if context is None else choices[0][1]
    parts: list[tuple[Ints, Ints | None]] = [(turns.first(where[present], present), None)]
    for choice, rows in choices:
        parts.append((turns.first(pair(where[rows], choice[rows])[0], rows), choice))
    rows = np.concatenate([first for first, _ in parts])
    codes = np.concatenate([np.full(len(first), -1) if choice is None else choice[first] for first, choice in parts])
    both, count = pair(pair(where[rows], codes + 1)[0], turns.attempt[rows])  # the name of a tool may also be a whole action
    once = segment_first(np.arange(len(rows)), both, count)
    rows, codes = rows[once], codes[once]
    return Rows(where[rows], codes, turns.attempt[rows], rows, partition=False, one_sided=True)


def _waste_table(turns: Turns, wasted: dict[WasteKind, Ints]) -> _Table:
    """Attempts with each kind of waste, of any tool and of each tool."""
    names = [(kind, tool) for kind in wasted for tool in (None, *dict.fromkeys(turns.tool[wasted[kind]].tolist()))]
    choices: list[tuple[Ints, Ints]] = []
    for number, (kind, tool) in enumerate(names):
        rows = wasted[kind] if tool is None else wasted[kind][turns.tool[wasted[kind]] == tool]
        choices.append((np.full(len(turns.t), number), rows))

    def label(number: int) -> str:
        kind, tool = names[number]
        return kind if tool is None else f"{kind} of {turns.names.texts[tool]}"

    return _Table("waste", "similar", _members(turns, None, choices), lambda row: "the attempt", label)


def _wasted(turns: Turns) -> dict[WasteKind, Ints]:
    """The turns that bring nothing new; each counts as one kind.

    ignored error: the same call again, right after an error. loop: an action again in a state where it led to the same state before.
    repeated call: a call again with the same result as before."""
    follows = np.concatenate([[False], turns.attempt[1:] == turns.attempt[:-1]])[: len(turns.t)]
    failed = np.concatenate([[False], (turns.error[:-1] != NO_ERROR) & (turns.action[1:] == turns.action[:-1])])[: len(turns.t)]
    ignored = follows & failed
    loop = _again(turns.attempt, turns.state, turns.action, turns.next_state) & (turns.next_state >= 0) & ~ignored
    repeated = _again(turns.attempt, turns.action, turns.result) & ~turns.last & ~ignored & ~loop
    flags: dict[WasteKind, Bools] = {"loop": loop, "repeated call": repeated, "ignored error": ignored}
    return {kind: np.flatnonzero(flag) for kind, flag in flags.items()}


def _again(*columns: Ints) -> Bools:
    """Whether an earlier row has the same values."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        code, size = pair(code, column + 1)
    return np.asarray(segment_first(np.arange(len(code)), code, size)[code] != np.arange(len(code)))


# -- findings ----------------------------------------------------------------------------------------------------------------------------


def _findings(turns: Turns, tables: list[_Table], family: Family) -> Iterator[tuple[Finding, Ints, int]]:
    """The comparisons that chance does not explain, each with its losing turns and the number of its table; of a state with several of
    them, the most certain."""
    significant = np.flatnonzero(family.tested & (family.adjusted <= family.level))
    order = sorted(significant.tolist(), key=lambda i: (float(f"{family.p[i]:.6g}"), -abs(round(float(family.difference[i]), 9))))
    told: set[tuple[int, int]] = set()
    for i in order[: 10 * MOST_FINDINGS]:
        table, context = tables[family.table[i]], (int(family.table[i]), int(family.context[i]))
        if table.rows.partition and context in told:
            continue
        told.add(context)
        yield *_finding(turns, table, family, i), int(family.table[i])


def _finding(turns: Turns, table: _Table, family: Family, i: int) -> tuple[Finding, Ints]:
    here = np.flatnonzero(table.rows.context == family.context[i])
    task, choice = turns.task[table.rows.attempt[here]], table.rows.choice[here]
    chosen, present = choice == family.choice[i], (choice == -1) | table.rows.partition
    made, there = segment_count(task[chosen], turns.tasks)[task], segment_count(task[present], turns.tasks)[task]
    rows = here[(choice >= 0) & (made > 0) & (made < there)]  # of tasks that have both
    choice, turn = table.rows.choice[rows], table.rows.turn[rows]
    chosen = choice == family.choice[i]
    others = np.unique(choice[~chosen])
    rest = table.label(int(others[0])) if len(others) == 1 else ANYTHING_ELSE
    one = Choice(shortened(table.label(int(family.choice[i]))), int(family.n1[i]), int(family.y1[i]))
    other = Choice(shortened(rest) if table.rows.partition else WITHOUT, int(family.n0[i]), int(family.y0[i]))
    difference, (low, high) = float(family.difference[i]), family.interval(i)
    worse, better, losing = (one, other, chosen) if difference < 0 else (other, one, ~chosen)
    if difference < 0:
        low, high = -high, -low
    low = max(0.0, low)  # the exact test has rejected 0 and all below, with Holm's correction
    share = 100 * worse.attempts / len(turns.task)
    lost = turn[losing & ~turns.won[turns.attempt[turn]]]
    tasks = np.unique(turns.task[turns.attempt[turn]])
    finding = Finding(
        kind=table.kind,
        where=shortened(table.where(int(turn[losing][0]))),
        scope=table.scope,
        task=turns.trajectories[turns.attempt[turn[0]]].group if len(tasks) == 1 else None,
        worse=worse,
        better=better,
        choices=_choices(turns, table.label, choice, turn) if table.rows.partition else (worse, better),
        difference=Interval(abs(difference), low, high),
        gain=Interval(share * abs(difference), share * low, share * high),
        p=float(family.p[i]),
        adjusted=min(1.0, float(family.adjusted[i]) * len(KINDS)),
        tasks=int(family.tasks[i]),
        attempts=worse.attempts + better.attempts,
        turns=_places(turns, lost),
    )
    return finding, turn[losing]


def _choices(turns: Turns, label: Callable[[int], str], choice: Ints, turn: Ints) -> tuple[Choice, ...]:
    """What was chosen at these turns, the most frequent first."""
    codes, inverse = np.unique(choice, return_inverse=True)
    attempts = segment_count(inverse, len(codes))
    won = segment_sum(turns.won[turns.attempt[turn]].astype(np.float64), inverse, len(codes))
    counted = [Choice(shortened(label(int(code))), int(n), int(y)) for code, n, y in zip(codes, attempts, won, strict=True)]
    return tuple(sorted(counted, key=lambda choice: (-choice.attempts, choice.text))[:MOST_CHOICES])


def _ranked(turns: Turns, findings: list[tuple[Finding, Ints, int]]) -> tuple[Finding, ...]:
    """By what is gained for certain, then by p; of equal ones the most specific first, which is the order of the tables. Left out is what
    another finding says better: its losing turns are those of one that ranks higher (a state or a result gives way only to another one);
    or it compares whole attempts, and those that lost had already come to the losing turn of a state or a result."""

    def rank(entry: tuple[Finding, Ints, int]) -> Any:
        finding, _, table = entry
        gain, low = round(finding.gain.value, 9), round(finding.gain.low, 9)
        return -low, float(f"{finding.adjusted:.6g}"), -gain, finding.kind, table, finding.where, finding.worse.text

    def is_step(finding: Finding) -> bool:
        return finding.kind in ("state", "result")

    steps = [rows for finding, rows, _ in findings if is_step(finding)]
    chosen: list[tuple[Finding, Ints]] = []
    for finding, rows, _ in sorted(findings, key=rank):
        lost = rows[~turns.won[turns.attempt[rows]]]
        higher = [other for better, other in chosen if is_step(better) or not is_step(finding)]
        same = any(np.isin(rows, other).mean() >= SAME for other in higher)
        follows = not is_step(finding) and any(_after(turns, lost, step).mean() >= SAME for step in steps)
        if not same and not follows and len(chosen) < MOST_FINDINGS:
            chosen.append((finding, rows))
    return tuple(finding for finding, _ in chosen)


def _after(turns: Turns, rows: Ints, earlier: Ints) -> Bools:
    """Whether each of these turns comes after one of `earlier` in its attempt, or is one of them."""
    first = np.full(len(turns.task), len(turns.t))
    np.minimum.at(first, turns.attempt[earlier], earlier)
    return np.asarray(first[turns.attempt[rows]] <= rows)


def _places(turns: Turns, rows: Ints) -> tuple[Place, ...]:
    return tuple(Place(turns.trajectories[turns.attempt[row]].id, int(turns.t[row])) for row in rows[:MOST_PLACES])


def shortened(text: str) -> str:
    """A text of bounded length: its beginning and its end."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]} … {text[-LONGEST_TEXT // 2 + 3 :]}"


# -- waste, forks, and what is not said --------------------------------------------------------------------------------------------------


def _waste(turns: Turns, kind: WasteKind, rows: Ints) -> Waste:
    cluster = turns.task[turns.attempt] if turns.tasks > 1 else turns.attempt
    size = int(cluster.max(initial=-1)) + 1
    all_turns = segment_count(cluster, size)
    n = effective_attempts(segment_count(cluster[rows], size), all_turns)
    share = len(rows) / max(1, len(turns.t))
    interval = Interval(share, *wilson(n * share, n, NormalDist().inv_cdf(1 - 0.05 / 6)))  # three kinds of waste
    attempts = np.unique(turns.attempt[rows])
    return Waste(kind, len(rows), interval, len(attempts), int(turns.won[attempts].sum()), _places(turns, rows))


def _forks(turns: Turns) -> tuple[Fork, ...]:
    """Of each task, the state that attempts reached in the same way and where one of their actions separates won from lost ones the most;
    the clearest first. One step for each time t, for all tasks at once."""
    apart, forks = np.full(turns.tasks, 1e-9), dict[int, Ints]()
    path = turns.task.copy()  # of each attempt: the states and actions so far
    by_time = np.argsort(turns.t, kind="stable")
    starts = np.searchsorted(turns.t[by_time], np.arange(int(turns.t.max(initial=-1)) + 2))
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        rows = by_time[start:end]
        attempt = turns.attempt[rows]
        node, nodes = pair(path[attempt], turns.state[rows])
        branch, branches = pair(node, turns.action[rows])
        won = turns.won[attempt].astype(np.float64)
        n, n1 = segment_count(node, nodes)[node], segment_count(branch, branches)[branch]
        y, y1 = segment_sum(won, node, nodes)[node], segment_sum(won, branch, branches)[branch]
        between = (y1 * n - y * n1) ** 2 / (n * n1 * np.maximum(n - n1, 1))  # how much of the outcomes' squares one action explains
        task, most = turns.task[attempt], np.zeros(turns.tasks)
        np.maximum.at(most, task, between)
        for first in segment_first(np.arange(len(rows))[between == most[task]], task[between == most[task]], turns.tasks)[most > apart]:
            forks[int(task[first])] = rows[node == node[first]]
        apart = np.maximum(apart, most)
        path[attempt] = branch
    return tuple(_fork(turns, forks[task]) for task in sorted(forks, key=lambda task: (-round(float(apart[task]), 9), task)))


def _fork(turns: Turns, rows: Ints) -> Fork:
    row, text = int(rows[0]), turns.names.texts.__getitem__
    lost = rows[~turns.won[turns.attempt[rows]]]
    choices = _choices(turns, text, turns.action[rows], rows)
    task = turns.trajectories[turns.attempt[row]].group
    return Fork(task, int(turns.t[row]), shortened(text(int(turns.observation[row]))), choices, _places(turns, lost))


def _not_usable(trajectories: Sequence[Trajectory], turns: Turns) -> Iterator[Unsaid]:
    dropped = len(trajectories) - len(turns.task)
    if dropped:
        yield Unsaid(counted(dropped, "attempt"), "they have no turns, or a fault of the machinery ended them", None)
    alike = turns.tasks - int(varies(turns.task, turns.won).sum())
    if alike:
        sizes = segment_count(turns.task, turns.tasks)
        yield Unsaid(f"{alike} of {counted(turns.tasks, 'task')}", "all attempts ended alike: nothing decides there", int(sizes.max()) + 1)


def _not_tested(turns: Turns, kind: Kind, family: Family | None) -> Iterator[Unsaid]:
    """Comparisons that could not reach the level, and the attempts with which the nearest of them could: the logarithm of the smallest
    possible p grows about as the number of attempts does."""
    missing = {
        "state": "no two attempts at a task took different actions in the same state",
        "result": "no call was made by two attempts at a task and returned different things",
        "tool": "all attempts at a task used the same tools",
        "error": "no error message is in the log, or all attempts at a task saw the same",
        "waste": "no attempt has such a turn, or all attempts at a task have",
    }
    if family is None or not len(family.fewest):
        yield Unsaid(f"comparing {KINDS[kind]}", missing[kind], None)
        return
    small = family.fewest[~family.tested & np.isfinite(family.fewest)]
    useful = small[small < 1]
    if not len(small):
        return
    needed = None
    if len(useful):
        target = np.log(family.level / (int(family.tested.sum()) + 1))
        factor = float(target / np.log(useful.min()))
        needed = int(np.ceil(max(1.0, factor) * len(turns.task) / turns.tasks)) + 1
    yield Unsaid(f"{counted(len(small), 'comparison')} of {KINDS[kind]}", "too few attempts differ there", needed)
