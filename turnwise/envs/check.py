"""The checker: plays an environment with random actions and reports where it breaks the contract.

Run it first on a new environment. Each problem names the rule, what was observed, and what to do. Training depends on these rules: a group
of trajectories can be compared only if the same task, seed and actions lead to the same results, in any process, and
regardless of what else is played at the same time.

Branches have rules of their own: a snapshot restores its state in any instance; without snapshots, a replay of the actions does. A
`restore` that forgets a hidden card or the state of a generator is only noticed in later answers, so every restored episode is played to
its end. `smoke_test` plays a few turns before a long run.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

from turnwise.data.anchors import digest
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.answers import BadAnswer, read_observation, read_snapshot, read_transition
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.blame import EnvironmentFault, one_line, own_lines
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.pool import EnvResult, Pool
from turnwise.envs.registry import NUMBERED_SPLITS, close, describe, resolve, split_sizes, tasks_of, turn_limit
from turnwise.envs.scripts import Play, Reset, arrive, play_all
from turnwise.util.errors import TurnwiseError
from turnwise.util.seeds import derive

ODD_ACTIONS = ("", " ", "xyzzy", "LOOK", "\x00", "\U0001f600", "a" * 10_000, "look\nlook", "\ud800", "{'json': [1, 2]}")
LARGE = 64 * 1024
SMOKE_TASKS, SMOKE_TURNS = 6, 4
PAIR = "snapshot() and restore(state) come together"
SNAPSHOT, RESTORE = "snapshot() of a running episode does not raise", "restore(state) of an own snapshot does not raise"
SEES, GOES_ON = "restore(state) gives the observation of the snapshot", "after restore(state) the same actions give the same answers"
REFUSES, OUTSIDE = "restore(state) refuses what is not a snapshot", "snapshot() before reset() raises EpisodeOver"
UNTOUCHED = "snapshot() changes nothing"


@dataclass(frozen=True)
class Problem:
    """One broken rule: its name, what was observed and where, and the lines of the user's file that caused it."""

    rule: str
    seen: str
    lines: str = ""


@dataclass
class Report:
    """The checker's findings. `ok` is true if there are no problems; notes are informative but not problems."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    episodes: int = 0
    turns: int = 0
    won: int = 0
    snapshot_bytes: int | None = None  # the largest one; none where there are no snapshots

    @property
    def ok(self) -> bool:
        return not self.problems

    def add(self, rule: str, seen: str, lines: str = "") -> None:
        """Keep only the first occurrence per rule."""
        if all(problem.rule != rule for problem in self.problems):
            self.problems.append(Problem(rule, " ".join(seen.split())[:400], lines))

    @contextmanager
    def reported(self, rule: str, where: str) -> Iterator[None]:
        """Inside, an exception breaks this rule, and an invalid return value the rule that it names."""
        try:
            yield
        except BadAnswer as error:
            self.add(error.rule, f"{where}: {error}", error.lines)
        except Exception as error:
            self.add(rule, f"{where}: {one_line(error)}", own_lines(error))

    def must_raise(self, kind: type[Exception], rule: str, call: Callable[[], Any], where: str = "") -> None:
        """The rule that a call raises an error of this kind."""
        remedy = f"Raise {kind.__module__.rpartition('.')[0]}.{kind.__name__} there"
        try:
            call()
        except kind:
            return
        except Exception as error:
            self.add(rule, f"{where}it raised {one_line(error)}. {remedy}", own_lines(error))
            return
        self.add(rule, f"{where}it returned. {remedy}")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass
class Script:
    """One episode: its actions, and the answers before, between and after them, to be compared with a replay. The first answer holds the
    observation of the reset."""

    task: Task
    seed: int
    answers: list[Transition]
    actions: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"task {self.task.id!r}, seed {self.seed}"

    @property
    def anchors(self) -> list[Any]:
        return [answer.observation.key for answer in self.answers]


def essence(answer: Observation | Transition) -> tuple[Any, ...]:
    """What must be equal in two equal answers: text, actions, anchor (of pictures: their content) and, for a transition, reward and end."""
    if isinstance(answer, Transition):
        return (*essence(answer.observation), answer.reward, answer.done, answer.success, dict(answer.others))
    return answer.text, answer.actions, digest(answer.key), answer.seat


def check(env: str | Callable[[], Any], *, episodes: int = 5, turns: int = 50, seed: int = 0, **options: Any) -> Report:
    """Play `episodes` tasks of an environment for up to `turns` random actions each and report every broken rule. `env` is a name, a
    `path/to/my_env.py:MyEnv`, or a function that makes one (a class will do)."""
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    report = Report(name)
    factory = resolve(env, options) if isinstance(env, str) else env
    state = random.getstate()  # environments must not draw from the global generator: `make` changes it
    try:
        checks = _Checks(factory, report, random.Random(f"check {seed}"))
        declared = split_sizes(env) if isinstance(env, str) else Capabilities(env).splits
        if not (task_list := checks.task_list(name, declared or NUMBERED_SPLITS, episodes)):
            return report
        if Capabilities(factory.func if isinstance(factory, partial) else factory).plays_itself:
            report.notes.append("a program plays by itself: only its tasks were checked. Training and evaluation run it")
            return report
        scripts = [s for s in (checks.play(task, turns, seed + i) for i, task in enumerate(task_list)) if s is not None]
        limit = turn_limit(env, checks.opened[0]) if isinstance(env, str) else Capabilities(env).max_turns
        if scripts and limit is None and not any(script.answers[-1].done for script in scripts):
            report.notes.append("no episode ended by itself: give the class max_turns, or a recipe must set a limit")
        checks.again(scripts)
        checks.side_by_side(scripts)
        checks.branches(scripts)
        checks.odd_actions(task_list)
        checks.expert(task_list)
        if isinstance(env, str):
            checks.in_a_worker(env, options, scripts)
        checks.done()
    finally:
        random.setstate(state)
    return report


def check_all(tell: Callable[[str], None] = lambda name: None) -> Iterator[dict[str, Any]]:
    """The broken rules of every environment that can run here; for the others, what they are missing. As plain JSON values."""
    for row in describe():
        name, missing = row["name"], [need["what"] for need in row["needs"] if not need["present"]]
        tell(name)
        if not row["ready"]:
            yield {"name": name, "missing": missing or [row["error"]]}
            continue
        try:
            yield {"name": name, "contract": [problem.rule for problem in check(name).problems]}
        except Exception as error:  # one that cannot be played must not hide the others
            yield {"name": name, "contract": [f"it can be played ({one_line(error)})"]}


class _Checks:
    """The rules, over one report."""

    def __init__(self, factory: Callable[[], Any], report: Report, rng: random.Random):
        self.factory, self.report, self.rng = factory, report, rng
        self.opened: list[Any] = []

    def make(self) -> Any:
        random.seed(len(self.opened))  # a different global state every time, to detect an environment that uses it
        env = self.factory()
        self.opened.append(env)
        return env

    def done(self) -> None:
        for env in self.opened:
            with self.report.reported("close() does not raise", "close()"):
                close(env)

    def task_list(self, name: str, splits: Iterable[str], count: int) -> list[Task]:
        """A few tasks of the first split, after checking the identity of the first tasks of all splits; empty if there are none to play."""
        env = self.make()
        can = Capabilities(env)
        for method in ("reset", "step"):
            if can.method(method) is None:
                self.report.add(f"the environment has {method}()", f"{type(env).__name__} has none")
                return []
        if (turns := can.max_turns) is not None and (isinstance(turns, bool) or not isinstance(turns, int) or turns < 1):
            self.report.add("max_turns is a positive integer", f"it is {turns!r}")
        sets: dict[str, TaskSet] = {}
        for split in splits:
            try:
                sets[split] = tasks_of(env, name, split)[:200]
            except Exception as error:
                if not sets:
                    self.report.add("tasks(split) gives a TaskSet", f"tasks({split!r}) raised {one_line(error)}", own_lines(error))
                    return []
        first = next((task_set for task_set in sets.values() if len(task_set)), None)
        if first is None:
            self.report.add("there are tasks", "no split has any")
            return []
        try:
            self._identity(name, sets)
        except TurnwiseError as error:
            self.report.add("task data is plain JSON", str(error))
            return []
        return list(first[: max(1, count)])

    def _identity(self, name: str, sets: dict[str, TaskSet]) -> None:
        other_env = self.make()
        for position, (split, task_set) in enumerate(sets.items()):
            for other in list(sets)[:position]:
                if shared := task_set.overlap(sets[other]):
                    self.report.add("splits have no task in common", f"{other} and {split} both have {shared[0]!r}")
            if len(task_set) and task_set[0].hash != tasks_of(other_env, name, split)[0].hash:
                self.report.add("tasks(split) gives the same tasks every time", f"task 0 of {split} differs between two calls")

    def play(self, task: Task, turns: int, seed: int) -> Script | None:
        """One episode of random actions, with each return value checked."""
        env, report = self.make(), self.report
        report.must_raise(EpisodeOver, "step() before reset() raises EpisodeOver", lambda: env.step("look"))
        if (first := self._reset(env, task, seed)) is None:
            return None
        report.episodes += 1
        script = Script(task, seed, [first])
        for turn in range(turns):
            action = self.rng.choice(script.answers[-1].observation.actions or ODD_ACTIONS)
            if (transition := self._step(env, action, f"task {task.id!r}, turn {turn}")) is None:
                return None
            script.actions.append(action)
            script.answers.append(transition)
            report.turns += 1
            if transition.done:
                report.won += transition.success
                report.must_raise(EpisodeOver, "step() after the end raises EpisodeOver", lambda: env.step("look"))
                break
        return script

    def _reset(self, env: Any, task: Task, seed: int) -> Transition | None:
        rule, where = "reset(task, seed) does not raise", f"reset of task {task.id!r}"
        return self._answer(rule, where, lambda: Transition(read_observation(env.reset(task, seed), env)))

    def _step(self, env: Any, action: str, where: str) -> Transition | None:
        rule, where = "step(any text) does not raise", f"{where}, action {action[:40]!r}"
        return self._answer(rule, where, lambda: read_transition(env.step(action), env))

    def _answer(self, rule: str, where: str, ask: Callable[[], Transition]) -> Transition | None:
        """What the environment answers; None if it raises, or the answer is invalid."""
        answer: Transition | None = None
        with self.report.reported(rule, where):
            answer = ask()
            actions = answer.observation.actions or ()
            if len(set(actions)) < len(actions):
                self.report.add("no action is listed twice", f"{where}: {next(a for a in actions if actions.count(a) > 1)!r}")
            with self.report.reported("answers can be pickled (for worker processes)", where):
                pickle.dumps(answer)
        return answer

    def again(self, scripts: list[Script]) -> None:
        """The same environment object plays the same episodes again, after others."""
        env = self.make()
        for script in scripts:
            self._same(script, list(_replay(env, script)), "the same task, seed and actions give the same answers")

    def side_by_side(self, scripts: list[Script]) -> None:
        """Two environments alternate: neither may affect the other."""
        pair = scripts[:2]
        answers = list(zip_longest(*(_replay(self.make(), script) for script in pair)))
        for number, script in enumerate(pair):
            self._same(script, [both[number] for both in answers if both[number] is not None], "environments do not influence each other")

    def in_a_worker(self, env: str, options: Mapping[str, Any], scripts: list[Script]) -> None:
        """Another process has different hash seeds and globals."""
        try:
            pool = Pool(env, 1, workers=1, timeout=300, options=options)
        except TurnwiseError as error:
            self.report.notes.append(f"not tried in another process: {error}")
            return
        with pool:
            for script in scripts:
                results = [pool.reset(0, script.task, script.seed)]
                for action in script.actions:
                    if results[-1].over:
                        break
                    results.append(pool.step(0, action))
                seen = [result.transition or RuntimeError(result.stop_reason) for result in results]
                self._same(script, seen, "another process gives the same answers")

    def _same(self, script: Script, seen: list[Any], rule: str) -> None:
        for turn, (one, two) in enumerate(zip(script.answers, seen, strict=False)):
            if isinstance(two, Exception):
                self.report.add(rule, f"{script.where}, answer {turn}: {type(two).__name__}: {two}")
                return
            if essence(one) != essence(two):
                hint = "Take all randomness from random.Random(seed), never from a global generator or the order of a set"
                self.report.add(rule, f"{script.where}: answer {turn} differs. {hint}")
                return

    def odd_actions(self, task_list: list[Task]) -> None:
        """Models produce any text: try each unusual action in a fresh episode and one after another."""
        env = self.make()
        for task in task_list[:2]:
            transition: Transition | None = None
            for action in ODD_ACTIONS:
                if (transition is None or transition.done) and self._reset(env, task, 0) is None:
                    return
                transition = self._step(env, action, f"task {task.id!r}")

    def expert(self, task_list: list[Task]) -> None:
        env = self.make()
        if (plan := Capabilities(env).expert) is None:
            return
        rule = "expert(task) is a list of actions that wins"
        for task in task_list:
            with self.report.reported(rule, f"task {task.id!r}"):
                actions = list(plan(task))
                env.reset(task, 0)
                ends = [read_transition(env.step(action), env) for action in actions]
                if not ends or not ends[-1].success:
                    self.report.add(rule, f"task {task.id!r}: it ends without success")

    def branches(self, scripts: list[Script]) -> None:
        """Try what a branch would do, in every episode that was played."""
        env = self.make()
        can = Capabilities(env)
        has = [can.snapshot is not None, can.restore is not None]
        if not any(has):
            self._replays(scripts)
        elif not all(has):
            self.report.add(PAIR, f"{type(env).__name__} has only {'snapshot' if has[0] else 'restore'}()")
        else:
            self.report.must_raise(EpisodeOver, OUTSIDE, env.snapshot)
            for odd in (b"", b"{}", b"\x00" * 100):
                self.report.must_raise(TurnwiseError, REFUSES, partial(env.restore, odd), f"{odd[:8]!r}: ")
            for script in scripts:
                with self.report.reported(SNAPSHOT, script.where):
                    self._snapshots(script)
            if (largest := self.report.snapshot_bytes or 0) > LARGE:
                self.report.notes.append(f"a snapshot takes {largest:,} bytes; a few thousand are usual, and a run keeps many")

    def _snapshots(self, script: Script) -> None:
        """Play an episode again with a snapshot before every turn; restore the first, the middle and the last one in fresh instances."""
        env, saved = self.make(), list[tuple[int, bytes]]()
        again = Script(script.task, script.seed, [Transition(read_observation(env.reset(script.task, script.seed), env))])
        for turn, action in enumerate(script.actions):
            if (state := read_snapshot(env.snapshot(), env)) is not None:
                saved.append((turn, state))
            again.answers.append(read_transition(env.step(action), env))
            again.actions.append(action)
            if again.answers[-1].done:
                break
        if self.report.ok and list(map(essence, again.answers)) != list(map(essence, script.answers)):
            self.report.add(UNTOUCHED, f"{script.where}: with a snapshot before every turn the answers are others")
        if saved:
            self.report.snapshot_bytes = max(self.report.snapshot_bytes or 0, *(len(state) for _, state in saved))
            for number in sorted({0, len(saved) // 2, len(saved) - 1}):
                self._restores(again, *saved[number])

    def _restores(self, script: Script, turn: int, state: bytes) -> None:
        where, env = f"{script.where}, snapshot before turn {turn}", self.make()
        with self.report.reported(RESTORE, where):
            seen = read_observation(env.restore(state), env, "restore")
            if essence(seen) != essence(script.answers[turn].observation):
                self.report.add(SEES, f"{where}: text, actions or anchor differ")
                return
            with self.report.reported(GOES_ON, where):
                for later, action in enumerate(script.actions[turn:], turn):
                    if essence(read_transition(env.step(action), env)) != essence(script.answers[later + 1]):
                        self.report.add(GOES_ON, f"{where}: the answer of turn {later} differs")
                        return

    def _replays(self, scripts: list[Script]) -> None:
        """Without snapshots a branch replays the actions. If that does not reach the same state, it is a note, not a broken rule."""
        pool = Pool(self.make, 1)  # never closed: the checker closes what it made
        played = [script for script in scripts if script.actions]
        plays = (arrive(script.task, script.seed, script.actions[:-1], script.anchors[: len(script.actions)]) for script in played)
        for arrived in play_all(pool, plays):
            if not arrived.ok:
                remedy = "The class needs snapshot() and restore(state)"
                self.report.notes.append(f"a branch from the middle of an attempt would be dropped. {arrived.message}. {remedy}")
                return


def _replay(env: Any, script: Script) -> Iterator[Any]:
    try:
        yield Transition(read_observation(env.reset(script.task, script.seed), env))
        for action in script.actions:
            yield read_transition(env.step(action), env)
    except Exception as error:
        yield error


def smoke_test(pool: Pool, name: str, task_set: TaskSet, say: Callable[[str], None], cancelled: Callable[[], bool] = lambda: False) -> None:
    """A quick check before a long run: can the environment be started and played at all? It plays a few turns of two tasks. If both fail,
    it tries four more, so that a bad task is only reported, and a bad environment is an error."""
    indices = list(dict.fromkeys(number * len(task_set) // SMOKE_TASKS for number in range(SMOKE_TASKS)))
    faults: list[tuple[str, EnvResult]] = []
    for some in (indices[:2], indices[2:]):
        outcomes = list(play_all(pool, [_play_shortly(task_set[index]) for index in some], cancelled))
        faults += [fault for fault in outcomes if fault is not None]
        if None in outcomes or cancelled():
            break
    else:
        where, result = faults[0]
        raise EnvironmentFault(
            f"environment {name!r} cannot be played. {where}: {_reason(result)}. More: turnwise envs --check {name}", result.own_lines
        )
    for where, result in faults:
        say(f"warning: {where}: {_reason(result)}")


def _play_shortly(task: Task) -> Play[tuple[str, EnvResult] | None]:
    """A few turns of one task; where and how it failed, or None."""
    result, where = (yield Reset(task)), f"task {task.id!r}, reset"
    for turn in range(SMOKE_TURNS):
        if result.over:
            break
        actions = result.observation.actions
        action = actions[derive(0, "first look", task.id, turn) % len(actions)] if actions else "look"
        result, where = (yield action), f"task {task.id!r}, turn {turn + 1}, action {action[:40]!r}"
    return None if result.fault is None else (where, result)


def _reason(result: EnvResult) -> str:
    """A description of a fault, including the time limit."""
    return result.message or result.traceback or result.stop_reason
