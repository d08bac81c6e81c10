"""Play an environment by hand: observations, typed actions, hints from the expert if there is one, and a score at the end.

Through a pipe it reads lines, so a test or a script can play too. Text from an environment is sanitised: control characters and terminal
sequences never reach the screen.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.answers import BadAnswer, read_observation, read_transition
from turnwise.envs.base import Env, Observation, Transition
from turnwise.envs.blame import EnvironmentFault, one_line, own_lines
from turnwise.envs.capabilities import Capabilities
from turnwise.envs.registry import NUMBERED_SPLITS, close, make, split_sizes, tasks, turn_limit
from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import counted
from turnwise.util.terminal import say

HELP = "quit: leave   hint: what the expert would do   actions: what is possible here   (:quit, :hint, :actions always mean these)"
EXPERT_LIMIT = 1000
Read = Callable[[], str | None]


def find_task(name: str, wanted: str, split: str = "train", **options: Any) -> Task:
    """The task with this id, in `split` or in another split; or, for a number that is not an id, the task at this index of `split`."""
    sizes = split_sizes(name) or dict.fromkeys(NUMBERED_SPLITS)
    sets = {split: tasks(name, split, **options)}
    for other in sizes:
        if other != split:
            with contextlib.suppress(TurnwiseError):  # a split whose data is missing
                sets[other] = tasks(name, other, **options)
    if wanted.isdecimal() and not (len(sets[split]) and sets[split][0].id.isdecimal()):
        return task_at(name, split, int(wanted), **options)  # if ids are not numbers, a number is an index: no need to create all tasks
    for task_set in sets.values():
        for task in task_set:
            if task.id == wanted:
                return task
    if wanted.isdecimal():
        return task_at(name, split, int(wanted), **options)
    raise TurnwiseError(f"environment {name!r} has no task {wanted!r} in {', '.join(sets)}.{_nearest(wanted, sets)}")


def task_at(name: str, split: str, index: int, /, **options: Any) -> Task:
    """The task at an index of a split; any index for an unlimited split."""
    endless = split in (sizes := split_sizes(name)) and sizes[split] is None
    task_set = tasks(name, split, n=index + 1 if endless else None, **options)
    if not 0 <= index < len(task_set):
        raise TurnwiseError(f"task set {task_set.name!r} has {len(task_set)} tasks, counted from 0: there is no task {index}")
    return task_set[index]


def _nearest(wanted: str, sets: Mapping[str, TaskSet]) -> str:
    ids = [task.id for task_set in sets.values() for task in task_set]
    near = [id for id in ids if wanted and wanted in id] or difflib.get_close_matches(wanted, ids[:5000], n=1, cutoff=0.3)
    return f" The nearest id is {near[0]!r}" if near else f" An id looks like {ids[0]!r}" if ids else " It has no tasks at all"


@dataclass
class Game:
    """One task that a person plays."""

    env: Env
    task: Task
    seed: int = 0
    max_turns: int | None = None
    actions: list[str] = field(default_factory=list)
    reward: float = 0.0
    done: bool = False
    success: bool = False
    observation: Observation = field(default_factory=lambda: Observation(""))
    plan: list[str] | None = None

    def start(self) -> None:
        with named(f"task {self.task.id!r}, reset"):
            self.plan = expert_plan(self.env, self.task, self.seed)
            self.observation = read_observation(self.env.reset(self.task, self.seed), self.env)

    def act(self, action: str) -> Transition:
        with named(f"task {self.task.id!r}, turn {len(self.actions) + 1}, action {action[:40]!r}"):
            transition = read_transition(self.env.step(action), self.env)
        self.actions.append(action)
        self.observation = transition.observation
        self.reward += float(transition.reward)
        self.done, self.success = transition.done, transition.done and transition.success
        return transition

    @property
    def out_of_turns(self) -> bool:
        return self.max_turns is not None and len(self.actions) >= self.max_turns

    def hint(self) -> str | None:
        """The expert's next action: from the current state, or along its plan while the player follows it."""
        if (advise := Capabilities(self.env).expert_action) is not None:
            with named(f"task {self.task.id!r}, expert_action()"):
                advice = advise()
            return None if advice is None else str(advice)
        followed = len(self.actions)
        if self.plan is not None and self.plan[:followed] == self.actions and followed < len(self.plan):
            return self.plan[followed]
        return None

    def score(self) -> str:
        words = [
            "You have done it." if self.success else "The task is not done.",
            f"Turns: {len(self.actions)}" + (f" of {self.max_turns}" if self.max_turns is not None else ""),
            f"reward: {self.reward:g}",
        ]
        if self.plan:
            words.append(f"the expert needs {len(self.plan)}")
        return words[0] + " " + ", ".join(words[1:]) + "."


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Turn an environment's exception or invalid return value into an error with its location and the lines of the file."""
    try:
        yield
    except BadAnswer as error:
        raise EnvironmentFault(f"{where}: {error}", error.lines) from error
    except TurnwiseError:
        raise
    except Exception as error:
        raise EnvironmentFault(f"{where}: {one_line(error)}", own_lines(error)) from error


def expert_plan(env: Env, task: Task, seed: int) -> list[str] | None:
    """The expert's actions from the start: its plan if it has one, otherwise its actions followed to the end. None: no expert."""
    can = Capabilities(env)
    if can.expert is not None:
        return [str(action) for action in can.expert(task)]
    if (advise := can.expert_action) is None:
        return None
    env.reset(task, seed)
    actions: list[str] = []
    while len(actions) < EXPERT_LIMIT and (advice := advise()) is not None:
        actions.append(str(advice))
        if read_transition(env.step(actions[-1]), env).done:
            return actions
    return None


def play(
    name: str,
    *,
    task: str | None = None,
    split: str = "train",
    seed: int = 0,
    max_turns: int | None = None,
    watch: bool = False,
    read: Read | None = None,
    **options: Any,
) -> Game:
    """Play one task in the terminal. Without a task, `seed` selects one from the split. With `watch`, the expert plays it."""
    chosen = task_at(name, split, seed, **options) if task is None else find_task(name, task, split, **options)
    env = make(name, **options)
    try:
        game = Game(env, chosen, seed, max_turns or turn_limit(name, env))
        game.start()
        if watch and not game.plan:
            raise TurnwiseError(f"environment {name!r} has no expert to watch for task {chosen.id!r}")
        say(f"{name}, task {chosen.id} ({chosen.split}), seed {seed}")
        for words in (Capabilities(env).instructions, chosen.data.get("goal")):
            if isinstance(words, str) and words and words not in game.observation.text:
                say(words)
        if not watch:
            say(HELP)
        _loop(game, (lambda: _next_of_the_plan(game)) if watch else read or _line)
        say(game.score())
        return game
    finally:
        close(env)


def _loop(game: Game, read: Read) -> None:
    _show(game.observation)
    while not game.done and not game.out_of_turns:
        line = read()
        if line is None:
            say("")
            return
        word = _own_word(line, game.observation)
        if word == "quit":
            return
        if word == "hint":
            say(f"The expert would: {game.hint()}" if game.hint() else "No hint here.")
        elif word == "actions":
            say("\n".join(game.observation.actions or ("This environment does not list its actions.",)))
        elif line.strip():  # an empty line is a typo, not a turn
            game.act(line.strip())
            _show(game.observation)
    if game.out_of_turns and not game.done:
        say(f"That was the last of {counted(game.max_turns or 0, 'turn')}.")


def _own_word(line: str, observation: Observation) -> str | None:
    """A command to the game instead of the environment. A word that the environment lists as an action goes to the environment."""
    word = line.strip().lower()
    if word in (":quit", ":hint", ":actions"):
        return word[1:]
    return word if word in ("quit", "hint", "actions") and word not in (observation.actions or ()) else None


def _show(observation: Observation) -> None:
    say("")
    say(observation.text)
    for number, image in enumerate(observation.images):
        say(f"[image {number}: {type(image).__name__} {getattr(image, 'shape', getattr(image, 'size', ''))}]")


def _next_of_the_plan(game: Game) -> str | None:
    """The expert's next action, echoed."""
    plan = game.plan or []
    if len(game.actions) >= len(plan):
        return None
    say(f"\n> {plan[len(game.actions)]}")
    return plan[len(game.actions)]


def _line() -> str | None:
    """A line from the terminal, or from a pipe, echoed so that the transcript is readable; None at the end."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (lines can be edited then)
        try:
            return input("\n> ")
        except (EOFError, KeyboardInterrupt):
            return None
    line = sys.stdin.readline()
    if line:
        say(f"\n> {line.rstrip()}")
    return line.rstrip("\r\n") if line else None
