"""BFCL's multi-turn tool tasks as an environment: a user asks for one thing after the other, and the agent calls functions."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import EpisodeOver, Observation, Transition
from turnwise.envs.snapshots import pack, restoring, unpack
from turnwise.envs.tools.calls import Call, Final
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.bfcl.benchmark import CATEGORIES, CLASSES, Entry, Function, entries, entry, held_out, require, scenarios
from turnwise_envs.bfcl.calls import DONE, Calls, read_action, written
from turnwise_envs.bfcl.describe import STYLES, Style, described
from turnwise_envs.bfcl.players import Heard, plain_call, random_call
from turnwise_envs.bfcl.scoring import Judge, digest, solution
from turnwise_envs.bfcl.state import Unknown, overgrown, rebuild, table
from turnwise_envs.bfcl.world import World, fit

SPLITS = ("train", "valid")
REWARDS = ("success", "requests")
LARGEST_SNAPSHOT = 1 << 20


class BfclEnv:
    """BFCL's multi-turn tasks. An action is a call, `name(argument='value')` or JSON, or several of them in a list. `done`, or any text
    that is not a call, ends the user's request, and the next one follows.

    `categories`: some of base, miss_func, miss_param, long_context. `classes`: only tasks that use no other API classes. `tools`: how the
    functions are listed ("short": signature and description, "signatures", "schemas": JSON, "none"). `reward`: "success": 1 at the end if
    all requests were met; "requests": a share for each that was. `end_on_failure`: end the attempt at the first request that was not met.
    `single`: each request is a task by itself, and starts where the solution of those before it ends. `earlier`: such a task shows the
    requests before it with their calls. `repeat_request`: every observation begins with the request. `longest_result`: characters of a
    result that are shown.
    """

    max_turns = 40
    instructions = (
        "You help a user by calling functions. An action is one call, for example cd(folder='reports'). When the request is done, or when "
        f"it cannot be done with these functions, the action is: {DONE}"
    )

    def __init__(
        self,
        categories: Sequence[str] | str = CATEGORIES,
        classes: Sequence[str] | str | None = None,
        tools: Style = "short",
        reward: Literal["success", "requests"] = "success",
        end_on_failure: bool = False,
        single: bool = False,
        earlier: bool = True,
        repeat_request: bool = False,
        longest_result: int = 4000,
    ):
        require()
        self.categories = _chosen("category", categories, CATEGORIES)
        self.classes = None if classes is None else _chosen("API class", classes, CLASSES)
        for what, value, known in (("tools", tools, STYLES), ("reward", reward, REWARDS)):
            if value not in known:
                raise unknown_name(f"value of the option {what} of bfcl:", str(value), known)
        if longest_result < 1:
            raise TurnwiseError(f"bfcl: longest_result is at least 1, not {longest_result}")
        self.tools, self.reward, self.end_on_failure, self.single = tools, reward, end_on_failure, single
        self.earlier, self.repeat_request, self.longest_result = earlier, repeat_request, longest_result
        self._task: Task | None = None
        self._over = "step() was called before reset(): call reset(task) first"

    # -- tasks --------------------------------------------------------------------------------------------------------------------

    def tasks(self, split: str = "train") -> TaskSet:
        """The tasks of a split. All tasks of a scenario are in the same split, in all categories."""
        if split not in SPLITS:
            raise unknown_name("split of environment 'bfcl':", split, SPLITS)
        found = [one for category in self.categories for one in entries(category) if held_out(one.number) == (split == "valid")]
        found = [one for one in found if self.classes is None or set(one.classes) <= set(self.classes)]
        if not found:
            raise TurnwiseError(f"no task of bfcl in {', '.join(self.categories)} uses only {', '.join(self.classes or ())}")
        return TaskSet([task for one in found for task in self._tasks_of(one, split)], f"bfcl {split}")

    def _tasks_of(self, found: Entry, split: str) -> list[Task]:
        data = {"category": found.category, "number": found.number, "scenario": scenarios()[found.number], "classes": list(found.classes)}
        cluster = str(data["scenario"])
        if not self.single:
            return [Task(found.id, split, data, cluster)]
        requests = [place for place, calls in enumerate(found.gold) if calls]
        return [Task(f"{found.id}-{place}", split, data | {"request": place}, cluster) for place in requests]

    # -- playing ------------------------------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int = 0) -> Observation:
        self._begin(task)
        return self._see(self._asked(opening=True))

    def _begin(self, task: Task) -> None:
        self._entry, start = _entry_of(task), int(task.data.get("request", 0))
        self._task, self._over, self._last = task, "", ""
        self._world, self._judge = World(self._entry), Judge(self._entry)
        self._results: list[str] = []  # of all calls so far, as hashes
        self._heard = Heard()
        self._called, self._turns_here, self._followed = False, 0, 0
        self._judge.skip(start)
        for place in range(start):
            self._results += [digest(self._world.call(call)) for call in solution(self._entry.category, self._entry.number, place)]
        self._end = start + 1 if "request" in task.data else len(self._entry.requests)
        self._worth = 1 if "request" in task.data else self._judge.checked

    def step(self, action: str) -> Transition:
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        if not isinstance(action, str):
            raise TurnwiseError(f"an action is a text, not {type(action).__name__}: {action!r}")
        self._turns_here += 1
        wanted = read_action(action)
        if isinstance(wanted, Final):
            return self._next_request()
        if not isinstance(wanted, Calls):
            return Transition(self._see(wanted.text), info={"calls": 0})
        lines = []
        for call in wanted.calls:
            lines.append(self._called_with(call))
            if too_large := overgrown(self._world.objects):
                return self._finish(f"The file system cannot be used any more: {too_large}.", too_large)
        self._heard.hear(text := "\n".join(lines))
        return Transition(self._see(text), info={"calls": len(lines)})

    def _called_with(self, call: Call) -> str:
        """What comes of a call, as it is shown."""
        known = fit(call, self._world.functions)
        if not isinstance(known, Call):
            return known.text
        result = self._world.call(known)
        self._results.append(digest(result))
        self._called = True
        if known in self._judge.solution()[self._followed : self._followed + 1]:
            self._followed += 1
        if len(result) <= self.longest_result:
            return result
        return f"{result[: self.longest_result]}\n[cut: {len(result):,} characters, of which the first {self.longest_result:,} are shown]"

    def _next_request(self) -> Transition:
        met = self._judge.end_request(self._world, self._results, self._called)
        reward = met / self._worth if self.reward == "requests" else 0.0
        self._called, self._turns_here, self._followed = False, 0, 0
        if self._judge.at >= self._end:
            return self._finish("The user has no further request.", reward=reward)
        if self._judge.failed and self.end_on_failure:
            return self._finish("A request was not met.", reward=reward)
        return Transition(self._see(self._asked()), reward, info={"met": met})

    def _finish(self, text: str, reason: str = "", reward: float = 0.0) -> Transition:
        success = not reason and not self._judge.failed and self._judge.at >= self._end
        if self.reward == "success":
            reward = float(success)
        self._over = "the attempt is over: call reset(task) before the next step"
        info = {"measures": {"requests met": self._judge.passed / self._worth}} | ({"reason": reason} if reason else {})
        return Transition(Observation(text, anchor=self._anchor(text)), reward, True, success, info)

    # -- what is seen -------------------------------------------------------------------------------------------------------------

    def _asked(self, opening: bool = False) -> str:
        """The request that begins now, after the functions that are new."""
        entry, place = self._entry, self._judge.at
        self._heard.hear(_words(entry, place))
        new = self._offered(place) if opening else {name: self._world.functions[name] for name in entry.late.get(place, ())}
        lines = [described(new, self.tools, "Functions:" if opening else "More functions:")] if new and self.tools != "none" else []
        for before in range(place if opening and self.earlier else 0):  # a task that starts in the middle: what led there
            lines += [f"User: {_words(entry, before)}", *(f"> {text}" for text in _solved(entry, before))]
        return "\n".join([*lines, f"User: {_words(entry, place)}"])

    def _offered(self, place: int) -> dict[str, Function]:
        hidden = {name for since, names in self._entry.late.items() if since > place for name in names}
        return {name: found for name, found in self._world.functions.items() if name not in hidden}

    def _see(self, text: str) -> Observation:
        self._last = text
        if self.repeat_request and (shown := f"User: {_words(self._entry, self._judge.at)}") not in text:
            text = f"{shown}\n{text}"
        return Observation(text, anchor=self._anchor(self._last))

    def _anchor(self, text: str) -> bytes:
        state = json.dumps([self._entry.id, self._judge.at, text, table(self._world.objects, exact=False)])
        return blake2b(state.encode("utf-8", "replace"), digest_size=16).digest()

    # -- players that need no model -----------------------------------------------------------------------------------------------

    def expert(self, task: Task) -> list[str]:
        """The calls of the solution, each request ended."""
        found = _entry_of(task)
        places = [int(task.data["request"])] if "request" in task.data else range(len(found.requests))
        return [action for place in places for action in _solved(found, place)]

    def expert_action(self) -> str | None:
        """The next call of the solution, if it still leads to success from here."""
        if self._task is None or self._over or self._judge.failed:
            return None
        left = self._judge.solution()[self._followed :]
        world = self._world.copied()
        results = [*self._results, *(digest(world.call(call)) for call in left)]
        if not self._judge.allows(world, results, self._called or bool(left)):
            return None
        return written(*left[0]) if left else DONE

    def scripted_action(self) -> str:
        """One call per request: the function whose description is most like the request, with the values that it names."""
        return plain_call(self._offered(self._judge.at), _words(self._entry, self._judge.at)) if self._turns_here == 0 else DONE

    def random_action(self, number: int) -> str:
        """A plausible call with values from what was said so far; the same for the same number."""
        return random_call(self._offered(self._judge.at), self._heard, random.Random(number))

    # -- states -------------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes | None:
        if self._task is None or self._over:
            raise EpisodeOver(self._over)
        try:
            rows = table(self._world.objects)
        except Unknown:
            return None
        state: dict[str, Any] = {"task": self._task.to_json(), "rows": rows}
        state |= {"results": self._results, "last": self._last, "heard": vars(self._heard)}
        state |= {"at": self._judge.at, "passed": self._judge.passed, "failed": self._judge.failed}
        state |= {"called": self._called, "turns_here": self._turns_here, "followed": self._followed}
        kept = pack("bfcl", state, self._options())
        return kept if len(kept) <= LARGEST_SNAPSHOT else None

    def restore(self, state: bytes) -> Observation:
        kept = unpack(state, "bfcl", self._options())
        with restoring("bfcl"):
            self._begin(Task.from_json(kept["task"]))
            rebuild(self._world.objects, kept["rows"])
            self._judge.skip(int(kept["at"]))
            self._judge.passed, self._judge.failed = int(kept["passed"]), bool(kept["failed"])
            self._results, self._called = list(map(str, kept["results"])), bool(kept["called"])
            self._turns_here, self._followed = int(kept["turns_here"]), int(kept["followed"])
            self._heard = Heard(list(map(str, kept["heard"]["words"])), list(map(str, kept["heard"]["numbers"])))
            return self._see(str(kept["last"]))

    def _options(self) -> Mapping[str, Any]:
        return {
            "tools": self.tools,
            "reward": self.reward,
            "end_on_failure": self.end_on_failure,
            "repeat_request": self.repeat_request,
            "longest_result": self.longest_result,
        }

    def close(self) -> None:
        self._task = None
        self._over = "the environment was closed: call reset(task) first"


def _entry_of(task: Task) -> Entry:
    try:
        return entry(str(task.data["category"]), int(task.data["number"]))
    except (LookupError, TypeError, ValueError) as error:
        raise TurnwiseError(f"task {task.id!r} is not a task of bfcl: {type(error).__name__}: {error}") from None


def _solved(found: Entry, place: int) -> list[str]:
    """The expert's actions for a request."""
    return [*(written(*call) for call in solution(found.category, found.number, place)), DONE]


def _words(found: Entry, place: int) -> str:
    """What the user says. A request that was only held up by a missing function has no words of its own."""
    return found.requests[place] or f"I have added the missing functions. Again: {found.requests[place - 1]}"


def _chosen(what: str, given: Sequence[str] | str, known: Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
    chosen = (given,) if isinstance(given, str) else tuple(given)
    for name in chosen:
        if name not in known:
            raise unknown_name(f"{what} of bfcl:", str(name), known)
    if not chosen:
        raise TurnwiseError(f"bfcl: choose at least one {what}: {', '.join(known)}")
    return chosen
