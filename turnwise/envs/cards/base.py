"""What the card games have in common: text or pictures, anchors, and the rules of the environment protocol.

A game defines what an action does (`_act`), the table as text (`_words`) and as a picture (`_picture`), its state (`_state`), and what a
snapshot keeps of it (`_played`, `_replay`). It only sees stripped text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, ClassVar, Literal

from turnwise.data.tasks import Task, TaskSet
from turnwise.envs.base import Observation, Transition
from turnwise.envs.cards.pixels import LARGEST_SCALE, Image, enlarged
from turnwise.envs.dice import SPLITS, Dice, check_split, endless_tasks, part_of_all
from turnwise.envs.episodes import EpisodeEnv, check_choice, checked_count
from turnwise.util.errors import TurnwiseError

Observed = Literal["text", "image", "both"]
Anchor = Literal["observation", "state"]
Rewards = Literal["paper", "gym_cards"]

ATTEMPTS = 10_000


@dataclass(frozen=True)
class Played:
    """The result of an action."""

    reward: float = 0.0
    done: bool = False
    success: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class TableEnv(EpisodeEnv):
    """`observe`: "text", "image" (an RGB array) or "both"; `scale` enlarges the picture. `anchor`: "observation" (the text, or a hash of
    the picture if there is no text) or "state" (what matters for the rest of the game). `rewards`: "paper" (those of the GiGPO paper's
    runs, without penalties) or "gym_cards" (with the penalties of the environments that those were made from)."""

    depends_on: ClassVar[tuple[str, ...]] = ("observe", "anchor", "rewards", "scale")
    reward_range: ClassVar[tuple[float, float]]  # of one step, whichever rewards are chosen

    def __init__(self, observe: Observed = "text", anchor: Anchor = "observation", rewards: Rewards = "paper", scale: int = 2):
        check_choice("way to observe", observe, ("text", "image", "both"))
        check_choice("anchor", anchor, ("observation", "state"))
        check_choice("rewards", rewards, ("paper", "gym_cards"))
        super().__init__()
        self.observe, self.anchor, self.rewards = observe, anchor, rewards
        self.scale = checked_count(scale, 1, LARGEST_SCALE, f"cards: scale must be an integer from 1 to {LARGEST_SCALE}")
        self._seed = 0

    def _begin(self, task: Task, seed: int) -> None:
        self._seed = seed
        self._start(task, seed)

    def _play(self, action: str) -> Transition:
        played = self._act(action.strip().lower())
        return Transition(self._see(), played.reward, played.done, played.success, played.info)

    def _kept(self) -> dict[str, Any]:
        """The seed, and what has been played: the random numbers that are left follow from them."""
        return {"seed": self._seed, "played": self._played()}

    def _resume(self, task: Task, kept: Mapping[str, Any]) -> None:
        self._begin(task, kept["seed"])
        self._replay(kept["played"])

    def _see(self) -> Observation:
        text = self._words() if self.observe != "image" else "The picture shows the table."
        picture = None if self.observe == "text" else self._picture()
        anchor: str | bytes | None = None
        if self.anchor == "state":
            anchor = self._state()
        elif picture is not None and self.observe == "image":
            anchor = blake2b(picture.tobytes(), digest_size=16).digest()
        images = () if picture is None else (enlarged(picture, self.scale),)
        return Observation(text, images, self._actions(), anchor)

    @abstractmethod
    def _start(self, task: Task, seed: int) -> None: ...

    @abstractmethod
    def _act(self, word: str) -> Played: ...

    @abstractmethod
    def _played(self) -> Any:
        """What a snapshot keeps of the game, in JSON values."""

    @abstractmethod
    def _replay(self, played: Any) -> None:
        """From the start to where `_played` was called."""

    @abstractmethod
    def _words(self) -> str: ...

    @abstractmethod
    def _picture(self) -> Image: ...

    @abstractmethod
    def _state(self) -> str: ...

    @abstractmethod
    def _actions(self) -> tuple[str, ...]: ...


def drawn_tasks(name: str, split: str, n: int | None, draw: Callable[[Dice], tuple[str, dict[str, Any]] | None], key: str = "") -> TaskSet:
    """Unlimited tasks: `draw` makes one from dice, as the key that decides its split and its data, or None if it is not playable. Task i
    is a pure function of its number; it is drawn again until it belongs to the split."""

    def make(index: int) -> Task:
        for attempt in range(ATTEMPTS):
            found = draw(Dice(f"{name} 1 {key} {split} {index} {attempt}"))
            if found is not None and part_of_all(f"{name} {found[0]}") in SPLITS[split]:
                return Task(_id(name, found[1]), split, found[1])
        raise TurnwiseError(f"{name}: no task of split {split!r} was found in {ATTEMPTS} attempts")

    return endless_tasks(name, split, n, lru_cache(maxsize=4096)(make))


def listed_tasks(name: str, split: str, found: Mapping[str, dict[str, Any]]) -> TaskSet:
    """Tasks that can all be listed, by key: six parts in ten are train, two valid, two test, in an order that a hash decides."""
    check_split(name, split)
    order = sorted(found, key=lambda key: blake2b(f"{name} {key}".encode(), digest_size=16).digest())
    first, second = len(order) * 6 // 10, len(order) * 8 // 10
    part = {"train": order[:first], "valid": order[first:second], "test": order[second:]}[split]
    return TaskSet((Task(_id(name, found[key]), split, found[key]) for key in part), f"{name}/{split}")


def _id(name: str, data: Mapping[str, Any]) -> str:
    """A readable id, made from the content."""
    words = [value if isinstance(value, list) else [value] for key, value in data.items() if key != "goal"]
    return "-".join([name, *(str(word) for group in words for word in group)])
