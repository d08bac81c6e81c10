"""Blackjack with hit and stand against a dealer who stands on 17, from an infinite pack.

The task is the open cards: two of the player and one of the dealer. All that is hidden (the dealer's second card, every card that is
drawn) comes from the seed. The player's cards and the dealer's come from different dice, so what the dealer holds does not depend on what
the player did: the attempts of a group, which share a seed, meet the same dealer.

The expert knows the odds and not the cards. Its table is computed, not copied: the value of standing and hitting for every total and every
card of the dealer, exactly, for the rewards that are played for. With rewards of 1, 0 and −1 that is what the books call basic strategy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.cards.base import Anchor, Observed, Played, Rewards, TableEnv, drawn_tasks
from turnwise.envs.cards.deck import card_name, draw_card, points, read_cards
from turnwise.envs.cards.pixels import CARD_HEIGHT, CARD_WIDTH, GAP, Image, canvas, lay_out, write
from turnwise.envs.dice import Dice

GOAL = "Get closer to 21 than the dealer without going over."
DEALER_STANDS, LIMIT = 17, 21
ODDS = {number: 4 if number == 10 else 1 for number in range(1, 11)}  # of thirteen: 10, jack, queen and king count 10


class BlackjackEnv(TableEnv):
    """The actions are hit and stand; any other text changes nothing. The reward is 1 for a win, otherwise 0; with `rewards="gym_cards"` a
    loss costs 1. A draw is not a win. `anchor="state"` is the total, whether an ace counts 11, and the dealer's card: hands that are
    played alike."""

    instructions = (
        "You play blackjack. Number cards count their number, a jack, queen or king 10, an ace 11 or, where that would be too much, 1. "
        "With more than 21 you lose at once. The action hit takes another card, the action stand ends your turn; the dealer then draws up "
        "to 17 or more. The higher total wins."
    )
    name = "blackjack"
    reward_range = (-1.0, 1.0)
    max_turns = 15

    def __init__(self, observe: Observed = "text", anchor: Anchor = "observation", rewards: Rewards = "paper", scale: int = 2):
        super().__init__(observe, anchor, rewards, scale)
        self.player: list[str] = []
        self.dealer: list[str] = []
        self.ended = False

    def tasks(self, split: str = "train", n: int | None = None) -> TaskSet:
        """The first `n` deals. The three open cards decide the split, whatever the order of the player's two."""
        return drawn_tasks("blackjack", split, n, _deal)

    def _start(self, task: Task, seed: int) -> None:
        cards = read_cards(task.data.get("cards"), 3, f"task {task.id!r}")
        self.player, self.dealer = list(cards[:2]), [cards[2]]
        self.ended = False
        self._deck = Dice(f"blackjack player {task.id} {seed}")
        self._dealers_deck = Dice(f"blackjack dealer {task.id} {seed}")

    def _act(self, word: str) -> Played:
        if word == "hit":
            self.player.append(draw_card(self._deck))
            return self._result(lost=True) if total(self.player)[0] > LIMIT else Played()
        if word != "stand":
            return Played(info={"understood": False})
        self.dealer.append(draw_card(self._dealers_deck))
        while total(self.dealer)[0] < DEALER_STANDS:
            self.dealer.append(draw_card(self._dealers_deck))
        return self._result()

    def _result(self, lost: bool = False) -> Played:
        self.ended = True
        mine, theirs = total(self.player)[0], total(self.dealer)[0]
        won = not lost and (theirs > LIMIT or mine > theirs)
        result = "won" if won else "draw" if not lost and mine == theirs else "lost"
        return Played(payoffs(self.rewards)[result], True, won, {"result": result, "total": mine, "dealer": theirs})

    def _played(self) -> int:
        return len(self.player)

    def _replay(self, played: int) -> None:
        """Draw the player's cards again, from the same dice. The dealer draws only at the end."""
        while len(self.player) < played:
            if self._act("hit").done:
                raise ValueError(f"a hand of {played} cards has more than {LIMIT}")

    def _words(self) -> str:
        mine, soft = total(self.player)
        ace = " with an ace counting 11" if soft else ""
        lines = [f"Dealer: {_names(self.dealer)}", f"You: {_names(self.player)}", f"Your total: {mine}{ace}"]
        if self.ended:
            lines.append(f"Dealer's total: {total(self.dealer)[0]}" if len(self.dealer) > 1 else "You have more than 21.")
        return "\n".join(lines)

    def _picture(self) -> Image:
        image = canvas(2 * (CARD_HEIGHT + 16), GAP + 4 * (CARD_WIDTH + GAP))
        hidden: list[str | None] = [None] if len(self.dealer) == 1 else []
        for top, who, cards in ((0, "DEALER", [*self.dealer, *hidden]), (CARD_HEIGHT + 15, "PLAYER", [*self.player])):
            write(image, who, top + 4, GAP)
            lay_out(image, cards, top + 13)
        return image

    def _state(self) -> str:
        mine, soft = total(self.player)
        ended = f" {total(self.dealer)[0]} end" if self.ended else ""
        return f"{mine}{' soft' if soft else ''} against {points(self.dealer[0])}{ended}"

    def _actions(self) -> tuple[str, ...]:
        return ("hit", "stand")

    def expert_action(self) -> str | None:
        """The action with the highest expected reward; None at the end."""
        if self.ended:
            return None
        mine, soft = total(self.player)
        return best_action(mine, soft, points(self.dealer[0]), self.rewards)

    def scripted_action(self) -> str:
        """Plays as the dealer does: draws below 17."""
        return "hit" if total(self.player)[0] < DEALER_STANDS else "stand"


def _deal(dice: Dice) -> tuple[str, dict[str, Any]]:
    cards = [draw_card(dice) for _ in range(3)]
    return " ".join([*sorted(cards[:2]), cards[2]]), {"goal": GOAL, "cards": cards}


def _names(cards: list[str]) -> str:
    return ", ".join(map(card_name, cards))


def total(cards: list[str]) -> tuple[int, bool]:
    """The total of a hand, and whether it is soft: an ace counts 11."""
    numbers = list(map(points, cards))
    soft = 1 in numbers and sum(numbers) + 10 <= LIMIT
    return sum(numbers) + 10 * soft, soft


def payoffs(rewards: str) -> dict[str, float]:
    return {"won": 1.0, "draw": 0.0, "lost": -1.0 if rewards == "gym_cards" else 0.0}


def after(mine: int, soft: bool, number: int) -> tuple[int, bool]:
    """A total with one more card."""
    if number == 1 and mine + 11 <= LIMIT:
        return mine + 11, True
    mine += number
    return (mine - 10, False) if soft and mine > LIMIT else (mine, soft)


@cache
def dealer_odds(theirs: int, soft: bool) -> dict[int, float]:
    """The probability of each final total of the dealer; 22 stands for all totals above 21."""
    if theirs >= DEALER_STANDS:
        return {min(theirs, LIMIT + 1): 1.0}
    odds: dict[int, float] = {}
    for number, weight in ODDS.items():
        for end, chance in dealer_odds(*after(theirs, soft, number)).items():
            odds[end] = odds.get(end, 0.0) + chance * weight / 13
    return odds


@cache
def value_of_standing(mine: int, shown: int, rewards: str) -> float:
    pays = payoffs(rewards)
    ends = dealer_odds(*after(0, False, shown))
    return sum(chance * pays["won" if end > LIMIT or mine > end else "draw" if mine == end else "lost"] for end, chance in ends.items())


@cache
def value_of_hitting(mine: int, soft: bool, shown: int, rewards: str) -> float:
    worth = 0.0
    for number, weight in ODDS.items():
        then, still_soft = after(mine, soft, number)
        better = payoffs(rewards)["lost"] if then > LIMIT else best_value(then, still_soft, shown, rewards)
        worth += weight / 13 * better
    return worth


def best_value(mine: int, soft: bool, shown: int, rewards: str) -> float:
    return max(value_of_standing(mine, shown, rewards), value_of_hitting(mine, soft, shown, rewards))


def best_action(mine: int, soft: bool, shown: int, rewards: str = "paper") -> str:
    """Hit or stand, whichever is worth more against the dealer's open card (1 to 10)."""
    return "hit" if value_of_hitting(mine, soft, shown, rewards) > value_of_standing(mine, shown, rewards) else "stand"
