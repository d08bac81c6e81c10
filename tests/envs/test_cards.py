"""Cards and numbers: exact arithmetic, deals that can be won, the odds of blackjack, rewards, splits, pictures."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.envs.cards.arithmetic import evaluate, solutions, solvable
from turnwise.envs.cards.blackjack import BlackjackEnv, best_action, best_value, total
from turnwise.envs.cards.deck import points
from turnwise.envs.cards.numberline import NumberLineEnv
from turnwise.envs.cards.points import EZPointsEnv, Points24Env
from turnwise.envs.registry import split_sizes

GAMES = ("numberline", "ezpoints", "points24", "blackjack")
SIGNS = "+-*/"


def deal(*cards: str) -> Task:
    return Task("own", "train", {"cards": list(cards)})


# Arithmetic

expressions = st.recursive(
    st.integers(1, 13).map(lambda number: [str(number)]),
    lambda parts: st.tuples(parts, st.sampled_from(SIGNS), parts, st.booleans()).map(
        lambda t: ["(", *t[0], t[1], *t[2], ")"] if t[3] else [*t[0], t[1], *t[2]]
    ),
    max_leaves=8,
)


@given(expressions)
def test_formulas_have_the_value_that_python_gives_their_fractions(pieces: list[str]) -> None:
    source = "".join(f"Fraction({piece})" if piece.isdecimal() else piece for piece in pieces)
    try:
        expected: Fraction | None = eval(source, {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    assert evaluate(pieces) == expected


@given(st.lists(st.one_of(st.sampled_from([*"+-*/()=", "1", "2", "10"]), st.text(max_size=3)), max_size=24))
def test_no_pieces_make_the_parser_fail_and_odd_ones_have_no_value(pieces: list[str]) -> None:
    value = evaluate(pieces)
    if not all(piece in (*"+-*/()",) or piece.isdecimal() for piece in pieces):
        assert value is None


@pytest.mark.parametrize("pieces", [["1", "2"], ["-", "3"], ["(", "3"], ["3", ")"], [], ["(", ")"], ["4", "/", "(", "2", "-", "2", ")"]])
def test_what_is_no_formula_has_no_value(pieces: list[str]) -> None:
    assert evaluate(pieces) is None


def test_of_all_fours_from_one_to_ten_566_make_24() -> None:
    """A well-known count: 715 sets of four numbers, 566 of them solvable."""
    fours = list(combinations_with_replacement(range(1, 11), 4))
    assert len(fours) == 715
    assert sum(solvable(four, SIGNS, 24) for four in fours) == 566


@given(st.lists(st.integers(1, 10), min_size=2, max_size=4), st.sampled_from([12, 24]))
@settings(max_examples=40)
def test_solutions_use_every_number_once_and_give_the_goal(numbers: list[int], goal: int) -> None:
    found = solutions(tuple(numbers), SIGNS, goal)
    assert bool(found) is solvable(tuple(numbers), SIGNS, goal)
    for pieces in found:
        assert evaluate(pieces) == goal
        assert Counter(piece for piece in pieces if piece.isdecimal()) == Counter(map(str, numbers))


# EZPoints and Points24


def play(env: Any, task: Task, actions: list[str], seed: int = 0) -> Any:
    env.reset(task, seed)
    for action in actions:
        last = env.step(action)
    return last


@pytest.mark.parametrize("name", ["numberline", "ezpoints", "points24"])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_every_deal_can_be_won_and_the_expert_wins_it(name: str, split: str) -> None:
    env: Any = tw.make(name)
    found = tw.tasks(name, split)
    for task in found.panel(min(25, len(found))):
        last = play(env, task, env.expert(task))
        assert last.done and last.success and last.reward == (1 if name == "numberline" else 10)
        assert len(env.expert(task)) <= env.max_turns


def test_a_formula_wins_only_with_every_card_once() -> None:
    env = EZPointsEnv()
    assert play(env, deal("H2", "SK"), ["2", "+", "10", "="]).success
    assert play(env, deal("H2", "S6"), ["2", "*", "6", "="]).success
    assert not play(env, deal("H2", "S6"), ["6", "+", "6", "="]).success, "the second six is not on the table"
    assert not play(env, deal("HA", "S2"), ["1", "2", "="]).success, "1 and 2 side by side are not 12"
    assert not play(Points24Env(), deal("H4", "S6", "DA", "CA"), ["4", "*", "6", "="]).success, "two aces are left over"
    assert play(Points24Env(), deal("H4", "S6", "DA", "CA"), ["4", "*", "6", "*", "1", "/", "1", "="]).success


def test_pieces_that_cannot_be_used_change_nothing() -> None:
    env = Points24Env()
    before = env.reset(deal("H4", "S6", "DA", "CA"))
    for odd in ("7", "24", "x", "", "4 * 6", "eval(1)", "٤"):
        assert env.step(odd).observation == before


def test_a_formula_that_grows_too_long_is_lost() -> None:
    env = EZPointsEnv()
    env.reset(deal("H2", "SK"))
    assert [env.step("+").done for _ in range(6)] == [False] * 5 + [True]


def test_penalties_are_only_in_the_rewards_of_gym_cards() -> None:
    for rewards, lost in (("paper", 0.0), ("gym_cards", -1.0)):
        env = EZPointsEnv(rewards=rewards)  # type: ignore[arg-type]
        assert play(env, deal("H2", "SK"), ["9"]).reward == lost
        assert play(env, deal("H2", "SK"), ["2", "="]).reward == lost
        assert play(env, deal("H2", "SK"), ["2"]).reward == 0.0
        assert play(env, deal("H2", "SK"), ["2", "+", "10", "="]).reward == 10.0


def test_the_expert_goes_on_from_what_was_begun_or_says_that_it_cannot() -> None:
    env = Points24Env()
    env.reset(deal("H8", "S3", "D8", "C3"))
    env.step("8")
    rest = []
    while (piece := env.expert_action()) != "=":
        rest.append(piece)
        env.step(str(piece))
    assert rest == ["/", "(", "3", "-", "8", "/", "3", ")"] and env.step("=").success
    env.reset(deal("H8", "S3", "D8", "C3"))
    env.step("+")
    assert env.expert_action() is None


def test_faces_count_ten_or_more() -> None:
    king = deal("HK", "SA", "DJ", "CA")
    env = Points24Env(faces_as_ten=False)
    assert play(env, king, ["13", "+", "11", "+", "1", "-", "1", "="]).success
    assert "13" not in Points24Env().reset(king).actions


def test_the_numbers_of_a_valid_deal_are_never_those_of_a_train_deal() -> None:
    numbers = {
        split: {tuple(sorted(map(points, task.data["cards"]))) for task in tw.tasks("points24", split, n=300)}
        for split in ("train", "valid", "test")
    }
    assert not numbers["train"] & numbers["valid"] and not numbers["train"] & numbers["test"] and not numbers["valid"] & numbers["test"]


# NumberLine


def test_number_line_rewards_nearer_and_the_target() -> None:
    env = NumberLineEnv()
    start = Task("own", "train", {"start": 1, "target": 3})
    env.reset(start)
    assert [env.step(action).reward for action in ("+", "-", "?", "-", "-", "+", "+")] == [0.0, -1.0, -1.0, -1.0, -1.0, 0.0, 0.0]
    assert env.step("+").reward == 1.0


def test_number_line_has_every_pair_in_one_split() -> None:
    pairs = [(task.data["start"], task.data["target"]) for split in ("train", "valid", "test") for task in tw.tasks("numberline", split)]
    assert sorted(pairs) == [(a, b) for a in range(6) for b in range(6) if a != b]


# Blackjack


def test_the_best_play_is_the_basic_strategy_of_the_books() -> None:
    columns = [*range(2, 11), 1]
    hard = {total: "".join(best_action(total, False, shown, "gym_cards")[0] for shown in columns) for total in range(8, 20)}
    assert hard[8] == hard[11] == "h" * 10
    assert hard[12] == "hhssshhhhh"
    assert hard[13] == hard[14] == hard[15] == hard[16] == "ssssshhhhh"
    assert hard[17] == hard[19] == "s" * 10
    soft = {total: "".join(best_action(total, True, shown, "gym_cards")[0] for shown in columns) for total in range(13, 21)}
    assert soft[13] == soft[17] == "h" * 10
    assert soft[18] == "ssssssshhh"
    assert soft[19] == soft[20] == "s" * 10


@pytest.mark.parametrize("rewards", ["paper", "gym_cards"])
def test_the_expert_earns_what_its_table_promises(rewards: str) -> None:
    env = BlackjackEnv(rewards=rewards)  # type: ignore[arg-type]
    promised, earned = 0.0, []
    for number, task in enumerate(env.tasks("train", n=3000)):
        env.reset(task, number)
        promised += best_value(*total(env.player), points(env.dealer[0]), rewards) / 3000
        while (advice := env.expert_action()) is not None:
            reward = env.step(advice).reward
        earned.append(reward)
    assert abs(sum(earned) / 3000 - promised) < 3 * np.std(earned) / math.sqrt(3000)


def test_the_dealer_holds_the_same_whatever_the_player_did() -> None:
    env = BlackjackEnv()
    task = deal("H2", "S2", "D6")
    play(env, task, ["stand"], seed=5)
    quick = list(env.dealer)
    play(env, task, ["hit", "stand"], seed=5)
    assert env.dealer == quick
    hands = set()
    for seed in range(20):
        play(env, task, ["stand"], seed=seed)
        hands.add(tuple(env.dealer))
    assert len(hands) > 10, "another seed, other cards"


def test_a_draw_is_no_win_and_only_a_loss_is_punished() -> None:
    results = {}
    for rewards in ("paper", "gym_cards"):
        env = BlackjackEnv(rewards=rewards)  # type: ignore[arg-type]
        for seed in range(200):
            last = play(env, deal("HT", "S8", "D6"), ["stand"], seed)
            results[rewards, last.info["result"]] = (last.reward, last.success)
    assert results == {
        ("paper", "won"): (1.0, True), ("paper", "draw"): (0.0, False), ("paper", "lost"): (0.0, False),
        ("gym_cards", "won"): (1.0, True), ("gym_cards", "draw"): (0.0, False), ("gym_cards", "lost"): (-1.0, False),
    }  # fmt: skip


def test_hands_that_play_alike_are_one_state() -> None:
    env = BlackjackEnv(anchor="state")
    assert env.reset(deal("HT", "S6", "D9")).anchor == env.reset(deal("C7", "D9", "H9")).anchor
    assert env.reset(deal("HA", "S5", "D9")).anchor != env.reset(deal("C7", "D9", "H9")).anchor, "an ace that counts 11 is another state"


# All of them


@pytest.mark.parametrize("name", GAMES)
def test_splits_are_fixed_and_share_nothing(name: str) -> None:
    sets = {split: tw.tasks(name, split)[:500] for split in ("train", "valid", "test")}
    assert not sets["train"].overlap(sets["valid"]) and not sets["train"].overlap(sets["test"]) and not sets["valid"].overlap(sets["test"])
    assert tw.tasks(name, "valid")[:6].hash == HASHES[name]
    assert all(size in (None, len(tw.tasks(name, split))) for split, size in split_sizes(name).items())


HASHES = {
    "numberline": "371deb4485fc74e46f6f4aaa46cb5ac2",
    "ezpoints": "696aa6ed47396fdf32fc1a154729f4cf",
    "points24": "be45cd3704782ecb2ac540d24ae45ad6",
    "blackjack": "35ddac595aad43594d8b3b43f5a7f2bd",
}


@pytest.mark.parametrize("name", GAMES)
def test_pictures_show_the_state_and_the_text_beside_them_does_not(name: str) -> None:
    env: Any = tw.make(name, observe="image", scale=1)
    small, large = env.reset(tw.tasks(name, "train")[0]), tw.make(name, observe="image", scale=3).reset(tw.tasks(name, "train")[0])
    assert small.images[0].dtype == np.uint8 and small.images[0].ndim == 3
    assert large.images[0].shape == (3 * small.images[0].shape[0], 3 * small.images[0].shape[1], 3)
    assert not any(letter.isdigit() for letter in small.text)
    advice = env.expert_action()
    then = env.step(advice).observation
    assert then.text == small.text and then.anchor != small.anchor


@pytest.mark.parametrize("cards", [None, "H2", ["H2"], ["H2", "X9"], ["H2", 3]])
def test_a_task_that_is_no_deal_says_so(cards: Any) -> None:
    with pytest.raises(tw.TurnwiseError, match="card"):
        EZPointsEnv().reset(Task("own", "train", {"cards": cards}))
