"""The checker: plays an environment with random actions and reports where it breaks the contract.

Run it first on a new environment. Each problem names the rule, what was observed, and what to do. Training depends on these rules: a group
of trajectories can be compared only if the same task, seed and actions lead to the same results, in any process, and
regardless of what else is played at the same time.

Branches have rules of their own: a snapshot restores its state in any instance; without snapshots, a replay of the actions does. A
`restore` that forgets a hidden card or the state of a generator is only noticed in later answers, so every restored episode is played to
its end.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

from turnwise.data.anchors import digest
from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.answers import BadAnswer, read_observation, read_snapshot, read_transition
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.blame import one_line, own_lines
from turnwise.envs.branch import Arrived, arrive
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.pool import Pool
from turnwise.envs.registry import NUMBERED_SPLITS, close, numbered, resolve, split_sizes, tasks, turn_limit
from turnwise.envs.scripts import Play, play_all
from turnwise.util.errors import TurnwiseError

ODD_ACTIONS = ("", " ", "xyzzy", "LOOK", "\x00", "\U0001f600", "a" * 10_000, "look\nlook", "\ud800", "{'json': [1, 2]}")
LARGE = 64 * 1024
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

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass
class Script:
    """One episode: the actions and their results, to be compared with a replay."""

    task: Task
    seed: int
    first: Observation
    actions: list[str] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)


def essence(answer: Any) -> tuple[Any, ...]:
    """What must be equal in two equal results: text, actions, anchor (of pictures: their content) and, for a transition, reward and end."""
    if isinstance(answer, Transition):
        return (*essence(answer.observation), answer.reward, answer.done, answer.success, dict(answer.others))
    return (answer.text, answer.actions, digest(answer.key), answer.seat)


def check(env: str | Callable[[], Any], *, episodes: int = 5, turns: int = 50, seed: int = 0, **options: Any) -> Report:
    """Play `episodes` tasks of an environment for up to `turns` random actions each and report every broken rule. `env` is a name, a
    `path/to/my_env.py:MyEnv`, or a function that makes one (a class will do)."""
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    report = Report(name)
    factory = resolve(env, options) if isinstance(env, str) else env
    with _shaken_globals():
        checks = _Checks(factory, report, random.Random(f"check {seed}"))
        if (task_list := checks.task_list(env, options, episodes)) is None:
            return report
        if Capabilities(factory.func if isinstance(factory, partial) else factory).plays_itself:
            report.notes.append("a program plays by itself: only its tasks were checked. Training and evaluation run it")
            return report
        scripts = [s for s in (checks.play(task, turns, seed + i) for i, task in enumerate(task_list)) if s is not None]
        limit = turn_limit(env, checks.opened[0]) if isinstance(env, str) else Capabilities(env).max_turns
        checks.end_of_episode(scripts, limit)
        checks.again(scripts)
        checks.side_by_side(scripts)
        check_branches(checks.make, report, scripts)
        checks.odd_actions(task_list)
        checks.expert(task_list)
        if isinstance(env, str):
            checks.in_a_worker(env, options, scripts)
        checks.done()
    return report


@contextmanager
def _shaken_globals() -> Iterator[None]:
    """Environments must not draw from the global generator; its state is restored."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


class _Checks:
    """The rules, one method each, over one report."""

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
            try:
                close(env)
            except Exception as error:
                self.report.add("close() does not raise", f"it raised {type(error).__name__}: {error}")

    def task_list(self, env: str | Callable[[], Any], options: Mapping[str, Any], count: int) -> list[Task] | None:
        """A few tasks of the first split, after checking the identity of the first tasks of all splits."""
        made = self.make()
        for method in ("reset", "step"):
            if not callable(getattr(made, method, None)):
                self.report.add(f"the environment has {method}()", f"{type(made).__name__} has none")
                return None
        turns = Capabilities(made).max_turns
        if turns is not None and (isinstance(turns, bool) or not isinstance(turns, int) or turns < 1):
            self.report.add("max_turns is a positive integer", f"it is {turns!r}")
        sets: dict[str, TaskSet] = {}
        for split in self._splits(env):
            try:
                sets[split] = _take(env, options, made, split, 200)
            except Exception as error:
                if not sets:
                    self.report.add("tasks(split) gives a TaskSet", f"tasks({split!r}) raised {type(error).__name__}: {error}")
                    return None
        try:
            self._identity(env, options, made, sets)
        except TurnwiseError as error:
            self.report.add("task data is plain JSON", str(error))
            return None
        first = next((found for found in sets.values() if len(found)), None)
        if first is None:
            self.report.add("there are tasks", "no split has any")
            return None
        return list(first[: max(1, count)])

    def _identity(self, env: str | Callable[[], Any], options: Mapping[str, Any], made: Any, sets: dict[str, TaskSet]) -> None:
        names = list(sets)
        for place, split in enumerate(names):
            found = sets[split]
            for other in names[:place]:
                if shared := found.overlap(sets[other]):
                    self.report.add("splits have no task in common", f"{other} and {split} both have {shared[0]!r}")
            if len(found) and found[0].hash != _take(env, options, made, split, 1)[0].hash:
                self.report.add("tasks(split) gives the same tasks every time", f"task 0 of {split} differs between two calls")

    @staticmethod
    def _splits(env: str | Callable[[], Any]) -> list[str]:
        declared = split_sizes(env) if isinstance(env, str) else Capabilities(env).splits
        return list(declared or NUMBERED_SPLITS)

    def play(self, task: Task, turns: int, seed: int) -> Script | None:
        """One episode of random actions, with each return value checked."""
        env = self.make()
        self._must_raise(env, "step() before reset() raises EpisodeOver")
        try:
            given = env.reset(task, seed)
        except Exception as error:
            self.report.add("reset(task, seed) does not raise", f"task {task.id!r}: {one_line(error)}", own_lines(error))
            return None
        self.report.episodes += 1
        if (first := self._observation(given, env, f"reset of task {task.id!r}")) is None:
            return None
        script = Script(task, seed, first)
        observation = first
        for _ in range(turns):
            action = self.rng.choice(observation.actions) if observation.actions else self.rng.choice(ODD_ACTIONS)
            transition = self._step(env, action, f"task {task.id!r}, turn {len(script.actions)}, action {action[:40]!r}")
            if transition is None:
                return None
            script.actions.append(action)
            script.transitions.append(transition)
            self.report.turns += 1
            observation = transition.observation
            if transition.done:
                self.report.won += transition.success
                self._must_raise(env, "step() after the end raises EpisodeOver")
                break
        return script

    def _step(self, env: Any, action: str, where: str) -> Transition | None:
        try:
            transition: Any = env.step(action)
        except Exception as error:
            self.report.add("step(any text) does not raise", f"{where}: {one_line(error)}", own_lines(error))
            return None
        try:
            read = read_transition(transition, env)
        except BadAnswer as error:
            self.report.add(error.rule, f"{where}: {error}", error.lines)
            return None
        self._picklable(transition, where)
        self._listed_once(read.observation, where)
        return read

    def _observation(self, given: Any, env: Any, where: str) -> Observation | None:
        try:
            observation = read_observation(given, env)
        except BadAnswer as error:
            self.report.add(error.rule, f"{where}: {error}", error.lines)
            return None
        self._picklable(given, where)
        self._listed_once(observation, where)
        return observation

    def _listed_once(self, observation: Observation, where: str) -> None:
        actions = observation.actions or ()
        if len(set(actions)) < len(actions):
            self.report.add("no action is listed twice", f"{where}: {next(a for a in actions if actions.count(a) > 1)!r}")

    def _picklable(self, value: Any, where: str) -> None:
        try:
            pickle.dumps(value)
        except Exception as error:
            self.report.add("answers can be pickled (for worker processes)", f"{where}: {error}")

    def _must_raise(self, env: Any, rule: str) -> None:
        try:
            env.step("look")
        except EpisodeOver:
            return
        except Exception as error:
            self.report.add(rule, f"it raised {type(error).__name__}: {error}")
            return
        self.report.add(rule, "it returned. Raise turnwise.envs.EpisodeOver there")

    def end_of_episode(self, scripts: list[Script], limit: int | None) -> None:
        ended = any(script.transitions and script.transitions[-1].done for script in scripts)
        if scripts and not ended and limit is None:
            self.report.notes.append("no episode ended by itself: give the class max_turns, or a recipe must set a limit")

    def again(self, scripts: list[Script]) -> None:
        """The same environment object plays the same episodes again, after others."""
        env = self.make()
        for script in scripts:
            self._same(script, list(_steps(env, script)), "the same task, seed and actions give the same answers")

    def side_by_side(self, scripts: list[Script]) -> None:
        """Two environments alternate: neither may affect the other."""
        if len(scripts) < 2:
            return
        pair = scripts[:2]
        playing = [_steps(self.make(), script) for script in pair]
        answers = list(zip_longest(*playing))
        for place, script in enumerate(pair):
            seen = [both[place] for both in answers if both[place] is not None]
            self._same(script, seen, "environments do not influence each other")

    def _same(self, script: Script, seen: list[Any], rule: str) -> None:
        wanted = [script.first, *script.transitions]
        for turn, (one, two) in enumerate(zip(wanted, seen, strict=False)):
            if isinstance(two, Exception):
                self.report.add(rule, f"task {script.task.id!r}, seed {script.seed}, answer {turn}: {type(two).__name__}: {two}")
                return
            if essence(one) != essence(two):
                hint = "Take all randomness from random.Random(seed), never from a global generator or the order of a set"
                self.report.add(rule, f"task {script.task.id!r}, seed {script.seed}: answer {turn} differs. {hint}")
                return

    def odd_actions(self, task_list: list[Task]) -> None:
        """Models produce any text: try each unusual action in a fresh episode and one after another."""
        env = self.make()
        for task in task_list[:2]:
            try:
                env.reset(task, 0)
            except Exception:
                return  # reported by play
            for action in ODD_ACTIONS:
                transition = self._step(env, action, f"task {task.id!r}, action {action[:20]!r}")
                if transition is None or transition.done:
                    try:
                        env.reset(task, 0)
                    except Exception as error:
                        self.report.add("reset(task, seed) does not raise", f"task {task.id!r}, again: {one_line(error)}", own_lines(error))
                        return

    def expert(self, task_list: list[Task]) -> None:
        env = self.make()
        if (plan := Capabilities(env).expert) is None:
            return
        for task in task_list:
            try:
                actions = list(plan(task))
                env.reset(task, 0)
                ends = [read_transition(env.step(action), env) for action in actions]
            except Exception as error:
                self.report.add("expert(task) is a list of actions that wins", f"task {task.id!r}: {type(error).__name__}: {error}")
                return
            if not ends or not ends[-1].success:
                self.report.add("expert(task) is a list of actions that wins", f"task {task.id!r}: it ends without success")
                return

    def in_a_worker(self, env: str, options: Mapping[str, Any], scripts: list[Script]) -> None:
        """Another process has different hash seeds and globals."""
        try:
            pool = Pool(env, 1, workers=1, timeout=300, options=options)
        except TurnwiseError as error:
            self.report.notes.append(f"not tried in another process: {error}")
            return
        with pool:
            for script in scripts:
                seen: list[Any] = []
                result = pool.reset(0, script.task, script.seed)
                for action in [*script.actions, None]:
                    if result.transition is None:
                        seen.append(RuntimeError(result.stop_reason))
                        break
                    seen.append(result.transition if seen else result.observation)
                    if action is None or result.over:
                        break
                    result = pool.step(0, action)
                self._same(script, seen, "another process gives the same answers")


def _take(env: str | Callable[[], Any], options: Mapping[str, Any], made: Any, split: str, n: int) -> TaskSet:
    if isinstance(env, str):
        found = tasks(env, split, **options)
    else:
        listing = Capabilities(made).tasks
        found = numbered(type(made).__name__, split) if listing is None else listing(split)
    return found[:n]


def _steps(env: Any, script: Script) -> Iterator[Any]:
    try:
        yield read_observation(env.reset(script.task, script.seed), env)
        for action in script.actions:
            yield read_transition(env.step(action), env)
    except Exception as error:
        yield error


def check_branches(make: Callable[[], Any], report: Report, scripts: list[Script]) -> None:
    """Try what a branch would do, in every episode that was played."""
    env = make()
    can = Capabilities(env)
    has = [can.snapshot is not None, can.restore is not None]
    if all(has):
        _refuses(env, report)
        for script in scripts:
            _snapshots(make, report, script)
    elif any(has):
        report.add(PAIR, f"{type(env).__name__} has only {'snapshot' if has[0] else 'restore'}()")
    else:
        _replays(make, report, scripts)


def _refuses(env: Any, report: Report) -> None:
    try:
        env.snapshot()
        report.add(OUTSIDE, "it returned. Raise turnwise.envs.EpisodeOver there")
    except EpisodeOver:
        pass
    except Exception as error:
        report.add(OUTSIDE, f"it raised {one_line(error)}", own_lines(error))
    for odd in (b"", b"{}", b"\x00" * 100):
        try:
            env.restore(odd)
            report.add(REFUSES, f"it accepted {odd[:8]!r}. Raise turnwise.TurnwiseError there")
        except TurnwiseError:
            continue
        except Exception as error:
            report.add(REFUSES, f"{odd[:8]!r}: it raised {one_line(error)}. Raise turnwise.TurnwiseError there", own_lines(error))


def _snapshots(make: Callable[[], Any], report: Report, script: Script) -> None:
    """Play an episode again with a snapshot before every turn; restore the first, the middle and the last one in fresh instances."""
    env, where, states = make(), f"task {script.task.id!r}, seed {script.seed}", list[bytes | None]()
    try:
        again = Script(script.task, script.seed, read_observation(env.reset(script.task, script.seed), env))
        for action in script.actions:
            states.append(read_snapshot(env.snapshot(), env))
            again.transitions.append(read_transition(env.step(action), env))
            again.actions.append(action)
            if again.transitions[-1].done:
                break
    except BadAnswer as error:
        return report.add(error.rule, f"{where}, turn {len(again.actions)}: {error}", error.lines)
    except Exception as error:
        return report.add(SNAPSHOT, f"{where}, turn {len(states)}: {one_line(error)}", own_lines(error))
    if report.ok and list(map(essence, again.transitions)) != list(map(essence, script.transitions)):
        report.add(UNTOUCHED, f"{where}: with a snapshot before every turn the answers are others")
    kept = [(turn, state) for turn, state in enumerate(states) if state is not None]
    _weigh(report, [len(state) for _, state in kept])
    for place in sorted({0, len(kept) // 2, len(kept) - 1}) if kept else ():
        _restores(make, report, again, *kept[place])
    return None


def _weigh(report: Report, sizes: list[int]) -> None:
    before, largest = report.snapshot_bytes or 0, max(sizes, default=0)
    if sizes:
        report.snapshot_bytes = max(before, largest)
    if before <= LARGE < largest:
        report.notes.append(f"a snapshot takes {largest:,} bytes; a few thousand are usual, and a run keeps many")


def _restores(make: Callable[[], Any], report: Report, script: Script, turn: int, state: bytes) -> None:
    where = f"task {script.task.id!r}, seed {script.seed}, snapshot before turn {turn}"
    env = make()
    try:
        seen = read_observation(env.restore(state), env, "restore")
    except Exception as error:
        return report.add(RESTORE, f"{where}: {one_line(error)}", own_lines(error))
    if essence(seen) != essence(_observation_before(script, turn)):
        return report.add(SEES, f"{where}: text, actions or anchor differ")
    for later, (action, wanted) in enumerate(zip(script.actions[turn:], script.transitions[turn:], strict=True), turn):
        try:
            answer = read_transition(env.step(action), env)
        except Exception as error:
            return report.add(GOES_ON, f"{where}: turn {later}: {one_line(error)}", own_lines(error))
        if essence(answer) != essence(wanted):
            return report.add(GOES_ON, f"{where}: the answer of turn {later} differs")
    return None


def _observation_before(script: Script, turn: int) -> Observation:
    return script.transitions[turn - 1].observation if turn else script.first


def _replays(make: Callable[[], Any], report: Report, scripts: list[Script]) -> None:
    """Without snapshots a branch replays the actions. If that does not reach the same state, it is a note, not a broken rule."""
    pool = Pool(make, 1)  # never closed: the checker closes what it made
    for found in play_all(pool, (_way(script) for script in scripts if script.actions)):
        if not found.ok:
            remedy = "The class needs snapshot() and restore(state)"
            report.notes.append(f"a branch from the middle of an attempt would be dropped. {found.message}. {remedy}")
            return


def _way(script: Script) -> Play[Arrived]:
    """To the last turn of an episode, by its actions."""
    anchors = [_observation_before(script, turn).key for turn in range(len(script.actions))]
    return arrive(script.task, script.seed, script.actions[:-1], anchors)
