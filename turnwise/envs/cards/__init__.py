"""Cards and numbers: NumberLine, EZPoints, Points24 and Blackjack, as words or as pictures."""

from __future__ import annotations

from turnwise.envs.registry import register

register(
    "numberline",
    "turnwise.envs.cards.numberline:NumberLineEnv",
    summary="walk to a target on the number line; text or pictures",
    splits={"train": 18, "valid": 6, "test": 6},
    max_turns=10,
)

register(
    "ezpoints",
    "turnwise.envs.cards.points:EZPointsEnv",
    summary="join the numbers of two cards to 12, piece by piece; text or pictures",
    splits={"train": 180, "valid": 60, "test": 60},
    max_turns=8,
)

register(
    "points24",
    "turnwise.envs.cards.points:Points24Env",
    summary="join the numbers of four cards to 24, piece by piece; text or pictures",
    splits={"train": None, "valid": None, "test": None},
    max_turns=20,
)

register(
    "blackjack",
    "turnwise.envs.cards.blackjack:BlackjackEnv",
    summary="hit or stand against a dealer; text or pictures",
    splits={"train": None, "valid": None, "test": None},
    max_turns=15,
)
