"""What a player might say: a seeded mix of sensible, nearly right and senseless commands.

The mix is drawn from the oracle's own admissible commands, so that it reaches deep states; kinds of commands are drawn before commands,
because a plain draw would nearly always walk to another receptacle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

SPACES = [" ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2009", "\x1c", "\u200b", "\ufeff"]
VERBS = ["go", "take", "move", "put", "open", "close", "use", "examine", "heat", "cool", "clean", "slice", "look"]
# What shows the effect of the command before it, and what leads to rare states.
TELLING = {
    "move": ("look", "examine"), "take": ("examine", "look"), "heat": ("examine", "clean"), "cool": ("examine", "clean"),
    "clean": ("examine",), "slice": ("move", "take"), "open": ("take", "move"), "close": ("open", "examine"), "use": ("take", "look"),
}  # fmt: skip
USEFUL = ("fridge", "microwave", "sinkbasin", "knife", "lamp", "apple", "tomato", "potato", "bread", "lettuce", "mug")
NONSENSE = [
    "", " ", "restart", "quit", "undo", "save", "load", "score", "restore", "verbose", "again", "g", "wait", "z", "x", "l", "i", "inv",
    "look around", "look at fridge 1", "LOOK", "Look", "look.", "look;look", "look\x00", "inventory now",
    "take all", "drop", "open", "close", "go",
    "go to", "go to nowhere 1", "go to agent1", "examine agent1", "go to loc 1", "take", "put apple 1 in/on fridge 1", "move", "use",
    "open the pod bay doors", "slice", "heat", "help me", "help", "None", "{r}", "{0}", "%s",
    "go to {r.name}", "#look.feedback#", "打开 柜子 1",
    "🍎", "tаke apple 1 from fridge 1", "ＬＯＯＫ", "look" * 500, "\ud800",
]  # fmt: skip


class Player:
    """Draws commands for one game. `walkthrough` is followed in order, at random moments, whether or not it fits."""

    def __init__(self, rng: random.Random, walkthrough: Sequence[str]):
        self.rng = rng
        self.walkthrough = list(walkthrough)
        self.seen: list[str] = []
        self.last = ""

    def next(self, actions: Sequence[str]) -> str:
        self.last = self._draw(actions)
        return self.last

    def _draw(self, actions: Sequence[str]) -> str:
        self.seen.extend(action for action in actions if action not in self.seen)
        draw = self.rng.random()
        if draw < 0.15 and self.walkthrough:
            return self.walkthrough.pop(0)
        if draw < 0.65:
            return self._admissible(actions)
        if draw < 0.75:
            return self.rng.choice(self.seen)
        if draw < 0.92:
            return self._near_miss(self._admissible(actions) if self.rng.random() < 0.7 else self.rng.choice(self.seen))
        if draw < 0.98:
            return self.rng.choice(NONSENSE)
        return "".join(chr(self.rng.choice([*range(32, 127), *range(0xA0, 0x300), 0x1F600])) for _ in range(self.rng.randrange(1, 30)))

    def _admissible(self, actions: Sequence[str]) -> str:
        for verb, words in TELLING.items():
            fitting = [action for action in actions if action.startswith(words)]
            if self.last.startswith(verb) and fitting and self.rng.random() < 0.5:
                return self.rng.choice(fitting)
        verb = self.rng.choice(sorted({action.split()[0] for action in actions}))
        choices = [action for action in actions if action.split()[0] == verb]
        useful = [action for action in choices if any(word in action for word in USEFUL)]
        return self.rng.choice(useful if useful and self.rng.random() < 0.5 else choices)

    def _near_miss(self, command: str) -> str:
        rng, words = self.rng, command.split()
        change = rng.randrange(9)
        if change == 0:
            return rng.choice(SPACES) + command + rng.choice(SPACES)
        if change == 1:
            return command.replace(" ", rng.choice(SPACES), 1)
        if change == 2:
            return rng.choice([command.upper(), command.capitalize(), command.title(), command.swapcase()])
        if change == 3:
            words[-1] = str(rng.randrange(0, 25))
        elif change == 4:
            words.pop(rng.randrange(len(words)))
        elif change == 5:
            words[0] = rng.choice(VERBS)
        elif change == 6:
            other = rng.choice(self.seen).split()
            words = words[: len(words) // 2] + other[len(other) // 2 :]
        elif change == 7:
            words.insert(rng.randrange(len(words) + 1), rng.choice(["the", "a", "1", "in", "on"]))
        else:
            return command + rng.choice([".", "!", ";", ",", "s", "\x00", "?"])
        return " ".join(words)
