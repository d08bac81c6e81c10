"""The lab's problems. Each is a function whose keyword-only parameters are its knobs; `make("grid:aliasing=2")` builds one from text.

All share four knobs in addition to their own: `horizon` (None: as long as the problem needs), `delay` (turns between the decision and its
reward), `aliasing` and `recurrence` (see problem.py). States are numbered so that neighbours look alike, which is what `aliasing` merges:
the same place on different branches, the same cell with and without the key, cells side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help, Registry
from turnwise.lab.problem import Builder, Problem
from turnwise.lab.spec import parse
from turnwise.util.errors import TurnwiseError

Horizon = Annotated[int | None, Help("turns after which a trajectory is cut off", low=1)]
Delay = Annotated[int, Help("turns between the decision and its reward", low=0, high=64)]
Aliasing = Annotated[int, Help("how many neighbouring states share an anchor", low=1)]
Recurrence = Annotated[float, Help("share of turns that show their state's own anchor, not a one-off", low=0, high=1)]

problems: Registry[Callable[..., Problem]] = Registry("lab problem")
register = problems.register
DEFAULT = ("bifurcation", "corridor", "grid", "chain", "tree")


@register("bifurcation")
def bifurcation(
    *,
    branching: Annotated[int, Help("branches to choose from", low=2, high=64)] = 4,
    luck: Annotated[float, Help("probability that a branch ends against its kind", low=0, high=0.5)] = 0.1,
    delay: Annotated[int, Help("turns on the branch before it pays", low=1, high=64)] = 6,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """One early choice decides: branch 0 is good, the others are not, and nothing done on a branch matters."""
    made = Builder("bifurcation", branching * delay + 1, branching, outcomes=2)
    root = branching * delay
    for action in range(branching):
        made.add(root, action, action)
        for place in range(delay):
            for branch in range(branching):
                state = place * branching + branch
                if place < delay - 1:
                    made.add(state, action, state + branching)
                    continue
                chance = 1 - luck if branch == 0 else luck
                made.win(state, action, chance)
                made.add(state, action, made.lost, 1 - chance)
    return made.build([root], horizon or delay + 1, aliasing, recurrence)


@register("corridor")
def corridor(
    *,
    length: Annotated[int, Help("cells; the key lies in the first, the door is at the last", low=3, high=64)] = 6,
    branching: Annotated[int, Help("actions: left, right, use, and idle ones", low=3, high=64)] = 3,
    delay: Delay = 0,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """Fetch the key at one end of a corridor and open the door at the other. A task is a first cell between the two."""
    made = Builder("corridor", 2 * length, branching, delay=delay)
    for cell in range(length):
        for key in (0, 1):
            state = 2 * cell + key
            made.add(state, 0, 2 * max(cell - 1, 0) + key)
            made.add(state, 1, 2 * min(cell + 1, length - 1) + key)
            if cell == length - 1 and key:
                made.win(state, 2)
            else:
                made.add(state, 2, 1 if cell == 0 else state)
            for idle in range(3, branching):
                made.add(state, idle, state)
    return made.build([2 * cell for cell in range(1, length - 1)], horizon or 5 * length + delay, aliasing, recurrence)


@register("grid")
def grid(
    *,
    size: Annotated[int, Help("cells along each side", low=3, high=16)] = 5,
    slip: Annotated[float, Help("probability that a move goes in a random direction", low=0, high=1)] = 0.1,
    branching: Annotated[int, Help("actions: four moves, and idle ones", low=4, high=64)] = 4,
    delay: Delay = 0,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """Walk to the goal in the far corner, past pits that end the attempt; walls and slips make trajectories loop and return."""
    made = Builder("grid", size * size, branching, outcomes=5, delay=delay)
    goal, pits = size * size - 1, {size + 1, size * (size - 1) + size // 2 - 1}
    moves = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def arrive(state: int, action: int, move: int, probability: float) -> None:
        row, column = (min(max(at + by, 0), size - 1) for at, by in zip(divmod(state, size), moves[move], strict=True))
        to = row * size + column
        if to == goal:
            made.win(state, action, probability)
        else:
            made.add(state, action, made.lost if to in pits else to, probability)

    for state in range(size * size):
        for action in range(branching):
            if action >= len(moves):
                made.add(state, action, state)
                continue
            arrive(state, action, action, 1 - slip)
            for move in range(len(moves)):
                arrive(state, action, move, slip / len(moves))
    starts = [0, size - 1, size * (size - 1)]
    return made.build(starts, horizon or 5 * size + delay, aliasing, recurrence)


@register("chain")
def chain(
    *,
    length: Annotated[int, Help("choices in a row", low=1, high=64)] = 8,
    branching: Annotated[int, Help("actions, one of which is right", low=2, high=64)] = 3,
    noise: Annotated[float, Help("standard deviation of the reward of every turn", low=0)] = 1.0,
    delay: Annotated[int, Help("turns between a choice and its reward; the state holds what is due", low=0, high=6)] = 0,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """A row of choices of which each pays 1 if right, under reward noise on every turn. There is no goal, only the sum."""
    due = 2**delay  # the last `delay` choices, right or wrong, as bits: the oldest is the highest
    made = Builder("chain", (length + delay) * due, branching)
    for place in range(length + delay):
        for pending in range(due):
            state = place * due + pending
            made.noise[state] = noise
            for action in range(branching):
                right = int(place < length and action == place % branching)
                bits = 2 * pending + right
                to = (place + 1) * due + bits % due
                made.add(state, action, to if place + 1 < length + delay else made.won, reward=float(bits >> delay))
    return made.build([0], horizon or length + delay, aliasing, recurrence, goals=False)


@register("tree")
def tree(
    *,
    depth: Annotated[int, Help("choices from the root to a leaf", low=1, high=8)] = 5,
    branching: Annotated[int, Help("actions in every node", low=2, high=6)] = 3,
    pays: Annotated[float, Help("share of leaves that pay 1", low=0, high=1)] = 0.3,
    layout: Annotated[int, Help("seed of which leaves pay", low=0)] = 0,
    delay: Delay = 0,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 0.0,
) -> Problem:
    """A tree of choices in which no observation ever repeats, not even the first: step groups have nothing to compare."""
    nodes = (branching**depth - 1) // (branching - 1)
    if nodes > 20_000:
        raise TurnwiseError(f"lab problem 'tree': depth={depth} with branching={branching} makes {nodes} nodes; at most 20000")
    quality = np.zeros(nodes * branching + 1)
    quality[1:] = np.random.default_rng(layout).normal(size=nodes * branching)
    for node in range(1, len(quality)):
        quality[node] += quality[(node - 1) // branching]  # good leaves share ancestors, so early choices matter too
    leaves = quality[nodes:]
    bar = np.quantile(leaves, 1 - pays)
    made = Builder("tree", nodes, branching, delay=delay)
    for node in range(nodes):
        for action in range(branching):
            child = branching * node + action + 1
            if child < nodes:
                made.add(node, action, child)
            elif quality[child] > bar:
                made.win(node, action)
            else:
                made.add(node, action, made.lost)
    return made.build([0], horizon or depth + delay, aliasing, recurrence)


def make(text: str, **knobs: Any) -> Problem:
    """A problem from its name and knobs: make("grid", size=5) or make("grid:size=5:aliasing=2")."""
    name, given = parse(text)
    entry = problems[name]
    return entry.function(**entry.bind({**given, **knobs}, problems.kind)).check()
