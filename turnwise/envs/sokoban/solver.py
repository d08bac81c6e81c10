"""A plan that solves a room: A* over pushes.

A node is the room after a push; walking between pushes is part of the edge, so its cost is in moves and the first plan found is a
shortest one. The estimate is the cheapest assignment of boxes to targets, as if each box were alone in the room; it never exceeds the
true cost. A push is not followed if it leads to a dead end: onto a cell from which no target can be reached, into a square of four that
will never move again, or where boxes and targets no longer pair up.

Large rooms can have too many states to search. If the search for a shortest plan exceeds its budget, a second one weighs the estimate
more heavily: it finds a plan sooner, and not always a shortest one.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

from turnwise.envs.sokoban.room import Boxes, Room, moved_box, reachable

SHORTEST_BUDGET, GREEDY_BUDGET, GREEDY_WEIGHT = 20_000, 200_000, 5
REMEMBERED = 50_000  # estimates that are kept from one plan to the next
PAIRED_UP_TO = 8  # with more boxes, each is estimated alone

Node = tuple[int, Boxes]
Step = tuple[Node, int, int]  # from where, the cell to walk to, the direction's offset


@dataclass
class Solver:
    """Plans for one room's walls and targets, from any state of it."""

    room: Room
    _estimates: dict[Boxes, int | None] = field(default_factory=dict)

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        return tuple(self.room.offsets.values())

    @cached_property
    def pushes(self) -> list[dict[int, int]]:
        """For each target: the cells from which a box can be pushed there, with the number of pushes, as if it were alone in the room."""
        walls = self.room.walls
        found = []
        for target in self.room.targets:
            steps, queue = {target: 0}, deque([target])
            while queue:
                cell = queue.popleft()
                for offset in self._offsets:
                    back, stand = cell - offset, cell - 2 * offset
                    if back not in steps and back not in walls and stand not in walls:
                        steps[back] = steps[cell] + 1
                        queue.append(back)
            found.append(steps)
        return found

    @cached_property
    def live(self) -> frozenset[int]:
        """The cells from which a box can still reach a target."""
        return frozenset().union(*self.pushes)

    def plan(self, player: int, boxes: Boxes) -> list[str] | None:
        """Moves that solve the room from this state; None if that is impossible, or no plan was found within the budgets."""
        if len(self._estimates) > REMEMBERED:
            self._estimates.clear()
        found, complete = self._search(player, boxes, 1, SHORTEST_BUDGET)
        if found is None and not complete:
            found, _ = self._search(player, boxes, GREEDY_WEIGHT, GREEDY_BUDGET)
        return found

    def simple_action(self, player: int, boxes: Boxes) -> str:
        """A simple rule without a plan: go to the nearest cell from which a push brings some box nearer to a target, and push it. If
        there is none, it moves up."""
        here = self.estimate(boxes)
        better = [
            (price, stand, offset)
            for (_, after), stand, offset, price in self._successors((player, boxes))
            if here is not None and (then := self.estimate(after)) is not None and then < here
        ]
        if not better:
            return "up"
        _, stand, offset = min(better)
        names = {offset: name for name, offset in self.room.offsets.items()}
        walk = self._walk((player, boxes), stand)
        return names[walk[-1] if walk else offset]

    def estimate(self, boxes: Boxes) -> int | None:
        """A lower bound on the pushes that the boxes need; None if they cannot all reach a target."""
        if boxes not in self._estimates:
            self._estimates[boxes] = self._paired(boxes) if len(boxes) <= PAIRED_UP_TO else self._nearest(boxes)
        return self._estimates[boxes]

    def _nearest(self, boxes: Boxes) -> int | None:
        best = [min((steps[box] for steps in self.pushes if box in steps), default=None) for box in boxes]
        return None if None in best else sum(pushes for pushes in best if pushes is not None)

    def _paired(self, boxes: Boxes) -> int | None:
        """The cheapest pairing of boxes and targets: box by box, over the sets of targets that are taken."""
        costs = {0: 0}
        for box in boxes:
            following: dict[int, int] = {}
            for taken, cost in costs.items():
                for place, steps in enumerate(self.pushes):
                    if not taken >> place & 1 and (pushes := steps.get(box)) is not None:
                        key = taken | 1 << place
                        following[key] = min(following.get(key, cost + pushes), cost + pushes)
            costs = following
        return min(costs.values(), default=None)

    def _search(self, player: int, boxes: Boxes, weight: int, budget: int) -> tuple[list[str] | None, bool]:
        """The plan, and whether everything was searched."""
        start: Node = (player, boxes)
        if (first := self.estimate(boxes)) is None:
            return None, True
        cost, came = {start: 0}, dict[Node, Step]()
        order = count()  # equal estimates: in order of arrival, the same everywhere
        queue = [(weight * first, first, next(order), 0, start)]
        closed: set[Node] = set()
        while queue:
            _, left, _, so_far, node = heapq.heappop(queue)
            if left == 0:
                return self._moves(node, came), True
            if node in closed:
                continue
            closed.add(node)
            if len(closed) > budget:
                return None, False
            for then, walked_to, offset, price in self._successors(node):
                total = so_far + price
                if total < cost.get(then, total + 1) and (rest := self.estimate(then[1])) is not None:
                    cost[then], came[then] = total, (node, walked_to, offset)
                    heapq.heappush(queue, (total + weight * rest, rest, next(order), total, then))
        return None, True

    def _successors(self, node: Node) -> list[tuple[Node, int, int, int]]:
        """Every push that is worth following: the state after it, the player's cell before it, its direction, its cost in moves."""
        player, boxes = node
        walls, live = self.room.walls, self.live
        steps = reachable(walls, boxes, player, self._offsets)
        found = []
        for box in boxes:
            for offset in self._offsets:
                stand, there = box - offset, box + offset
                if stand in steps and there in live and there not in boxes:
                    after = moved_box(boxes, box, there)
                    if not self._stuck(there, after):
                        found.append(((box, after), stand, offset, steps[stand] + 1))
        return found

    def _stuck(self, box: int, boxes: Boxes) -> bool:
        """Whether the box is part of a square of four walls and boxes, not all of these boxes on targets: none of them can move again."""
        walls, targets, width = self.room.walls, self.room.targets, self.room.width
        for across in (-1, 1):
            for down in (-width, width):
                square = (box, box + across, box + down, box + across + down)
                if all(cell in walls or cell in boxes for cell in square) and any(c in boxes and c not in targets for c in square):
                    return True
        return False

    def _moves(self, node: Node, came: dict[Node, Step]) -> list[str]:
        names = {offset: name for name, offset in self.room.offsets.items()}
        moves: list[str] = []
        while node in came:
            before, stand, offset = came[node]
            moves.append(names[offset])
            moves += [names[step] for step in self._walk(before, stand)]
            node = before
        return moves[::-1]

    def _walk(self, node: Node, goal: int) -> list[int]:
        """A shortest walk to a cell without pushing, last step first."""
        steps = reachable(self.room.walls, node[1], node[0], self._offsets)
        cell, walk = goal, []
        while steps[cell]:
            offset = next(o for o in self._offsets if steps.get(cell - o) == steps[cell] - 1)
            walk.append(offset)
            cell -= offset
        return walk
