"""A finite decision problem as numpy tables, and the small builder that fills them.

Tables keep the *outcomes* of an action (next state, probability, reward) side by side instead of a dense states × actions × states cube:
a tree of some hundred states stays small, and both dynamic programming and sampling become one indexing step for all states at once.

The agent's policy is a table over states; credit functions see only *anchors*. That is the situation of a language model: its prompt
holds more than the key by which turns are compared. Two knobs act on the anchors alone and leave the true advantages as they are:
`aliasing` lets neighbouring states share an anchor, `recurrence` is the share of turns whose anchor is the state's own and not a
one-off (a clock or a session number in the observation).

Each of the lab's problems is a function whose keyword-only parameters are its knobs; `make("grid:aliasing=2")` builds one from text.

All share three knobs in addition to their own: `horizon` (None: as long as the problem needs), `aliasing` and `recurrence`. States are
numbered so that neighbours look alike, which is what `aliasing` merges: the same place on different branches, the same cell with and
without the key, cells side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from turnwise.config.options import Help, Registry
from turnwise.data.anchors import Ints
from turnwise.data.rollouts import Bools, Floats
from turnwise.recipe.reading import parse_override
from turnwise.util.errors import TurnwiseError

Horizon = Annotated[int | None, Help("turns after which a trajectory is cut off", low=1)]
Aliasing = Annotated[int, Help("how many neighbouring states share an anchor", low=1)]
Recurrence = Annotated[float, Help("share of turns that show their state's own anchor, not a one-off", low=0, high=1)]
problems: Registry[Callable[..., Problem]] = Registry("lab problem")
register = problems.register
DEFAULT = ("bifurcation", "corridor", "grid", "chain", "tree")


@dataclass(frozen=True, eq=False)
class Problem:
    """`next_state`, `probability` and `reward` (its mean) are [states, actions, outcomes]; `noise` is [states, actions], the standard
    deviation of the reward around its mean. A trajectory starts in a state drawn from `start` (one draw per group: the task), ends in a
    `terminal` state or after `horizon` turns, and succeeds if it ends in a `goal` state. A problem without goals has no success at
    all."""

    name: str
    next_state: Ints
    probability: Floats
    reward: Floats
    noise: Floats
    terminal: Bools
    goal: Bools
    start: Floats
    horizon: int
    anchor: Ints
    recurrence: float = 1.0

    @property
    def states(self) -> int:
        return len(self.next_state)

    @property
    def actions(self) -> int:
        return int(self.next_state.shape[1])

    def check(self) -> Problem:
        """The problem itself; an error names the first state where the tables do not fit together."""
        shape = self.next_state.shape
        if self.probability.shape != shape or self.reward.shape != shape or self.noise.shape != shape[:2]:
            raise TurnwiseError(f"problem {self.name!r}: next_state, probability and reward need one shape [states, actions, outcomes]")
        if self.horizon < 1:
            raise TurnwiseError(f"problem {self.name!r}: the horizon must be at least 1 turn, not {self.horizon}")
        wrong = (np.abs(self.probability.sum(axis=2) - 1) > 1e-9) | (self.probability < 0).any(axis=2)
        if wrong.any():
            state, action = np.argwhere(wrong)[0]
            raise TurnwiseError(f"problem {self.name!r}: the outcomes of action {action} in state {state} do not add up to probability 1")
        if (self.next_state < 0).any() or (self.next_state >= self.states).any():
            raise TurnwiseError(f"problem {self.name!r}: a next state lies outside 0 … {self.states - 1}")
        if abs(self.start.sum() - 1) > 1e-9 or (self.start[self.terminal] > 0).any():
            raise TurnwiseError(f"problem {self.name!r}: the start must be a distribution over states that are not terminal")
        return self


class Builder:
    """Collects outcomes state by state. The last two states are the ends: `won` (a goal) and `lost`."""

    def __init__(self, name: str, states: int, actions: int, outcomes: int = 1):
        total = states + 2
        self.name, self.won, self.lost = name, states, states + 1
        self.next_state = np.zeros((total, actions, outcomes), np.int64)
        self.probability = np.zeros((total, actions, outcomes))
        self.reward = np.zeros((total, actions, outcomes))
        self.noise = np.zeros((total, actions))
        self.filled = np.zeros((total, actions), np.int64)
        for end in (self.won, self.lost):
            for action in range(actions):
                self.add(end, action, end)

    def add(self, state: int, action: int, to: int, probability: float = 1.0, reward: float = 0.0) -> None:
        """One more outcome of an action."""
        slot = self.filled[state, action]
        self.next_state[state, action, slot] = to
        self.probability[state, action, slot] = probability
        self.reward[state, action, slot] = reward
        self.filled[state, action] += 1

    def win(self, state: int, action: int, probability: float = 1.0) -> None:
        """An outcome that is a success, with a reward of 1."""
        self.add(state, action, self.won, probability, reward=1.0)

    def build(self, start: list[int], horizon: int, aliasing: int, recurrence: float, goals: bool = True) -> Problem:
        """The finished problem; `start` lists the equally likely first states."""
        terminal = np.zeros(len(self.next_state), np.bool_)
        terminal[[self.won, self.lost]] = True
        goal = np.zeros(len(terminal), np.bool_)
        goal[self.won] = goals
        first = np.bincount(start, minlength=len(terminal)) / len(start)
        tables = (self.next_state, self.probability, self.reward, self.noise)
        anchors = np.arange(len(terminal)) // aliasing
        return Problem(self.name, *tables, terminal, goal, first, horizon, anchors, recurrence).check()


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
    builder = Builder("bifurcation", branching * delay + 1, branching, outcomes=2)
    root = branching * delay
    for action in range(branching):
        builder.add(root, action, action)
        for place in range(delay):
            for branch in range(branching):
                state = place * branching + branch
                if place < delay - 1:
                    builder.add(state, action, state + branching)
                    continue
                chance = 1 - luck if branch == 0 else luck
                builder.win(state, action, chance)
                builder.add(state, action, builder.lost, 1 - chance)
    return builder.build([root], horizon or delay + 1, aliasing, recurrence)


@register("corridor")
def corridor(
    *,
    length: Annotated[int, Help("cells; the key lies in the first, the door is at the last", low=3, high=64)] = 6,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """Fetch the key at one end of a corridor and open the door at the other, by the actions left, right and use. A task is a first cell
    between the two."""
    builder = Builder("corridor", 2 * length, actions=3)
    for cell in range(length):
        for key in (0, 1):
            state = 2 * cell + key
            builder.add(state, 0, 2 * max(cell - 1, 0) + key)
            builder.add(state, 1, 2 * min(cell + 1, length - 1) + key)
            if cell == length - 1 and key:
                builder.win(state, 2)
            else:
                builder.add(state, 2, 1 if cell == 0 else state)
    return builder.build([2 * cell for cell in range(1, length - 1)], horizon or 5 * length, aliasing, recurrence)


@register("grid")
def grid(
    *,
    size: Annotated[int, Help("cells along each side", low=3, high=16)] = 5,
    slip: Annotated[float, Help("probability that a move goes in a random direction", low=0, high=1)] = 0.1,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """Walk to the goal in the far corner, past pits that end the attempt; walls and slips make trajectories loop and return."""
    builder = Builder("grid", size * size, actions=4, outcomes=5)
    goal, pits = size * size - 1, {size + 1, size * (size - 1) + size // 2 - 1}
    moves = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def arrive(state: int, action: int, move: int, probability: float) -> None:
        row, column = (min(max(at + by, 0), size - 1) for at, by in zip(divmod(state, size), moves[move], strict=True))
        to = row * size + column
        if to == goal:
            builder.win(state, action, probability)
        else:
            builder.add(state, action, builder.lost if to in pits else to, probability)

    for state in range(size * size):
        for action in range(len(moves)):
            arrive(state, action, action, 1 - slip)
            for move in range(len(moves)):
                arrive(state, action, move, slip / len(moves))
    starts = [0, size - 1, size * (size - 1)]
    return builder.build(starts, horizon or 5 * size, aliasing, recurrence)


@register("chain")
def chain(
    *,
    length: Annotated[int, Help("choices in a row", low=1, high=64)] = 8,
    branching: Annotated[int, Help("actions, one of which is right", low=2, high=64)] = 3,
    noise: Annotated[float, Help("standard deviation of the reward of every turn", low=0)] = 1.0,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """A row of choices of which each pays 1 if right, under reward noise on every turn. There is no goal, only the sum."""
    builder = Builder("chain", length, branching)
    for place in range(length):
        builder.noise[place] = noise
        for action in range(branching):
            builder.add(place, action, place + 1, reward=float(action == place % branching))
    return builder.build([0], horizon or length, aliasing, recurrence, goals=False)


@register("tree")
def tree(
    *,
    depth: Annotated[int, Help("choices from the root to a leaf", low=1, high=8)] = 5,
    branching: Annotated[int, Help("actions in every node", low=2, high=6)] = 3,
    pays: Annotated[float, Help("share of leaves that pay 1", low=0, high=1)] = 0.3,
    layout: Annotated[int, Help("seed of which leaves pay", low=0)] = 0,
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
    builder = Builder("tree", nodes, branching)
    for node in range(nodes):
        for action in range(branching):
            child = branching * node + action + 1
            if child < nodes:
                builder.add(node, action, child)
            elif quality[child] > bar:
                builder.win(node, action)
            else:
                builder.add(node, action, builder.lost)
    return builder.build([0], horizon or depth, aliasing, recurrence)


@register("search")
def search(
    *,
    pay: Annotated[float, Help("reward of every turn that finds something")] = 0.2,
    steps: Annotated[int, Help("finds there are", low=1, high=64)] = 4,
    horizon: Horizon = None,
    aliasing: Aliasing = 1,
    recurrence: Recurrence = 1.0,
) -> Problem:
    """Answer now, search well or search badly: the policy decides when to stop. An answer is right more often after the first find; further
    ones only pay. Who never answers is not right."""
    builder = Builder("search", steps, actions=3, outcomes=2)
    for state in range(steps):
        right = 0.6 if state else 0.2
        builder.win(state, 0, right)
        builder.add(state, 0, builder.lost, 1 - right)
        for action, finds in ((1, 0.8), (2, 0.4)):
            builder.add(state, action, min(state + 1, steps - 1), finds, reward=pay)
            builder.add(state, action, state, 1 - finds)
    return builder.build([0], horizon or 2 * steps, aliasing, recurrence)


def make(text: str, **knobs: Any) -> Problem:
    """A problem from its name and knobs: make("grid", size=5) or make("grid:size=5:aliasing=2")."""
    name, given = parse(text)
    entry = problems[name]
    return entry.function(**entry.bind({**given, **knobs}, problems.kind)).check()


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of `gigpo:omega=2:once=true` or `grid:size=5`: booleans, numbers or text."""
    name, *parts = text.strip().split(":")
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not (name and key and equals and value):
            raise TurnwiseError(f"{text!r}: write a name, then :option=value for each option, as in gigpo:omega=2:once=true")
        if key.strip() in options:
            raise TurnwiseError(f"{text!r}: option {key.strip()!r} is given twice")
        options[key.strip()] = parse_override(f"{key.strip()}={value.strip()}")[1]
    if not name:
        raise TurnwiseError("an empty name: write names separated by commas, as in gigpo,grpo")
    return name, options
