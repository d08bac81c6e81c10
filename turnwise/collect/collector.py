"""The collector decides which attempt generates when.

Attempts at tasks run concurrently: one waits for its environment while others wait for the policy. Whatever is ready continues; a
finished attempt leaves at once and its slot starts the next one, so nothing is ever generated for an attempt that is over. The collector
knows no model and no environment: a `Pool` runs the environments, a `Policy` chooses the actions. An attempt may start in the middle of
another one (`branching.py`), and may have several players, each with its own trajectory (`games.py`).

While the policy thinks, the answers of worker processes are taken between its steps. Without `ordered` they are passed on at once, so the
next prompt of an attempt joins the policy's next step. With `ordered` the moment is fixed by counts (`order.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, cast

from turnwise.agent.text import stated_goal
from turnwise.collect.branching import Arriving, Trails, begun
from turnwise.collect.games import Table, note, start_of
from turnwise.collect.hooks import Hooks
from turnwise.collect.order import Answers
from turnwise.collect.rewards import BadReward, Rewards
from turnwise.data.attempts import Branch, Start
from turnwise.data.rollouts import Stop, Trajectory, Turn
from turnwise.envs.base import Observation, Transition
from turnwise.envs.pool import EnvResult, Fault, Pool, Reset, Snapshot
from turnwise.util.errors import TurnwiseError
from turnwise.util.garbage import rare_searches

LONGEST_GOAL = 2000  # characters of a goal that are kept with an attempt
PLAYED = (Stop.STEP_LIMIT, Stop.CONTEXT_LIMIT)  # ends that leave what was played to be learned from


__all__ = ["Answer", "Attempt", "Branch", "Collector", "Policy", "Start"]


@dataclass(slots=True)
class Attempt:
    """A running attempt, or one player of it. `key` is what the policy knows it by: its slot, or another number for a further player.
    `arriving`: a branch that has not reached its turn yet; `keeping`: its environment was asked for a snapshot."""

    start: Start
    slot: int
    trajectory: Trajectory
    observation: Observation | None = None
    turn: Turn | None = None  # chosen, waiting for the environment's answer
    over: bool = False
    lost: bool = False  # a branch that did not arrive
    arriving: Arriving | None = None
    keeping: bool = False
    key: int = -1
    game: Game | None = None  # where there are several players


@dataclass(slots=True)
class Game:
    """The players of an attempt with several, by their numbers."""

    table: Table
    players: dict[int, Attempt]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy decided for the attempt in a slot: a turn to play, or a reason to stop."""

    slot: int
    turn: Turn | None
    stop: Stop | None = None
    detail: str = ""


class Policy(Protocol):
    """Chooses actions for the attempts, which it knows by their slots. `ask`: the slot's observation is new, an action is wanted;
    `answers` waits for at least one decision if any is pending, and with `wait=False` takes at most one step; `observe`: what a turn led
    to; `end`: the slot's attempt is over. `retrace`: a turn that another attempt has made, and this one takes over before it branches;
    returns why it does not fit, or an empty text."""

    @property
    def pending(self) -> int: ...

    def begin(self, slot: int, start: Start, observation: Observation) -> None: ...

    def ask(self, slot: int) -> None: ...

    def answers(self, wait: bool = True) -> list[Answer]: ...

    def observe(self, slot: int, turn: Turn, transition: Transition) -> None: ...

    def retrace(self, slot: int, turn: Turn, transition: Transition) -> str: ...

    def end(self, slot: int) -> None: ...


@dataclass
class Collector:
    """Plays attempts to their ends. `max_turns` is the step limit; `hooks` are told what happens, and can end everything between turns.
    `ordered`: the result does not depend on the speed of worker processes (order.py). `snapshots`: ask environments for a snapshot before
    every turn, so that later attempts can branch there without replaying actions; kept as long as the collector. `counts` has
    `lost_branches` and what the policy counts, and `lost` says why the first branch was lost. `hand_over` is called with every attempt that
    is over (no trajectory: a lost branch; several: one per player), which is then not kept: for a collector that never ends (`stream`)."""

    pool: Pool
    policy: Policy
    max_turns: int
    rewards: Rewards = field(default_factory=Rewards)
    hooks: Hooks = field(default_factory=Hooks)
    ordered: bool = True
    snapshots: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    lost: str = ""
    hand_over: Callable[[Start, list[Trajectory]], None] | None = None

    def __post_init__(self) -> None:
        self.trails = Trails()
        self.counts = cast("Counter[str]", getattr(self.policy, "counts", self.counts))

    def run(self, starts: Iterable[Start]) -> list[Trajectory]:
        """The trajectories of all starts, in their order. If cancelled, the partial trajectories of those that had begun."""
        waiting = deque(starts)
        order = [start.number for start in waiting]
        self.hooks.on_start(len(order))
        with rare_searches():
            done = self._play(lambda: waiting.popleft() if waiting else None)
        return [trajectory for number in order for trajectory in done.get(number, ())]

    def stream(self, take: Callable[[], Start | None]) -> None:
        """Play what `take` gives, which is asked whenever there is a free slot, until it gives nothing and all attempts are over."""
        with rare_searches():
            self._play(take)

    def _play(self, take: Callable[[], Start | None]) -> dict[int, list[Trajectory]]:
        free = deque(range(self.pool.size))
        self._answers = Answers(self.pool, self.ordered)
        active: dict[int, Attempt] = {}
        done: dict[int, list[Trajectory]] = {}
        cancelled = False
        while True:
            while free and not cancelled and (start := take()) is not None:
                slot = free.popleft()
                active[slot] = self._launch(start, slot)
            if not active:
                return done
            self._hear(active)
            while self.pool.pending and not self.pool.pids:  # a branch that is not there yet, a snapshot: here they are ready at once
                self._hear(active)
            for answer in self._decided():
                self._answered(active[answer.slot], answer)
            if self.hooks.cancelled():
                self._answers.drop()
                for attempt in active.values():
                    if not attempt.over:
                        self._stop(attempt, Stop.CANCELLED)
                cancelled = True
            for slot in [key for key, attempt in active.items() if attempt.over and key == attempt.slot]:
                attempt = active.pop(slot)
                trajectories = [] if attempt.lost else self._trajectories_of(attempt, active)
                if self.hand_over is not None:
                    self.hand_over(attempt.start, trajectories)
                else:
                    done[attempt.start.number] = trajectories
                free.append(slot)

    def _trajectories_of(self, first: Attempt, active: dict[int, Attempt]) -> list[Trajectory]:
        """The trajectories of an attempt that is over: one per player. All of its players end together."""
        if first.game is None:
            return [first.trajectory]
        players = dict(sorted(first.game.players.items()))
        for attempt in players.values():
            active.pop(attempt.key, None)
        trajectories = {player: attempt.trajectory for player, attempt in players.items()}
        note(trajectories)
        return list(trajectories.values())

    def _hear(self, active: dict[int, Attempt]) -> None:
        for result in self._answers.next(bool(self.policy.pending), len(active)):
            first = active[result.slot]
            if first.game is None and (result.transition is None or not (result.transition.observation.seat or result.transition.others)):
                self._observed(first, result)
                continue
            for attempt, result_of_player in self._dealt(first, result):
                active.setdefault(attempt.key, attempt)
                if not attempt.over:
                    self._observed(attempt, result_of_player)

    def _dealt(self, first: Attempt, result: EnvResult) -> Iterator[tuple[Attempt, EnvResult]]:
        """What an answer means for the players of a game. A player joins when it is to move for the first time."""
        if first.game is None:
            table = Table(seen=first.observation)
            first.game = Game(table, {0: first})
        game, size = first.game, self.pool.size
        for player, result_of_player in game.table.deal(result):
            if player not in game.players:
                start = start_of(first.start, player)
                attempt = Attempt(start, first.slot, begun(start), key=first.slot + player * size, game=game)
                game.players[player] = attempt
            yield game.players[player], result_of_player

    def _decided(self) -> list[Answer]:
        """What the policy has decided. While it thinks, answers of the environments are taken: passed on after each of its steps, or, in
        order, only received, so that no worker waits for a reader."""
        if not self.policy.pending:
            return []
        if not self.pool.pids:  # in this process nothing ever waits
            return self.policy.answers()
        answers = self.policy.answers(wait=False)
        while self.ordered and not answers and self.policy.pending:
            self._answers.receive()
            answers = self.policy.answers(wait=False)
        return answers

    def _launch(self, start: Start, slot: int) -> Attempt:
        attempt = Attempt(start, slot, begun(start), key=slot)
        if start.branch is not None:
            if any("seat" in turn.info for turn in start.branch.trajectory.turns[:1]):
                raise TurnwiseError(
                    "the plan branches attempts, and a game with several players cannot start in the middle: use another plan"
                )
            attempt.arriving = Arriving(start, start.branch, self.trails)
            self._answers.submit(slot, attempt.arriving.request)
        else:
            self._answers.submit(slot, Reset(start.task, start.env_seed))
        return attempt

    def _observed(self, attempt: Attempt, result: EnvResult) -> None:
        """The environment has answered: record the turn that led here, then ask for the next one or stop."""
        if attempt.arriving is not None:
            return self._arrived(attempt, attempt.arriving, result)
        if attempt.keeping and result.fault is None:
            return self._kept(attempt, result)
        if result.transition is None:
            return self._fault(attempt, result)
        transition, trajectory = result.transition, attempt.trajectory
        if attempt.turn is None:
            trajectory.goal = stated_goal(attempt.start.task, transition.observation)[:LONGEST_GOAL]
            self.policy.begin(attempt.key, attempt.start, transition.observation)
        else:
            try:
                self._record(attempt, transition)
            except BadReward as error:  # an error of one term at one turn ends this attempt only
                return self._fault(attempt, EnvResult(attempt.slot, None, Fault.ERROR, str(error), "", error.lines))
        attempt.observation = transition.observation
        if transition.done:
            trajectory.success = bool(transition.success)
            return self._stop(attempt, Stop.DONE)
        return self._next(attempt)

    def _next(self, attempt: Attempt) -> None:
        """Ask for the next turn, or stop at a limit. The state at an attempt's own limit is saved too: a branch may start there."""
        trajectory, limit = attempt.trajectory, attempt.start.max_turns
        keeps = self.snapshots and attempt.start.branchable and attempt.game is None
        if len(trajectory.turns) >= self.max_turns or (limit is not None and len(trajectory.turns) >= limit and not keeps):
            return self._stop(attempt, Stop.STEP_LIMIT)
        if keeps and attempt.observation is not None:
            self.trails.of(trajectory).observations.append(attempt.observation)
            attempt.keeping = True
            return self._answers.submit(attempt.slot, Snapshot())
        return self.policy.ask(attempt.key)

    def _kept(self, attempt: Attempt, result: EnvResult) -> None:
        attempt.keeping = False
        if result.state is not None:
            self.trails.of(attempt.trajectory).snapshots[len(attempt.trajectory.turns)] = result.state
        if attempt.start.max_turns is not None and len(attempt.trajectory.turns) >= attempt.start.max_turns:
            return self._stop(attempt, Stop.STEP_LIMIT)
        return self.policy.ask(attempt.key)

    def _arrived(self, attempt: Attempt, arriving: Arriving, result: EnvResult) -> None:
        """A branch is one request further, or has arrived: then it continues as a separate attempt."""
        arrival = arriving.take(result)
        if arrival is None:
            return self._answers.submit(attempt.slot, arriving.request)
        if not arrival.ok:
            return self._lose(attempt, arrival.message)
        attempt.arriving, trajectory = None, attempt.trajectory
        self.policy.begin(attempt.key, attempt.start, arriving.seen[0])
        for turn, transition in arriving.shared():
            if wrong := self.policy.retrace(attempt.key, turn, transition):
                return self._lose(attempt, f"turn {len(trajectory.turns)}: {wrong}")
            trajectory.turns.append(turn)
        if self.snapshots and attempt.start.branchable:
            self.trails.of(trajectory).observations += arriving.seen[:-1]
        attempt.observation, trajectory.final_anchor = arriving.seen[-1], arriving.seen[-1].key
        return self._next(attempt)

    def _lose(self, attempt: Attempt, why: str) -> None:
        """A branch that is not where its parent was teaches nothing: it is dropped and counted."""
        attempt.lost = True
        self.counts["lost_branches"] += 1
        self.lost = self.lost or f"task {attempt.trajectory.task}, branch of {attempt.trajectory.parent!r}, {why}"
        self._stop(attempt, Stop.ENVIRONMENT_FAULT, why)

    def _record(self, attempt: Attempt, transition: Transition) -> None:
        turn, trajectory = attempt.turn, attempt.trajectory
        if turn is None or attempt.observation is None:
            return
        turn.reward, parts = self.rewards(turn, transition, trajectory)
        more = {"rewards": parts, "env": dict(transition.info)}
        turn.info = {**turn.info, **{name: value for name, value in more.items() if value}}
        trajectory.turns.append(turn)
        trajectory.final_anchor = transition.observation.key
        self.policy.observe(attempt.key, turn, transition)
        attempt.turn = None
        self.hooks.on_turn(trajectory)

    def _answered(self, attempt: Attempt, answer: Answer) -> None:
        if attempt.over:  # cancelled while the policy was thinking
            return None
        if answer.turn is None:
            return self._stop(attempt, answer.stop or Stop.ENGINE_FAULT, answer.detail)
        turn = answer.turn
        if attempt.observation is not None:
            turn.anchor, turn.observation = attempt.observation.key, attempt.observation.text
        attempt.turn = turn
        return self._answers.submit(attempt.slot, turn.action)

    def _fault(self, attempt: Attempt, result: EnvResult) -> None:
        self._stop(attempt, Stop.ENVIRONMENT_TIMEOUT if result.fault is Fault.TIMEOUT else Stop.ENVIRONMENT_FAULT, result.message)
        self.hooks.on_fault(attempt.trajectory, result)

    def _stop(self, attempt: Attempt, stop: Stop, detail: str = "") -> None:
        attempt.trajectory.stop, attempt.trajectory.stop_detail = stop, detail
        attempt.over = True
        self.policy.end(attempt.key)
        self.hooks.on_end(attempt.trajectory)
        if attempt.game is not None and stop is not Stop.DONE:
            self._leave(attempt.game, stop, detail)

    def _leave(self, game: Game, stop: Stop, detail: str) -> None:
        """A player has stopped before the end of its game, so the others stop. What they have played is complete by now."""
        for player, other in game.players.items():
            if other.over:
                continue
            if stop in PLAYED and other.turn is not None and game.table.seen is not None:
                with suppress(BadReward):
                    self._record(other, Transition(game.table.seen, game.table.owed.pop(player, 0.0), info=game.table.said.pop(player, {})))
            self._stop(other, stop, detail)
