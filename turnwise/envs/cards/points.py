"""EZPoints and Points24: build a formula from the cards, one piece at a time, that gives 12 or 24.

The faults of the environments that these were modelled on are avoided: 1 and 2 next to each other are not 12, fractions are exact,
nothing is evaluated as code, and every deal has a solution.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any, ClassVar

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.cards.arithmetic import Formula, evaluate, solutions, solvable
from turnwise.envs.cards.base import Anchor, Observed, Played, Rewards, TableEnv, drawn_tasks, listed_tasks
from turnwise.envs.cards.deck import RANKS, SUITS, card_name, draw_card, points, read_cards
from turnwise.envs.cards.pixels import CARD_HEIGHT, CARD_WIDTH, GAP, Image, canvas, lay_out, write, write_wrapped
from turnwise.envs.dice import Dice
from turnwise.util.errors import TurnwiseError

WIN, PENALTY = 10.0, -1.0


class PointsEnv(TableEnv):
    """What the two games share. An action is a number of a card that is left, a sign, or `=`, which ends the game: it is won if the formula
    uses every card once and gives the goal. A piece too many ends the game as lost. A number that is not on the table, and any other text,
    changes nothing. The reward is 10 for the win; with `rewards="gym_cards"` also −1 for a piece that cannot be used and for a lost end."""

    count: ClassVar[int]
    goal: ClassVar[int]
    signs: ClassVar[str]
    brackets: ClassVar[str] = ""
    longest: ClassVar[int]
    depends_on = (*TableEnv.depends_on, "faces_as_ten")
    reward_range = (PENALTY, WIN)

    def __init__(
        self,
        faces_as_ten: bool = True,
        observe: Observed = "text",
        anchor: Anchor = "observation",
        rewards: Rewards = "paper",
        scale: int = 2,
    ):
        super().__init__(observe, anchor, rewards, scale)
        self.faces_as_ten = bool(faces_as_ten)
        self.cards: tuple[str, ...] = ()
        self.numbers: list[int] = []
        self.formula: list[str] = []

    def _start(self, task: Task, seed: int) -> None:
        self.cards = read_cards(task.data.get("cards"), self.count, f"task {task.id!r}")
        self.numbers = [points(card, self.faces_as_ten) for card in self.cards]
        self.formula = []

    @property
    def left(self) -> list[str]:
        """The numbers that are not used yet, in the order of the cards."""
        left = list(map(str, self.numbers))
        for piece in self.formula:
            if piece in left:
                left.remove(piece)
        return left

    def _act(self, word: str) -> Played:
        if word == "=":
            return self._end(evaluate(self.formula) == self.goal and not self.left)
        if word not in self._actions():
            return Played(self._penalty, info={"understood": False})
        if len(self.formula) >= self.longest:
            return self._end(False)
        self.formula.append(word)
        return Played()

    def _end(self, won: bool) -> Played:
        value = evaluate(self.formula)
        return Played(WIN if won else self._penalty, True, won, {"value": "none" if value is None else str(value)})

    @property
    def _penalty(self) -> float:
        return PENALTY if self.rewards == "gym_cards" else 0.0

    def _played(self) -> list[str]:
        return self.formula

    def _replay(self, played: list[str]) -> None:
        for piece in played:  # a formula is its own history: each piece was an action
            if piece == "=" or self._act(piece) != Played():
                raise ValueError(f"{piece!r} cannot have been played here")

    def _words(self) -> str:
        cards = ", ".join(f"{card_name(card)} ({number})" for card, number in zip(self.cards, self.numbers, strict=True))
        return f"Cards: {cards}\nFormula: {' '.join(self.formula)}".rstrip()

    def _picture(self) -> Image:
        image = canvas(CARD_HEIGHT + 4 * GAP + 32, GAP + 4 * (CARD_WIDTH + GAP))
        lay_out(image, self.cards, GAP)
        write(image, "FORMULA", CARD_HEIGHT + 2 * GAP, GAP)
        write_wrapped(image, self.formula, CARD_HEIGHT + 2 * GAP + 10, GAP)
        return image

    def _state(self) -> str:
        return " ".join([*map(str, sorted(self.numbers)), "|", *self.formula])

    def _actions(self) -> tuple[str, ...]:
        return (*dict.fromkeys(self.left), *self.signs, *self.brackets, "=")

    def solutions(self, cards: tuple[str, ...]) -> tuple[Formula, ...]:
        """All formulas that win with these cards, shortest first."""
        return solutions(tuple(sorted(points(card, self.faces_as_ten) for card in cards)), self.signs, self.goal)

    def expert(self, task: Task) -> list[str]:
        """A shortest formula that wins, and `=`."""
        if not (found := self.solutions(read_cards(task.data.get("cards"), self.count, f"task {task.id!r}"))):
            raise TurnwiseError(f"task {task.id!r}: no formula of these cards gives {self.goal}")
        return [*found[0], "="]

    def expert_action(self) -> str | None:
        """The next piece of a shortest formula that starts like the current one; None if there is no such formula: a piece that was added
        cannot be taken back."""
        begun = tuple(self.formula)
        fitting = next((found for found in self.solutions(self.cards) if found[: len(begun)] == begun), None)
        return None if fitting is None else "=" if fitting == begun else fitting[len(begun)]

    def scripted_action(self) -> str:
        """Adds up all the cards."""
        if not self.left:
            return "="
        return "+" if len(self.formula) % 2 else next(iter(self._actions()))


class EZPointsEnv(PointsEnv):
    """Two cards whose sum or product is 12."""

    instructions = (
        "You have two cards. Build a formula that uses the number of each card exactly once and gives 12. Each action adds one piece to "
        "it: a number, + or *. A jack, queen or king counts 10, an ace 1. When the formula is complete, the action = ends the game."
    )
    name = "ezpoints"
    count, goal, signs, longest = 2, 12, "+*", 5
    max_turns = 8

    def __init__(self, observe: Observed = "text", anchor: Anchor = "observation", rewards: Rewards = "paper", scale: int = 2):
        super().__init__(True, observe, anchor, rewards, scale)

    def tasks(self, split: str = "train") -> TaskSet:
        """Every deal of two cards of one pack that can be won, in one split each."""
        return _all_deals(split)


@lru_cache(maxsize=4)
def _all_deals(split: str) -> TaskSet:
    pack = [suit + rank for suit, rank in product(SUITS, RANKS)]
    deals = [(one, two) for one, two in product(pack, pack) if one != two]
    good = [deal for deal in deals if solvable(tuple(sorted(map(points, deal))), EZPointsEnv.signs, EZPointsEnv.goal)]
    return listed_tasks("ezpoints", split, {" ".join(deal): {"goal": "Make 12.", "cards": list(deal)} for deal in good})


class Points24Env(PointsEnv):
    """Four cards that can be joined to 24 with + - * / and brackets. `faces_as_ten=False` counts jack, queen and king 11, 12 and 13."""

    instructions = (
        "You have four cards. Build a formula that uses the number of each card exactly once and gives 24. Each action adds one piece to "
        "it: a number, one of + - * / or a bracket. An ace counts 1. When the formula is complete, the action = ends the game."
    )
    name = "points24"
    count, goal, signs, brackets, longest = 4, 24, "+-*/", "()", 20
    max_turns = 20

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The first `n` deals that can be won. The four numbers decide the split: no other order or suits of a train deal are valid."""

        def draw(dice: Dice) -> tuple[str, dict[str, Any]] | None:
            cards = [draw_card(dice) for _ in range(self.count)]
            numbers = tuple(sorted(points(card, self.faces_as_ten) for card in cards))
            if len(set(cards)) < self.count or not solvable(numbers, self.signs, self.goal):
                return None
            return " ".join(map(str, numbers)), {"goal": "Make 24.", "cards": cards}

        return drawn_tasks("points24", split, n, draw, f"{self.faces_as_ten}")
