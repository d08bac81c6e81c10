"""How far a run is, and how that is kept: a checkpoint holds the learner's state and these few numbers, and nothing else is needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass

from turnwise.collect.plan import Gathered
from turnwise.errors import TurnwiseError
from turnwise.learn import checkpoint
from turnwise.runs import Run
from turnwise.system import System


@dataclass
class State:
    """`iteration`: how many updates are done. `place`: how many groups of the plan are used up. `prepared`: the warm start is behind.
    `waiting`: metrics of the last update that are not logged yet, because its evaluation is not done. `saved`: the last checkpoint."""

    iteration: int = 0
    place: int = 0
    turns: int = 0
    seconds: float = 0.0
    prepared: bool = False
    saved: int = -1
    waiting: dict[str, float] | None = None

    def finished(self, iterations: int) -> bool:
        """Whether a run of so many iterations is done, down to its last line in the log."""
        return self.prepared and self.waiting is None and self.iteration >= iterations

    def advance(self, gathered: Gathered, metrics: dict[str, float], seconds: float) -> None:
        """One more update is done; its metrics wait for the evaluation and the log."""
        self.iteration += 1
        self.place += gathered.places
        self.turns += sum(len(trajectory.turns) for trajectory in gathered.trajectories)
        self.seconds += seconds
        self.waiting = metrics


def save(run: Run, system: System, state: State, score: float | None = None) -> None:
    """Write a checkpoint, unless there is one of this iteration already or the recipe wants none."""
    if state.saved == state.iteration or not state.prepared or not system.config.run.checkpoint_every:
        return
    tensors, numbers = system.learner.state()
    state.saved = state.iteration
    keep = system.config.run.keep_checkpoints
    checkpoint.save(run.checkpoints, state.iteration, tensors, {"run": asdict(state), "learner": numbers}, score=score, keep=keep)


def restore(run: Run, system: System, say: Callable[[str], None]) -> State:
    """The state of the newest checkpoint that is whole, loaded into the system; a fresh one where there is none. What the run's folder
    knows beyond that checkpoint is forgotten, for it will be done again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = checkpoint.latest_good(run.checkpoints)
    for warning in caught:
        say(f"warning: {warning.message}")
    if found is None:
        run.rewind(-1)
        return State()
    try:
        state = State(**found.state["run"])
    except (KeyError, TypeError):
        raise TurnwiseError(f"checkpoint {found.path}: its state is not one of this Turnwise; it was written by another version") from None
    system.learner.load_state(found.tensors, found.state["learner"])
    if state.waiting is not None:
        state.saved = -1  # once more, with the evaluation's result, when that is known
    run.rewind(state.iteration - 1 if state.waiting is not None else state.iteration)
    return state
