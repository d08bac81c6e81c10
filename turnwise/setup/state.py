"""The progress of a run, and how it is saved: a checkpoint holds the learner's state and these few numbers, and nothing else is
needed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import Any

from turnwise.collect.source import Mark
from turnwise.data.rollouts import Trajectory
from turnwise.learn import checkpoint
from turnwise.learn.saving import sweep
from turnwise.recipe.schema import Config
from turnwise.runs.folder import CONFIG, Run
from turnwise.runs.metrics import METRICS
from turnwise.setup.parts import Training
from turnwise.setup.resume import why_no_checkpoint
from turnwise.util.errors import TurnwiseError


@dataclass
class State:
    """`iteration`: how many updates are done. `groups_used`: how many groups of the plan are used up. `prepared`: the warm start is done.
    `waiting`: metrics of the last update that are not logged yet, because its evaluation is not done. `saved`: the last checkpoint.
    `score`: the success rate of this iteration's evaluation, if there was one. `plan`: the plan's state. `branches`: what the seeds of the
    next branches depend on."""

    iteration: int = 0
    groups_used: int = 0
    turns: int = 0
    seconds: float = 0.0
    prepared: bool = False
    saved: int = -1
    waiting: dict[str, float] | None = None
    score: float | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    branches: dict[str, int] = field(default_factory=dict)

    def finished(self, iterations: int) -> bool:
        """Whether a run of this many iterations is done, including its last line in the log."""
        return self.prepared and self.waiting is None and self.iteration >= iterations

    def advance(self, mark: Mark, trajectories: Sequence[Trajectory], metrics: dict[str, float], seconds: float) -> None:
        """One more update is done; its metrics wait for the evaluation and the log."""
        self.iteration += 1
        self.groups_used, self.branches, self.plan = mark
        self.turns += sum(len(trajectory.turns) for trajectory in trajectories)
        self.seconds += seconds
        self.waiting, self.score = metrics, None


def save(run: Run, training: Training, state: State) -> None:
    """Write a checkpoint, unless there is already one of this iteration or the recipe wants none."""
    settings = training.config.run
    if state.saved == state.iteration or not state.prepared or not settings.checkpoint_every:
        return
    state.saved = state.iteration
    numbers = {"run": asdict(state), "logs": run.logs}
    training.learner.save(run.checkpoints, state.iteration, numbers, state.score, settings.keep_checkpoints)


def restore(run: Run, training: Training, say: Callable[[str], None]) -> State:
    """The state of the newest intact checkpoint, loaded into the parts; a fresh one if there is none. Later entries in the run's folder
    are dropped, because that work will be repeated."""
    for folder, name in ((run.checkpoints, None), (run.folder, run.model.name)):
        sweep(folder, name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = checkpoint.newest_intact(run.checkpoints)
    for warning in caught:
        say(f"warning: {warning.message}")
    if path is None:
        return _from_scratch(run, training.config, say)
    try:
        stored = training.learner.restore(path)
        state = State(**stored["run"])
        logs = {name: str(text) for name, text in stored["logs"].items()} if "logs" in stored else None
        training.slots.load_state(state.groups_used, state.branches)
        if state.plan:  # nothing before the first iteration: the plan is as it was made
            training.plan.load_state(state.plan)
        training.source.publish(state.iteration)
    except (KeyError, TypeError, AttributeError):
        raise TurnwiseError(
            f"checkpoint {path}: its state was written by another version of Turnwise. Continue with that version, or start "
            "a new run with the recipe"
        ) from None
    if state.waiting is not None:
        state.saved = -1  # saved again with the evaluation's result, when that is known
    run.rewind(state.iteration, state.waiting is not None, logs, say)
    return state


def _from_scratch(run: Run, config: Config, say: Callable[[str], None]) -> State:
    """No checkpoint: start from the beginning, unless the log shows that there was more."""
    if why := why_no_checkpoint(run, config):
        if config.run.checkpoint_every:
            raise TurnwiseError(
                f"{why}. Put them back, or start a new run with the same recipe: turnwise train {quote(str(run.folder / CONFIG))}"
            )
        aside = run.set_aside(METRICS).name
        say(f"this run keeps no checkpoints (run.checkpoint_every=0), so it starts from scratch; its old log is now {aside}")
    run.rewind(-1)
    return State()
