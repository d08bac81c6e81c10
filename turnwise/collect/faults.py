"""Attempts that nothing can be learned from. One of them is dropped and reported once per kind; if nearly all are like that, the run
stops.

An attempt is faulted if a fault of its environment (or of a reward term) or of the engine ended it, or if its prompt never fitted. A
few of these are normal. A run with nothing else would "train" to its end and learn nothing, so it stops and shows what was wrong, with
the lines of the user's own file. This takes several attempts at several tasks: one bad task, tried eight times, does not stop a run.

The way of an environment that dies or hangs:

    envs/workers.py      `WorkerSlots` notices the dead process or the passed time limit, and replaces the process; episodes of other slots
                         in it are played again from their actions. Environments in this process (env.workers=0) have no time limit
    collect/collector.py the attempt ends with the stop reason "environment fault" or "environment timeout"; it is not tried again
    this file            `FaultWatch` reports it, and ends the run if nearly all attempts are like that
    collect/source.py    the batch leaves out what is not `sound` (data/rollouts.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.data.rollouts import Stop, Trajectory
from turnwise.envs.blame import EnvironmentFault
from turnwise.envs.pool import EnvResult
from turnwise.util.printable import counted

NEARLY_ALL = 0.9
ENOUGH_ATTEMPTS, ENOUGH_TASKS = 8, 3
WHOSE = {
    Stop.ENVIRONMENT_FAULT: "a fault of the environment",
    Stop.ENVIRONMENT_TIMEOUT: "an environment that did not answer in time (env.timeout)",
    Stop.ENGINE_FAULT: "a fault of the engine",
    Stop.CONTEXT_LIMIT: "a prompt that did not fit into agent.max_prompt_tokens",
}


def faulted(trajectory: Trajectory) -> bool:
    """Whether an attempt says nothing about the agent: a fault ended it, or it could not begin."""
    if trajectory.stop is Stop.CONTEXT_LIMIT:
        return not trajectory.turns
    return trajectory.stop in WHOSE


@dataclass
class FaultWatch:
    """Is told of faults as they happen (`on_fault`) and checks the result of a collection (`check`). `tasks`: how many there are in total.
    `broken` is the reason why nothing can be learned from the run any more: its loop ends as if interrupted."""

    say: Callable[[str], None]
    environment: str = ""
    tasks: int = ENOUGH_TASKS
    broken: EnvironmentFault | None = None
    _told: set[Stop] = field(default_factory=set)
    _lines: dict[Stop, str] = field(default_factory=dict)  # the user's own lines, of the first fault of each kind
    _first: dict[Stop, Trajectory] = field(default_factory=dict)
    _attempts: int = 0  # since something good was last seen
    _bad_tasks: set[str] = field(default_factory=set)

    def on_fault(self, trajectory: Trajectory, result: EnvResult) -> None:
        """Called by the collector on a fault, while its traceback is available."""
        self._lines.setdefault(trajectory.stop, result.own_lines)

    def check(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        """The trajectories as they are; if nearly all attempts were faulted, the run is `broken`."""
        try:
            self.require(trajectories)
        except EnvironmentFault as fault:
            self.broken = fault
        return trajectories

    def require(self, trajectories: Sequence[Trajectory]) -> None:
        """Report kinds of faults that are new; raise an error if nearly all attempts, here and before, were faulted."""
        seen = [trajectory for trajectory in trajectories if trajectory.stop is not Stop.CANCELLED]
        bad = [trajectory for trajectory in seen if faulted(trajectory)]
        for trajectory in bad:
            self._tell(trajectory)
        if len(bad) < NEARLY_ALL * len(seen):
            self._attempts, self._bad_tasks = 0, set()
            return
        self._attempts += len(seen)
        self._bad_tasks |= {trajectory.task for trajectory in bad}
        if bad and self._attempts >= ENOUGH_ATTEMPTS and len(self._bad_tasks) >= min(ENOUGH_TASKS, self.tasks):
            raise self.verdict(bad, len(seen))

    def verdict(self, bad: Sequence[Trajectory], of: int) -> EnvironmentFault:
        """The error for faulted attempts; it shows one of the most frequent kind."""
        stops = [trajectory.stop for trajectory in bad]
        stop = max(dict.fromkeys(stops), key=stops.count)
        first = self._first.get(stop) or next(trajectory for trajectory in bad if trajectory.stop is stop)
        where = f" ({self.environment})" if self.environment and stop in (Stop.ENVIRONMENT_FAULT, Stop.ENVIRONMENT_TIMEOUT) else ""
        why = f": {first.stop_detail}" if first.stop_detail else ""
        return EnvironmentFault(
            f"{len(bad)} of {of} attempts were ended by {WHOSE[stop]}{where}: nothing can be learned from them or measured. "
            f"The first, at task {first.task!r} after {counted(len(first.turns), 'turn')}{why}",
            self._lines.get(stop, ""),
        )

    def _tell(self, trajectory: Trajectory) -> None:
        stop = trajectory.stop
        if stop in self._told:
            return
        self._told.add(stop)
        self._first[stop] = trajectory
        why = trajectory.stop_detail or WHOSE[stop]
        self.say(f"warning: an attempt at task {trajectory.task} was ended ({stop.value}): {why}")


def report_faults(trajectories: Sequence[Trajectory], say: Callable[[str], None], faults: FaultWatch) -> None:
    """Of an evaluation, attempts that a fault ended count as failures: they are reported, and an error if nearly all ended like that."""
    tried = [trajectory for trajectory in trajectories if trajectory.stop is not Stop.CANCELLED]
    bad = [trajectory for trajectory in tried if faulted(trajectory)]
    if bad and len(bad) >= NEARLY_ALL * len(tried):
        raise faults.verdict(bad, len(tried))
    for stop, whose in WHOSE.items():
        stopped = [trajectory for trajectory in bad if trajectory.stop is stop]
        if stopped:
            remedy = ". Raise it, or shorten the prompt" if stop is Stop.CONTEXT_LIMIT else ""
            why = f": {stopped[0].stop_detail}" if stopped[0].stop_detail else ""
            say(
                f"warning: {len(stopped)} of {len(tried)} attempts were ended by {whose}, and count as failed{remedy}. "
                f"The first, at task {stopped[0].task}{why}"
            )
