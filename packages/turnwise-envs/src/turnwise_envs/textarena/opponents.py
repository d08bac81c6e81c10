"""Who plays the other seats: a random player, the game's expert, a simple rule, or a model behind an OpenAI-style server.

An opponent chooses a move from what its seat sees. The random player's choice is a hash of the seed and the number of the move, so it does
not depend on what else is played. A server keeps the conversation of its seat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnwise.util.control_strings import for_server
from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise.util.seeds import derive
from turnwise.util.transport import Failure, Transport
from turnwise_envs.textarena.match import Match
from turnwise_envs.textarena.moves import TALK
from turnwise_envs.textarena.solvers import EXPERTS, RULES

SELF, RANDOM, EXPERT, SCRIPTED = "self", "random", "expert", "scripted"
KINDS = (RANDOM, EXPERT, SCRIPTED, SELF)
TRIES, PAUSE = 3, 0.5


class Opponent(Protocol):
    """Chooses the move of a seat. `heard`: a move that was made earlier, when a match is played again."""

    def move(self, match: Match, text: str, seed: int) -> str: ...

    def heard(self, text: str, said: str) -> None: ...


def check_kind(kind: str, what: str, family: str, several: bool) -> None:
    """Raises an error for an opponent that the game does not have."""
    if kind.startswith(("http://", "https://")):
        return
    if kind not in KINDS:
        raise unknown_name(f"{what} of textarena (or the address of a server):", kind, KINDS)
    known = {EXPERT: EXPERTS, SCRIPTED: RULES}.get(kind)
    if several and known is not None and family not in known:
        raise TurnwiseError(f"textarena: {what} = {kind!r}: {family} has none. There is one for: {', '.join(sorted(known))}")


def opponent(kind: str, noise: float, model: str, key_variable: str) -> Opponent:
    """An opponent by its kind, which was checked before."""
    if kind.startswith(("http://", "https://")):
        key = os.environ.get(key_variable, "").strip() if key_variable else ""
        return Server(Transport(kind, key, 120.0), model)
    return Player({EXPERT: EXPERTS, SCRIPTED: RULES}.get(kind, {}), noise)


@dataclass
class Player:
    """The moves of a table of rules, and random ones where it knows none, or in a share `noise` of the moves."""

    rules: dict[str, Callable[[Any], str | None]]
    noise: float = 0.0

    def move(self, match: Match, text: str, seed: int) -> str:
        rule = self.rules.get(match.game.family)
        if rule is not None and derive(seed, "noise") >= self.noise * 2**63 and (found := match.ask(rule)) is not None:
            return found
        moves = match.moves or TALK
        return moves[derive(seed, "move") % len(moves)]

    def heard(self, text: str, said: str) -> None:
        """Nothing is remembered."""


@dataclass
class Server:
    """A model that is asked over HTTP, in one conversation per match."""

    transport: Transport
    model: str
    messages: list[dict[str, str]] = field(default_factory=list)

    def move(self, match: Match, text: str, seed: int) -> str:
        self.messages.append({"role": "user", "content": text})
        body = {"model": self.model, "messages": for_server(self.messages), "max_tokens": 512, "seed": seed % 2**31}
        said = self._asked(body)
        self.messages.append({"role": "assistant", "content": said})
        return said

    def heard(self, text: str, said: str) -> None:
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": said}]

    def _asked(self, body: dict[str, Any]) -> str:
        for attempt in range(TRIES):
            try:
                found = self.transport.post("chat/completions", body)
                return str(found["choices"][0]["message"]["content"] or "")
            except (LookupError, TypeError):
                raise TurnwiseError("textarena: the opponent's server gave an answer without a message") from None
            except Failure as error:
                if not error.passing or attempt == TRIES - 1:
                    raise TurnwiseError(f"textarena: the opponent's server failed: {error}") from None
                time.sleep(error.retry_after or PAUSE * 2**attempt)
        raise AssertionError
