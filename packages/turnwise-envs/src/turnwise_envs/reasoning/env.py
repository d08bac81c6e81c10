"""Questions with answers that can be checked, in one turn or in several tries, as an environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.reasoning import generators as _generators
from turnwise_envs.reasoning import solutions

SPLITS = {"train": 0, "valid": 1_000_000_000, "test": 1_500_000_000}  # the first seed of each
SIZE = 100_000  # tasks of a split if no number is asked for
RIGHT = 0.9999
SHOWN = 200  # characters of an earlier answer
TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
NAMED = re.compile(r"(?:^|\n)\s*(?:final )?answer\s*[:=]\s*(.+?)\s*$", re.IGNORECASE | re.DOTALL)


class ReasoningEnv:
    """Questions of reasoning-gym. An action is an answer; what is between <answer> tags, or after "Answer:", if there is such.

    `generators`: names or categories (algebra, logic, …); all if it is left out. `level`: the difficulty, from 0; the package's defaults if
    it is left out. `config`: settings of the package by generator, as in {"maze": {"max_dist": 5}}. `tries`: answers per question. After
    each wrong one the agent sees its score, and never the right answer. The reward of a turn is the growth of the best score.
    """

    instructions = "Answer the question. Write the answer alone, exactly in the form that the question asks for."

    def __init__(
        self,
        generators: Sequence[str] | str | None = None,
        level: int | None = None,
        config: Mapping[str, Mapping[str, Any]] | None = None,
        tries: int = 1,
    ):
        if isinstance(tries, bool) or tries < 1:
            raise TurnwiseError(f"reasoning: tries is an integer from 1, not {tries!r}")
        if level is not None and (isinstance(level, bool) or level < 0):
            raise TurnwiseError(f"reasoning: level is an integer from 0, not {level!r}")
        self.generators = _generators.choose(generators)
        self.config = {name: dict(fields) for name, fields in (config or {}).items()}
        for name in self.config:
            if name not in self.generators:
                raise unknown_name("generator in reasoning's config:", name, self.generators)
            _generators.check(name, level, self.config[name])
        self.level, self.tries, self.max_turns = level, tries, tries
        self._task: Task | None = None
        self._entry: dict[str, Any] = {}
        self._tried, self._best, self._last = 0, 0.0, ""
        self._over = "step() was called before reset(): call reset(task) first"

    # -- tasks --------------------------------------------------------------------------------------------------------------------

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """Generators in turn. Each split has its own seeds."""
        if split not in SPLITS:
            raise unknown_name("split of reasoning:", split, SPLITS)
        names, first, level = self.generators, SPLITS[split], self.level

        def make(index: int) -> Task:
            name, seed = names[index % len(names)], first + index // len(names)
            shown = name if level is None else f"{name}-level{level}"
            return Task(f"{shown}-{seed}", split, {"generator": name, "level": level, "seed": seed})

        return TaskSet.lazy(SIZE if n is None else n, make, f"reasoning {split}")

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._start(task)
        return self._see()

    def _start(self, task: Task) -> None:
        """Before anything changes, a task of another environment is rejected."""
        data = task.data
        if not {"generator", "level", "seed"} <= set(data):
            raise TurnwiseError(f"task {task.id!r} is not a reasoning task: its data has no generator, level and seed")
        (name,) = _generators.choose(str(data["generator"]))
        self._entry = _generators.entry(name, data["level"], self.config.get(name, {}), int(data["seed"]))
        self._task, self._tried, self._best, self._last, self._over = task, 0, 0.0, "", ""

    def step(self, action: str) -> Transition:
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        answer = extract(action)
        score = self._score(answer)
        self._tried += 1
        gained, self._best = max(score - self._best, 0.0), max(score, self._best)
        right, info = score >= RIGHT, {"score": score, "measures": {"score": self._best, "tries": self._tried}}
        if right or self._tried >= self.tries:
            self._over = "the question is answered: call reset(task) before the next step"
            text = "That is right." if right else f"That is not right. Its score is {score:.2f} of 1."
            return Transition(Observation(text, anchor=self._anchor()), gained, True, right, info)
        shown = answer if len(answer) <= SHOWN else f"{answer[:SHOWN]} …"
        self._last = f"You answered: {shown}\nThat is not right. Its score is {score:.2f} of 1."
        return Transition(self._see(), gained, info=info)

    def _score(self, answer: str) -> float:
        assert self._task is not None
        name = str(self._task.data["generator"])
        return _generators.score(name, self._task.data["level"], self.config.get(name, {}), answer, self._entry)

    def _see(self) -> Observation:
        left = self.tries - self._tried
        parts = [str(self._entry["question"]).strip(), self._last]
        if self.tries > 1:
            parts.append(f"You have {left} {'tries' if left > 1 else 'try'} left.")
        return Observation("\n\n".join(part for part in parts if part), anchor=self._anchor())

    def _anchor(self) -> str:
        assert self._task is not None
        return f"{self._task.id}, {self._tried} tried"

    # -- agents -------------------------------------------------------------------------------------------------------------------

    def expert_action(self) -> str | None:
        """The right answer; None if the package does not say it."""
        if self._task is None or self._over:
            return None
        found = solutions.solution(str(self._task.data["generator"]), self._entry)
        return found if found is not None and self._score(found) >= RIGHT else None

    def scripted_action(self) -> str:
        """The last number of the question, or its last word: what can be said without thinking."""
        words = re.findall(r"-?\d+(?:\.\d+)?", text := str(self._entry.get("question", ""))) or text.split()
        return words[-1] if words else "0"

    def random_action(self, number: int) -> str:
        """Any word of the question, or a small number."""
        words = [*str(self._entry.get("question", "")).split(), *map(str, range(10))]
        return words[number % len(words)]

    # -- states -------------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        state = {"task": self._task.to_json(), "tried": self._tried, "best": self._best, "last": self._last}
        return pack("reasoning", state, self._options())

    def restore(self, state: bytes) -> Observation:
        kept = unpack(state, "reasoning", self._options())
        with restoring("reasoning"):
            task, tried, best, last = Task.from_json(kept["task"]), int(kept["tried"]), float(kept["best"]), str(kept["last"])
        self._start(task)
        self._tried, self._best, self._last = tried, best, last
        return self._see()

    def _options(self) -> Mapping[str, Any]:
        return {"tries": self.tries, "config": self.config}


def extract(text: str) -> str:
    """The answer in an action: between the last tags, after "Answer:" at a line's start, or all of it. Only characters that other programs
    can handle."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")
    if tagged := TAGS.findall(text):
        return str(tagged[-1]).strip()
    named = NAMED.search(text)
    return (named[1] if named else text).strip()
