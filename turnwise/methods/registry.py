"""The stages that a method may bring, by name: plans, signals, schedules, kinds of models, and methods themselves. (Credit and
objectives have rooms of their own, and registries like these.)

    @turnwise.methods.signal("length", gives=("turn.length",))
    def length(batch: Batch, models: Models, *, scale: Annotated[float, Help("factor")] = 1.0) -> dict[str, Any]:
        '''How many tokens each response has.'''
        return {"turn.length": …}

plan       a class with `gather`: which attempts are made next; it sees how they ended, and may keep a state
signal     a function or a class of (batch, models): columns that are added before credit
schedule   a generator of (view): which parts of a batch make up which optimiser step
model      a class with `loss`: a kind of auxiliary model, with its heads
method     a function that returns settings of a recipe (dotted keys and values): parts that belong together, and apart from them what
           its authors took for settings that all methods share (`Brings`)

`needs` names what must be there before (`token.entropy`, `model.teacher`, `task.answer`, `env.snapshot`), `gives` the columns that are
added. A file in this folder is loaded when a name is first looked up. Nothing here imports torch: a file whose functions use it imports it
inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turnwise.config.kinds import METHOD, MODEL, PLAN, SCHEDULE, SIGNAL
from turnwise.config.options import Registry

Piece = Callable[..., Any]


class Brings(dict[str, Any]):
    """What a method brings: the settings that it is, and what its `authors` took for settings that all methods share, which
    `method.faithful` adds. A setting of None is left to the recipe. A method that returns a plain table is all of it."""

    def __init__(self, settings: Mapping[str, Any], authors: Mapping[str, Any] | None = None):
        super().__init__({key: value for key, value in settings.items() if value is not None})
        self.authors = {key: value for key, value in (authors or {}).items() if key not in self}


def section(name: str, /, **settings: Any) -> dict[str, Any]:
    """Settings of one section of a recipe, as dotted keys: section("credit", name="grpo") is {"credit.name": "grpo"}."""
    return {f"{name}.{key}": value for key, value in settings.items()}


plans: Registry[Piece] = Registry("plan", code=PLAN)
signals: Registry[Piece] = Registry("signal", code=SIGNAL)
schedules: Registry[Piece] = Registry("schedule", code=SCHEDULE)
methods: Registry[Piece] = Registry("method", code=METHOD)
model_kinds: Registry[type[Any]] = Registry("model kind", code=MODEL)

plan = plans.register
signal = signals.register
schedule = schedules.register
method = methods.register
model = model_kinds.register
