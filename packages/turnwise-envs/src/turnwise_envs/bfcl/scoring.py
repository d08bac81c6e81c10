"""Whether a request was met, by the checks of the package.

The package's `multi_turn_checker` evaluates texts and keeps its objects in global variables, so it is not used. After each request the same
comparison is made: the calls of the solution are played on objects of their own, and the package's `state_checker` and `response_checker`
compare the two. A test holds the verdicts against `multi_turn_checker` itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b

from turnwise.envs.tools.calls import Call
from turnwise.util.errors import TurnwiseError
from turnwise_envs.bfcl.benchmark import Entry, checkers, entry
from turnwise_envs.bfcl.calls import Calls, read_action
from turnwise_envs.bfcl.world import World, fit, offered


@cache
def solution(category: str, number: int, place: int) -> tuple[Call, ...]:
    """The calls that solve a request, with all arguments by name."""
    task, found = entry(category, number), []
    for text in task.gold[place]:
        read = read_action(text)
        call = fit(read.calls[0], offered(task)) if isinstance(read, Calls) else read
        if not isinstance(call, Call):
            raise TurnwiseError(f"bfcl task {task.id!r}: its solution {text!r} is not a call of its functions: {call}")
        found.append(call)
    return tuple(found)


def digest(result: str) -> str:
    """Stands for a result: results are only ever compared."""
    return blake2b(result.encode("utf-8", "replace"), digest_size=16).hexdigest()


class Judge:
    """Follows an attempt, request by request. `passed` counts the requests that were checked and met, up to the first that was not."""

    def __init__(self, task: Entry):
        self._task, self._gold = task, World(task)
        self.at, self.passed, self.failed = 0, 0, False

    def copied(self) -> Judge:
        """A judge to try something with."""
        other = copy.copy(self)
        other._gold = self._gold.copied()
        return other

    def solution(self) -> tuple[Call, ...]:
        """The calls that solve the present request."""
        return solution(self._task.category, self._task.number, self.at)

    @property
    def checked(self) -> int:
        """The number of requests that are checked: those that need a call."""
        return sum(map(bool, self._task.gold))

    def end_request(self, world: World, results: Sequence[str], called: bool) -> bool:
        """The verdict on the request that ends now: the state is the solution's, and all of its results were seen, now or before. True if
        it was checked and met, and all before it were."""
        calls = self.solution()
        wanted = [digest(self._gold.call(call)) for call in calls]
        place, self.at = self.at, self.at + 1
        if not calls or self.failed:
            return False
        state_checker, response_checker = checkers()
        same = called and state_checker(world.objects, self._gold.objects)["valid"]
        self.failed = not (same and response_checker(list(results), wanted, place)["valid"])
        self.passed += not self.failed
        return not self.failed

    def allows(self, world: World, results: Sequence[str], called: bool) -> bool:
        """Whether nothing would be wrong if the request ended now."""
        trial = self.copied()
        trial.end_request(world, results, called)
        return not trial.failed

    def skip(self, requests: int) -> None:
        """Play the solution of the first requests, for an attempt that is restored in the middle."""
        while self.at < requests:
            for call in self.solution():
                self._gold.call(call)
            self.at += 1
