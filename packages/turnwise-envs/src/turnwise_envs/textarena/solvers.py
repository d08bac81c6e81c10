"""Experts and simple rules for some of the games. An expert wins, or loses as late as it can; a rule sees no more than a player.

A function gets the package's object, at the turn of the player to move, and returns a move, or None if it knows none.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, reduce
from itertools import permutations, product
from operator import xor
from typing import Any

Rule = Callable[[Any], str | None]
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def _state(env: Any) -> Any:
    return env.state.game_state


def _own(env: Any) -> int:
    return int(env.state.current_player_id)


# -- games on a board of nine --------------------------------------------------------------------------------------------------------


@cache
def _value(board: str, own: str, wild: bool, reverse: bool) -> int:
    """What a board is worth for the player to move, with the number of free cells: an early win counts more than a late one."""
    if any(board[a] != " " and board[a] == board[b] == board[c] for a, b, c in LINES):
        return (1 if reverse else -1) * (1 + board.count(" "))
    if " " not in board:
        return 0
    return max(-_value(after, _other(own), wild, reverse) for _, _, after in _children(board, own, wild))


def _other(mark: str) -> str:
    return "O" if mark == "X" else "X"


def _children(board: str, own: str, wild: bool) -> Iterator[tuple[int, str, str]]:
    for cell in (cell for cell in range(9) if board[cell] == " "):
        for mark in "XO" if wild else own:
            yield cell, mark, board[:cell] + mark + board[cell + 1 :]


def _nine(form: str, wild: bool = False, reverse: bool = False) -> Rule:
    def rule(env: Any) -> str | None:
        board = "".join(str(cell) or " " for row in _state(env)["board"] for cell in row)
        own = "X" if _own(env) == 1 else "O"
        moves = [(-_value(after, _other(own), wild, reverse), -cell, mark) for cell, mark, after in _children(board, own, wild)]
        if not moves:
            return None
        _, cell, mark = max(moves)
        return form.format(cell=-cell, mark=mark)

    return rule


def _win_or_block(env: Any) -> str | None:
    """Complete a line, else block one, else the centre, a corner, any cell."""
    board = [str(cell) for row in _state(env)["board"] for cell in row]
    own = "X" if _own(env) == 1 else "O"
    for mark in (own, _other(own)):
        for line in LINES:
            marks = [board[cell] for cell in line]
            if marks.count(mark) == 2 and marks.count("") == 1:
                return f"[{line[marks.index('')]}]"
    return next((f"[{cell}]" for cell in (4, 0, 2, 6, 8, 1, 3, 5, 7) if not board[cell]), None)


# -- other games for two -------------------------------------------------------------------------------------------------------------


def _nim(env: Any) -> str | None:
    piles = _state(env)["piles"]
    total = reduce(xor, piles, 0)
    for pile, size in enumerate(piles):
        if size ^ total < size:
            return f"[{pile} {size - (size ^ total)}]"
    largest = max(range(len(piles)), key=lambda pile: piles[pile])
    return f"[{largest} 1]" if piles[largest] else None


def _four_lines(rows: int, columns: int) -> list[list[tuple[int, int]]]:
    found = []
    for r, c, (a, b) in product(range(rows), range(columns), ((0, 1), (1, 0), (1, 1), (1, -1))):
        line = [(r + k * a, c + k * b) for k in range(4)]
        if 0 <= line[3][0] < rows and 0 <= line[3][1] < columns:
            found.append(line)
    return found


class _Four:
    """A search of a few moves at Connect Four."""

    def __init__(self, board: Sequence[Sequence[str]]):
        self.board, self.rows, self.columns = [list(row) for row in board], len(board), len(board[0])
        self.lines = _four_lines(self.rows, self.columns)
        self.order = sorted(range(self.columns), key=lambda column: abs(2 * column - self.columns + 1))

    def best(self, own: str, depth: int) -> int | None:
        return self._search(own, depth, -(10**6), 10**6)[1]

    def _search(self, own: str, depth: int, low: int, high: int) -> tuple[int, int | None]:
        enemy = "O" if own == "X" else "X"
        if any(all(self.board[r][c] == enemy for r, c in line) for line in self.lines):
            return -1000 - depth, None
        free = [column for column in self.order if self.board[0][column] == "."]
        if not free or depth == 0:
            return self._worth(own, enemy) if free else 0, None
        chosen = free[0]
        for column in free:
            row = max(r for r in range(self.rows) if self.board[r][column] == ".")
            self.board[row][column] = own
            value = -self._search(enemy, depth - 1, -high, -low)[0]
            self.board[row][column] = "."
            if value > low:
                low, chosen = value, column
            if low >= high:
                break
        return low, chosen

    def _worth(self, own: str, enemy: str) -> int:
        total = 0
        for line in self.lines:
            marks = [self.board[r][c] for r, c in line]
            if enemy not in marks:
                total += (0, 1, 4, 16, 0)[marks.count(own)]
            if own not in marks:
                total -= (0, 1, 4, 16, 0)[marks.count(enemy)]
        return total


def _four(depth: int) -> Rule:
    def rule(env: Any) -> str | None:
        column = _Four(_state(env)["board"]).best("X" if _own(env) == 0 else "O", depth)
        return None if column is None else f"[col {column}]"

    return rule


def _pig(env: Any) -> str:
    """Hold at 20, or when it is enough to win."""
    own = _state(env)
    goal = next((int(value) for name in ("winning_score", "goal", "target_score") if (value := getattr(env, name, None))), 100)
    return "[hold]" if own["turn_total"] >= 20 or own["scores"][_own(env)] + own["turn_total"] >= goal else "[roll]"


# -- games for one -------------------------------------------------------------------------------------------------------------------


def _hanoi(env: Any) -> str | None:
    towers = _state(env)["towers"]
    place = {disk: name for name, disks in towers.items() for disk in disks}
    goal = "C"
    for disk in range(max(place), 0, -1):  # the largest disk that is not where it belongs moves next, after all smaller ones left
        if place[disk] != goal:
            spare = next(name for name in "ABC" if name not in (place[disk], goal))
            if all(place[smaller] == spare for smaller in range(1, disk)):
                return f"[{place[disk]} {goal}]"
            goal = spare
    return None


def _number(env: Any) -> str:
    low, high = env.min_number, env.max_number
    for guess, hint in _state(env)["guess_history"]:
        low, high = (max(low, guess + 1), high) if hint == "higher" else (low, min(high, guess - 1))
    return f"[{(low + high) // 2}]"


def _pegs(code: Sequence[int], guess: Sequence[int]) -> tuple[int, int]:
    black = sum(a == b for a, b in zip(code, guess, strict=True))
    return black, sum(min(list(code).count(n), list(guess).count(n)) for n in set(guess)) - black


def _code(env: Any) -> str | None:
    """Any code that agrees with all answers so far."""
    own = _state(env)
    numbers, length = range(1, own["num_numbers"] + 1), own["code_length"]
    codes: Iterable[tuple[int, ...]] = product(numbers, repeat=length) if own["duplicate_numbers"] else permutations(numbers, length)
    known = [(entry["guess"], (entry["black"], entry["white"])) for entry in own["history"]]
    found = next((code for code in codes if all(_pegs(code, guess) == said for guess, said in known)), None)
    return None if found is None else f"[{' '.join(map(str, found))}]"


def _lake(env: Any) -> str | None:
    """The shortest path around the holes."""
    own = _state(env)
    grid, here, goal = own["grid"], tuple(own["player_pos"]), tuple(own["goal_pos"])
    first: dict[tuple[int, ...], str] = {here: ""}
    queue = deque([here])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            return f"[{first[cell]}]"
        for word, (a, b) in WAYS.items():
            after = (cell[0] + a, cell[1] + b)
            if after not in first and 0 <= after[0] < len(grid) and 0 <= after[1] < len(grid[0]) and grid[after[0]][after[1]] != "H":
                first[after] = first[cell] or word
                queue.append(after)
    return None


def _lights(env: Any) -> str | None:
    """The presses that turn all lights off, as a system of equations modulo 2."""
    grid = _state(env)["grid"]
    size = len(grid)
    rows = []
    for r, c in product(range(size), range(size)):
        near = [(r, c), (r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
        row = sum(1 << (x * size + y) for x, y in near if 0 <= x < size and 0 <= y < size)
        rows.append(row | (int(bool(grid[r][c])) << (size * size)))
    pivots: dict[int, int] = {}
    for row in rows:
        for bit in range(size * size):
            if not row >> bit & 1:
                continue
            if bit not in pivots:
                pivots[bit] = row
                break
            row ^= pivots[bit]
    pressed = 0
    for bit in sorted(pivots, reverse=True):
        rest = bin(pivots[bit] & pressed & ~(1 << bit)).count("1") % 2
        pressed |= (pivots[bit] >> (size * size) & 1 ^ rest) << bit
    return next((f"[{cell // size} {cell % size}]" for cell in range(size * size) if pressed >> cell & 1), None)


def _jumps(env: Any) -> str | None:
    """A jump after which one peg can remain."""
    start = sum(1 << hole for hole, peg in enumerate(_state(env)["board"]) if peg)
    moves = [(1 << a, 1 << b, 1 << c, f"[{a} {c}]") for a, b, c in env.ALLOWED_MOVES]
    dead: set[int] = set()

    def solved(board: int) -> bool:
        if board.bit_count() == 1:
            return True
        if board in dead:
            return False
        for a, b, c, _ in moves:
            if board & a and board & b and not board & c and solved(board ^ a ^ b ^ c):
                return True
        dead.add(board)
        return False

    for a, b, c, text in moves:
        if start & a and start & b and not start & c and solved(start ^ a ^ b ^ c):
            return text
    return None


def _sudoku(env: Any) -> str | None:
    """The first empty cell of the solution."""
    board, full = _state(env)["board"], env.full_grid
    return next((f"[{r + 1} {c + 1} {full[r][c]}]" for r, c in product(range(9), range(9)) if not board[r][c]), None)


def _mines(env: Any) -> str | None:
    """A cell without a mine. Before the first one, nothing is known: the middle."""
    if env.first_move:
        return f"[{env.rows // 2} {env.cols // 2}]"
    cells = product(range(env.rows), range(env.cols))
    return next((f"[{r} {c}]" for r, c in cells if not env.revealed[r][c] and env.grid[r][c] != -1), None)


def _dealer(env: Any) -> str:
    """Stand on 17 or more."""
    total, aces = 0, 0
    for card in _state(env)["player_hand"]:
        face = re.sub(r"[^0-9AJQK]", "", str(card))
        total += 11 if face == "A" else 10 if face in "JQK" else int(face or 10)
        aces += face == "A"
    while total > 21 and aces:
        total, aces = total - 10, aces - 1
    return "[Stand]" if total >= 17 else "[Hit]"


def _cups(env: Any) -> str:
    return f"[{env.ball_pos}]"


EXPERTS: dict[str, Rule] = {
    "TicTacToe": _nine("[{cell}]"),
    "WildTicTacToe": _nine("[{mark} {cell}]", wild=True),
    "ReverseTicTacToe": _nine("[{cell}]", reverse=True),
    "Nim": _nim,
    "ConnectFour": _four(4),
    "TowerOfHanoi": _hanoi,
    "GuessTheNumber": _number,
    "Mastermind": _code,
    "FrozenLake": _lake,
    "LightsOut": _lights,
    "PegJump": _jumps,
    "Sudoku": _sudoku,
    "Minesweeper": _mines,
    "ThreeCardMonte": _cups,
}
RULES: dict[str, Rule] = {
    "TicTacToe": _win_or_block,
    "ConnectFour": _four(1),
    "PigDice": _pig,
    "Blackjack": _dealer,
    "GuessTheNumber": _number,
    "Mastermind": _code,
}
