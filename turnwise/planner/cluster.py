"""Which splits of GPUs into learners and engines are possible, and how fast each of them would be.

    plan = make_plan(Question("7b", gpus=64))
    plan.best.layout, plan.best.trajectories_per_s

Every split is simulated with the same groups (simulate.py). Engines whose number of GPUs is not given are tried with the
fewest that hold the model, twice and four times as many; the best of them represents the split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from turnwise.learn.shapes import ModelShape, shape_of
from turnwise.planner.simulate import Layout, Result, Work, simulate
from turnwise.planner.times import Machine
from turnwise.util.errors import TurnwiseError

MOST_GPUS = 1024
MOST_SEQUENCES = 512  # trajectories on one engine at once, however much memory it has
MOST_TRAJECTORIES = 2_000_000  # in all iterations of one simulated split: some minutes


@dataclass(frozen=True)
class Question:
    """What a plan is made for."""

    model: str
    gpus: int
    work: Work = field(default_factory=Work)
    staleness: int = 1
    tensor_parallel: int | None = None
    machine: Machine = field(default_factory=Machine)
    iterations: int = 12


@dataclass(frozen=True)
class Plan:
    """The simulated splits, from few learners to many, and the one with the most trajectories per second."""

    question: Question
    shape: ModelShape
    results: list[Result]

    @property
    def best(self) -> Result:
        return max(self.results, key=lambda result: result.trajectories_per_s)


def learner_bytes(shape: ModelShape, ranks: int, tokens: int) -> float:
    """Bytes per GPU of a learner: weights and gradients in 32 bits, Adam's two moments, a frozen reference in 16 bits, all of them sharded;
    two layers and the output layer gathered; activations of one sequence of this many tokens, kept once per layer."""
    state = (16 + 2) * shape.parameters / ranks
    gathered = 2 * shape.parameters if ranks == 1 else 6 * (2 * shape.largest + 2 * shape.head)
    activations = tokens * (2 * shape.layers * shape.hidden + 24 * shape.hidden + 12 * shape.middle)
    return state + gathered + activations


def engine_groups(question: Question, shape: ModelShape, gpus: int, taken: float = 0.0) -> int:
    """How many groups an engine on this many GPUs can run at once: it holds the weights, and a cache for trajectories of full length."""
    work, machine = question.work, question.machine
    room = gpus * (machine.memory * machine.memory_used - taken) - 2 * shape.parameters
    sequences = min(max(int(room / (shape.cache_bytes * work.longest)), 0), MOST_SEQUENCES)
    return min(sequences // work.group_size, work.groups)


def possible_sizes(question: Question, shape: ModelShape) -> list[int]:
    """Numbers of GPUs over which an engine can be split: divisors of the key heads, inside a node."""
    return [size for size in range(1, question.machine.node_gpus + 1) if not shape.key_heads % size]


def check(question: Question, shape: ModelShape) -> tuple[int, list[int]]:
    """The fewest ranks over which the learner fits, and the sizes of engines that are tried. An error says what does not fit."""
    machine, work, size = question.machine, question.work, question.tensor_parallel
    if (number := work.groups * work.group_size * question.iterations) > MOST_TRAJECTORIES:
        raise TurnwiseError(
            f"plan: {work.groups:,} groups × {work.group_size} × {question.iterations} iterations are {number:,} trajectories; at most "
            f"{MOST_TRAJECTORIES:,} are simulated: give fewer groups or iterations"
        )
    memory = f"{machine.memory / 1e9:.0f} GB (of which {100 * machine.memory_used:.0f} % is used)"
    if size is not None and size not in (possible := possible_sizes(question, shape)):
        raise TurnwiseError(
            f"plan: an engine on {_gpus(size)}: {shape.name} has {shape.key_heads} key heads, and a node {_gpus(machine.node_gpus)}; "
            f"give {', '.join(map(str, possible))}"
        )
    room = machine.memory * machine.memory_used
    learners = next((n for n in range(1, MOST_GPUS + 1) if learner_bytes(shape, n, work.longest) <= room), None)
    tried = (1, 2, 4, 8) if size is None else (size,)
    sizes = [gpus for gpus in tried if engine_groups(question, shape, gpus) > 0 and gpus in possible_sizes(question, shape)][:3]
    if learners is None:
        raise TurnwiseError(f"plan: {shape.name} with sequences of {work.longest:,} tokens does not fit learners of {memory}, however many")
    if not sizes:
        least = (2 * shape.parameters + shape.cache_bytes * work.longest * work.group_size) / 1e9
        what = f"weights and the cache of one group ({work.group_size} × {work.longest:,} tokens) need {least:.0f} GB"
        most = max(possible_sizes(question, shape)) if size is None else size
        less = "Use more GPUs per engine" if size is not None else "Lower the turns, the tokens or the size of a group"
        raise TurnwiseError(f"plan: {shape.name} does not fit an engine on {_gpus(most)} of {memory}: {what}. {less}")
    if learners > question.gpus:
        need = learner_bytes(shape, question.gpus, work.longest) / 1e9
        raise TurnwiseError(
            f"plan: the learner of {shape.name} does not fit {_gpus(question.gpus)} of {memory}: "
            f"each would need {need:.0f} GB. Use at least {learners} GPUs for the learner"
        )
    return learners, sizes


def _gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"


def colocated(question: Question, shape: ModelShape) -> Iterator[Layout]:
    """Everything on every GPU; the parts take turns. A run shares single GPUs only, so that every engine has one. A single process shares
    its weights with the engine."""
    learner = learner_bytes(shape, question.gpus, question.work.longest)
    taken = learner - (2 * shape.parameters if question.gpus == 1 else 0)
    room = engine_groups(question, shape, 1, taken) if question.tensor_parallel in (None, 1) else 0
    if room > 0:
        yield Layout(question.gpus, question.gpus, 1, room, colocated=True)


def engines_beside(learners: int, gpus: int, size: int, node_gpus: int) -> int:
    """How many engines of this many GPUs there is room for, as a run places them: learners fill nodes in order, no engine spans two."""
    nodes = [min(node_gpus, gpus - first) for first in range(0, gpus, node_gpus)]
    taken = [min(max(learners - first, 0), node) for first, node in zip(range(0, gpus, node_gpus), nodes, strict=True)]
    return sum((node - used) // size for node, used in zip(nodes, taken, strict=True))


def splits(question: Question, shape: ModelShape) -> dict[int, list[Layout]]:
    """Number of learners → layouts that differ in the size of their engines alone. 0 stands for colocated ones."""
    fewest, sizes = check(question, shape)
    gpus = question.gpus
    layouts_by_learners = {0: list(colocated(question, shape))}
    for learners in range(fewest, gpus):
        numbers = {size: engines_beside(learners, gpus, size, question.machine.node_gpus) for size in sizes}
        layouts_by_learners[learners] = [
            Layout(learners, number, size, engine_groups(question, shape, size)) for size, number in numbers.items() if number
        ]
    layouts_by_learners = {learners: layouts for learners, layouts in layouts_by_learners.items() if layouts}
    if not layouts_by_learners:
        nodes = question.machine.node_gpus
        least = next(number for number in range(gpus + 1, 2 * MOST_GPUS) if engines_beside(fewest, number, sizes[0], nodes))
        raise TurnwiseError(
            f"plan: {_gpus(gpus)} hold the learner of {shape.name} (at least {fewest}) or an engine (at least {sizes[0]}), but not both. "
            f"Use at least {least}"
        )
    return layouts_by_learners


def make_plan(question: Question, progress: Callable[[str], None] = lambda what: None) -> Plan:
    """Simulate eighths of the GPUs, then the splits between the best and its neighbours. `progress` is called with what comes next."""
    shape = shape_of(question.model)
    possible = splits(question, shape)
    results: dict[int, Result] = {}

    def look(wanted: Iterable[int]) -> None:
        for learners in sorted(set(wanted) & set(possible) - set(results)):
            results[learners] = best_of(question, shape, possible[learners], progress)

    gpus = question.gpus
    look(
        [0, *range(1, gpus)]
        if gpus <= 8
        else [0, *(round(gpus * eighth / 8) for eighth in range(1, 8)), min(possible, key=lambda n: n or gpus)]
    )
    if apart := set(results) - {0}:
        best = max(apart, key=lambda learners: results[learners].trajectories_per_s)
        look(round(best + gpus * part / 32) for part in (-3, -2, -1, 1, 2, 3))
    return Plan(question, shape, [results[learners] for learners in sorted(results)])


def best_of(question: Question, shape: ModelShape, layouts: list[Layout], progress: Callable[[str], None]) -> Result:
    """The layout with the most trajectories per second."""
    tried = []
    for layout in layouts:
        progress(describe(layout))
        staleness, number = 0 if layout.colocated else question.staleness, question.iterations
        tried.append(simulate(question.work, layout, shape, question.machine, staleness, number, warmup=min(4, number // 2)))
    return max(tried, key=lambda result: result.trajectories_per_s)


def settings(result: Result) -> dict[str, str]:
    """What a recipe sets for this split: nothing on one GPU, where a run without a cluster does the same."""
    layout = result.layout
    if layout.gpus == 1:
        return {}
    values = {"learners": str(layout.learners), "engines": str(layout.engines)}
    values |= {"placement": "colocated" if layout.colocated else "apart", "staleness": str(result.staleness)}
    if layout.tensor_parallel == 1:
        return {f"cluster.{name}": value for name, value in values.items()}
    values["tensor_parallel"] = str(layout.tensor_parallel)
    return {f"cluster.{name}": value for name, value in values.items()} | {"engine.name": "vllm"}


def describe(layout: Layout) -> str:
    """A layout in a few words."""
    learners = f"{layout.learners} learner{'s' if layout.learners > 1 else ''}"
    engines = f"{layout.engines} engine{'s' if layout.engines > 1 else ''}"
    if layout.tensor_parallel > 1:
        engines += f" × {_gpus(layout.tensor_parallel)}"
    return f"{learners} and {engines} on the same {_gpus(layout.gpus)}" if layout.colocated else f"{learners}, {engines}"
