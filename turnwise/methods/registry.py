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

An option of a method that belongs to one of its stages is declared by the stage alone (`method(…, options={stage: names})`).

`needs` names what must be there before (`token.entropy`, `model.teacher`, `task.answer`, `env.snapshot`), `gives` the columns that are
added. A file in this folder is loaded when a name is first looked up. Nothing here imports torch: a file whose functions use it imports it
inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

from turnwise.config.kinds import METHOD, MODEL, PLAN, SCHEDULE, SIGNAL
from turnwise.config.options import Help, Option, Registry
from turnwise.credit.registry import algorithms as credit_algorithms
from turnwise.objectives.registry import algorithms as objective_algorithms

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
model = model_kinds.register
STAGES: Mapping[str, Registry[Any]] = {
    "plan": plans,
    "signal": signals,
    "credit": credit_algorithms,
    "objective": objective_algorithms,
    "schedule": schedules,
}


def method(name: str, *, options: Mapping[Piece, str] | None = None, **about: Any) -> Callable[[Piece], Piece]:
    """Decorator: registers a method. `options` names the options that it shares with its stages, by the function or class of the stage:
    {Replay: "size warmup"}. The stage alone declares them, and the method hands them on wherever it names the stage."""
    shared: list[tuple[str, str, str]] = []  # family, stage, option
    further: dict[str, Option] = {}
    for piece, names in (options or {}).items():
        for family, registry in STAGES.items():
            if (entry := registry.registered(piece)) is not None:
                shared += [(family, entry.name, option) for option in names.split()]
                further |= {option: entry.options[option] for option in names.split()}

    def add(function: Piece) -> Piece:
        @wraps(function)
        def brings(**given: Any) -> Brings:
            values = {option: given.pop(option, entry.usual) for option, entry in further.items()}
            result = function(**given)
            settings = dict(result)
            for family, stage, option in shared:
                if family == "signal" and family in settings:
                    settings[family] = [one | {option: values[option]} if one["name"] == stage else one for one in settings[family]]
                elif settings.get(f"{family}.name") == stage:
                    settings[f"{family}.{option}"] = values[option]
            return Brings(settings, result.authors if isinstance(result, Brings) else None)

        return methods.register(name, further=further, **about)(brings if shared else function)

    return add


# -- what several methods' authors took for settings that all methods share, and options for such settings ---------------------------

# verl-agent's scripts for ALFWorld and WebShop, on which the code of GiGPO, HiPER, ReBel, T2PO and others is built
VERL_AGENT: dict[str, Any] = {
    "objective.name": "clip",
    "objective.clip_low": 0.2,
    "objective.clip_high": 0.2,
    "objective.dual_clip": 3.0,
    "objective.aggregation": "token",
    "objective.kl": "loss",
    "objective.kl_coef": 0.01,
    "objective.entropy_coef": 0.001,
}
# RAGEN's base.yaml
RAGEN: dict[str, Any] = {
    "objective.aggregation": "token",
    "objective.kl": "off",
    "objective.entropy_coef": 0.001,
    "learner.value.clip": 0.5,
}

RecipeDiscount = Annotated[float | None, Help("discount per turn; none: the recipe's", low=0, high=1)]
KlCoef = Annotated[float | None, Help("weight of a KL loss; none: the recipe's KL term", low=0)]
ValueClip = Annotated[float | None, Help("how far a value may move in one iteration; none: the recipe's", low=0)]


def kl_loss(coefficient: float | None) -> dict[str, Any]:
    """Settings of a KL loss with this coefficient; 0: no KL term, None: the recipe's."""
    if coefficient is None:
        return {}
    return {"objective.kl": "loss", "objective.kl_coef": coefficient} if coefficient else {"objective.kl": "off"}
