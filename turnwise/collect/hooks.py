"""What a run calls while it works: notices, progress, whether to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnwise.data.rollouts import Trajectory
from turnwise.envs.pool import EnvResult


@dataclass(frozen=True)
class Hooks:
    """Callbacks of whoever watches a run; by default nobody does. `say` takes one-line notices. `cancelled` is asked between turns, and
    true ends everything. `on_phase` is called when something begins that may take long, with the number and the unit of
    its steps if it has steps; `on_step` for each of them, with the unit. `on_start` gets the number of additional attempts
    that will be made; `on_turn`, `on_end` and `on_fault` are called for each of them."""

    say: Callable[[str], None] = lambda text: None
    cancelled: Callable[[], bool] = lambda: False
    on_phase: Callable[..., None] = lambda name, total=None, unit="": None
    on_step: Callable[[str], None] = lambda unit: None
    on_start: Callable[[int], None] = lambda count: None
    on_turn: Callable[[Trajectory], None] = lambda trajectory: None
    on_end: Callable[[Trajectory], None] = lambda trajectory: None
    on_fault: Callable[[Trajectory, EnvResult], None] = lambda trajectory, result: None
