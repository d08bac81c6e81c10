"""Learner ranks as actors that do everything together.

    ranks = LearnerRanks(start, size=4, deadline=600)
    metrics = ranks.call("update", batch, seed, progress)     # on all ranks; the answer of the first
    ranks.save("save", folder, step, then=("restore", folder))

All ranks make the same calls with the same arguments; the learner splits the work inside. Nothing here loads torch.

If a rank dies, the current step is lost, and the rank cannot join the others again. So all ranks are ended and restarted, and meet at a
new address: they load the last checkpoint and repeat the calls since then. Calls include their seeds, so this gives the same weights as
before, and nothing that was collected is lost or counted twice. Every wait has a limit: ranks that make no progress for `deadline`
seconds count as lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.cluster.start import free_port, import_ray, one_line
from turnwise.util.errors import TurnwiseError
from turnwise.util.printable import counted

LOOKS = 1.0  # seconds between two looks at the progress
START = 120.0  # seconds that a start may take, if the deadline is shorter
GRACE = 15.0  # seconds after the first error until the others must have answered
Call = tuple[str, tuple[Any, ...]]


# Makes what a rank works with from the rank, the number of ranks, and the address where they meet. It has the methods that are called by
# name, and `progress()`, any number that changes while something happens.
Factory = Callable[[int, int, str], Any]


class Rank:
    """The actor. Its methods run in several threads: one works, another reports progress."""

    def __init__(self, factory: Factory, rank: int, size: int):
        self._factory, self._rank, self._size = factory, rank, size
        self._work: Any = None

    def meeting(self) -> str:
        """A free address on this rank's machine."""
        return f"{import_ray().util.get_node_ip_address()}:{free_port()}"

    def begin(self, address: str) -> int:
        """Meet the others and make what this rank works with. Returns its process."""
        self._work = self._factory(self._rank, self._size, address)
        return os.getpid()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method. Only the first rank sends its answer."""
        answer = getattr(self._work, method)(*arguments)
        return answer if self._rank == 0 else None

    def progress(self) -> float:
        """Any number that changes while something happens."""
        return 0.0 if self._work is None else float(self._work.progress())


class Lost(Exception):
    """The ranks cannot continue as they are."""


class LearnerRanks:
    """`start` starts the actor of a rank (`ray.remote(Rank)`, with max_restarts=0 and max_concurrency=2). `retries`: how often in a row all
    ranks are started again before the run ends."""

    def __init__(
        self, start: Callable[[int], Any], size: int, deadline: float, retries: int = 2, say: Callable[[str], None] = lambda text: None
    ):
        self.size, self.deadline, self.retries, self.restarts = size, deadline, retries, 0
        self.pids: list[int] = []
        self._start, self._say = start, say
        self._handles: list[Any] = []
        self._since: list[Call] = []  # what leads to the current state: loading a checkpoint, and the calls after it

    def call(self, method: str, *arguments: Any, pure: bool = False) -> Any:
        """Call a method on all ranks. Returns the answer of the first. A `pure` one changes nothing, so it is not repeated after a loss."""
        problem = ""
        for _ in range(self.retries + 1):
            try:
                self._up()
                answer = self._run(method, arguments)
            except Lost as lost:
                problem = str(lost)
                self._end()
                self.restarts += 1
                repeated = counted(len(self._since), "call")
                self._say(f"learner: {problem}; all {self.size} ranks start again from the last checkpoint and repeat {repeated}")
                continue
            except BaseException:
                self._end()
                raise
            if not pure:
                self._since.append((method, arguments))
            return answer
        raise TurnwiseError(
            f"the learner's ranks were lost {self.retries + 1} times in a row ({problem}). The last checkpoint is intact: look at the "
            "machines (`turnwise cluster check`), then resume the run"
        )

    def save(self, method: str, *arguments: Any, then: Sequence[Any]) -> Any:
        """Call a method that writes a checkpoint. From now on, a new start begins with the call `then`: its method, then its arguments."""
        answer = self.call(method, *arguments, pure=True)
        self._since = [(then[0], tuple(then[1:]))]
        return answer

    def close(self) -> None:
        """End all ranks."""
        self._end()

    # -- inside -------------------------------------------------------------------------------------------------------------------------

    def _up(self) -> None:
        """Start the ranks if there are none, and bring them to the current state: load the last checkpoint and repeat the calls since."""
        if self._handles:
            return
        self._handles = [self._start(rank) for rank in range(self.size)]
        address = self._answers([self._handles[0].meeting.remote()], "start")[0]
        self.pids = self._answers([handle.begin.remote(address) for handle in self._handles], "start")
        for method, arguments in self._since:
            self._run(method, arguments)

    def _run(self, method: str, arguments: tuple[Any, ...]) -> Any:
        stored = import_ray().put(arguments)
        return self._answers([handle.call.remote(method, stored) for handle in self._handles], method)[0]

    def _answers(self, refs: list[Any], what: str) -> list[Any]:
        """The answers of all ranks. Raises `Lost` if one of them has died or there is no progress, and an error if all of them raise it."""
        ray = import_ray()
        since, seen, look, failing = time.monotonic(), None, None, 0.0
        waiting, answers, errors = list(refs), dict[Any, Any](), dict[Any, Exception]()
        limit = max(self.deadline, START) if what == "start" else self.deadline
        while waiting:
            done, _ = ray.wait([*waiting, *([look] if look is not None else [])], num_returns=1, timeout=LOOKS)
            now = time.monotonic()
            for ref in done:
                try:
                    answer = ray.get(ref, timeout=limit)
                except Exception as error:
                    if ref is not look:
                        errors[ref], failing = error, failing or now
                    answer = seen
                if ref is look:
                    since, seen, look = (now if answer != seen else since), answer, None
                else:
                    since, answers[ref] = now, answer
                    waiting.remove(ref)
            if errors and (now - failing > GRACE or any(_died(error) for error in errors.values())):
                break
            if now - since > limit:
                raise Lost(f"{what} made no progress within {limit:g} seconds (cluster.deadline)")
            if look is None and waiting and what != "start":
                look = self._handles[refs.index(waiting[0])].progress.remote()
        if errors:
            raise _verdict(errors, refs, what)
        return [answers[ref] for ref in refs]

    def _end(self) -> None:
        ray = import_ray()
        for handle in self._handles:
            try:
                ray.kill(handle, no_restart=True)
            except Exception as error:
                self._say(f"a learner rank could not be ended: {one_line(error)}")
        self._handles, self.pids = [], []


def _died(error: Exception) -> bool:
    import_ray()
    from ray.exceptions import RayTaskError

    return not isinstance(error, RayTaskError)


def _reason(error: Exception) -> str:
    """Why an actor died. If its creation failed, the error of the creation, which comes last."""
    text = str(error).strip()
    return text.splitlines()[-1].strip()[:200] if "creation task" in text else one_line(error, 120)


def _verdict(errors: dict[Any, Exception], refs: list[Any], what: str) -> Exception:
    """What the errors of some ranks mean. An error that all ranks raise is caused by the work itself, and would occur again."""
    for ref, error in errors.items():
        if _died(error):
            return Lost(f"rank {refs.index(ref)} was lost during {what} ({_reason(error)})")
    causes = [getattr(error, "cause", error) for error in errors.values()]
    for cause in causes:
        if isinstance(cause, TurnwiseError):
            return cause
    if len(errors) == len(refs) and len({one_line(cause) for cause in causes}) == 1:
        return TurnwiseError(f"learner: {what} failed on all ranks: {one_line(causes[0])}")
    rank = refs.index(next(iter(errors)))
    return Lost(f"rank {rank} failed during {what} ({one_line(causes[0], 120)})")
