"""The checker: plays an environment with random actions and reports where it breaks the contract.

Run it first on a new environment. Each problem names the rule, what was observed, and what to do. Training depends on these rules: a group
of trajectories can be compared only if the same task, seed and actions lead to the same results, in any process, and
regardless of what else is played at the same time.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.answers import BadAnswer, read_observation, read_transition
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.blame import one_line, own_lines
from turnwise.envs.check_branches import check_branches
from turnwise.envs.findings import Report, Script, essence
from turnwise.envs.pool import Pool
from turnwise.envs.registry import NUMBERED_SPLITS, close, numbered, resolve, split_sizes, tasks, turn_limit
from turnwise.util.errors import TurnwiseError

ODD_ACTIONS = ("", " ", "xyzzy", "LOOK", "\x00", "\U0001f600", "a" * 10_000, "look\nlook", "\ud800", "{'json': [1, 2]}")


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
        if getattr(getattr(factory, "func", factory), "plays_itself", False):
            report.notes.append("a program plays by itself: only its tasks were checked. Training and evaluation run it")
            return report
        scripts = [s for s in (checks.play(task, turns, seed + i) for i, task in enumerate(task_list)) if s is not None]
        limit = turn_limit(env, checks.opened[0]) if isinstance(env, str) else getattr(env, "max_turns", None)
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
        turns = getattr(made, "max_turns", None)
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
        declared = split_sizes(env) if isinstance(env, str) else getattr(env, "splits", None)
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
        if not callable(plan := getattr(env, "expert", None)):
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
        found = made.tasks(split) if callable(getattr(made, "tasks", None)) else numbered(type(made).__name__, split)
    return found[:n]


def _steps(env: Any, script: Script) -> Iterator[Any]:
    try:
        yield read_observation(env.reset(script.task, script.seed), env)
        for action in script.actions:
            yield read_transition(env.step(action), env)
    except Exception as error:
        yield error
