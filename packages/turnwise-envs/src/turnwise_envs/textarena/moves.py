"""Moves that a player may make, game by game: what a random player chooses from, and what an agent is shown as its actions.

A function gets the game's object and the text that the mover has just seen, and returns texts. Most games list their moves themselves. A
few functions return more than is allowed, and `PROBED` says so: the caller then tries each one on a copy of the game. In games of talk the
moves are a few plain sentences next to the tokens that the game reads.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Any

MOST = 300  # moves that are listed; of more, this many at equal distances
TALK = ("Hello.", "I think we should work together.", "What do you suggest?", "I would like a fair result.")
WAYS = ("[up]", "[down]", "[left]", "[right]")
LISTING = re.compile(
    r"(?:(?:available|valid|viable|possible|legal)\s+(?:moves|actions|targets)|your options|remaining (?:hand|money cards))[^:\n]*:",
    re.IGNORECASE,
)
TOKEN = re.compile(r"\[[^\[\]\n]*\]")

Moves = Callable[[Any, str], Iterable[str]]


def at_most(found: Iterable[str], most: int = MOST) -> tuple[str, ...]:
    """Without repetitions, and at most `most` of them, spread over all."""
    every = list(dict.fromkeys(found))
    return tuple(every if len(every) <= most else [every[k * len(every) // most] for k in range(most)])


def listed(env: Any, text: str) -> list[str]:
    """What the text itself lists, in its last listing."""
    found = list(LISTING.finditer(text))
    return TOKEN.findall(text[found[-1].end() :]) if found else []


def always(*moves: str) -> Moves:
    return lambda env, text: moves


def _state(env: Any) -> Any:
    return env.state.game_state


def _own(env: Any) -> int:
    return int(env.state.current_player_id)


def _cells(rows: int, columns: int) -> Iterable[tuple[int, int]]:
    return product(range(rows), range(columns))


def _square(row: int, column: int) -> str:
    return f"{chr(97 + column)}{row + 1}"


def _breakthrough(env: Any, text: str) -> Iterable[str]:
    size, own = env.board_size, _own(env)
    ahead = 1 if own == 0 else -1
    for r, c in _cells(size, size):
        for side in (-1, 0, 1):
            if 0 <= r + ahead < size and 0 <= c + side < size and env._is_valid_move(own, r, c, r + ahead, c + side):
                yield f"[{_square(r, c)}{_square(r + ahead, c + side)}]"


def _alquerque(env: Any, text: str) -> Iterable[str]:
    board, own, size = _state(env)["board"], "RB"[_own(env)], env.BOARD_N
    inside = range(size)
    for r, c in _cells(size, size):
        if board[r][c] != own:
            continue
        for a, b in env.neighbours:
            if r + 2 * a in inside and c + 2 * b in inside and not board[r + 2 * a][c + 2 * b] and board[r + a][c + b] not in ("", own):
                yield f"[{r * size + c} {(r + 2 * a) * size + c + 2 * b}]"
        for a, b in env.forward_dirs[_own(env)]:
            if r + a in inside and c + b in inside and not board[r + a][c + b]:
                yield f"[{r * size + c} {(r + a) * size + c + b}]"


def _lines(env: Any, text: str) -> Iterable[str]:
    board, own, size = _state(env)["board"], "OX"[_own(env)], env.BOARD_N
    for (r, c), a, b in product(_cells(size, size), (-1, 0, 1), (-1, 0, 1)):
        if board[r][c] != own or a == b == 0:
            continue
        far = env._count_pieces_on_line(r, c, a, b)
        end = r + far * a, c + far * b
        between = [board[r + k * a][c + k * b] for k in range(1, far)] if end[0] in range(size) and end[1] in range(size) else None
        if between is not None and set(between) <= {"", own} and board[end[0]][end[1]] != own:
            yield f"[{chr(97 + c)}{size - r}{chr(97 + end[1])}{size - end[0]}]"


def _bandit(env: Any, text: str) -> Iterable[str]:
    return [f"[{button}]" for button in env.buttons]


def _countdown(env: Any, text: str) -> Iterable[str]:
    count = len(re.findall(r"^\s+\[\d+\]", text, re.MULTILINE)) or len(env.numbers)
    return [f"[{i} {j} {op}]" for i, j in permutations(range(count), 2) for op in "+-*/"]


def _crosswords(env: Any, text: str) -> Iterable[str]:
    board = _state(env)["board"]
    blank = [(r, c) for r, c in _cells(len(board), len(board[0])) if board[r][c] == "_"]
    return [f"[{r} {c} {letter}]" for r, c in blank[:10] for letter in "abcdefghijklmnopqrstuvwxyz"]


def _cryptarithm(env: Any, text: str) -> Iterable[str]:
    for letter, digit in product(sorted(env.letters), range(10)):
        if digit not in env.digit_used and (digit or letter not in env.first_letters):
            yield f"[{letter} {digit}]"


def _guess(env: Any, text: str) -> Iterable[str]:
    return [f"[{n}]" for n in range(env.min_number, env.max_number + 1) if n not in env.guessed_numbers]


def _mastermind(env: Any, text: str) -> Iterable[str]:
    own = _state(env)
    numbers, length = range(1, own["num_numbers"] + 1), own["code_length"]
    codes = product(numbers, repeat=length) if own["duplicate_numbers"] else permutations(numbers, length)
    tried = {tuple(entry["guess"]) for entry in own["history"]}
    return [f"[{' '.join(map(str, code))}]" for code in codes if code not in tried]


def _logic(env: Any, text: str) -> Iterable[str]:
    for table in _state(env)["board"].values():
        for row, marks in table.items():
            yield from (f"[{row} {column} {mark}]" for column, old in marks.items() if old is None for mark in "XO")


def _minesweeper(env: Any, text: str) -> Iterable[str]:
    shown = env.revealed
    return [f"[{r} {c}]" for r, c in _cells(len(shown), len(shown[0])) if not shown[r][c]]


def _pegs(env: Any, text: str) -> Iterable[str]:
    board = _state(env)["board"]
    return [f"[{a} {c}]" for a, b, c in env.ALLOWED_MOVES if board[a] and board[b] and not board[c]]


def _rush(env: Any, text: str) -> Iterable[str]:
    return [f"[{name}{way}]" for name in sorted(_state(env)["vehicles"]) for way in "+-"]


def _set(env: Any, text: str) -> Iterable[str]:
    return [f"[{a}, {b}, {c}]" for a, b, c in combinations(range(1, len(_state(env)["board"]) + 1), 3)]


def _slitherlink(env: Any, text: str) -> Iterable[str]:
    size = re.search(r"(\d+)x(\d+)", env._prompt(0, {}) if hasattr(env, "_prompt") else "4x4")
    n = int(size.group(1)) if size else 4
    return [f"[h {r} {c}]" for r, c in _cells(n + 1, n)] + [f"[v {r} {c}]" for r, c in _cells(n, n + 1)]


def _sudoku(env: Any, text: str) -> Iterable[str]:
    board = _state(env)["board"]
    for r, c in _cells(9, 9):
        if board[r][c] == 0:
            box = {board[x][y] for x in range(r // 3 * 3, r // 3 * 3 + 3) for y in range(c // 3 * 3, c // 3 * 3 + 3)}
            seen = {*board[r], *(row[c] for row in board), *box}
            yield from (f"[{r + 1} {c + 1} {digit}]" for digit in range(1, 10) if digit not in seen)


def _cups(env: Any, text: str) -> Iterable[str]:
    return [f"[{k}]" for k in range(env.num_cups)]


def _hanoi(env: Any, text: str) -> Iterable[str]:
    towers = _state(env)["towers"]
    return [f"[{a} {b}]" for a, b in permutations("ABC", 2) if towers[a] and (not towers[b] or towers[b][-1] > towers[a][-1])]


def _battleship(env: Any, text: str) -> Iterable[str]:
    seen = _state(env)["tracking_board"][_own(env)]
    return [f"[{chr(65 + r)}{c}]" for r, c in _cells(len(seen), len(seen[0])) if seen[r][c] == "~"]


def _hand(env: Any, text: str) -> Iterable[str]:
    return [f"[play {k + 1}]" for k in range(len(_state(env)["players"][_own(env)]["hand"]))]


def _chopsticks(env: Any, text: str) -> Iterable[str]:
    hands = _state(env)["hands"]
    own, other = hands[_own(env)], hands[1 - _own(env)]
    attacks = [f"[attack {m} {o}]" for m, o in _cells(2, 2) if own[m] and other[o]]
    return attacks + [f"[split {k} {sum(own) - k}]" for k in range(sum(own) + 1) if [k, sum(own) - k] != list(own)]


def _blotto(env: Any, text: str) -> Iterable[str]:
    fields, units = _state(env)["fields"], env.num_total_units
    names = [field["name"] if isinstance(field, Mapping) else str(field) for field in fields]
    cuts = combinations(range(units + len(names) - 1), len(names) - 1)
    chance = random.Random(0)
    chosen = list(cuts) if len(names) <= 3 else [sorted(chance.sample(range(units + len(names) - 1), len(names) - 1)) for _ in range(MOST)]
    for cut in chosen:
        edges = [-1, *cut, units + len(names) - 1]
        yield "[" + " ".join(f"{name}{edges[k + 1] - edges[k] - 1}" for k, name in enumerate(names)) + "]"


def _columns(env: Any, text: str) -> Iterable[str]:
    return [f"[col {c}]" for c, top in enumerate(_state(env)["board"][0]) if top == "."]


def _poker_words(env: Any, text: str) -> Iterable[str]:
    for token in listed(env, text):
        yield from (token.replace("X", str(n)) for n in (1, 2, 5)) if "X" in token else (token,)


def _golf(env: Any, text: str) -> Iterable[str]:
    swaps = [f"[swap {r} {c}]" for r in (1, 2) for c in (1, 2, 3)]
    return ["[draw]", "[take]", "[discard]", *swaps, *(f"[peek {r} {c}]" for r in (1, 2) for c in (1, 2, 3)), "[knock]"]


def _dilemma(words: Sequence[str]) -> Moves:
    def moves(env: Any, text: str) -> Iterable[str]:
        return TALK if _state(env)["phase"] == "conversation" else words

    return moves


def _memory(env: Any, text: str) -> Iterable[str]:
    board, gone = _state(env)["board"], _state(env)["matched_positions"]
    closed = [cell for cell in _cells(len(board), len(board[0])) if cell not in gone]
    return [f"[{a} {b} {c} {d}]" for (a, b), (c, d) in combinations(closed, 2)]


def _nim(env: Any, text: str) -> Iterable[str]:
    return [f"[{pile} {n}]" for pile, size in enumerate(_state(env)["piles"]) for n in range(1, size + 1)]


def _quantum(env: Any, text: str) -> Iterable[str]:
    return [f"[{a},{b}]" for a, b in combinations(range(9), 2)]


def _ultimate(env: Any, text: str) -> Iterable[str]:
    only = _state(env)["next_micro_board"]
    boards = range(9) if only is None else [only]
    return [f"[{macro} {micro}]" for macro in boards for micro in range(9)]


def _auction(env: Any, text: str) -> Iterable[str]:
    own = _state(env)
    if own["phase"] == "conversation":
        return TALK
    values = own["player_item_values"][_own(env)]
    worth = list(values.values()) if isinstance(values, Mapping) else list(values)
    return [f"[Bid on Item {k}: {int(worth[k] * share)}]" for k in range(len(worth)) for share in (0.3, 0.5, 0.7, 0.9)]


def _trade(env: Any, text: str) -> Iterable[str]:
    goods = ("Wheat", "Wood", "Sheep", "Brick", "Ore")
    offers = [f"[Offer: 1 {a} -> 1 {b}]" for a, b in permutations(goods, 2)]
    return ["[Accept]", "[Deny]", *offers] if _state(env)["current_offer"] else offers


def _facts(env: Any, text: str) -> Iterable[str]:
    return ("[Fact 1]", "[Fact 2]") if _own(env) == 1 and env.state.turn >= env.state.max_turns - 1 else TALK


def _split(env: Any, text: str) -> Iterable[str]:
    offers = [f"I think this is fair. [Propose] ${cents / 100:.2f}" for cents in range(20, 200, 20)]
    return ["That is fine. [Accept]", "That is too little. [Reject]", *offers] if _state(env)["current_proposal"] else offers


def _ultimatum(env: Any, text: str) -> Iterable[str]:
    own = _state(env)
    return [f"[Offer: ${n}]" for n in range(0, own["pool"] + 1, 5)] if own["current_offer"] is None else ("[Accept]", "[Reject]")


def _dice(env: Any, text: str) -> Iterable[str]:
    own = _state(env)
    old, every = own["current_bid"], sum(own["remaining_dice"].values())
    bids = [
        f"[Bid: {n}, {face}]"
        for n in range(max(1, old["quantity"]), every + 1)
        for face in range(max(1, old["face_value"]), 7)
        if n > old["quantity"] or face > old["face_value"]
    ]
    return bids + (["[Call]"] if own["last_bidder_id"] is not None else [])


def _holdem(env: Any, text: str) -> Iterable[str]:
    return ["[Check]", "[Call]", "[Fold]", *(f"[{word} {n}]" for word in ("Bet", "Raise") for n in (20, 50, 100))]


def _goods(env: Any, text: str) -> Iterable[str]:
    return [f"{{{words}}}" for words in TALK] if _state(env)["phase"] == "conversation" else [f"[{n}]" for n in range(0, 21, 5)]


def _market(env: Any, text: str) -> Iterable[str]:
    return [f"{{{words}}}" for words in TALK] if _state(env)["phase"] == "conversation" else ("[E]", "[S]")


def _dilemma3(env: Any, text: str) -> Iterable[str]:
    if _state(env)["phase"] == "conversation":
        return TALK
    one, two = (k for k in range(3) if k != _own(env))
    return [f"[{one} {a}] [{two} {b}]" for a, b in product(("cooperate", "defect"), repeat=2)]


def _conclave(env: Any, text: str) -> Iterable[str]:
    if _state(env)["phase"] != "voting":
        return [" ".join(TALK) * 3]
    return [f"[{k}]" for k in range(env.state.num_players) if k != _own(env)]


def _mafia(env: Any, text: str) -> Iterable[str]:
    talks = "DISCUSSION" in str(_state(env)["phase"]).upper()
    return TALK if talks else [f"[{k}]" for k in _state(env)["alive_players"] if k != _own(env)]


def _recruit(env: Any, text: str) -> Iterable[str]:
    chance = random.Random(0)
    offers = ["[Propose] " + "".join(chance.choice("ABCDE") for _ in range(8)) for _ in range(20)]
    return ["[Accept]", "[Reject]", *offers] if _state(env)["current_proposal"] else offers


def _tak(env: Any, text: str) -> Iterable[str]:
    board = _state(env)["board"]
    return [
        f"[place () {{({r},{c}): [{piece}{_own(env)}]}}]" for r, c in _cells(len(board), len(board)) for piece in "FW" if not board[r][c]
    ]


def _checkers(env: Any, text: str) -> Iterable[str]:
    for (r, c), a, b in product(_cells(8, 8), (-2, -1, 1, 2), (-2, -1, 1, 2)):
        if abs(a) == abs(b) and env._is_valid_move(_own(env), r, c, r + a, c + b):
            yield f"[{r} {c} {r + a} {c + b}]"


def _chess(env: Any, text: str) -> Iterable[str]:
    return [f"[{move.uci()}]" for move in _state(env)["board"].legal_moves]


def _empty(env: Any, text: str) -> Iterable[str]:
    board = _state(env)["board"]
    return [f"[{r * len(board[0]) + c}]" for r, c in _cells(len(board), len(board[0])) if not str(board[r][c]).strip()]


MOVES: dict[str, Moves] = {
    "Game2048": always("[Up]", "[Down]", "[Left]", "[Right]"),
    "Bandit": _bandit,
    "Blackjack": always("[Hit]", "[Stand]"),
    "Countdown": _countdown,
    "Crosswords": _crosswords,
    "Cryptarithm": _cryptarithm,
    "FifteenPuzzle": always(*WAYS),
    "FrozenLake": always(*WAYS),
    "GuessTheNumber": _guess,
    "Hangman": always(*(f"[{letter}]" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    "LightsOut": lambda env, text: [f"[{r} {c}]" for r, c in _cells(len(_state(env)["grid"]), len(_state(env)["grid"]))],
    "LogicPuzzle": _logic,
    "Mastermind": _mastermind,
    "Minesweeper": _minesweeper,
    "PegJump": _pegs,
    "RushHour": _rush,
    "Secretary": always("[accept]", "[continue]"),
    "Set": _set,
    "Slitherlink": _slitherlink,
    "Sokoban": always(*WAYS),
    "Sudoku": _sudoku,
    "ThreeCardMonte": _cups,
    "TowerOfHanoi": _hanoi,
    "Alquerque": _alquerque,
    "Battleship": _battleship,
    "Breakthrough": _breakthrough,
    "Briscola": _hand,
    "GermanWhist": _hand,
    "Checkers": _checkers,
    "Chess": _chess,
    "Chopsticks": _chopsticks,
    "ColonelBlotto": _blotto,
    "ConnectFour": _columns,
    "Golf": _golf,
    "IndianPoker": _poker_words,
    "IteratedMatchingPennies": always("[heads]", "[tails]"),
    "IteratedPrisonersDilemma": _dilemma(("[Cooperate]", "[Defect]")),
    "IteratedStagHunt": _dilemma(("[Stag]", "[Hare]")),
    "IteratedRockPaperScissors": always("[rock]", "[paper]", "[scissors]"),
    "IteratedTwoThirdsAverage": always(*(f"[{n}]" for n in range(0, 101, 5))),
    "LinesOfAction": _lines,
    "MemoryGame": _memory,
    "Nim": _nim,
    "PigDice": always("[roll]", "[hold]"),
    "QuantumTicTacToe": _quantum,
    "ReverseTicTacToe": _empty,
    "SimpleBlindAuction": _auction,
    "SimpleNegotiation": _trade,
    "Tak": _tak,
    "TruthAndDeception": _facts,
    "TwoDollar": _split,
    "UltimateTicTacToe": _ultimate,
    "IteratedUltimatumGame": _ultimatum,
    "UltimateTexasHoldem": always("[check]", "[4x]", "[2x]", "[1x]", "[fold]", "[skip]"),
    "Snake": always(*WAYS),
    "Surround": always(*WAYS),
    "Taboo": always("It is a thing.", "You know it.", "Is it a house?", "Think of nature."),
    "LiarsDice": _dice,
    "Poker": _holdem,
    "PublicGoodsGame": _goods,
    "MarketEntryGame": _market,
    "ThreePlayerIPD": _dilemma3,
    "CharacterConclave": _conclave,
    "SecretMafia": _mafia,
    "NewRecruit": _recruit,
}
PROBED = frozenset(
    {
        "Game2048", "Countdown", "FifteenPuzzle", "FrozenLake", "Sokoban", "RushHour", "GermanWhist", "Golf", "QuantumTicTacToe",
        "UltimateTicTacToe", "UltimateTexasHoldem", "Poker", "Tak", "IndianPoker", "SimpleNegotiation",
    }
)  # fmt: skip


def moves_of(family: str, env: Any, text: str) -> tuple[str, ...]:
    """The moves of the player who is to move; some may not be allowed in a game of `PROBED`."""
    return at_most(MOVES.get(family, listed)(env, text), 10 * MOST if family in PROBED else MOST)
