"""What the stages of a run need, and where it comes from: columns, further models, data of tasks, capabilities of the environment.

A stage declares its needs where it is registered (`needs=("token.entropy", "model.teacher")`). Before a run starts, each need is looked
up among what will be available at that point. An error lists what is missing, which stage needs it and how to get it. Columns that an
engine can report while it samples are requested automatically.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from turnwise.config.references import is_reference
from turnwise.data.rollouts import BUILT_IN, DERIVED, LEVELS
from turnwise.data.tasks import Task
from turnwise.engines.reports import report_of
from turnwise.envs.capabilities import Capabilities
from turnwise.learn.sections import RESERVED
from turnwise.methods.registry import model_kinds
from turnwise.recipe.names import Piece, pieces, registry
from turnwise.recipe.schema import Config
from turnwise.util.errors import TurnwiseError

ORDER = ("method", "plan", "signal", "credit", "objective", "schedule")  # in which the stages of an iteration run
LEARNED = ("turn.value", "token.value")  # given by a critic
ALWAYS = {*BUILT_IN, *DERIVED, "turn.version"} - {*LEARNED}
GIVEN_BY_LEARNER = ("token.old_logprob", "token.ref_logprob")  # to objectives: computed if one needs them
GIVEN_BY_CREDIT = ("turn.advantage", "token.advantage", "turn.target", "token.target")
EXPERT = ("expert", "expert_action")  # an expert is one of them
OPTIONAL = "?"  # `env.snapshot?`: used if it is there
ELSEWHERE = ("group.peers",)  # checked when the recipe is read


def needs(config: Config) -> Iterator[tuple[Piece, tuple[str, ...], tuple[str, ...]]]:
    """The stages in the order in which they run, each with what it needs and what it gives; at last the models that are trained with
    their own loss, and the columns that it reads."""
    named = list(pieces(config))
    for family in ORDER:
        for piece in named:
            if piece.family == family and (entry := registry(family).known(piece.name)) is not None:
                yield piece, entry.needed(piece.options), tuple(entry.gives)
    read = columns_read(config)
    for piece in named:
        if piece.family == "model kind" and (columns := read.get(piece.key.removesuffix(".kind"))):
            yield piece, columns, ()


def columns_read(config: Config) -> dict[str, tuple[str, ...]]:
    """The columns that trained models read in their own loss, by `models.NAME`: they must be available once credit is known."""
    columns = {}
    for name, section in config.models.items():
        entry = model_kinds[section.kind]
        if section.trained and hasattr(entry.function, "loss"):
            columns[f"models.{name}"] = tuple(getattr(entry.make(section.options, model_kinds.kind), "needs", ()))
    return columns


def reports(config: Config) -> tuple[str, ...]:
    """What the engine must report about tokens, because a stage needs it and no signal gives it."""
    columns = {column for _, _, gives in needs(config) for column in gives}
    wanted = [name for _, needed, _ in needs(config) for name in needed if name.startswith("token.") and name not in columns]
    requested = [report for name in wanted if (report := report_of(name.removeprefix("token."))) is not None]
    return tuple(dict.fromkeys(requested))


def check_needs(config: Config, *, models: Iterable[str] = (), task: Task | None = None, environment: Any = None) -> None:
    """An error that lists all that is missing. `models` are the names of further models, `task` is one of the tasks, `environment` the
    class that plays them."""
    there = set(ALWAYS)
    if (critic := config.learner.value) is not None:
        there.add(f"{critic.level}.value")
    there |= {f"model.{name}" for name in (*RESERVED, *models)}
    missing: list[str] = []
    unsaid = False  # an earlier signal, or credit from a user's file, that does not declare what it gives may give any column
    for piece, needed, gives in needs(config):
        for name in needed:
            column = name.partition(".")[0] in LEVELS
            if name.endswith(OPTIONAL) or is_reference(name):  # code that an option names is loaded by its stage
                continue
            if name in there or name in ELSEWHERE or (column and (unsaid or piece.family in ("method", "plan"))):
                continue
            if words := _missing(name, config, task, environment):
                missing.append(f"{piece.key}={piece.name} needs {name}: {words}")
        of_user = piece.family == "signal" or (piece.family == "credit" and is_reference(piece.name))
        unsaid = unsaid or (of_user and not gives)
        there |= {*gives, *((*GIVEN_BY_CREDIT, *GIVEN_BY_LEARNER) if piece.family == "credit" else ())}
    if missing:
        raise TurnwiseError(missing[0] if len(missing) == 1 else "".join(f"\n  - {line}" for line in missing))


def _missing(name: str, config: Config, task: Task | None, environment: Any) -> str:
    """How to get what is missing; empty if it comes from elsewhere."""
    level, _, column = name.partition(".")
    if level == "task":
        fields = ", ".join(task.data) if task is not None else ""
        return (
            ""
            if task is None or column in task.data
            else f"the tasks of {config.env.name} have no such data (they have {fields or 'none'})"
        )
    if level == "env":
        names = EXPERT if column == "expert" else (column,)
        there = environment is None or any(Capabilities(environment).method(name) for name in names)
        return "" if there else f"{config.env.name} has no {' or '.join(f'{name}()' for name in names)}"
    if level == "model":
        return f"add a section [models.{column}] to the recipe"
    if name in LEARNED:
        return f'set learner.value.level="{level}"'
    if level == "token" and report_of(column) is not None:
        return ""  # the engine reports it
    givers = [entry.name for entry in registry("signal") if name in entry.gives]
    return f"no signal of this recipe gives it; add one as [[signal]] ({', '.join(givers) or 'your own'})"
